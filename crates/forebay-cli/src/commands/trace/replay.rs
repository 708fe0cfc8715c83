//! `forebay trace replay`: sends the requests of a trace to a real volume, and measures their
//! latency.
//!
//! Each request in flight has a thread, with a connection or file of its own. The threads take the
//! requests in order. With recorded times a thread waits until its request is due; if all threads
//! are busy the request waits, and its latency begins at its due time.
//!
//! Invariant: without `--write-anything` the replay only reads.

use forebay_admin::MessageId;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_trace::{Operation, Record};
use forebay_whatif::{MadeTrace, Pace};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::files::{Input, read_all, shown};
use super::target::{Connection, Target};
use crate::client::Admin;
use crate::commands::what_if::PaceOptions;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::screen::{self, count, nanos, uptime};
use crate::table::{Column, Table};

/// Highest latency that the histogram distinguishes, in nanoseconds.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Longest time that a waiting thread may ignore Ctrl-C.
const GLANCE: Duration = Duration::from_millis(100);

/// Options of `forebay trace replay`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Only reads are replayed, unless --write-anything allows destroying the data of the target.
--depth is the number of connections: the server must accept that many.
Examples:
  forebay trace replay db.fbtrace --to db
  forebay trace replay db.fbtrace --to 'nbd+unix:///db?socket=/run/db.sock' --asap --depth 16
  forebay trace replay db.fbtrace --to /dev/nbd0 --speed 4 --write-anything")]
pub(crate) struct Options {
    /// The trace
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// URI of an NBD export, path of a block device or file, or a volume of the daemon
    #[arg(long, value_name = "URI|VOLUME")]
    to: String,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    pace: PaceOptions,
    /// Replay writes, flushes, discards and zeroes as well: the data of the target is destroyed
    #[arg(long)]
    write_anything: bool,
    #[command(flatten)]
    admin: Admin,
}

/// Replays a trace.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    let (records, _) = read_all(&options.trace, &options.input)?;
    let read = records.len() as u64;
    let wanted = |record: &Record| options.write_anything || record.operation == Operation::Read;
    let records: Vec<Record> = records.into_iter().filter(wanted).collect();
    let left_out = read - records.len() as u64;
    let trace = MadeTrace::new(records);
    if trace.requests().is_empty() {
        return Err(Failure::new(MessageId::TraceEmpty, format!("{} has no reads", shown(&options.trace)))
            .hint("--write-anything replays the rest, and destroys what the target holds"));
    }
    let target = Target::find(&options.to, &options.admin, options.write_anything)?;
    if trace.end_bytes > target.size_bytes {
        let (end, size) = (trace.end_bytes, target.size_bytes);
        return Err(Failure::new(
            MessageId::TraceTooLarge,
            format!("the trace goes up to byte {end}, and {} has {size}", target.name),
        )
        .hint("replay it to a volume that is at least as large"));
    }
    let pace = options.pace.pace(trace.lasts_ns());
    let replay = Replay::new(&trace, pace, &interrupt);
    replay.run(&target, options.pace.depth as usize)?;
    let results = replay.results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let took = results.took;
    if options.admin.json {
        screen::print_json(&document(&trace, &results, left_out))?;
    } else {
        screen::print(&words(&results, left_out))?;
    }
    if interrupt.came() {
        return Err(Failure::new(
            MessageId::CliInterrupted,
            format!("interrupted after {}", uptime(took.as_secs())),
        ));
    }
    match results.first_error {
        Some(error) => Err(Failure::new(
            MessageId::TraceRequestsFailed,
            format!("{} requests failed; the first: {error}", count(results.errors)),
        )),
        None => Ok(()),
    }
}

/// Requests of a kind.
struct Kind {
    operation: Operation,
    latency: Histogram<u64>,
    recorded: Histogram<u64>,
}

/// The results.
#[derive(Default)]
struct Results {
    kinds: Vec<Kind>,
    errors: u64,
    first_error: Option<String>,
    /// Requests that the target does not support.
    unsupported: u64,
    /// Requests issued more than a millisecond after their due time.
    late: u64,
    late_max: Duration,
    took: Duration,
}

fn histogram() -> Histogram<u64> {
    let empty = Histogram::new_with_max(LATENCY_NS_MAX, 3);
    empty.unwrap_or_else(|_| unreachable!("these are bounds that it takes"))
}

impl Results {
    fn add(&mut self, record: &Record, late: Duration, done: Result<Option<Duration>, String>) {
        self.late += u64::from(late > Duration::from_millis(1));
        self.late_max = self.late_max.max(late);
        match done {
            Ok(Some(took)) => {
                let kind = self.kind(record.operation);
                kind.latency.saturating_record(took.as_nanos() as u64);
                if let Some(recorded) = record.latency_ns {
                    kind.recorded.saturating_record(recorded);
                }
            }
            Ok(None) => self.unsupported += 1,
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert(error);
            }
        }
    }

    fn kind(&mut self, operation: Operation) -> &mut Kind {
        let at = self.kinds.iter().position(|kind| kind.operation == operation).unwrap_or_else(|| {
            self.kinds.push(Kind { operation, latency: histogram(), recorded: histogram() });
            self.kinds.len() - 1
        });
        &mut self.kinds[at]
    }
}

/// A replay in progress.
struct Replay<'a> {
    trace: &'a MadeTrace,
    pace: Pace,
    interrupt: &'a Interrupt,
    next: AtomicU64,
    /// A thread failed, so all must stop.
    broken: AtomicBool,
    results: Mutex<Results>,
}

impl<'a> Replay<'a> {
    fn new(trace: &'a MadeTrace, pace: Pace, interrupt: &'a Interrupt) -> Self {
        Self {
            trace,
            pace,
            interrupt,
            next: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            results: Mutex::default(),
        }
    }

    fn run(&self, target: &Target, depth: usize) -> Result<(), Failure> {
        let requests = self.trace.requests().len();
        let connections: Vec<Connection> =
            (0..depth.min(requests)).map(|number| target.connect(number)).collect::<Result<_, _>>()?;
        let progress = Progress::new("replay", requests as u64);
        let began = Instant::now();
        let failures: Vec<Failure> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for mut connection in connections {
                let thread = std::thread::Builder::new().name("replay".into());
                match thread.spawn_scoped(scope, move || self.work(&mut connection, began)) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        self.broken.store(true, Ordering::Relaxed); // makes the others stop
                        let what = format!("cannot start a thread: {error}");
                        let failure = Failure::new(MessageId::CliSystem, what);
                        return vec![failure.hint("give a smaller --depth, or raise the limit (ulimit -u)")];
                    }
                }
            }
            while threads.iter().any(|thread| !thread.is_finished()) {
                let made = self.next.load(Ordering::Relaxed).min(requests as u64);
                progress
                    .at(made, || format!("{} requests, {}", count(made), uptime(began.elapsed().as_secs())));
                std::thread::sleep(GLANCE);
            }
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .filter_map(|end| {
                    end.unwrap_or_else(|_| Err(Failure::new(MessageId::CliInternal, "a thread panicked")))
                        .err()
                })
                .collect()
        });
        if let Ok(mut results) = self.results.lock() {
            results.took = began.elapsed();
        }
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// Takes requests until none are left.
    fn work(&self, connection: &mut Connection, began: Instant) -> Result<(), Failure> {
        while !self.interrupt.came() && !self.broken.load(Ordering::Relaxed) {
            let at = self.next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(record) = self.trace.requests().get(at) else { break };
            let Some(due) = self.wait_until_due(record, began) else { break };
            let late = due.map_or(Duration::ZERO, |due| due.elapsed());
            let since = due.unwrap_or_else(Instant::now);
            let broken = |_: &Failure| self.broken.store(true, Ordering::Relaxed);
            let done = connection.make(record).inspect_err(broken)?;
            let done = done.map(|made| made.then(|| since.elapsed()));
            if let Ok(mut results) = self.results.lock() {
                results.add(record, late, done);
            }
        }
        Ok(())
    }

    /// Waits until a request is due; returns the due time if the trace has one. `None`: the replay
    /// has been stopped.
    fn wait_until_due(&self, record: &Record, began: Instant) -> Option<Option<Instant>> {
        let Pace::Recorded { speed } = self.pace else { return Some(None) };
        let first = self.trace.requests().first().map_or(0, |first| first.at_ns);
        let due = began + Duration::from_nanos(((record.at_ns - first) as f64 / speed) as u64);
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(Some(due));
            }
            if self.interrupt.came() || self.broken.load(Ordering::Relaxed) {
                return None;
            }
            std::thread::sleep(left.min(GLANCE));
        }
    }
}

fn words(results: &Results, left_out: u64) -> String {
    let mut table = Table::new([
        Column::text("requests", 0),
        Column::number("number", 0),
        Column::number("mean", 0),
        Column::number("p50", 1),
        Column::number("p99", 0),
        Column::number("recorded mean", 2),
        Column::number("recorded p99", 3),
    ]);
    for kind in &results.kinds {
        let cells = |histogram: &Histogram<u64>, at: f64| match histogram.len() {
            0 => "-".into(),
            _ if at == 0.0 => nanos(histogram.mean() as u64),
            _ => nanos(histogram.value_at_quantile(at)),
        };
        table.add_row([
            kind.operation.name().to_owned(),
            count(kind.latency.len()),
            cells(&kind.latency, 0.0),
            cells(&kind.latency, 0.5),
            cells(&kind.latency, 0.99),
            cells(&kind.recorded, 0.0),
            cells(&kind.recorded, 0.99),
        ]);
    }
    let mut text = format!("{table}\n");
    let notes = [
        (left_out, "requests were left out: only reads are replayed without --write-anything"),
        (results.unsupported, "requests were left out: the target has no such operation"),
        (results.errors, "requests failed"),
    ];
    for (number, what) in notes.iter().filter(|(number, _)| *number > 0) {
        text += &format!("{} {what}\n", count(*number));
    }
    if results.late > 0 {
        let late = nanos(results.late_max.as_nanos() as u64);
        text += &format!(
            "{} requests came while the maximum was in flight, or the processor was busy; they waited for up \
             to {late}\n",
            count(results.late)
        );
    }
    text
}

fn document(trace: &MadeTrace, results: &Results, left_out: u64) -> Value {
    let latency = |histogram: &Histogram<u64>| {
        json!({ "count": histogram.len(), "mean_ns": histogram.mean() as u64,
            "p50_ns": histogram.value_at_quantile(0.5), "p99_ns": histogram.value_at_quantile(0.99) })
    };
    let kinds: serde_json::Map<String, Value> = results
        .kinds
        .iter()
        .map(|kind| {
            let both = json!({ "replayed": latency(&kind.latency), "recorded": latency(&kind.recorded) });
            (kind.operation.name().to_owned(), both)
        })
        .collect();
    json!({
        "requests": trace.requests().len(), "operations": kinds, "took_ns": results.took.as_nanos() as u64,
        "errors": results.errors, "first_error": results.first_error, "left_out": left_out,
        "unsupported": results.unsupported, "late": results.late,
        "late_ns_max": results.late_max.as_nanos() as u64,
    })
}
