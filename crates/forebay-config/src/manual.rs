//! forebay.toml(5), the manual page of the configuration file, generated from the registry.
//!
//! The output uses the man(7) macros. Text from the registry never becomes a request: lines that
//! begin with a control character, and backslashes, are escaped.

use super::keys::{self, Key, Shape};
use super::tunables::{Scope, Tunable};
use super::value::{Choice, ValueKind};
use std::fmt::Write;

/// Returns the page, for this version of the program.
#[must_use]
pub fn page(version: &str) -> String {
    let mut out = format!(".TH forebay.toml 5 \"\" \"forebay {version}\" \"Forebay\"\n");
    out += HEAD;
    section(&mut out, "[daemon]", "The daemon itself.", keys::DAEMON, &[]);
    section(&mut out, "[tls.NAME]", "Certificates, for the exports that name them.", keys::TLS, &[]);
    section(
        &mut out,
        "[access.NAME]",
        "Clients that may use the exports that name the list.",
        keys::ACCESS,
        &[],
    );
    let pool = "A pool: cache devices, and the volumes that share them.";
    section(&mut out, "[pool.NAME]", pool, keys::POOL, Scope::Pool.tunables());
    let volume = "A volume: a backing store, the pool that caches it, and where clients find it.";
    let keys_of_volume: Vec<Key> = keys::VOLUME.iter().filter(|key| key.name != "rule").copied().collect();
    section(&mut out, "[volume.NAME]", volume, &keys_of_volume, Scope::Volume.tunables());
    let rule = "Rules of the volume: the first one whose conditions all match decides.";
    section(&mut out, "[[volume.NAME.rule]]", rule, keys::RULE, &[]);
    out += TAIL;
    out
}

const HEAD: &str = r#".SH NAME
forebay.toml \- configuration of the Forebay daemon
.SH SYNOPSIS
.I /etc/forebay/forebay.toml
.SH DESCRIPTION
.BR forebay\-serve (1)
reads this file when it starts and on request
.RB ( forebay\-reload (1)).
It is written in TOML, and has a section for the daemon, for each pool of cache devices and for each volume.
.BR forebay\-set (1)
and the commands that make pools and volumes change it and keep its comments.
.B forebay config check
lists everything that is wrong with it.
.B forebay config example
prints one with every key.
.PP
Sizes are written 4KiB, 512M, 10GiB (powers of 1024) or 10GB (powers of 1000), durations 250ms, 30s, 5min.
A setting takes effect
.I live
(at once),
.I at attach
(when the volume is attached the next time),
.I at start
(of the pool) or
.I at creation
(of the cache).
"#;

const TAIL: &str = r#".SH FILES
.TP
.I /etc/forebay/forebay.toml
the configuration
.TP
.I /var/lib/forebay
records that the daemon keeps between runs
.SH SEE ALSO
.BR forebay (1),
.BR forebay\-config\-check (1),
.BR forebay\-set (1)
"#;

fn section(out: &mut String, name: &str, about: &str, keys: &[Key], tunables: &[Tunable]) {
    let _ = write!(out, ".SH {}\n{}\n", quoted(name), escaped(about));
    for key in keys {
        let needed = if key.required { " (required)" } else { "" };
        entry(out, &format!("{} = {}", key.name, key.example), &format!("{}{needed}", key.help));
        if let Shape::Choice(choices) = key.shape {
            words(out, choices);
        }
    }
    for tunable in tunables {
        let Tunable { name, default, help, kind, applies, .. } = tunable;
        let (default, takes) = (default(), kind.takes());
        entry(out, &format!("{name} = {default}"), &format!("{help} ({takes}; {})", applies.words()));
        if let ValueKind::Choice(choices) = *kind {
            words(out, choices);
        }
    }
}

fn entry(out: &mut String, head: &str, text: &str) {
    let _ = write!(out, ".TP\n.B {}\n{}\n", quoted(head), escaped(text));
}

fn words(out: &mut String, choices: &[Choice]) {
    *out += ".RS\n";
    choices.iter().for_each(|choice| entry(out, choice.name, choice.help));
    *out += ".RE\n";
}

/// Formats one argument of a macro.
fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text).replace('"', "\\(dq"))
}

/// Escapes text so that it is printed literally.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\(rs").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_and_setting_has_an_entry() {
        let page = page("1.2.3");
        let keys = [keys::DAEMON, keys::TLS, keys::ACCESS, keys::POOL, keys::RULE];
        let keys = keys.into_iter().flatten().map(|key| key.name);
        let settings = super::super::tunables::all().map(|tunable| tunable.name);
        for name in keys.chain(settings) {
            assert!(page.contains(&format!("\n.B \"{name} = ")), "{name}");
        }
        assert!(page.starts_with(".TH forebay.toml 5 \"\" \"forebay 1.2.3\""));
    }

    #[test]
    fn text_never_becomes_a_roff_request() {
        assert_eq!(escaped(".so /etc/passwd"), "\\&.so /etc/passwd");
        assert_eq!(escaped("'a\\b-c"), "\\&'a\\(rsb\\-c");
        assert_eq!(quoted("a \"b\""), "\"a \\(dqb\\(dq\"");
    }
}
