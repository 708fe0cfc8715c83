//! What caches of other sizes would do, and what that is worth in time.

use super::Service;
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
        let found = Self::ask(&handle, move |pool| {
            let id = if asked.is_empty() { None } else { Some(pool.find(&asked)?) };
            let capacity = pool.snapshot().capacity_blocks;
            Some((pool.miss_ratio_curve(id, hours), capacity, pool.statistics()))
        })?;
        let Some(((curve, seen), capacity, statistics)) = found else {
            return Err(super::info::not_attached(&volume));
        };
        // The first is of the pool itself, which times no requests.
        let of_volumes = statistics.into_iter().filter(|one| !one.about.volume.is_empty());
        let asked = of_volumes.filter(|one| volume.is_empty() || one.about.volume == volume);
        let means = means(asked);
        Ok(info(pool, volume, &curve, seen, capacity, means))
    }
}

/// Mean times of hits and of misses since the start, in microseconds.
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
    let size = |(point, eighths): (&forebay_core::CurvePoint, u64)| {
        let misses = point.miss_ratio()?;
        Some(AdviceSize {
            times: eighths as f64 / 8.0,
            capacity_bytes: capacity * eighths / 8 * BLOCK,
            hit_pct: (1.0 - misses) * 100.0,
            is_lower_bound: point.is_upper_bound,
            sampled_bytes: point.sampled_blocks * BLOCK,
            read_mean_us: hit_us.zip(miss_us).map(|(hit, miss)| hit * (1.0 - misses) + miss * misses),
        })
    };
    AdviceInfo {
        pool,
        volume,
        seen_s: seen.as_secs(),
        read_bytes: curve.read_blocks * BLOCK,
        capacity_bytes: capacity * BLOCK,
        read_hit_mean_us: hit_us,
        read_miss_mean_us: miss_us,
        sizes: curve.points.iter().zip(CURVE_EIGHTHS).filter_map(size).collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_core::CurvePoint;

    #[test]
    fn misses_cost_time() {
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
}
