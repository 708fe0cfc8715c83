//! `forebay upgrade`: a successor takes over from the running daemon.

use std::time::{Duration, Instant};

use forebay_daemon::control::{DaemonInfo, UpgradeBegun, UpgradeInfo};

use crate::client::{self, Admin};
use crate::failure::Failure;
use crate::screen::{self, harmless};

/// Longest time that a successor may take, as the daemon has it, and some more.
const WITHIN: Duration = Duration::from_secs(180);
/// How often it is asked who answers.
const LOOK: Duration = Duration::from_millis(50);

/// Options of `forebay upgrade`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon starts the program that lies where it was started from itself. That reads the configuration and takes over pools,
sockets and connections between two requests; clients wait for a moment. If it cannot, the old daemon goes on.
Clients with TLS are disconnected and must connect again; with files (fuse:) there is no upgrade, see docs/restart.md.")]
pub(crate) struct Options {
    #[command(flatten)]
    admin: Admin,
}

/// Upgrades, and says how that ended.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let client = options.admin.client();
    let begun: UpgradeBegun = client::read(&client.post_nothing("/v1/upgrade")?)?;
    let until = Instant::now() + WITHIN;
    let info = loop {
        // Nobody answers in between, and some who ask then are cut off.
        if let Some(info) = client.get("/v1/daemon").ok().and_then(|answer| ended(&answer, &begun)) {
            break info;
        }
        if Instant::now() >= until {
            return Err(Failure::new(format!(
                "neither process {} nor {} answers",
                begun.from_pid, begun.pid
            ))
            .hint("look at the log of the daemon"));
        }
        std::thread::sleep(LOOK);
    };
    if let Some(why) = &info.error {
        return Err(Failure::new(format!("not upgraded: {}", harmless(why)))
            .hint(format!("process {} goes on as before", info.from_pid)));
    }
    if options.admin.json {
        return screen::print_json(&serde_json::to_value(&info).unwrap_or_default());
    }
    let version = harmless(&begun.version);
    screen::print(&format!(
        "process {} (version {version}) has taken over from {}; clients waited {} ms\n",
        info.to_pid, info.from_pid, info.paused_ms
    ))
}

/// How the upgrade ended, if it has.
fn ended(answer: &serde_json::Value, begun: &UpgradeBegun) -> Option<UpgradeInfo> {
    let daemon: DaemonInfo = client::read(answer).ok()?;
    daemon.upgrade.filter(|upgrade| upgrade.to_pid == begun.pid)
}
