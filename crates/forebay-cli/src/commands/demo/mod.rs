//! `forebay demo`: runs the same workload on a slow disk without and with a cache in front of it,
//! on any machine.
//!
//! The steps, all of them in a temporary directory and over NBD on a Unix socket:
//! 1. create a disk full of known bytes;
//! 2. serve it without a cache (pass-through, emulated 7200 rpm disk), run the workload, read
//!    everything back;
//! 3. serve it with a cache (write-back), fill the cache, run the same workload;
//! 4. kill the daemon during writes, start it again on the same cache, and read everything back.
//!
//! Invariants
//! - Every write is recorded ([`content::Ledger`]), every read is compared, and the command
//!   succeeds only if every byte of the volume was right both times.
//! - However it ends, including by Ctrl-C, the daemon is stopped and the directory removed (unless
//!   `--keep`).

mod content;
mod daemon;
mod load;
mod report;
mod stage;

use crate::message;
use forebay_admin::MessageId;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use forebay_admin::size::ByteSize;
use forebay_nbd_client::{NbdClient, Transport};

use crate::failure::{Failure, system};
use crate::screen::{self, Paint, bytes, count};
use content::Ledger;
use daemon::Daemon;
use load::{HotSet, Load, Measured};
use stage::Stages;

/// Options of `forebay demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs no root, no network and no configuration; about a minute, and disk space for the disk and two caches in $TMPDIR.
Exit codes: 0 every byte was right, 1 something was not, or could not be done.")]
pub(crate) struct Options {
    /// Duration of each of the two measurements, in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Size of the cache
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    cache_size: ByteSize,
    /// Size of the disk
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    disk_size: ByteSize,
    /// Measure longer, on a larger disk and cache: for meaningful numbers
    #[arg(long)]
    long: bool,
    /// Seed of the workload
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep the directory with disk, cache and messages of the daemon
    #[arg(long)]
    keep: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Parameters of a demo.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    seconds: u64,
    disk_bytes: u64,
    cache_bytes: u64,
    hot_bytes: u64,
}

/// The workload is spread over pieces of this size: hot blocks are clustered, as in a database.
const EXTENT_BYTES: u64 = 1 << 20;
/// Longest warm-up after the hot set was read once.
const WARM_UP_MAX: Duration = Duration::from_secs(15);
/// Hit ratio of reads at which the cache is warm.
const WARM_HIT_RATIO: f64 = 0.999;

impl Plan {
    fn new(options: &Options) -> Result<Self, Failure> {
        let long =
            |given: u64, usual: u64, long: u64| if options.long && given == usual { long } else { given };
        let mib = |bytes: u64| bytes / EXTENT_BYTES * EXTENT_BYTES;
        let plan = Self {
            seed: options.seed,
            seconds: long(options.seconds, 10, 60),
            disk_bytes: mib(long(options.disk_size.bytes(), 512 << 20, 2 << 30)),
            cache_bytes: mib(long(options.cache_size.bytes(), 128 << 20, 512 << 20)),
            hot_bytes: 0,
        };
        let plan = Self { hot_bytes: mib(plan.cache_bytes * 3 / 8).min(plan.disk_bytes), ..plan };
        if plan.cache_bytes < 16 << 20 {
            return Err(Failure::usage(
                MessageId::DemoSize,
                "--cache-size: the demo needs a cache of at least 16MiB",
            ));
        }
        if plan.disk_bytes < 2 * plan.hot_bytes {
            return Err(Failure::usage(
                MessageId::DemoSize,
                format!("--disk-size: the disk must be larger than {}", bytes(2 * plan.hot_bytes)),
            )
            .hint("the cache keeps a part of the disk; give a larger disk or a smaller cache"));
        }
        Ok(plan)
    }
}

/// The results.
#[derive(Debug)]
struct Outcome {
    plan: Plan,
    without: Measured,
    with: Measured,
    verified_bytes: u64,
    in_doubt: usize,
    restart: Duration,
}

/// Runs the demo.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let plan = Plan::new(options)?;
    let folder = Folder::new(options.keep, &plan)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).map_err(system("cannot wait for Ctrl-C"))?;
    }
    let stages = Stages::new(interrupted);
    if !options.json {
        screen::print(&introduction(&plan, folder.path()))?;
    }
    let outcome = DemoRun { plan, folder: folder.path(), stages: &stages }.run();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(_) if stages.interrupted() => {
            return Err(Failure::new(MessageId::CliInterrupted, "interrupted: the daemon was stopped"));
        }
        Err(failure) if options.keep => return Err(failure),
        Err(failure) => {
            return Err(failure.hint("`forebay demo --keep` keeps the folder with the daemon's messages"));
        }
    };
    if options.json {
        screen::print_json(&report::as_json(&outcome))
    } else {
        screen::print(&report::as_text(&outcome))
    }
}

fn introduction(plan: &Plan, folder: &Path) -> String {
    let paint = Paint::for_stdout();
    let title = format!(
        "A 7200 rpm disk of {} (emulated), without and with {} of cache in front of it",
        bytes(plan.disk_bytes),
        bytes(plan.cache_bytes)
    );
    let workload = format!(
        "4 KiB requests, 70 % reads and 30 % writes, {} in flight, on the {} that are used most",
        load::DEPTH,
        bytes(plan.hot_bytes)
    );
    format!(
        "{}\n{}\n{}\n\n",
        paint.bold(&title),
        paint.dim(&workload),
        paint.dim(&format!("in {}", folder.display()))
    )
}

/// The directory of the demo; removed on drop.
struct Folder {
    temporary: Option<tempfile::TempDir>,
    path: PathBuf,
    keep: bool,
}

impl Folder {
    fn new(keep: bool, plan: &Plan) -> Result<Self, Failure> {
        let parent = std::env::temp_dir();
        let hint = "set TMPDIR to a folder on a disk with room";
        let made = tempfile::Builder::new().prefix("forebay-demo-").tempdir_in(&parent);
        let temporary = made
            .map_err(system(format!("{}: cannot make a folder", parent.display())))
            .map_err(|f| f.hint(hint))?;
        let path = temporary.path().to_owned();
        if let Ok(room) = rustix::fs::statvfs(&path) {
            let free = room.f_bavail.saturating_mul(room.f_frsize);
            let needed = plan.disk_bytes + 2 * plan.cache_bytes + (64 << 20);
            if free < needed {
                let what =
                    format!("{}: {} are free, {} are needed", parent.display(), bytes(free), bytes(needed));
                return Err(Failure::new(MessageId::DeviceNoSpace, what).hint(hint));
            }
        }
        Ok(Self { temporary: Some(temporary), path, keep })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take()
            && self.keep
        {
            let what = format!("kept: {}", temporary.keep().display());
            message::say(MessageId::DemoKept, &what, || format!("{what}\n"));
        }
    }
}

/// The demo in progress.
struct DemoRun<'a> {
    plan: Plan,
    folder: &'a Path,
    stages: &'a Stages,
}

impl DemoRun<'_> {
    fn run(&self) -> Result<Outcome, Failure> {
        let mut ledger = Ledger::new(self.plan.seed, self.plan.disk_bytes);
        let hot = HotSet::new(self.plan.seed, self.plan.disk_bytes, self.plan.hot_bytes, EXTENT_BYTES);
        self.fill(&ledger)?;
        let without = self.without_cache(&mut ledger, &hot)?;
        let mut outcome = Outcome {
            plan: self.plan,
            without,
            with: Measured::new(),
            verified_bytes: self.plan.disk_bytes,
            in_doubt: 0,
            restart: Duration::ZERO,
        };
        self.with_cache(&mut ledger, &hot, &mut outcome)?;
        Ok(outcome)
    }

    fn fill(&self, ledger: &Ledger) -> Result<(), Failure> {
        let path = self.folder.join("disk.img");
        let stage = self.stages.begin("filling the disk", self.plan.disk_bytes);
        let started = Instant::now();
        ledger.fill(&path, &mut |done| stage.at(done, String::new())).map_err(system(path.display()))?;
        stage.done(format!(
            "{} of known bytes in {:.1} s",
            bytes(self.plan.disk_bytes),
            started.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    fn start(&self, name: &str, mode: &str) -> Result<Daemon, Failure> {
        Daemon::start(&daemon::Setup {
            folder: self.folder,
            cache: self.folder.join(format!("{name}.img")),
            cache_bytes: self.plan.cache_bytes,
            mode,
        })
    }

    fn without_cache(&self, ledger: &mut Ledger, hot: &HotSet) -> Result<Measured, Failure> {
        let daemon = self.start("unused-cache", "passthrough")?;
        let mut client = daemon.connect()?;
        let mut load = Load::new(&mut client, ledger, hot, self.plan.seed);
        let measured = self.measure(&mut load, "without cache", &daemon)?;
        self.verify(&mut client, ledger, "reading all of it back", &daemon)?;
        drop(client);
        daemon.stop()?;
        Ok(measured)
    }

    fn with_cache(&self, ledger: &mut Ledger, hot: &HotSet, outcome: &mut Outcome) -> Result<(), Failure> {
        let mut daemon = self.start("cache", "writeback")?;
        let mut client = daemon.connect()?;
        let mut load = Load::new(&mut client, ledger, hot, self.plan.seed);
        self.warm_up(&mut load, hot, &daemon)?;
        outcome.with = self.measure(&mut load, "with cache", &daemon)?;
        let stage = self.stages.begin("kill -9 while writing", 0);
        let (in_doubt, acknowledged) = load
            .run_into(|| daemon.kill(), Duration::from_millis(500), &stage)
            .map_err(|failure| daemon.explain(failure))?;
        drop(client);
        let daemon = self.start("cache", "writeback")?;
        let mut client = daemon.connect()?;
        (outcome.in_doubt, outcome.restart) = (in_doubt.len(), daemon.ready_after());
        ledger.settle(&mut client, &in_doubt).map_err(|failure| daemon.explain(failure))?;
        stage.done(format!(
            "after {} writes, with {} not yet answered; serving again {} ms after the start",
            count(acknowledged),
            in_doubt.len(),
            outcome.restart.as_millis()
        ));
        outcome.verified_bytes += self.verify(&mut client, ledger, "reading all of it back", &daemon)?;
        drop(client);
        daemon.stop()
    }

    fn measure(&self, load: &mut Load<'_>, title: &str, daemon: &Daemon) -> Result<Measured, Failure> {
        let duration = Duration::from_secs(self.plan.seconds);
        let stage = self.stages.begin(title, duration.as_millis() as u64);
        let measured = load.run_for(duration, &stage).map_err(|failure| daemon.explain(failure))?;
        stage.done(format!("{} requests a second", count(measured.iops() as u64)));
        Ok(measured)
    }

    /// Reads the hot set once, then runs the workload until nearly all reads hit.
    fn warm_up(&self, load: &mut Load<'_>, hot: &HotSet, daemon: &Daemon) -> Result<(), Failure> {
        let stage = self.stages.begin("warming the cache", hot.bytes());
        let started = Instant::now();
        load.scan_hot(&stage).map_err(|failure| daemon.explain(failure))?;
        let mut ratio = None;
        while started.elapsed() < WARM_UP_MAX && ratio.is_none_or(|ratio| ratio < WARM_HIT_RATIO) {
            let before = daemon.hits();
            load.run_for(Duration::from_secs(1), &stage.silent())
                .map_err(|failure| daemon.explain(failure))?;
            ratio =
                before.zip(daemon.hits()).and_then(|(before, after)| after.ratio_since(before)).or(Some(1.0));
            let hits = ratio.unwrap_or(0.0) * 100.0;
            stage.at(hot.bytes(), format!("the same requests: {hits:.1} % of the reads hit"));
        }
        let hits = ratio.map_or(String::new(), |ratio| format!("; {:.1} % of the reads hit", ratio * 100.0));
        stage.done(format!("{} in {:.1} s{hits}", bytes(hot.bytes()), started.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Reads the whole volume and compares every byte; returns their number.
    fn verify(
        &self,
        client: &mut NbdClient<Transport>,
        ledger: &Ledger,
        title: &str,
        daemon: &Daemon,
    ) -> Result<u64, Failure> {
        let stage = self.stages.begin(title, self.plan.disk_bytes);
        ledger.verify(client, &stage).map_err(|failure| daemon.explain(failure))?;
        stage.done(format!("{}, every byte right", bytes(self.plan.disk_bytes)));
        Ok(self.plan.disk_bytes)
    }
}
