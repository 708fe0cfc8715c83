//! Completions for shells: names known to the daemon, settings, and their values.
//!
//! Invariant: a shell never waits longer than [`WITHIN`] for a daemon. If the daemon does not
//! answer by then, there are no completions.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use forebay_config::keys::{self, Shape};
use forebay_config::value::Choice;
use forebay_config::{ValueKind, daemon_settings, tunables};
use serde_json::Value;

use crate::client::{Client, DEFAULT_SOCKET};

/// Longest wait for the daemon.
const WITHIN: Duration = Duration::from_millis(300);

/// Names of volumes.
pub(crate) fn volumes(typed: &OsStr) -> Vec<CompletionCandidate> {
    known("volumes", "name", "mode", typed)
}

/// Names of pools.
pub(crate) fn pools(typed: &OsStr) -> Vec<CompletionCandidate> {
    known("pools", "name", "io_engine", typed)
}

/// IDs of jobs.
pub(crate) fn jobs(typed: &OsStr) -> Vec<CompletionCandidate> {
    known("jobs", "id", "kind", typed)
}

/// IDs of alarms.
pub(crate) fn alarms(typed: &OsStr) -> Vec<CompletionCandidate> {
    known("alarms", "id", "message", typed)
}

/// Names of volumes and settings: `forebay get`.
pub(crate) fn volumes_and_settings(typed: &OsStr) -> Vec<CompletionCandidate> {
    if is_of_daemon(std::env::args()) {
        return daemon_settings(typed, "");
    }
    volumes(typed).into_iter().chain(settings(typed, "")).collect()
}

/// Names of volumes, and settings with their values: `forebay set`.
pub(crate) fn volumes_and_pairs(typed: &OsStr) -> Vec<CompletionCandidate> {
    if is_of_daemon(std::env::args()) {
        return daemon_pairs(typed);
    }
    let volumes = if typed.to_string_lossy().contains('=') { Vec::new() } else { volumes(typed) };
    volumes.into_iter().chain(pairs(typed)).collect()
}

/// `KEY=`, and `KEY=VALUE` if values are words.
pub(crate) fn pairs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed_text = typed.to_string_lossy();
    let Some((key, value)) = typed_text.split_once('=') else { return settings(typed, "=") };
    let tunable = tunables::all().find(|tunable| tunable.name == key);
    match tunable.map(|tunable| &tunable.kind) {
        Some(ValueKind::Choice(words)) => values(key, value, words),
        _ => Vec::new(),
    }
}

/// As [`pairs`], for the daemon itself.
fn daemon_pairs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed_text = typed.to_string_lossy();
    let Some((key, value)) = typed_text.split_once('=') else { return daemon_settings(typed, "=") };
    match keys::DAEMON.iter().find(|known| known.name == key).map(|known| known.shape) {
        Some(Shape::Choice(words)) => values(key, value, words),
        _ => Vec::new(),
    }
}

fn values(key: &str, value: &str, words: &[Choice]) -> Vec<CompletionCandidate> {
    let fitting = words.iter().filter(|word| word.name.starts_with(value));
    fitting
        .map(|word| {
            CompletionCandidate::new(format!("{key}={}", word.name)).help(Some(word.help.to_owned().into()))
        })
        .collect()
}

fn daemon_settings(typed: &OsStr, behind: &str) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let live = keys::DAEMON.iter().filter(|key| daemon_settings::NAMES.contains(&key.name));
    live.filter(|key| key.name.starts_with(&*typed))
        .map(|key| CompletionCandidate::new(format!("{}{behind}", key.name)).help(Some(key.help.into())))
        .collect()
}

/// Returns true if the completed line is about settings of the daemon itself.
fn is_of_daemon(words: impl Iterator<Item = String>) -> bool {
    words.skip_while(|word| word != "--").any(|word| word == "--daemon")
}

fn settings(typed: &OsStr, behind: &str) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let all = tunables::all().filter(|tunable| tunable.name.starts_with(&*typed));
    all.map(|tunable| {
        CompletionCandidate::new(format!("{}{behind}", tunable.name)).help(Some(tunable.help.into()))
    })
    .collect()
}

/// Returns the items at `/v1/KIND`: `name` of each that begins as typed, explained by `help`.
fn known(kind: &str, name: &str, help: &str, typed: &OsStr) -> Vec<CompletionCandidate> {
    let client = Client::new(&socket(std::env::args()));
    let Ok(answer) = client.get_within(&format!("/v1/{kind}"), WITHIN) else { return Vec::new() };
    let typed = typed.to_string_lossy();
    let all = answer.get(kind).unwrap_or(&answer).as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |of: &Value, name: &str| of[name].as_str().map(crate::screen::harmless);
    all.iter()
        .filter_map(|of| Some((text(of, name)?, text(of, help))))
        .filter(|(name, _)| name.starts_with(&*typed))
        .map(|(name, help)| CompletionCandidate::new(name).help(help.map(Into::into)))
        .collect()
}

/// Returns the admin socket: that of the completed line, or the default of commands.
fn socket(words: impl Iterator<Item = String>) -> PathBuf {
    let mut words = words.skip_while(|word| word != "--");
    while let Some(word) = words.next() {
        match word.strip_prefix("--admin") {
            Some("") => return words.next().unwrap_or_default().into(),
            Some(path) if path.starts_with('=') => return path[1..].into(),
            _ => {}
        }
    }
    std::env::var_os("FOREBAY_ADMIN").map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(found: &[CompletionCandidate]) -> Vec<String> {
        found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn settings_and_their_values_are_offered() {
        assert!(words(&pairs(OsStr::new("dirty_h"))).contains(&"dirty_high_pct=".into()));
        assert_eq!(words(&pairs(OsStr::new("mode=writet"))), ["mode=writethrough"]);
        assert!(pairs(OsStr::new("no-such=")).is_empty() && pairs(OsStr::new("flush_period=")).is_empty());
        assert_eq!(words(&daemon_pairs(OsStr::new(""))), ["metrics_listen=", "log_level="]);
        assert_eq!(words(&daemon_pairs(OsStr::new("log_level=w"))), ["log_level=warn"]);
        let of_daemon = |line: &str| is_of_daemon(line.split(' ').map(str::to_owned));
        assert!(of_daemon("forebay -- forebay set --daemon ") && !of_daemon("forebay -- forebay set "));
    }

    #[test]
    fn completion_uses_the_socket_on_the_line() {
        let of = |line: &str| socket(line.split(' ').map(str::to_owned)).display().to_string();
        assert_eq!(of("forebay -- forebay volume show --admin /x/a.sock"), "/x/a.sock");
        assert_eq!(of("forebay -- forebay --admin=b volume"), "b");
    }
}
