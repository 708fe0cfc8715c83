//! Time series of destage under the rate controller, in virtual time, for `bench/pacing/plot.py`
//! and for reading.
//!
//! ```text
//! cargo run --release -p forebay-sim --example pacing -- --scenario step-load --csv step-load.csv
//! cargo run --release -p forebay-sim --example pacing -- --figures
//! cargo run --release -p forebay-sim --example pacing -- --latency
//! ```

#[path = "../../tests/it/figures/mod.rs"]
mod figures;
mod rig;

use forebay_core::{Drain, VolumeSettings};
use rig::{Load, Rig, SECOND, Sample, evenness, quantile};
use std::fmt::Write as _;
use std::process::ExitCode;

const SCENARIOS: [&str; 5] = ["step-load", "full-cache", "idle-disk", "failing-disk", "drain-under-reader"];

fn writes(writes_per_s: u64) -> Load {
    Load { writes_per_s, readers: 0 }
}

fn paced(seconds: u64) -> VolumeSettings {
    VolumeSettings { flush_period: seconds * SECOND, idle_delay: 0, ..VolumeSettings::default() }
}

/// Destage by level only: none until a tenth of the cache is dirty.
fn by_level() -> VolumeSettings {
    VolumeSettings { idle_delay: 0, dirty_low_pct: 10, dirty_high_pct: 20, ..VolumeSettings::default() }
}

fn scenario(name: &str) -> Vec<Sample> {
    match name {
        // The load rises and falls again; data may be at most a minute old.
        "step-load" => {
            let mut rig = Rig::new(paced(60));
            rig.run(writes(100), 120);
            rig.run(writes(300), 120);
            rig.run(writes(50), 120);
            rig.samples
        }
        // Writes exceed the throughput of the disk.
        "full-cache" => {
            let mut rig = Rig::new(by_level());
            rig.run(writes(6000), 180);
            rig.run(writes(200), 60);
            rig.samples
        }
        // Load, then none: after the idle delay destage writes everything.
        "idle-disk" => {
            let mut rig = Rig::new(VolumeSettings { idle_delay: 20 * SECOND, ..by_level() });
            rig.run(writes(200), 40);
            rig.run(Load::default(), 80);
            rig.samples
        }
        // The disk fails all writes for a minute.
        "failing-disk" => {
            let mut rig = Rig::new(paced(60));
            rig.run(writes(150), 120);
            rig.set_failing(true);
            rig.run(writes(150), 60);
            rig.set_failing(false);
            rig.run(writes(150), 120);
            rig.samples
        }
        // A reader whose reads all miss, and a background drain from second 60 on.
        _ => {
            let mut rig =
                Rig::new(VolumeSettings { dirty_low_pct: 50, idle_delay: 0, ..VolumeSettings::default() });
            rig.run(writes(500), 10);
            rig.run(Load { writes_per_s: 0, readers: 1 }, 60);
            rig.set_drain(Drain::Background);
            rig.run(Load { writes_per_s: 0, readers: 1 }, 240);
            rig.samples
        }
    }
}

fn csv(samples: &[Sample]) -> String {
    let mut text = String::from(
        "second,writes_per_s,write_mean_ms,write_p99_ms,reads_per_s,read_mean_ms,read_p99_ms,backing_blocks_per_s,\
         dirty_blocks,oldest_age_s,target_blocks_per_s,limited_by\n",
    );
    for sample in samples {
        let mean = |all: &[u64]| all.iter().sum::<u64>() as f64 / all.len().max(1) as f64 / 1e6;
        let p99 = |all: &[u64]| quantile(all.iter().copied(), 0.99) as f64 / 1e6;
        let _ = writeln!(
            text,
            "{},{},{:.3},{:.3},{},{:.3},{:.3},{},{},{:.1},{},{}",
            sample.at_s,
            sample.writes,
            mean(&sample.write_ns),
            p99(&sample.write_ns),
            sample.reads,
            mean(&sample.read_ns),
            p99(&sample.read_ns),
            sample.backing_blocks,
            sample.dirty_blocks,
            sample.oldest_age_ns as f64 / 1e9,
            sample.target.map_or_else(|| "full".into(), |target| target.to_string()),
            sample.limited_by,
        );
    }
    text
}

/// Prints the figures of `docs/use/destage.md`.
fn figures() {
    println!("evenness over 10 s windows, steady random writes for 600 s after 180 s");
    println!("| writes/s | destage | foreground/s | CV | backing blocks/s | CV | oldest s |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for rate in [100, 200, 400] {
        for (name, settings) in
            [("flush_period 60 s", paced(60)), ("flush_period 300 s", paced(300)), ("level only", by_level())]
        {
            let mut rig = Rig::new(settings);
            rig.run(writes(rate), 180);
            rig.samples.clear();
            rig.run(writes(rate), 600);
            let (front, front_cv) = evenness(&rig.samples, |sample| sample.writes);
            let (back, back_cv) = evenness(&rig.samples, |sample| sample.backing_blocks);
            let oldest = rig.samples.iter().map(|sample| sample.oldest_age_ns).max().unwrap_or(0) / SECOND;
            println!(
                "| {rate} | {name} | {front:.1} | {front_cv:.3} | {back:.1} | {back_cv:.3} | {oldest} |"
            );
        }
    }
    println!("\ndrain of 5,000 random blocks beside readers that miss");
    println!(
        "| readers | drain | reads/s before | p99 ms before | reads/s | p99 ms | ratio of p99 | seconds |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for readers in [1, 4, 16] {
        for drain in [Drain::Background, Drain::Full] {
            let line = drain_beside(readers, drain);
            println!("| {readers} | {drain:?} | {line} |");
        }
    }
}

fn drain_beside(readers: u32, drain: Drain) -> String {
    let mut rig = Rig::new(VolumeSettings { dirty_low_pct: 50, idle_delay: 0, ..VolumeSettings::default() });
    rig.run(writes(500), 10);
    let load = Load { writes_per_s: 0, readers };
    rig.run(load, 10);
    rig.samples.clear();
    rig.run(load, 120);
    let (reads, before) = reading(&rig.samples);
    rig.samples.clear();
    rig.set_drain(drain);
    let mut seconds = 0;
    while rig.dirty_blocks() > 0 && seconds < 36_000 {
        rig.run(load, 1);
        seconds += 1;
    }
    let (reads_beside, beside) = reading(&rig.samples);
    let ratio = beside / before;
    format!("{reads:.0} | {before:.1} | {reads_beside:.0} | {beside:.1} | {ratio:.2} | {seconds}")
}

/// Prints the effect of `latency_target`: one reader whose reads all miss, concurrently with random
/// writes, above the low level and far below the soft limit.
fn latency() {
    println!(
        "| writes/s | latency_target ms | reads/s | p95 ms | written back/s | dirty % before, after | limit |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for writes_per_s in [0, 20, 50, 100, 200] {
        for target_ms in [None, Some(0), Some(20), Some(200)] {
            let settings = VolumeSettings {
                dirty_low_pct: if target_ms.is_some() { 5 } else { 60 },
                dirty_high_pct: 70,
                idle_delay: 0,
                latency_target: target_ms.unwrap_or(0) * 1_000_000,
                ..VolumeSettings::default()
            };
            let mut rig = Rig::new(settings);
            rig.run(writes(200), 60);
            let load = Load { writes_per_s, readers: 1 };
            rig.run(load, 10);
            rig.samples.clear();
            let dirty = |rig: &Rig| rig.dirty_blocks() as f64 * 100.0 / 65536.0;
            let before = dirty(&rig);
            rig.run(load, 120);
            let p95 = quantile(rig.samples.iter().flat_map(|sample| sample.read_ns.iter().copied()), 0.95);
            let of = |of: fn(&Sample) -> u64| rig.samples.iter().map(of).sum::<u64>() as f64 / 120.0;
            let name = target_ms.map_or("no destage".into(), |target| target.to_string());
            let last = rig.samples.last().map_or("", |sample| sample.limited_by.words());
            println!(
                "| {writes_per_s} | {name} | {:.0} | {:.1} | {:.0} | {before:.1}, {:.1} | {last} |",
                of(|sample| sample.reads),
                p95 as f64 / 1e6,
                of(|sample| sample.backing_blocks),
                dirty(&rig),
            );
        }
    }
}

/// Returns reads per second and their 99th percentile in milliseconds.
fn reading(samples: &[Sample]) -> (f64, f64) {
    let p99 = quantile(samples.iter().flat_map(|sample| sample.read_ns.iter().copied()), 0.99);
    let reads: u64 = samples.iter().map(|sample| sample.reads).sum();
    (reads as f64 / samples.len() as f64, p99 as f64 / 1e6)
}

fn main() -> ExitCode {
    let (mut name, mut path) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--scenario" => name = arguments.next(),
            "--csv" => path = arguments.next(),
            "--figures" => {
                figures();
                return ExitCode::SUCCESS;
            }
            "--latency" => {
                latency();
                return ExitCode::SUCCESS;
            }
            _ => name = None,
        }
    }
    let Some(name) = name.filter(|name| SCENARIOS.contains(&name.as_str())) else {
        eprintln!("usage: pacing --scenario {} [--csv FILE] | --figures | --latency", SCENARIOS.join("|"));
        return ExitCode::from(2);
    };
    let text = csv(&scenario(&name));
    let Some(path) = path else {
        print!("{text}");
        return ExitCode::SUCCESS;
    };
    if let Err(error) = std::fs::write(&path, text) {
        eprintln!("cannot write {path}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
