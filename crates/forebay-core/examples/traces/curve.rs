//! The miss-ratio curve of the engine compared with the engine itself, in all the sizes of the
//! curve.
//!
//! One request is in flight: a block that two requests ask for at the same time counts as two
//! misses of an engine, and as one of the curve.

use crate::trace::Trace;
use crate::{POLICIES, replayed};
use forebay_core::{CURVE_EIGHTHS, PoolSettings};

/// For each policy an object: misses of reads in percent that the curve of a cache of this share
/// says, and those of engines of these sizes; null on a device that is too small.
pub(crate) fn print(number: usize, share: u64, trace: &Trace) {
    let blocks = trace.footprint * share / 100;
    for (name, policy) in POLICIES {
        let pool = PoolSettings { reclaim_policy: policy, ..PoolSettings::default() };
        let curve = replayed(pool, blocks, trace, Some(1)).engine.miss_ratio_curve(None, 23);
        let points: Vec<String> = curve
            .points
            .iter()
            .zip(CURVE_EIGHTHS)
            .map(|(point, eighths)| {
                let blocks = blocks * eighths / 8;
                let fits = forebay_format::Geometry::for_device(blocks * 4096, None).is_ok();
                let engine = fits.then(|| {
                    let stats = replayed(pool, blocks, trace, Some(1)).engine.stats();
                    let reads = stats.read_hit_blocks + stats.read_miss_blocks;
                    stats.read_miss_blocks as f64 * 100.0 / reads.max(1) as f64
                });
                let of_curve = point.miss_ratio().map(|ratio| ratio * 100.0);
                let json = |value: Option<f64>| value.map_or("null".into(), |value| format!("{value:.3}"));
                format!(
                    "{{\"eighths\": {eighths}, \"curve_pct\": {}, \"engine_pct\": {}, \"sampled_blocks\": {}, \"is_upper_bound\": {}}}",
                    json(of_curve), json(engine), point.sampled_blocks, point.is_upper_bound
                )
            })
            .collect();
        println!(
            "{{\"trace\": {number}, \"share_pct\": {share}, \"policy\": \"{name}\", \"points\": [{}]}}",
            points.join(", ")
        );
    }
}
