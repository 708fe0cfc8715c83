//! `forebay what-if`: predicts the effect of other caches on a trace.
//!
//! Files: `variants` (the variants to simulate), `report` (the results).

mod report;
mod variants;

use crate::message;
use forebay_admin::MessageId;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_admin::size::{ByteSize, parse_duration};
use forebay_whatif::{DiskKind, Figures, FlashTimes, MadeTrace, Pace, run};

use super::trace::files::{Input, read_all};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::screen::{self, Width, count};
use variants::{CacheSize, Variant};

/// Options of `forebay what-if`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The engine of the daemon takes the requests of the trace in virtual time, on models of its devices. Nothing else is
touched. Every --cache is tried with every combination of values.
Examples:
  forebay what-if --trace db.fbtrace --cache 10GiB --cache 20GiB
  forebay what-if --trace db.fbtrace --cache 10% --set reclaim_policy=lru,s3fifo
  forebay what-if --trace sdb.blkparse --cache 1GiB --asap --depth 16 --json")]
pub(crate) struct Options {
    /// The trace: from `forebay trace record`, or from another tool
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    #[command(flatten)]
    input: Input,
    /// Size of the cache device, or a share of the blocks that the trace touches (10%); may be
    /// repeated
    #[arg(long = "cache", value_name = "SIZE", required = true)]
    caches: Vec<CacheSize>,
    /// A setting of pool or volume, as for `forebay set`; several values are compared; may be
    /// repeated
    #[arg(long = "set", value_name = "KEY=VALUE[,VALUE]")]
    settings: Vec<String>,
    /// Size of the volume; otherwise as recorded, or up to the end of the last request
    #[arg(long, value_name = "SIZE")]
    volume_size: Option<ByteSize>,
    /// The backing store: hdd-7200, or a time that each operation takes (500us)
    #[arg(long, value_name = "MODEL", default_value = "hdd-7200", value_parser = disk)]
    disk: DiskKind,
    /// Time of a read of the cache device, in addition to the transfer time
    #[arg(long, value_name = "TIME", default_value = "80us", value_parser = device_time)]
    flash_read: Duration,
    /// Time of a write of the cache device, in addition to the transfer time
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = device_time)]
    flash_write: Duration,
    /// Time of a flush of the cache device
    #[arg(long, value_name = "TIME", default_value = "500us", value_parser = device_time)]
    flash_flush: Duration,
    /// Bandwidth of the cache device in bytes per second
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = positive)]
    flash_bandwidth: ByteSize,
    /// Time of each request in addition to devices and processor
    #[arg(long, value_name = "TIME", default_value = "35us", value_parser = device_time)]
    path: Duration,
    /// Processor time of each request, one after the other
    #[arg(long, value_name = "TIME", default_value = "24us", value_parser = device_time)]
    processor: Duration,
    #[command(flatten)]
    pace: PaceOptions,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// Longest time of one operation.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Arrival times of requests.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PaceOptions {
    /// Factor by which to speed up the recorded times
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = speed, conflicts_with = "asap")]
    pub(crate) speed: f64,
    /// As soon as fewer than --depth requests are in flight, regardless of the recorded times
    #[arg(long)]
    pub(crate) asap: bool,
    /// Maximum number of requests in flight; further ones wait
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) depth: u32,
}

impl PaceOptions {
    /// Returns the pace for the model. A trace without times runs as fast as possible.
    pub(crate) fn pace(&self, lasts_ns: u64) -> Pace {
        if self.asap || lasts_ns == 0 { Pace::AsFast } else { Pace::Recorded { speed: self.speed } }
    }
}

fn speed(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.001..=1e6).contains(number));
    number.ok_or_else(|| "a speed is a number from 0.001 to 1000000, 2 for twice as fast".into())
}

fn positive(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>() {
        Ok(ByteSize(0)) => Err("it is at least 1".into()),
        Ok(size) => Ok(size),
        Err(error) => Err(error.to_string()),
    }
}

fn disk(text: &str) -> Result<DiskKind, String> {
    if text == "hdd-7200" {
        return Ok(DiskKind::Hdd7200);
    }
    let time =
        device_time(text).map_err(|_| "it is hdd-7200, or a time such as 500us, up to 1min".to_owned())?;
    Ok(DiskKind::Constant(nanos(time)))
}

/// Parses the time of an operation. The model sums such times in nanoseconds, for millions of
/// requests.
fn device_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if time <= TIME_MAX { Ok(time) } else { Err("it is at most 1min".into()) }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Simulates all requested variants.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    let choices = variants::choices(&options.settings)?;
    let (records, reading) = read_all(&options.trace, &options.input)?;
    let trace = MadeTrace::new(records);
    let flash = FlashTimes {
        read_ns: nanos(options.flash_read),
        write_ns: nanos(options.flash_write),
        flush_ns: nanos(options.flash_flush),
        bytes_per_s: options.flash_bandwidth.0,
    };
    let recorded = reading.header.as_ref().map_or(0, |header| header.volume_bytes);
    let volume_bytes = options.volume_size.map_or(recorded.max(trace.end_bytes), |size| size.0);
    let pace = options.pace.pace(trace.lasts_ns());
    if pace == Pace::AsFast && !options.pace.asap {
        let what = "the trace has no times: requests come as fast as they are answered";
        message::note(MessageId::TraceNote, what);
    }
    let common = variants::Common {
        volume_bytes: volume_bytes.next_multiple_of(4096),
        flash,
        disk: options.disk,
        path_ns: nanos(options.path),
        processor_ns: nanos(options.processor),
        pace,
        depth: options.pace.depth as usize,
    };
    let variants = variants::all(&options.caches, &choices, &common, &trace)?;
    let figures = try_all(&variants, &trace, &interrupt)?;
    let tried: Vec<(&Variant, &Figures)> = variants.iter().zip(&figures).collect();
    if options.json {
        screen::print_json(&report::document(&trace, &common, &tried))
    } else {
        screen::print(&report::text(&trace, &common, &tried, Width::of_stdout()))
    }
}

/// Simulates all variants, with as many threads as there are processors.
fn try_all(variants: &[Variant], trace: &MadeTrace, interrupt: &Interrupt) -> Result<Vec<Figures>, Failure> {
    let each = trace.requests().len() as u64;
    let progress = Progress::new("what-if", each * variants.len() as u64);
    let done: Vec<AtomicU64> = variants.iter().map(|_| AtomicU64::new(0)).collect();
    let results: Mutex<Vec<Option<Result<Figures, Failure>>>> =
        Mutex::new(variants.iter().map(|_| None).collect());
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(variant) = variants.get(at) else { break };
            let go_on = |answered: u64| {
                done[at].store(answered, Ordering::Relaxed);
                let all = done.iter().map(|one| one.load(Ordering::Relaxed)).sum();
                progress.at(all, || format!("{} requests", count(all)));
                !interrupt.came()
            };
            let result = match run(&variant.plan, trace, &go_on) {
                Ok(Some(figures)) => Ok(figures),
                Ok(None) => Err(Failure::new(MessageId::CliInterrupted, "interrupted")),
                Err(error) => {
                    Err(Failure::new(MessageId::WhatIfModel, error.to_string()).hint(variant.hint(&error)))
                }
            };
            if let Ok(mut results) = results.lock() {
                results[at] = Some(result);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(variants.len());
    std::thread::scope(|scope| {
        let started = (1..threads)
            .map(|_| std::thread::Builder::new().name("what-if".into()).spawn_scoped(scope, work))
            .take_while(Result::is_ok);
        let _ = started.count(); // this thread does the work if no thread started
        work();
    });
    let results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let missing =
        || Failure::new(MessageId::CliInternal, "a thread of the simulation ended early; please report this");
    results.into_iter().map(|result| result.unwrap_or_else(|| Err(missing()))).collect()
}
