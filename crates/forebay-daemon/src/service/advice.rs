//! Predicted effect of other cache sizes, and its value in time.

use super::Service;
use super::pool_query::ask;
use forebay_admin::{AdminError, AdviceInfo, AdviceSize, Target};
use forebay_core::{CURVE_EIGHTHS, MissRatioCurve};
use forebay_format::BLOCK_BYTES;
use forebay_pool::meter::{Snapshot, TimedPath};
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Service {
    pub(super) fn advice(&self, target: Target<'_>, hours: u64) -> Result<AdviceInfo, AdminError> {
        let (pool, handle, volume) = match target {
            Target::Pool(name) => (name.to_owned(), self.handle(name)?, String::new()),
            Target::Volume(name) => {
                let (pool, handle) = self.pool_of(name)?;
                (pool, handle, name.to_owned())
            }
        };
        let asked = volume.clone();
        let found = ask(&handle, move |pool| {
            let id = if asked.is_empty() { None } else { Some(pool.find(&asked)?) };
            let capacity = pool.snapshot().capacity_blocks;
            Some((pool.miss_ratio_curve(id, hours), capacity, pool.statistics()))
        })?;
        let Some(((curve, seen), capacity, statistics)) = found else {
            return Err(super::errors::not_attached(&volume));
        };
        // The first is that of the pool itself, which measures no request latencies.
        let of_volumes = statistics.into_iter().filter(|one| !one.about.volume.is_empty());
        let asked = of_volumes.filter(|one| volume.is_empty() || one.about.volume == volume);
        let means = means(asked);
        Ok(info(pool, volume, &curve, seen, capacity, means))
    }
}

/// Returns the mean latencies of hits and of misses since the start, in microseconds.
fn means(volumes: impl Iterator<Item = Snapshot>) -> [Option<f64>; 2] {
    let mut sums = [(0_u64, 0_u64); 2];
    for volume in volumes {
        for path in volume.report().latency.paths {
            let sum = match path.path {
                TimedPath::ReadHit => &mut sums[0],
                TimedPath::ReadMiss => &mut sums[1],
                _ => continue,
            };
            let count: u64 = path.buckets.iter().map(|(_, count)| count).sum();
            *sum = (sum.0 + path.sum_ns, sum.1 + count);
        }
    }
    sums.map(|(ns, count)| (count > 0).then(|| ns as f64 / count as f64 / 1000.0))
}

fn info(
    pool: String,
    volume: String,
    curve: &MissRatioCurve,
    seen: Duration,
    capacity: u64,
    [hit_us, miss_us]: [Option<f64>; 2],
) -> AdviceInfo {
    // A larger cache never misses more. Each size has its own sample, so the estimates may
    // contradict that.
    let mut least_misses = 1.0_f64;
    let size = |(point, eighths): (&forebay_core::CurvePoint, u64)| {
        least_misses = least_misses.min(point.miss_ratio()?);
        let misses = least_misses;
        Some(AdviceSize {
            times: eighths as f64 / 8.0,
            capacity_bytes: capacity * eighths / 8 * BLOCK,
            hit_pct: (1.0 - misses) * 100.0,
            is_lower_bound: point.is_upper_bound,
            sampled_bytes: point.sampled_blocks * BLOCK,
            read_mean_us: hit_us.zip(miss_us).map(|(hit, miss)| hit * (1.0 - misses) + miss * misses),
        })
    };
    let sizes: Vec<AdviceSize> = curve.points.iter().zip(CURVE_EIGHTHS).filter_map(size).collect();
    let error_points = error_points(curve);
    let ask_again_s = ask_again_s(error_points, seen.as_secs());
    AdviceInfo {
        verdict: verdict(&sizes, error_points),
        error_points,
        ask_again_s,
        pool,
        volume,
        seen_s: seen.as_secs(),
        read_bytes: curve.read_blocks * BLOCK,
        capacity_bytes: capacity * BLOCK,
        read_hit_mean_us: hit_us,
        read_miss_mean_us: miss_us,
        sizes,
    }
}

/// Minimum number of distinct blocks in a sample for an estimate.
const DISTINCT_MIN: u64 = 100;
/// Error below which a longer observation is not worthwhile, in percentage points.
const ERROR_GOAL: f64 = 1.0;
/// Age of the oldest counts, in seconds: a longer observation does not reduce the error.
const SEEN_MAX_S: u64 = 24 * 3600;

/// Returns two standard errors of the hit ratio at the present size, in percentage points.
///
/// The sample consists of blocks, and reads of one block hit or miss together, so its size is the
/// number of distinct blocks, not of reads. The misses of the largest size are about that number:
/// nearly all of them are first reads. The estimate is that of Agresti and Coull (1998), which is
/// not zero for a share of 0 or 1.
fn error_points(curve: &MissRatioCurve) -> Option<f64> {
    let now = curve.points.iter().zip(CURVE_EIGHTHS).find(|(_, eighths)| *eighths == 8)?.0;
    let distinct = curve.points.last()?.sampled_miss_blocks.min(now.sampled_blocks);
    if distinct < DISTINCT_MIN {
        return None;
    }
    let size = distinct as f64 + 4.0;
    let share = (now.miss_ratio()?.clamp(0.0, 1.0) * distinct as f64 + 2.0) / size;
    Some(200.0 * (share * (1.0 - share) / size).sqrt())
}

/// Returns when to ask again: the error decreases with the square root of the time.
fn ask_again_s(error_points: Option<f64>, seen_s: u64) -> Option<u64> {
    let error = error_points?;
    let needed = (seen_s as f64 * (error / ERROR_GOAL).powi(2)) as u64;
    (error > ERROR_GOAL && seen_s < SEEN_MAX_S).then(|| needed.min(SEEN_MAX_S).saturating_sub(seen_s))
}

/// Returns a recommendation for the size of the cache, in one sentence.
fn verdict(sizes: &[AdviceSize], error_points: Option<f64>) -> String {
    let now = sizes.iter().find(|size| size.times == 1.0);
    let (Some(now), Some(error), Some(largest)) = (now, error_points, sizes.last()) else {
        return "Too little was read to advise on the size of the cache.".into();
    };
    // A difference within the error counts as none.
    let least = error.max(ERROR_GOAL);
    let gain = largest.hit_pct - now.hit_pct;
    if gain > least {
        // The smallest size with most of the possible gain.
        let enough = now.hit_pct + least.max(gain * 0.8);
        let better = sizes.iter().find(|size| size.times > 1.0 && size.hit_pct >= enough).unwrap_or(largest);
        let bound = if better.is_lower_bound { "at least " } else { "" };
        return format!(
            "A larger cache would help: {} (x{}) would answer {bound}{:.1} % of the reads, not {:.1} %.",
            rounded(better.capacity_bytes),
            better.times,
            better.hit_pct,
            now.hit_pct
        );
    }
    let smaller = sizes.iter().find(|size| size.times < 1.0 && size.hit_pct >= now.hit_pct - least);
    let larger = "A larger cache would not answer more reads";
    match smaller {
        Some(size) => {
            format!("{larger}, and {} (x{}) would answer as many.", rounded(size.capacity_bytes), size.times)
        }
        None => format!("{larger}."),
    }
}

/// Formats bytes with one decimal.
fn rounded(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")];
    let (unit, name) = units.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1 << 10, "KiB"));
    format!("{:.1} {name}", bytes as f64 / unit as f64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_core::CurvePoint;

    #[test]
    fn latency_falls_with_the_hit_ratio() {
        let point = |eighths, misses| CurvePoint {
            eighths,
            sampled_blocks: 900,
            sampled_miss_blocks: misses,
            expected_sample_blocks: 1000,
            is_upper_bound: eighths > 8,
        };
        let points = CURVE_EIGHTHS.iter().map(|eighths| point(*eighths, 800 / eighths)).collect();
        let curve = MissRatioCurve { since: 0, read_blocks: 1 << 20, points };
        let times = [Some(100.0), Some(5100.0)];
        let info = info("fast".into(), "db".into(), &curve, Duration::from_secs(90), 1000, times);
        let now = &info.sizes[4];
        assert_eq!((now.times, now.capacity_bytes, now.is_lower_bound), (1.0, 4_096_000, false));
        assert!((now.hit_pct - 90.0).abs() < 1e-9 && (now.read_mean_us.unwrap() - 600.0).abs() < 1e-9);
        let twice = &info.sizes[6];
        assert!(twice.is_lower_bound && (twice.read_mean_us.unwrap() - 350.0).abs() < 1e-9);
        assert_eq!((info.seen_s, info.read_bytes), (90, 1 << 32));
    }

    /// Returns the advice of a curve with these hit ratios, in percent, from a sample of ten times
    /// `tenths` reads.
    fn advice(hits: [u64; 11], tenths: u64, seen_s: u64) -> AdviceInfo {
        let point = |(eighths, hits): (&u64, u64)| CurvePoint {
            eighths: *eighths,
            sampled_blocks: tenths * 10,
            sampled_miss_blocks: tenths * (100 - hits) / 10,
            expected_sample_blocks: tenths * 10,
            is_upper_bound: false,
        };
        let points = CURVE_EIGHTHS.iter().zip(hits).map(point).collect();
        let curve = MissRatioCurve { since: 0, read_blocks: 1 << 20, points };
        info("fast".into(), "db".into(), &curve, Duration::from_secs(seen_s), 1 << 18, [None, None])
    }

    #[test]
    fn hits_never_fall_with_the_size() {
        let advice = advice([50, 60, 70, 80, 89, 88, 90, 87, 90, 90, 89], 100_000, 60);
        let hits: Vec<f64> = advice.sizes.iter().map(|size| size.hit_pct.round()).collect();
        assert_eq!(hits, [50.0, 60.0, 70.0, 80.0, 89.0, 89.0, 90.0, 90.0, 90.0, 90.0, 90.0]);
    }

    #[test]
    fn the_verdict_names_a_size_or_none() {
        let grows = advice([20, 25, 30, 40, 50, 60, 70, 85, 89, 90, 90], 100_000, 60).verdict;
        assert_eq!(
            grows,
            "A larger cache would help: 3.0 GiB (x3) would answer 85.0 % of the reads, not 50.0 %."
        );
        let fits = advice([50, 60, 90, 90, 90, 90, 90, 90, 90, 90, 90], 100_000, 60).verdict;
        assert_eq!(
            fits,
            "A larger cache would not answer more reads, and 512.0 MiB (x0.5) would answer as many."
        );
        let needed = advice([20, 25, 30, 40, 90, 90, 90, 90, 90, 90, 90], 100_000, 60).verdict;
        assert_eq!(needed, "A larger cache would not answer more reads.");
    }

    #[test]
    fn small_sample_asks_for_more_time() {
        let few = advice([50; 11], 1_000, 3600);
        let error = few.error_points.unwrap();
        // 5,000 distinct blocks, half of the reads hit: two standard errors are 100 / sqrt(5,000)
        // points.
        assert!((error - 1.41).abs() < 0.01, "{error}");
        assert_eq!(few.ask_again_s, Some(3594));
        let many = advice([50; 11], 1_000_000, 3600);
        assert!(many.error_points.unwrap() < 0.2 && many.ask_again_s.is_none());
        let none = advice([50; 11], 10, 60);
        assert_eq!((none.error_points, none.ask_again_s), (None, None));
        assert!(none.verdict.starts_with("Too little was read"), "{}", none.verdict);
    }
}
