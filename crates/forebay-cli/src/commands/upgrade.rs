//! `forebay upgrade`: a successor takes over from the running daemon.

use forebay_admin::events::EventKind;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_admin::{DaemonInfo, MessageId, UpgradeBegun, UpgradeInfo, VolumeInfo};
use forebay_pool::shell_word::quoted;

use crate::client::{self, Admin, Client};
use crate::failure::Failure;
use crate::screen::{self, harmless};

/// The daemon's time limit for a successor, plus a margin.
const WITHIN: Duration = Duration::from_secs(180);
/// Interval of checks for the process that answers.
const LOOK: Duration = Duration::from_millis(50);

/// Options of `forebay upgrade`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon starts the program that is now at its own path. That program reads the configuration and takes over
pools, sockets and connections between two requests. If it cannot, the old daemon continues. Clients with TLS must
connect again. With files (fuse:) and virtual machines (vhost-user:) there is no upgrade; block devices (ublk:) wait
meanwhile. See forebay help restart.")]
pub(crate) struct Options {
    /// Refuse if clients would be disconnected: those with TLS. Package upgrades use this
    #[arg(long)]
    keep_clients: bool,
    #[command(flatten)]
    admin: Admin,
}

/// Upgrades, and reports the result.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let client = options.admin.client();
    if options.keep_clients {
        refuse_if_disconnecting(&client)?;
    }
    let begun: UpgradeBegun = client::read(&client.post_nothing("/v1/upgrade")?)?;
    let until = Instant::now() + WITHIN;
    let both = [begun.from_pid, begun.pid];
    // A daemon in another PID namespace is not visible here.
    let visible = both.iter().any(|pid| is_alive(*pid));
    let moved = begun.admin_socket.as_ref().map(|socket| Client::new(Path::new(socket)));
    let info = loop {
        // During the handover there is no answer, and some requests are cut off.
        let answer = client.get("/v1/daemon").ok();
        let answer = answer.or_else(|| moved.as_ref()?.get("/v1/daemon").ok());
        if let Some(info) = answer.as_ref().and_then(|answer| ended(answer, &begun)) {
            break info;
        }
        if let Some(other) = answer.as_ref().and_then(|answer| stranger(answer, &both)) {
            return Err(Failure::new(
                MessageId::UpgradeLost,
                format!(
                    "not upgraded: processes {} and {} have ended, and another daemon, {other}, answers",
                    begun.from_pid, begun.pid
                ),
            )
            .hint("check the log of the daemon"));
        }
        if answer.is_none() && visible && !both.iter().any(|pid| is_alive(*pid)) {
            return Err(Failure::new(
                MessageId::UpgradeLost,
                format!(
                    "not upgraded: processes {} and {} have ended, and no daemon serves",
                    begun.from_pid, begun.pid
                ),
            )
            .hint("check the log of the daemon, and start it again: it recovers as after a crash"));
        }
        if Instant::now() >= until {
            return Err(Failure::new(
                MessageId::UpgradeLost,
                format!("neither process {} nor {} answers", begun.from_pid, begun.pid),
            )
            .hint("check the log of the daemon"));
        }
        std::thread::sleep(LOOK);
    };
    if let Some(why) = &info.error {
        return Err(Failure::new(
            MessageId::Event(EventKind::DaemonUpgradeFailed),
            format!("not upgraded: {}", harmless(why)),
        )
        .hint(format!("process {} continues as before", info.from_pid)));
    }
    if options.admin.json {
        return screen::print_json(&serde_json::to_value(&info).unwrap_or_default());
    }
    let version = harmless(&begun.version);
    let moved = begun.admin_socket.as_ref();
    let moved = moved.map_or_else(String::new, |socket| {
        format!("its admin socket is another one: --admin {}\n", quoted(harmless(socket)))
    });
    screen::print(&format!(
        "process {} (version {version}) has taken over from {}; clients waited {} ms\n{moved}",
        info.to_pid, info.from_pid, info.paused_ms
    ))
}

/// Refuses an upgrade that would disconnect clients. A connection with TLS cannot be handed over.
/// The daemon does not report which of a volume's clients have one, so all clients of a volume with
/// such an export count.
fn refuse_if_disconnecting(client: &Client) -> Result<(), Failure> {
    let volumes: Vec<VolumeInfo> = client::list(&client.get("/v1/volumes")?, "volumes")?;
    match volumes.iter().find(|volume| may_be_disconnected(volume)) {
        None => Ok(()),
        Some(volume) => Err(Failure::new(MessageId::UpgradeBlocked, format!(
            "not upgraded: volume {} has clients and an export with TLS, and clients with TLS would be disconnected",
            harmless(&volume.name)
        ))
        .hint("if they connect again by themselves: forebay upgrade")),
    }
}

fn may_be_disconnected(volume: &VolumeInfo) -> bool {
    volume.connections > 0 && volume.exports.iter().any(|export| export.starts_with("nbds"))
}

/// Returns the result of the upgrade, if it has ended.
fn ended(answer: &serde_json::Value, begun: &UpgradeBegun) -> Option<UpgradeInfo> {
    let daemon: DaemonInfo = client::read(answer).ok()?;
    daemon.upgrade.filter(|upgrade| upgrade.to_pid == begun.pid)
}

/// Returns the PID of a daemon that is neither of the two and was started since.
fn stranger(answer: &serde_json::Value, both: &[u32; 2]) -> Option<u32> {
    let daemon: DaemonInfo = client::read(answer).ok()?;
    (!both.contains(&daemon.pid)).then_some(daemon.pid)
}

/// Returns true if there is such a process, and it has not ended.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // "1234 (name) S ..."
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !(stat.is_empty() || state.starts_with(['Z', 'X']))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::{VolumeInfo, is_alive, may_be_disconnected};
    use serde_json::json;

    #[test]
    fn tls_clients_are_listed_as_disconnected() {
        let volume = |exports: &[&str], connections: u64| -> VolumeInfo {
            serde_json::from_value(json!({
                "name": "db", "pool": "fast", "state": "serving", "backing": "file:/d", "exports": exports,
                "size_bytes": 1, "mode": "writeback", "cached_bytes": 0, "dirty_bytes": 0,
                "oldest_dirty_age_ns": 0, "destage_limited_by": "", "ordered": false,
                "connections": connections, "job": null,
            }))
            .unwrap()
        };
        let plain = "nbd+unix:///db?socket=/s";
        for tls in ["nbds://0.0.0.0:10809/db?tls=lan", "nbds+unix:///db?socket=/t&tls=lan"] {
            assert!(may_be_disconnected(&volume(&[plain, tls], 1)));
            assert!(!may_be_disconnected(&volume(&[plain, tls], 0)));
        }
        assert!(!may_be_disconnected(&volume(&[plain, "ublk:7"], 3)));
    }

    #[test]
    fn an_ended_process_is_dead_before_its_wait() {
        assert!(is_alive(std::process::id()));
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(is_alive(child.id()));
        drop(child.stdin.take());
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }
}
