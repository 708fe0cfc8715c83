//! `flashcache-model`: serves a volume behind the FlashCache model.
//!
//! Contract with scripts, as with `forebay run`: `ready: URI` on stdout reports that clients can
//! connect, all other output is on stderr; exit code 0 done, 1 failed, 2 wrong usage.
#![forbid(unsafe_code)]

use clap::Parser;
use forebay_admin::MessageId;
use forebay_config::CacheSpec;
use forebay_export::uri::{BackingUri, ExportUri};
use forebay_flashcache_model::Model;
use forebay_flashcache_model::api::SECOND;
use forebay_flashcache_model::config::{Config, Flush, Mode, Reclaim};
use forebay_flashcache_model::open::{mark_clean, open_cache};
use forebay_flashcache_model::volume::{CacheVolume, StatsFile};
use forebay_io::{DeviceModel, EnginePreference, Reactor};
use forebay_lab_host::{HostEvent, HostOptions, open_backing, serve};
use forebay_pool::RunError;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const NOTES: &str = "\
This is a model of FlashCache's published algorithm, for comparisons; it is not FlashCache, and does not recover after a crash.
A start begins with an empty cache. SIGINT or SIGTERM stops it in an orderly way: everything dirty is written to the backing
store first (a second signal ends it at once, and loses it). SIGUSR1 does what do_sync does: it cleans everything meanwhile.
Example:
  flashcache-model --backing disk.img --cache flash.img:1GiB --export 'nbd+unix:///v?socket=/tmp/v.sock' --emulate hdd-7200";

/// A model of FlashCache's published algorithm, served over NBD and FUSE.
#[derive(Debug, Parser)]
#[command(name = "flashcache-model", version, max_term_width = 120, arg_required_else_help = true, after_help = NOTES)]
struct Options {
    /// The slow device: a file (file:/srv/disk.img) or a block device (/dev/sdb)
    #[arg(long, value_name = "URI")]
    backing: BackingUri,
    /// The fast device: a file or a block device, with the size to create a new file
    /// (flash.img:10GiB)
    #[arg(long, value_name = "PATH[:SIZE]")]
    cache: CacheSpec,
    /// Where clients connect to the volume: nbd+unix:///name?socket=/path, nbd://host:port/name or
    /// fuse:/path/file; may be repeated
    #[arg(long = "export", value_name = "URI", required = true)]
    exports: Vec<ExportUri>,
    /// Make the backing store as slow as this device: hdd-7200, or card-d or card-t, full flash
    /// cards of 2010; card-d:5 has a fifth of its chips
    #[arg(long, value_name = "MODEL")]
    emulate: Option<DeviceModel>,
    /// The same for the cache device
    #[arg(long, value_name = "MODEL")]
    emulate_cache: Option<DeviceModel>,
    /// Write mode: back, through or around
    #[arg(long, value_name = "MODE", default_value = "back", value_parser = mode)]
    mode: Mode,
    /// Percent of a set's blocks that may be dirty, 10 to 95
    #[arg(long, value_name = "N", default_value_t = Config::default().dirty_thresh_pct)]
    dirty_thresh_pct: u32,
    /// Blocks of a set: a power of two, 256 to 8192
    #[arg(long, value_name = "N", default_value_t = Config::default().assoc)]
    assoc: u32,
    /// Eviction policy for clean blocks: fifo or lru
    #[arg(long, value_name = "POLICY", default_value = "fifo", value_parser = reclaim)]
    reclaim: Reclaim,
    /// Blocks under cleaning in a set, above which it selects no more victims
    #[arg(long, value_name = "N", default_value_t = Config::default().max_clean_ios_set)]
    max_clean_ios_set: u32,
    /// The same for the whole cache
    #[arg(long, value_name = "N", default_value_t = Config::default().max_clean_ios_total)]
    max_clean_ios_total: u32,
    /// Seconds between two sweeps for idle dirty blocks; 0: none
    #[arg(long, value_name = "SECONDS", default_value_t = Config::default().fallow_delay / SECOND)]
    fallow_delay: u64,
    /// Batches of idle blocks that a set may clean in a second, 1 to 100
    #[arg(long, value_name = "N", default_value_t = Config::default().fallow_clean_speed)]
    fallow_clean_speed: u32,
    /// Handling of FLUSH: ignore (as in FlashCache; the reply is immediate) or device (flush the
    /// devices)
    #[arg(long, value_name = "WHAT", default_value = "ignore", value_parser = flush)]
    flush: Flush,
    /// Write settings, state and counters to this file as JSON, each second and at the end
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// System call interface for I/O: auto, uring or psync
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    io: EnginePreference,
}

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return usage(&error),
    };
    let (what, hint, code) = match run(&options) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(RunError::Usage { what, .. }) => (what, "`--help` shows the options".to_owned(), 2),
        Err(RunError::Failed { what, hint, .. }) => (what, hint, 1),
    };
    eprintln!("flashcache-model: {what}");
    if !hint.is_empty() {
        eprintln!("  hint: {hint}");
    }
    ExitCode::from(code)
}

/// Prints help and version to stdout; errors of the command line give exit code 2.
fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print().is_ok();
    if error.use_stderr() {
        ExitCode::from(2)
    } else if printed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(options: &Options) -> Result<(), RunError> {
    let config = Config {
        mode: options.mode,
        assoc: options.assoc,
        dirty_thresh_pct: options.dirty_thresh_pct,
        reclaim: options.reclaim,
        max_clean_ios_set: options.max_clean_ios_set,
        max_clean_ios_total: options.max_clean_ios_total,
        fallow_delay: options.fallow_delay.saturating_mul(SECOND).min(u64::MAX / 4),
        fallow_clean_speed: options.fallow_clean_speed,
        flush: options.flush,
    };
    config.check().map_err(|refused| RunError::usage(MessageId::SettingValue, refused.to_string()))?;
    let backing = open_backing(&options.backing, options.emulate)?;
    let cache = open_cache(&options.cache, options.emulate_cache)?;
    for note in backing.notes.iter().chain(&cache.notes) {
        eprintln!("flashcache-model: {note}");
    }
    let model = Model::new(config, cache.size_bytes).map_err(|refused| failed(&refused))?;
    cache.mark_in_use()?;
    let stats = options.stats.clone().map(StatsFile::new).transpose();
    let stats = stats.map_err(|error| failed(&format!("cannot write the statistics: {error}")))?;
    let make = |reactor: &mut Reactor| {
        let disk = reactor.add_device(backing.device);
        let cache = reactor.add_device(cache.device);
        reactor.prefer_device(cache);
        Ok(CacheVolume::new(model, cache, disk, stats))
    };
    let host = HostOptions { exports: &options.exports, size_bytes: backing.size_bytes, io: options.io };
    let mut served = false;
    let mut report = |event| {
        served |= matches!(event, HostEvent::Ready(_));
        tell(event);
    };
    let ended = serve(&host, make, &mut report);
    if ended.is_err() && !served {
        // No data was written: the next start has nothing to warn of.
        let _ = mark_clean(&options.cache.path);
    }
    let model = ended?.end();
    let dirty = model.stopped().map_or(0, |stopped| stopped.dirty_blocks);
    if dirty > 0 {
        return Err(failed(&format!("{dirty} blocks could not be written to the backing store")));
    }
    mark_clean(&options.cache.path)
}

fn tell(event: HostEvent) {
    match event {
        HostEvent::Ready(uri) => {
            // A failed write is ignored: the reader has closed the pipe.
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "ready: {uri}").and_then(|()| out.flush());
        }
        HostEvent::Note(what) => eprintln!("flashcache-model: {what}"),
        _ => {}
    }
}

fn failed(what: &impl ToString) -> RunError {
    RunError::failed(MessageId::DeviceIo, what.to_string(), "")
}

/// Returns the item with this name.
fn by_name<T: Copy>(text: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, String> {
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|one| name(*one)).collect();
        format!("there is no such thing; one of {}", names.join(", "))
    })
}

fn mode(text: &str) -> Result<Mode, String> {
    by_name(text, &Mode::ALL, Mode::name)
}

fn reclaim(text: &str) -> Result<Reclaim, String> {
    by_name(text, &Reclaim::ALL, Reclaim::name)
}

fn flush(text: &str) -> Result<Flush, String> {
    by_name(text, &Flush::ALL, Flush::name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Options::command().debug_assert();
    }
}
