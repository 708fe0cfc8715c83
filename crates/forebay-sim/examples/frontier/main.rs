//! Misses of reads against blocks written to flash, over block traces: the engine in virtual time
//! with various settings, through a model of a flash device, compared with caches that know the
//! future.
//!
//! ```text
//! frontier SHARES SPARE_PERMILLE ERASE_KIB FILE...
//! ```
//!
//! for instance `frontier 10,20,40 70 256 vm.bin`. `bench/frontier` calls this and plots the
//! results. It prints a line with a JSON object for each trace (numbered from 0), share of its
//! footprint, and settings (`policy`, `admission`, `survivors_max_pct`). All numbers are blocks of
//! 4 KiB, see [`device::Run`]; `oracle_fills` and `bound_fills` are those of [`oracle`] at the same
//! number of hits. A line without settings has the results of caches that know the future: `belady`
//! with a fill for each miss, and a `curve` of hits, with the fills of the oracle and of the bound.

mod device;
#[allow(dead_code, reason = "of the exact policies only Belady's")]
#[path = "../../../forebay-core/examples/traces/exact.rs"]
mod exact;
mod oracle;
#[path = "../../../forebay-core/tests/it/rig/mod.rs"]
mod rig;
#[path = "../../../forebay-core/examples/traces/trace.rs"]
mod trace;

use device::Flash;
use exact::{Access, Policy};
use forebay_core::{Admission, PoolSettings, ReclaimPolicy, VolumeSettings};
use oracle::{Bound, Plan};
use std::process::ExitCode;
use trace::Trace;

const USAGE: &str =
    "usage: frontier SHARES SPARE_PERMILLE ERASE_KIB FILE..., for instance: frontier 10,40 70 256 vm.bin";
const SURVIVORS_MAX_PCT: [u32; 5] = [10, 30, 50, 75, 90];
/// The series: names, the policy, and the admission of misses.
const SERIES: [(&str, ReclaimPolicy, &str, Admission); 4] = [
    ("fifo", ReclaimPolicy::Fifo, "always", Admission::Always),
    ("lru", ReclaimPolicy::Lru, "always", Admission::Always),
    ("s3fifo", ReclaimPolicy::S3Fifo, "always", Admission::Always),
    ("s3fifo", ReclaimPolicy::S3Fifo, "second-access", Admission::SecondAccess),
];

/// Steps of the oracle's curve.
const CURVE: u64 = 50;

/// The arguments.
struct Asked {
    shares: Vec<u64>,
    flash: Flash,
    files: Vec<String>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Asked> {
    let number = |text: &str, least: u64, most: u64| {
        text.parse().ok().filter(|number| (least..=most).contains(number))
    };
    let shares = words.next()?.split(',').map(|share| number(share, 1, 100)).collect::<Option<_>>()?;
    let spare_permille = number(&words.next()?, 1, 1000)? as u32;
    let erase_blocks = number(&words.next()?, 4, 1 << 16)? as u32 / 4;
    let files: Vec<String> = words.collect();
    (!files.is_empty()).then_some(Asked { shares, flash: Flash { spare_permille, erase_blocks }, files })
}

fn main() -> ExitCode {
    let Some(asked) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    for (number, file) in asked.files.iter().enumerate() {
        let ended = Trace::read(file).and_then(|trace| {
            let accesses: Vec<Access> = trace.accesses().collect();
            let bound = Bound::new(&accesses);
            asked
                .shares
                .iter()
                .try_for_each(|share| cell((number, *share), &trace, (&accesses, &bound), asked.flash))
        });
        if let Err(error) = ended {
            eprintln!("frontier: {file}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Prints all lines of a trace and a share.
fn cell(
    (number, share): (usize, u64),
    trace: &Trace,
    (accesses, bound): (&[Access], &Bound),
    flash: Flash,
) -> Result<(), String> {
    let blocks = trace.footprint * share / 100;
    forebay_format::Geometry::for_device(blocks * 4096, None).map_err(|error| error.to_string())?;
    if !flash.is_possible(blocks) || blocks > u64::from(u32::MAX / 2) {
        return Err(format!(
            "a flash device of {blocks} blocks ({share} % of the footprint) has too little spare area for its erase \
             blocks: give a larger share, more spare area or smaller erase blocks"
        ));
    }
    let plan = Plan::new(blocks as usize, accesses);
    let line = |rest: String| {
        println!("{{\"trace\": {number}, \"share_pct\": {share}, \"cache_blocks\": {blocks}, {rest}}}");
    };
    let reads = accesses.iter().filter(|one| !one.writes).count() as u64;
    let client = accesses.len() as u64 - reads;
    let belady =
        (exact::misses_pct(Policy::Belady, blocks as usize, accesses) / 100.0 * reads as f64).round() as u64;
    let curve: Vec<String> = (0..=CURVE)
        .map(|at| plan.hits * at / CURVE)
        .map(|hits| format!("[{hits}, {}, {}]", plan.fills(hits), bound.fills(blocks, hits)))
        .collect();
    line(format!(
        "\"reads\": {reads}, \"client\": {client}, \"belady\": {{\"hits\": {}, \"fills\": {belady}}}, \
         \"curve\": [{}]",
        reads - belady,
        curve.join(", ")
    ));
    for (policy, reclaim_policy, admitted, admission) in SERIES {
        for survivors_max_pct in SURVIVORS_MAX_PCT {
            let pool = PoolSettings { reclaim_policy, survivors_max_pct, ..PoolSettings::default() };
            let settings = VolumeSettings { admission, ..VolumeSettings::default() };
            let run = device::play(pool, settings, blocks, trace, flash);
            line(format!(
                "\"policy\": \"{policy}\", \"admission\": \"{admitted}\", \
                 \"survivors_max_pct\": {survivors_max_pct}, \"hits\": {}, \"misses\": {}, \"client\": {}, \
                 \"fills\": {}, \"moves\": {}, \"device\": {}, \"flash\": {}, \"oracle_fills\": {}, \
                 \"bound_fills\": {}",
                run.read_hits,
                run.read_misses,
                run.client,
                run.fills,
                run.moves,
                run.device,
                run.flash,
                plan.fills(run.read_hits),
                bound.fills(blocks, run.read_hits)
            ));
        }
    }
    Ok(())
}
