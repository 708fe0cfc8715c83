//! Cache and slow disk, in virtual time: the jobs of the measurements of the kernel's caches, on a
//! model of the same disk.
//!
//! ```text
//! cargo run --release -p forebay-sim --example disk-bench -- --job zmix --warm 2000000
//! cargo run --release -p forebay-sim --example disk-bench -- --all [--seconds N] [--seed N] [--json FILE] [--set KEY=VALUE]...
//! ```
//!
//! A cache of 1 GiB in front of a disk of 4 GiB ([`crate::figures::arm`]); one client with 16
//! requests of 4 KiB in flight. The warm-up runs while the disk is fast, with another random
//! sequence over the same distribution; then the disk is slow and the clock starts. A run takes
//! seconds and is deterministic.

#[path = "../../tests/it/figures/mod.rs"]
mod figures;
mod load;
mod report;

use crate::figures::arm::{ArmDisk, ArmTimes};
use crate::figures::machine::{Flash, Machine, Reply, Setup};
use crate::figures::zipf::Zipf;
use forebay_core::{EngineConfig, ReclaimPolicy, RequestKind, Stats, Treatment, VolumeSettings};
use forebay_format::VolumeId;
use forebay_sim::rng::Rng;
use load::Job;
use report::Figures;
use std::process::ExitCode;

const SECOND: u64 = 1_000_000_000;
const BLOCK: u64 = 4096;
const VOLUME: VolumeId = VolumeId(0);
/// Latency of the disk during the warm-up, in nanoseconds.
const FAST_NS: u64 = 100_000;
/// Skew of the Zipf jobs.
const THETA: f64 = 1.1;

/// The parts to run.
#[derive(Clone, Debug)]
struct Bench {
    cache_bytes: u64,
    disk_bytes: u64,
    depth: usize,
    flash: Flash,
    times: ArmTimes,
    seconds: u64,
    seed: u64,
    settings: VolumeSettings,
    engine: EngineConfig,
    trace: bool,
}

impl Default for Bench {
    fn default() -> Self {
        Self {
            cache_bytes: 1 << 30,
            disk_bytes: 4 << 30,
            depth: 16,
            // An ordinary SATA or NVMe flash drive: 4 KiB in 80 us, 1 GB/s.
            flash: Flash { op_ns: 80_000, block_ns: 4_096, each_ns: 0, flush_ns: 500_000, shared: true },
            times: ArmTimes::default(),
            seconds: 60,
            seed: 1,
            settings: VolumeSettings::default(),
            engine: EngineConfig::default(),
            trace: false,
        }
    }
}

impl Bench {
    fn run(&self, job: Job, warm: u64) -> Figures {
        let setup = Setup {
            cache_bytes: self.cache_bytes,
            segment_blocks: None,
            volume_bytes: self.disk_bytes,
            settings: self.settings,
            engine: self.engine.clone(),
            flash: self.flash,
        };
        let machine = Machine::new(&setup, vec![ArmDisk::new(self.disk_bytes, self.times)]);
        let zipf = Zipf::new(self.disk_bytes / BLOCK, THETA);
        let mut run = Run { bench: self, job, zipf, rng: Rng::new(self.seed), machine, replies: Vec::new() };
        run.machine.disks[0].set_fast(Some(FAST_NS));
        run.fill_depth();
        let mut done = 0;
        while done < warm {
            done += run.step(u64::MAX).map_or(0, |replies| replies.len() as u64);
        }
        run.machine.disks[0].set_fast(None);
        run.rng = Rng::new(self.seed ^ 0x5eed_0000);
        run.measure()
    }

    fn set(&mut self, text: &str) -> Option<()> {
        let (key, value) = text.split_once('=')?;
        let number: u64 = value.parse().ok()?;
        let short = u32::try_from(number).unwrap_or(u32::MAX);
        match key {
            "cache_mib" => self.cache_bytes = number << 20,
            "disk_mib" => self.disk_bytes = number << 20,
            "depth" => self.depth = number as usize,
            "flash_op_us" => self.flash.op_ns = number * 1000,
            "flash_mb_s" => self.flash.block_ns = 4096 * 1000 / number.max(1),
            "disk_mb_s" => self.times.bytes_per_s = number.max(1) * 1_000_000,
            "rotation_us" => self.times.rotation_ns = number * 1000,
            "seek_min_us" => self.times.seek_min_ns = number * 1000,
            "seek_max_us" => self.times.seek_max_ns = number * 1000,
            "dirty_low_pct" => self.settings.dirty_low_pct = short,
            "dirty_high_pct" => self.settings.dirty_high_pct = short,
            "destage_depth_max" => self.settings.destage_depth_max = short,
            "latency_target_ms" => self.settings.latency_target = number * 1_000_000,
            "flush_period_s" => self.settings.flush_period = number * SECOND,
            "survivors_max_pct" => self.engine.pool.survivors_max_pct = short,
            "reclaim_policy" => {
                let policies = ReclaimPolicy::ALL;
                self.engine.pool.reclaim_policy = *policies.get(number as usize)?;
            }
            "scratch_blocks" => self.engine.scratch_blocks = short,
            "destage_gap_kb" => self.settings.destage_gap_bytes = number << 10,
            "dirty_limit_pct" => self.engine.pool.dirty_limit_pct = short,
            _ => return None,
        }
        Some(())
    }
}

struct Run<'a> {
    bench: &'a Bench,
    job: Job,
    zipf: Zipf,
    rng: Rng,
    machine: Machine<ArmDisk>,
    replies: Vec<Reply>,
}

impl Run<'_> {
    fn fill_depth(&mut self) {
        let blocks = self.bench.disk_bytes / BLOCK;
        while self.machine.open() < self.bench.depth {
            let (read, block) = self.job.next(&self.zipf, blocks, &mut self.rng);
            let kind = if read { RequestKind::Read } else { RequestKind::Write { fua: false } };
            self.machine.submit(VOLUME, kind, block, Treatment::Cache);
        }
        self.machine.pump();
    }

    /// Lets the next event before `end` happen. Returns the replies. New requests replace answered
    /// ones.
    fn step(&mut self, end: u64) -> Option<&[Reply]> {
        if !self.machine.step(end, None) {
            return None;
        }
        self.machine.take_replies(&mut self.replies);
        if !self.replies.is_empty() {
            self.fill_depth();
        }
        Some(&self.replies)
    }

    fn measure(&mut self) -> Figures {
        let (start, before) = (self.machine.now, self.machine.engine.stats());
        self.machine.disks[0].counters = Default::default();
        let mut figures = Figures::new(self.bench.seconds);
        for second in 0..self.bench.seconds {
            let end = start + (second + 1) * SECOND;
            while let Some(replies) = self.step(end) {
                for reply in replies {
                    figures.note(second, reply);
                }
            }
            self.machine.now = end;
            self.machine.tick();
            if self.bench.trace {
                self.trace(second, &figures);
            }
        }
        let (after, disk) = (self.machine.engine.stats(), &self.machine.disks[0].counters);
        figures.close(&before, &after, disk);
        figures
    }

    fn trace(&self, second: u64, figures: &Figures) {
        let report = self.machine.engine.destage_report(VOLUME).expect("attached");
        let stats: Stats = self.machine.engine.stats();
        eprintln!(
            "{second:3} {:6} IOPS, dirty {}, cached {} of {}, evicted {}, survivors {} hit and {} unclean, readmitted {}, \
             destaged {} and {} in gaps, {report:?}",
            figures.per_second[second as usize],
            stats.dirty_blocks,
            stats.cached_blocks,
            stats.capacity_blocks,
            stats.evicted_blocks,
            stats.survivor_hit_blocks,
            stats.survivor_unclean_blocks,
            stats.readmitted_blocks,
            stats.destaged_blocks,
            stats.gap_filled_blocks
        );
    }
}

const USAGE: &str = "usage: disk-bench (--all | --job zread|zmix|rwrite --warm IOS) [--seconds N] [--seed N] [--set KEY=VALUE]... \
                     [--json FILE] [--trace]";

/// The jobs of the comparison: name, warm-up.
const ALL: [(Job, u64); 5] = [
    (Job::Zread, 250_000),
    (Job::Zread, 2_000_000),
    (Job::Zmix, 250_000),
    (Job::Zmix, 2_000_000),
    (Job::Rwrite, 250_000),
];

/// The command line: the bench, jobs with their warm-ups, and the file for JSON.
type Asked = (Bench, Vec<(Job, u64)>, Option<String>);

fn parse(arguments: &[String]) -> Option<Asked> {
    let (mut bench, mut all, mut json) = (Bench::default(), false, None);
    let (mut job, mut warm) = (None, 250_000);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().map(String::as_str);
        match argument.as_str() {
            "--all" => all = true,
            "--trace" => bench.trace = true,
            "--job" => {
                let name = value()?;
                job = Some(Job::ALL.iter().find(|(_, other)| *other == name)?.0);
            }
            "--warm" => warm = value()?.parse().ok()?,
            "--seconds" => bench.seconds = value()?.parse().ok().filter(|seconds| *seconds >= 10)?,
            "--seed" => bench.seed = value()?.parse().ok()?,
            "--set" => bench.set(value()?)?,
            "--json" => json = Some(value()?.to_owned()),
            _ => return None,
        }
    }
    let jobs = if all { ALL.to_vec() } else { vec![(job?, warm)] };
    Some((bench, jobs, json))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((bench, jobs, json)) = parse(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut lines = String::new();
    println!("{}", Figures::HEAD);
    for (job, warm) in jobs {
        let name = Job::ALL.iter().find(|(other, _)| *other == job).map_or("", |(_, name)| name);
        let figures = bench.run(job, warm);
        println!("{}", figures.line(name, warm));
        lines += &figures.json(name, warm, bench.seed);
    }
    if let Some(path) = json
        && let Err(error) = std::fs::write(&path, lines)
    {
        eprintln!("cannot write {path}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
