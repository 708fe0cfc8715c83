//! The commands, one file each.

mod advise;
mod alarms;
mod answers;
mod cache;
mod check;
mod completions;
mod config;
mod demo;
mod events;
mod findings;
mod flush;
mod help;
mod inspect;
mod iostat;
mod jobs;
mod key;
mod list;
mod man;
mod mounts;
mod pool;
mod reload;
mod rules;
mod run;
mod salvage;
#[cfg(test)]
mod screens;
mod serve;
mod settings;
mod stats;
mod status;
mod top;
mod trace;
mod ublk;
mod upgrade;
mod usage;
mod volume;
mod what_if;

use crate::failure::Failure;

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Serve one volume in the foreground
    Run(Box<run::Options>),
    /// Run the daemon: the pools and volumes of a configuration file
    Serve(serve::Options),
    /// Check and explain configuration files
    #[command(subcommand)]
    Config(config::Command),
    /// Show daemon, alarms, pools, volumes and jobs on one screen
    Status(status::Options),
    /// List volumes: disk, device, users, hits and dirty data, a line for each
    #[command(visible_alias = "ls")]
    List(list::Options),
    /// Create, list, show, grow, shrink and remove pools of cache devices
    #[command(subcommand)]
    Pool(Box<pool::Command>),
    /// Attach, detach, list, show and resize volumes
    #[command(subcommand)]
    Volume(Box<volume::Command>),
    /// Put a cache in front of a mounted disk: pool, volume, mount and line of fstab
    Cache(cache::Cache),
    /// Take the cache away from a mounted disk
    Uncache(cache::Uncache),
    /// Show settings of volumes and pools
    Get(settings::Get),
    /// Change settings, live
    Set(settings::Set),
    /// Destage all blocks that are dirty now
    Flush(flush::Options),
    /// List, follow and cancel jobs
    Jobs(jobs::Options),
    /// Print events
    Events(events::Options),
    /// List and acknowledge alarms
    Alarms(alarms::Options),
    /// List, add and delete caching rules
    #[command(subcommand, alias = "rule")]
    Rules(rules::Command),
    /// Make the daemon reload its configuration file
    Reload(reload::Options),
    /// Let the installed program take over from the running daemon, without an I/O error
    Upgrade(upgrade::Options),
    /// Watch volumes, jobs and alarms, live
    Top(top::Options),
    /// Show what Forebay does: the same workload without and with a cache, every byte verified
    Demo(demo::Options),
    /// Verify every structure and checksum of a cache device, offline and without writing to it
    Check(check::Options),
    /// Print the structures of a cache device, offline
    Inspect(inspect::Options),
    /// Extract the dirty data of a cache without a daemon, even from a damaged one
    Salvage(salvage::Options),
    /// List and remove block devices (ublk:) that wait for a daemon
    #[command(subcommand)]
    Ublk(ublk::Command),
    /// Show counters and latencies of a running volume
    Stats(stats::Options),
    /// Watch operations, bytes and latencies of all pools and volumes, a line for each
    Iostat(iostat::Options),
    /// Report whether a larger or smaller cache would help
    Advise(advise::Options),
    /// Predict the effect of other caches and settings on a trace
    WhatIf(what_if::Options),
    /// Record, convert and replay traces of requests
    #[command(subcommand)]
    Trace(trace::Command),
    /// Print a completion script for a shell
    Completions(completions::Options),
    /// Write manual pages
    Man(man::Options),
    /// Explain a command, a task or the ID of a message
    Help(help::Options),
}

impl Command {
    /// Executes the command. `whole` is the definition of the command line.
    pub(crate) fn execute(self, whole: &mut clap::Command) -> Result<(), Failure> {
        match self {
            Self::Run(options) => run::execute(*options),
            Self::Serve(options) => serve::execute(&options),
            Self::Config(options) => config::execute(&options),
            Self::Status(options) => status::execute(&options),
            Self::List(options) => list::execute(&options),
            Self::Pool(options) => pool::execute(*options),
            Self::Volume(options) => volume::execute(*options),
            Self::Cache(options) => cache::cache(options),
            Self::Uncache(options) => cache::uncache(options),
            Self::Get(options) => settings::get(options),
            Self::Set(options) => settings::set(options),
            Self::Flush(options) => flush::execute(&options),
            Self::Jobs(options) => jobs::execute(&options),
            Self::Events(options) => events::execute(&options),
            Self::Alarms(options) => alarms::execute(&options),
            Self::Rules(options) => rules::execute(options),
            Self::Reload(options) => reload::execute(&options),
            Self::Upgrade(options) => upgrade::execute(&options),
            Self::Top(options) => top::execute(&options),
            Self::Demo(options) => demo::execute(&options),
            Self::Check(options) => check::execute(&options),
            Self::Inspect(options) => inspect::execute(&options),
            Self::Salvage(options) => salvage::execute(&options),
            Self::Ublk(command) => ublk::execute(&command),
            Self::Stats(options) => stats::execute(&options),
            Self::Iostat(options) => iostat::execute(&options),
            Self::Advise(options) => advise::execute(&options),
            Self::WhatIf(options) => what_if::execute(&options),
            Self::Trace(command) => trace::execute(&command),
            Self::Completions(options) => completions::execute(&options),
            Self::Man(options) => man::execute(&options, whole),
            Self::Help(options) => help::execute(&options, whole),
        }
    }
}
