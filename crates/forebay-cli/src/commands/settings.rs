//! `forebay get` and `forebay set`: settings of volumes, of pools, and of the daemon itself.

use std::collections::BTreeMap;

use clap_complete::engine::ArgValueCompleter;
use forebay_admin::{DaemonInfo, Leaving, MessageId, SettingInfo, SettingsDone, SettingsRequest};

use crate::client::{self, Admin, Client, escaped};
use crate::complete;
use crate::failure::Failure;
use crate::job::{self, WaitMode};
use crate::screen::{self, Column, Table, harmless};

/// Options of `forebay get`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay get db                        all settings of volume db
  forebay get db dirty_high_pct         one value, for scripts
  forebay get --pool fast
  forebay get --daemon                  settings of the daemon itself that can be changed while it runs")]
pub(crate) struct Get {
    /// A volume, optionally followed by the name of a setting; with --pool or --daemon only the
    /// name
    #[arg(value_name = "VOLUME] [KEY", num_args = 0.., add = ArgValueCompleter::new(complete::volumes_and_settings))]
    names: Vec<String>,
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    admin: Admin,
}

/// Owner of the settings, if it is not a volume.
#[derive(Debug, clap::Args)]
struct Whose {
    /// Settings of this pool
    #[arg(long, value_name = "POOL", add = ArgValueCompleter::new(complete::pools))]
    pool: Option<String>,
    /// Settings of the daemon itself
    #[arg(long, conflicts_with = "pool")]
    daemon: bool,
}

/// Options of `forebay set`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All are changed, or none. `KEY=` sets the default.
Examples:
  forebay set db dirty_high_pct=30 flush_period=10min
  forebay set db mode=writethrough --drain
  forebay set --pool fast KEY=VALUE
  forebay set --daemon metrics_listen=127.0.0.1:8661    /metrics for Prometheus, without a token")]
pub(crate) struct Set {
    /// VOLUME KEY=VALUE..., or KEY=VALUE... with --pool or --daemon
    #[arg(value_name = "VOLUME] [KEY=VALUE", required = true, num_args = 1.., add = ArgValueCompleter::new(complete::volumes_and_pairs))]
    words: Vec<String>,
    #[command(flatten)]
    whose: Whose,
    /// Until the next start, upgrade or reload: the configuration file stays as it is
    #[arg(long)]
    temporary: bool,
    /// If the mode leaves write-back: destage all dirty data now, and wait for it
    #[arg(long, conflicts_with = "lazy")]
    drain: bool,
    /// If the mode leaves write-back: destage at the usual rate (the default)
    #[arg(long)]
    lazy: bool,
    /// Do not wait for the drain job; print its ID
    #[arg(long, requires = "drain")]
    background: bool,
    #[command(flatten)]
    admin: Admin,
}

/// Prints settings.
pub(crate) fn get(options: Get) -> Result<(), Failure> {
    let (target, rest) = target(options.whose, options.names)?;
    if rest.len() > 1 {
        return Err(Failure::usage(MessageId::CliUsage, "forebay get takes one key")
            .hint("leave the key out to see all of them"));
    }
    let client = options.admin.client();
    let answer = client.get(&format!("/v1/{target}/settings"));
    let answer = answer.map_err(|failure| or_pool(&client, &target, failure))?;
    let settings: BTreeMap<String, SettingInfo> = client::read(&answer)?;
    let Some(key) = rest.first() else {
        return if options.admin.json {
            screen::print_json(&answer)
        } else {
            screen::print(&format!("{}\n", table(&settings)))
        };
    };
    let Some(setting) = settings.get(key) else {
        let known: Vec<&str> = settings.keys().map(String::as_str).collect();
        return Err(Failure::usage(
            MessageId::SettingUnknown,
            format!("there is no setting \"{}\"", harmless(key)),
        )
        .hint(format!("there are: {}", known.join(", "))));
    };
    if options.admin.json {
        screen::print_json(&answer[key])
    } else {
        screen::print(&format!("{}\n", harmless(&setting.value)))
    }
}

/// Changes settings.
pub(crate) fn set(options: Set) -> Result<(), Failure> {
    let (target, words) = target(options.whose, options.words)?;
    if words.is_empty() {
        return Err(Failure::usage(MessageId::SettingMissing, "nothing to set")
            .hint("for example: forebay set db dirty_high_pct=30"));
    }
    let mut set = BTreeMap::new();
    for word in &words {
        let (key, value) = pair(word).map_err(|what| {
            Failure::usage(MessageId::SettingSyntax, what).hint("for example: dirty_high_pct=30")
        })?;
        if set.insert(key.clone(), Some(value).filter(|value| !value.is_empty())).is_some() {
            return Err(Failure::usage(MessageId::SettingTwice, format!("{}: is set twice", harmless(&key)))
                .hint("keep one of them"));
        }
    }
    let leaving = if options.drain { Leaving::Drain } else { Leaving::Lazy };
    let request = SettingsRequest { set, temporary: options.temporary, leaving };
    let client = options.admin.client();
    let answer = client.patch(&format!("/v1/{target}/settings"), &request);
    let answer = answer.map_err(|failure| or_pool(&client, &target, failure))?;
    let done: SettingsDone = client::read(&answer)?;
    if options.admin.json {
        screen::print_json(&answer)?;
    } else {
        screen::print(&changes(&done))?;
        if done.changed.iter().any(|(key, ..)| key == "metrics_listen") {
            screen::print(&metrics_place(&client::read(&client.get("/v1/daemon")?)?))?;
        }
    }
    match &done.job {
        Some(id) => {
            let job = client.get(&format!("/v1/jobs/{}", escaped(id)))?;
            job::attend(&client, &job, WaitMode { background: options.background, json: options.admin.json })
        }
        None => Ok(()),
    }
}

/// Returns the address of the metrics: the system may have chosen the port.
fn metrics_place(daemon: &DaemonInfo) -> String {
    let at = |address: &String| format!("metrics: http://{}/metrics\n", harmless(address));
    daemon.metrics.as_ref().map_or_else(String::new, at)
}

/// Returns `daemon`, `pools/NAME` or `volumes/NAME`, and the remaining words.
fn target(whose: Whose, mut words: Vec<String>) -> Result<(String, Vec<String>), Failure> {
    if whose.daemon {
        return Ok(("daemon".into(), words));
    }
    if let Some(pool) = whose.pool {
        return Ok((format!("pools/{}", escaped(&pool)), words));
    }
    if words.is_empty() || words[0].contains('=') {
        return Err(Failure::usage(MessageId::CliUsage, "which volume?")
            .hint("give its name first, or --pool POOL, or --daemon"));
    }
    let volume = words.remove(0);
    Ok((format!("volumes/{}", escaped(&volume)), words))
}

/// Adds a hint to the failure for an unknown volume if there is a pool of this name.
fn or_pool(client: &Client, target: &str, failure: Failure) -> Failure {
    let Some(name) = target.strip_prefix("volumes/").filter(|_| failure.is_not_found()) else {
        return failure;
    };
    match client.get_if_there(&format!("/v1/pools/{name}")) {
        Ok(Some(_)) => failure.hint(format!("it is a pool: --pool {name}")),
        _ => failure,
    }
}

/// Parses `KEY=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err(format!("\"{}\" is not KEY=VALUE", harmless(text))),
    }
}

pub(super) fn table(settings: &BTreeMap<String, SettingInfo>) -> Table {
    let mut table = Table::new([
        Column::text("setting", 0),
        Column::text("value", 0),
        Column::text("default", 1),
        Column::text("takes", 2),
        Column::text("live", 3),
    ]);
    for (key, setting) in settings {
        let live = if setting.live { "yes" } else { "no" };
        table.add_row(
            [key, &setting.value, &setting.default, &setting.takes, live].map(|cell: &str| harmless(cell)),
        );
    }
    table
}

fn changes(done: &SettingsDone) -> String {
    if done.changed.is_empty() && done.written.is_empty() {
        return "nothing changed: the values are as before\n".into();
    }
    let changed = done.changed.iter().map(|(key, old, new)| format!("{key}: {old} -> {new}"));
    let written =
        done.written.iter().map(|key| format!("{key}: as before; the configuration file has it now"));
    changed.chain(written).map(|line| harmless(&line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_the_volume() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let of = |pool: Option<&str>, daemon| Whose { pool: pool.map(str::to_owned), daemon };
        let none = || of(None, false);
        assert_eq!(target(none(), words(&["a b", "k"])).unwrap(), ("volumes/a%20b".into(), words(&["k"])));
        let set = || words(&["k=1"]);
        assert_eq!(target(of(Some("p"), false), set()).unwrap(), ("pools/p".into(), set()));
        assert_eq!(target(of(None, true), set()).unwrap(), ("daemon".into(), set()));
        assert!(target(none(), set()).is_err() && target(none(), vec![]).is_err());
    }

    #[test]
    fn pool_name_as_volume_suggests_the_flag() {
        let none =
            || Failure::not_found(MessageId::VolumeUnknown, "no volume \"fast\"").hint("there are: db");
        let hint = |answer: (u16, &str)| {
            let answers = vec![(answer.0, answer.1.to_owned())];
            format!("{:?}", client::with_answers(answers, |client| or_pool(client, "volumes/fast", none())))
        };
        assert!(hint((200, "{}")).contains("it is a pool: --pool fast"));
        assert!(hint((404, "{}")).contains("there are: db"));
    }
}
