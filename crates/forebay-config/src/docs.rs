//! Documents generated from the registry: the annotated example, and the tables of
//! docs/use/settings.md. Golden tests keep the files under docs equal to this output.

use super::keys::{self, Key, Shape};
use super::tunables::{Scope, Tunable};
use super::value::{Value, ValueKind};
use std::fmt::Write;

/// Returns `forebay.example.toml`: a usable file with every key and its default as a comment.
#[must_use]
pub fn example() -> String {
    let mut out = String::from(
        "# Configuration of `forebay serve`: every key, with its default.\n\
         # Lines in comments are the default or an example; all others are required.\n\
         # Sizes: 4KiB, 512M, 10GiB (1024) or 10GB (1000). Durations: 250ms, 30s, 5min.\n\
         # `forebay set` changes this file and keeps its comments.\n\n[daemon]\n",
    );
    keys::DAEMON.iter().for_each(|key| write_key(&mut out, key));
    out += "\n# TLS for the exports that name it: nbds://0.0.0.0:10809/db?tls=lan\n[tls.lan]\n";
    for key in keys::TLS {
        // With an authority: without one, every client that can connect is accepted.
        write_key(&mut out, &Key { required: key.required || key.name == "client_ca_file", ..*key });
    }
    out += "\n# Clients that may use the exports that name it: nbd+unix:///db?socket=/run/forebay/db.sock&access=hosts\n[access.hosts]\n";
    for key in keys::ACCESS {
        write_comment(&mut out, key.help);
        let used = key.name == "uids";
        let _ = writeln!(out, "{}{} = {}", if used { "" } else { "# " }, key.name, key.example);
    }
    out += "\n# A pool: cache devices, and the volumes that share them.\n[pool.fast]\n";
    keys::POOL.iter().for_each(|key| write_key(&mut out, key));
    Scope::Pool.tunables().iter().for_each(|tunable| write_tunable(&mut out, tunable));
    out +=
        "\n# A volume: a backing store, the pool that caches it, and where clients find it.\n[volume.db]\n";
    keys::VOLUME.iter().filter(|key| key.name != "rule").for_each(|key| write_key(&mut out, key));
    Scope::Volume.tunables().iter().for_each(|tunable| write_tunable(&mut out, tunable));
    out += "\n# Rules of the volume: the first one whose conditions all match decides.\n[[volume.db.rule]]\n";
    for key in keys::RULE {
        write_comment(&mut out, key.help);
        let used = matches!(key.name, "action" | "name" | "exe");
        let _ = writeln!(out, "{}{} = {}", if used { "" } else { "# " }, key.name, key.example);
    }
    out
}

fn write_comment(out: &mut String, text: &str) {
    let _ = writeln!(out, "\n# {text}");
}

fn write_key(out: &mut String, key: &Key) {
    let more = match key.shape {
        Shape::Choice(choices) => {
            let names: Vec<&str> = choices.iter().map(|choice| choice.name).collect();
            format!(": {}", names.join(", "))
        }
        _ => String::new(),
    };
    write_comment(out, &format!("{}{more}", key.help));
    let _ = writeln!(out, "{}{} = {}", if key.required { "" } else { "# " }, key.name, key.example);
}

fn write_tunable(out: &mut String, tunable: &Tunable) {
    write_comment(out, &format!("{} [{}; {}]", tunable.help, tunable.kind.takes(), tunable.applies.words()));
    let _ = writeln!(out, "# {} = {}", tunable.name, written((tunable.default)()));
}

/// Formats a value for the file.
fn written(value: Value) -> String {
    match value {
        Value::Count(number) => number.to_string(),
        other => format!("\"{other}\""),
    }
}

/// Returns the tables of docs/use/settings.md.
#[must_use]
pub fn tunables_markdown() -> String {
    let mut out = String::from(
        "# Settings\n\n\
         Made from the registry in `crates/forebay-config/src/tunables.rs`; do not edit by hand.\n\n\
         A setting is also called tunable. It is set in [forebay.toml](forebay.example.toml) in the section of its pool\n\
         or volume, or changed with `forebay set`, the admin API or the control files. They write it into the same\n\
         file. *Applies* shows when a change takes effect: *live* is at once, while requests run. Percentages of dirty\n\
         data and of shares are of the capacity of the pool.\n",
    );
    for scope in [Scope::Volume, Scope::Pool] {
        let _ = write!(
            out,
            "\n## Of a {}\n\n| name | takes | default | applies | what it does |\n",
            scope.name()
        );
        out += "| --- | --- | --- | --- | --- |\n";
        for tunable in scope.tunables() {
            let Tunable { name, default, help, .. } = tunable;
            let (takes, applies) = (tunable.kind.takes(), tunable.applies.words());
            let _ = writeln!(out, "| `{name}` | {takes} | {} | {applies} | {help} |", default());
        }
    }
    choices_markdown(&mut out);
    out
}

fn choices_markdown(out: &mut String) {
    *out += "\n## Words\n\n| tunable | word | meaning |\n| --- | --- | --- |\n";
    for tunable in super::tunables::all() {
        let ValueKind::Choice(choices) = tunable.kind else { continue };
        for choice in choices {
            let _ = writeln!(out, "| `{}` | `{}` | {} |", tunable.name, choice.name, choice.help);
        }
    }
}
