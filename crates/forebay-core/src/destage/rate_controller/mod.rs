//! The rate controller: decides the speed and concurrency of destage.
//!
//! At each event the controller makes a [`DestagePlan`] for each volume with waiting dirty blocks:
//! a rate in blocks per second (or none: as fast as the backing store goes), operations in flight,
//! blocks per operation, and the reason. A token bucket ([`crate::base::bucket`]) spends the rate
//! evenly. In order of precedence:
//!
//! 1. **The operator's limits** (`max_destage_iops`, `max_destage_bytes_per_s`) always apply, also
//!    in a drain and when writers wait: two more buckets. A limit applies from when it is set:
//!    earlier writes are not charged.
//! 2. **A failing backing store**: destage pauses, twice as long after each failure (0.1 s to 10
//!    s), then retries with one operation; the first success ends the backoff.
//! 3. **Pressure**, at full speed: a full drain, a volume that detaches once drained, waiting
//!    writers (for space, or for their flush epoch), reclaim that found nothing to free, volume or
//!    pool above its soft limit (see `throttle`), data about to exceed `flush_period`.
//! 4. **Age**: `rate = D / (P' - a)`, with `D` blocks waiting, `a` the age of the oldest and `P' =
//!    15/16 flush_period` (the rest is for operations in flight). With any destage order, all
//!    blocks dirty now are written before the oldest is due. Under a steady load of `w` blocks per
//!    second it settles where `rate = w`: swept by address, `D = w a / 2`, so at `a = 2/3 P'`;
//!    oldest first, `D = w a`, so at `a = P' / 2`. It has no thresholds and so does not oscillate:
//!    the backing store sees an even, submaximal rate. (Time-based flushing as in vCache.)
//! 5. **Level**: above `dirty_low_pct`, `rate = 2 f w + (L - low) / 60 s`, with `L` dirty blocks,
//!    `w` the measured rate at which blocks become dirty (low pass, 4 s) and `f` the position of
//!    `L` between low and soft limit, as a fraction. It settles half-way, where `rate = w`; without
//!    new dirty blocks the second term drains slowly to the low limit.
//! 6. **Idle** (no request for `idle_delay`), and **background drain**: no rate limit, with half or
//!    all of the operations in flight.
//!
//! The rates of 5 and 6 **yield to the foreground**: while clients' operations wait for the backing
//! store, destage has one operation of at most 1 MiB in flight (more as the floor rises, see
//! below), at a rate that a feedback loop finds: 1/8 more each half second while the 95th
//! percentile of the clients' latency is below `latency_target`, a quarter less while it is above
//! (additive-increase/multiplicative-decrease in its multiplicative form). The floor is a twentieth
//! of the time of the backing store, or one operation for fifty of the clients' if that is more, so
//! that a drain ends: few enough that they do not show in a 95th percentile. From half-way between
//! low and soft limit on the floor rises, up to nearly all of the time, so that destage keeps up
//! with new dirty blocks before writers have to wait. The percentile estimate is one number: it
//! rises by 0.95 s after a sample above it and falls by 0.05 s after one below, where s is 1/16 of
//! it (stochastic approximation, Robbins and Monro 1951; as in "Frugal streaming", Ma,
//! Muthukrishnan and Sandler 2013). Pressure and age do not yield.

mod plan;

use crate::api::Nanos;
use crate::api::destage::{Drain, Limit};
use crate::api::settings::VolumeSettings;
use crate::base::bucket::{Bucket, Meter};
use crate::context::dirty_limits::{Level, Levels};
use crate::context::sectors::BLOCK;

/// Maximum blocks in one destage operation (1 MiB).
pub(crate) const EXTENT_BLOCKS_MAX: u32 = 256;
/// The same while clients wait for the backing store.
const EXTENT_BLOCKS_YIELDING: u32 = 256;
/// Pacing makes no operation smaller than this: the seek costs more than the transfer.
const EXTENT_BLOCKS_EVEN: u64 = 16;
/// Shortest `flush_period`: ages are known to about a quarter of a second.
const PERIOD_MIN_NS: Nanos = 1_000_000_000;
/// Time constant in which the dirty blocks above the low limit drain without new ones.
const LEVEL_NS: u64 = 60_000_000_000;
/// Clients count as using the backing store for this long after one of their operations ended.
const ACTIVE_NS: Nanos = 1_000_000_000;
/// After this long without client operations, latency measurement restarts from scratch.
const FORGET_NS: Nanos = 10_000_000_000;
/// Shortest interval between changes of the yielding rate, and fewest samples for one.
const ADJUST_NS: Nanos = 500_000_000;
const ADJUST_SAMPLES: u32 = 8;
/// Yielding destage keeps one operation for so many of the clients' on the backing store,
const FLOOR_ONE_IN: u64 = 50;
/// or this share of its time, in thousandths: the first while few blocks are dirty, the second just
/// before writers are throttled.
const FLOOR_SHARES: (u64, u64) = (50, 950);
/// The first share applies up to this level, in thousandths of the range from low to soft limit;
/// above it the share rises.
const FLOOR_UPTO: u64 = 500;
/// Operations in flight of yielding destage if its share were all of the time.
const DEPTH_YIELDING: u64 = 8;
/// A plan that waits for its bucket is recomputed after this time, because rates depend on ages.
const REVIEW_NS: Nanos = 1_000_000_000;
/// Shortest interval between plans for a volume with nothing to write back: measured rates change
/// only every quarter of a second.
const IDLE_REVIEW_NS: Nanos = 25_000_000;
/// First and longest pause after a failed write-back.
const BACKOFF_NS: core::ops::RangeInclusive<Nanos> = 100_000_000..=10_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The limits of a volume's destage at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DestagePlan {
    /// Thousandths of blocks per second; `None`: no limit.
    pub(crate) rate: Option<u64>,
    /// Operations in flight.
    pub(crate) depth: u32,
    /// Blocks per operation, and dirty ones among them.
    pub(crate) extent_blocks: u32,
    pub(crate) extent_dirty: u32,
    /// The limiting reason.
    pub(crate) why: Limit,
    /// Something waits for the written blocks: flush the backing store at once.
    pub(crate) pressed: bool,
}

impl DestagePlan {
    const fn shut(why: Limit) -> Self {
        Self { rate: Some(0), depth: 0, extent_blocks: 0, extent_dirty: 0, why, pressed: false }
    }

    const fn full(depth: u32, why: Limit) -> Self {
        let most = EXTENT_BLOCKS_MAX;
        Self { rate: None, depth, extent_blocks: most, extent_dirty: most, why, pressed: true }
    }
}

/// Clients' operations on a backing store.
#[derive(Clone, Copy, Debug, Default)]
struct Foreground {
    mean: Nanos,
    p95: Nanos,
    last_at: Nanos,
    adjusted_at: Nanos,
    samples: u32,
    /// Operations per second.
    rate: Meter,
    /// Rate that destage may have concurrently, in thousandths of blocks per second.
    allowed: u64,
}

impl Foreground {
    fn note(&mut self, now: Nanos, took: Nanos) {
        if self.mean == 0 || now > self.last_at + FORGET_NS {
            *self = Self { mean: took, p95: took, adjusted_at: now, rate: self.rate, ..Self::default() };
        }
        self.rate.count(1);
        self.mean = (self.mean * 7 + took) / 8;
        let step = (self.p95 / 16).max(10_000);
        self.p95 =
            if took > self.p95 { self.p95 + step * 19 / 20 } else { self.p95.saturating_sub(step / 20) };
        self.last_at = now;
        self.samples = self.samples.saturating_add(1);
    }

    /// Adjusts the rate that the latency target allows.
    fn adjust(&mut self, now: Nanos, target: Nanos, floor: u64, recent: u64) {
        if self.samples < ADJUST_SAMPLES || now < self.adjusted_at + ADJUST_NS {
            self.allowed = self.allowed.max(floor);
            return;
        }
        let more = self.allowed + self.allowed / 8 + 1000;
        self.allowed = if self.p95 > target {
            self.allowed * 3 / 4
        } else {
            // Not far beyond the rate in use: the effect of an untried rate is unknown.
            more.min(2 * recent + 4 * floor).max(self.allowed.min(more))
        };
        self.allowed = self.allowed.max(floor);
        (self.adjusted_at, self.samples) = (now, 0);
    }
}

/// The controller's state of one volume.
#[derive(Debug)]
pub(crate) struct RateController {
    pub(crate) drain: Drain,
    /// When `flush_period` was set: the age of earlier dirty blocks counts from then.
    period_since: Nanos,
    pace: Bucket,
    iops: Bucket,
    bytes: Bucket,
    incoming: Meter,
    outgoing: Meter,
    dirty_seen: u64,
    /// When the measurements were last updated.
    settled_at: Nanos,
    foreground: Foreground,
    /// Time of the backing store per dirty block, in nanoseconds, and dirty blocks per write-back
    /// (times 16): moving averages.
    block_time: Nanos,
    blocks_x16: u64,
    /// Destage writes since the start.
    writes: u64,
    failures: u32,
    backoff_until: Nanos,
    /// Results of the last plan for this volume, and when to plan again without an event.
    limit: Limit,
    target: Option<u64>,
    wake: Option<Nanos>,
    /// At some time since the last blocks became durable, the plan and not the backing store
    /// limited destage.
    pub(crate) paced: bool,
}

impl Default for RateController {
    fn default() -> Self {
        Self {
            drain: Drain::Off,
            period_since: 0,
            pace: Bucket::default(),
            iops: Bucket::default(),
            bytes: Bucket::default(),
            incoming: Meter::default(),
            outgoing: Meter::default(),
            dirty_seen: 0,
            settled_at: 0,
            foreground: Foreground::default(),
            block_time: 4_000_000,
            blocks_x16: 16,
            writes: 0,
            failures: 0,
            backoff_until: 0,
            limit: Limit::NothingToDo,
            target: Some(0),
            wake: None,
            paced: true,
        }
    }
}

impl RateController {
    /// Notes a change of `flush_period`.
    pub(crate) fn period_set(&mut self, now: Nanos) {
        self.period_since = now;
    }

    /// Applies a change of the limits from `was` to `is`: a changed limit applies from now on.
    pub(crate) fn limits_set(&mut self, was: &VolumeSettings, is: &VolumeSettings) {
        if was.max_destage_iops != is.max_destage_iops {
            self.iops.forgive(0);
        }
        if was.max_destage_bytes_per_s != is.max_destage_bytes_per_s {
            self.bytes.forgive(0);
        }
    }

    /// Charges a write-back of `dirty` blocks, `blocks` including gaps, in `writes` operations,
    /// which should take `time`.
    pub(crate) fn charge(&mut self, dirty: u64, blocks: u64, writes: u64, time: Nanos) {
        self.pace.take(dirty * 1000);
        self.iops.take(writes);
        self.bytes.take(blocks * BLOCK);
        self.blocks_x16 = (self.blocks_x16 * 7 + dirty * 16) / 8;
        self.block_time = (self.block_time * 7 + time / dirty.max(1)) / 8;
    }

    /// Ends the backoff after a successful write-back.
    pub(crate) fn succeeded(&mut self) {
        (self.failures, self.backoff_until) = (0, 0);
    }

    /// Begins a backoff after a failed write-back or flush. Returns the pause, unless one is
    /// running.
    pub(crate) fn failed(&mut self, now: Nanos) -> Option<Nanos> {
        if now < self.backoff_until {
            return None;
        }
        let pause = (BACKOFF_NS.start() << self.failures.min(10)).min(*BACKOFF_NS.end());
        self.failures += 1;
        self.backoff_until = now + pause;
        Some(pause)
    }

    pub(crate) fn is_backing_off(&self, now: Nanos) -> bool {
        now < self.backoff_until
    }

    /// Consecutive failures.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn backoff_until(&self) -> Nanos {
        self.backoff_until
    }

    /// When to plan again without an event.
    pub(crate) fn wake(&self) -> Option<Nanos> {
        self.wake
    }

    /// Notes the latency of a client's operation on the backing store.
    pub(crate) fn note_foreground(&mut self, now: Nanos, took: Nanos) {
        self.foreground.note(now, took);
    }

    pub(crate) fn limit(&self) -> Limit {
        self.limit
    }

    /// Target rate, in blocks per second; `None`: no limit.
    pub(crate) fn target(&self) -> Option<u64> {
        self.target
    }

    /// Blocks per second that become dirty, and that destage writes back.
    pub(crate) fn rates(&self, now: Nanos) -> (u64, u64) {
        let rounded = |mut meter: Meter| {
            meter.settle(now);
            meter.milli_per_s().saturating_add(500) / 1000
        };
        (rounded(self.incoming), rounded(self.outgoing))
    }

    /// Mean latency of clients' operations on the backing store, and its 95th percentile.
    pub(crate) fn foreground(&self) -> (Nanos, Nanos) {
        (self.foreground.mean, self.foreground.p95)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    pub(crate) fn count_write(&mut self) {
        self.writes += 1;
    }

    pub(crate) fn note_destaged(&mut self, blocks: u64) {
        self.outgoing.count(blocks);
        self.dirty_seen = self.dirty_seen.saturating_sub(blocks);
    }

    /// Minimum rate of yielding destage, in thousandths of blocks per second, for a share (in
    /// thousandths) of the time of the backing store.
    fn floor(&self, share: u64) -> u64 {
        let of_time = share * SECOND_NS / self.block_time.max(1000);
        let beside = self.foreground.rate.milli_per_s() / FLOOR_ONE_IN * self.blocks_x16 / 16;
        of_time.max(beside).max(1000)
    }

    fn settle(&mut self, now: Nanos, dirty: u64, share: u64, settings: &VolumeSettings) {
        self.incoming.count(dirty.saturating_sub(self.dirty_seen));
        self.dirty_seen = dirty;
        self.settled_at = now;
        self.incoming.settle(now);
        self.outgoing.settle(now);
        self.foreground.rate.settle(now);
        self.iops.settle(now, u64::from(settings.max_destage_iops));
        self.bytes.settle(now, settings.max_destage_bytes_per_s);
        let (floor, recent) = (self.floor(share), self.outgoing.milli_per_s());
        // The rate allowed when the store was faster no longer applies.
        self.foreground.allowed = self.foreground.allowed.min(self.floor(1000));
        self.foreground.adjust(now, settings.latency_target, floor, recent);
    }

    /// Returns `None` if one more write-back may start now, else the limit and when it may.
    pub(crate) fn gate(
        &mut self,
        now: Nanos,
        plan: &DestagePlan,
        settings: &VolumeSettings,
    ) -> Option<(Limit, Nanos)> {
        let (iops, bytes) = (u64::from(settings.max_destage_iops), settings.max_destage_bytes_per_s);
        if iops > 0 && !self.iops.is_open(iops) {
            return Some((Limit::MaxIops, self.iops.opens_at(iops).unwrap_or(u64::MAX)));
        }
        if bytes > 0 && !self.bytes.is_open(bytes) {
            return Some((Limit::MaxBandwidth, self.bytes.opens_at(bytes).unwrap_or(u64::MAX)));
        }
        let rate = plan.rate?;
        self.pace.settle(now, rate);
        if self.pace.is_open(rate) {
            return None;
        }
        let at = self.pace.opens_at(rate).unwrap_or(u64::MAX).min(now + REVIEW_NS);
        Some((plan.why, at))
    }

    /// Returns true if a recent plan for this volume found nothing to do, with as many blocks
    /// dirty.
    pub(crate) fn is_idle(&self, now: Nanos, dirty: u64) -> bool {
        self.limit == Limit::NothingToDo
            && self.dirty_seen == dirty
            && now < self.settled_at.saturating_add(IDLE_REVIEW_NS)
    }

    /// Stores the results of the plan for this volume.
    pub(crate) fn rest(&mut self, plan: &DestagePlan, limit: Limit, wake: Option<Nanos>) {
        (self.limit, self.target, self.wake) = (limit, plan.rate.map(|rate| rate / 1000), wake);
        // If only the backing store limited destage, the speed of the store can be measured.
        let saturated =
            matches!(limit, Limit::BackingStore | Limit::MaxIops | Limit::MaxBandwidth | Limit::Scratch);
        self.paced |= !saturated;
        if plan.rate.is_none() {
            // Unlimited destage leaves no debt.
            self.pace.forgive(0);
        }
    }
}

/// Share of the time of the backing store (in thousandths) that destage keeps even while clients
/// wait for it: it grows as the level rises from half-way between the low and the soft limit. So
/// destage reaches the share that it needs before writers have to wait, and clients see no jump.
fn least_share(levels: &Levels, low: u64) -> u64 {
    let way = |level: Level, low: u64| {
        let above = level.dirty.saturating_sub(low).min(level.soft);
        above * 1000 / level.soft.saturating_sub(low).max(1)
    };
    // Approaching the pool's limit counts like approaching the volume's own.
    let risen = way(levels.volume, low).max(way(levels.pool, low.max(levels.pool.soft / 2))).min(1000);
    // In the lower half only the floor: more would show in the clients' latency percentile.
    let risen = risen.saturating_sub(FLOOR_UPTO) * 1000 / (1000 - FLOOR_UPTO);
    FLOOR_SHARES.0 + (FLOOR_SHARES.1 - FLOOR_SHARES.0) * risen * risen / 1_000_000
}

/// `blocks` in `time`, as thousandths of blocks per second; at least one if there are any.
fn milli_rate(blocks: u64, time: Nanos) -> u64 {
    let rate = u128::from(blocks) * 1000 * u128::from(SECOND_NS) / u128::from(time.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX - 1).clamp(u64::from(blocks > 0), u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = SECOND_NS;

    #[test]
    fn the_percentile_estimate_finds_the_tail() {
        let mut foreground = Foreground::default();
        for sample in 0..4000_u64 {
            // Nine in ten take 10 ms, one in ten 50 ms: the 95th percentile is 50 ms.
            let took = if sample % 10 == 3 { 50_000_000 } else { 10_000_000 };
            foreground.note(sample * 10_000_000, took);
        }
        assert!((30_000_000..60_000_000).contains(&foreground.p95), "{}", foreground.p95);
        for sample in 0..4000_u64 {
            foreground.note(41 * SECOND + sample * 10_000_000, 10_000_000);
        }
        assert!(foreground.p95 < 11_000_000, "{}", foreground.p95);
    }

    #[test]
    fn percentile_estimate_is_never_negative() {
        let mut foreground = Foreground::default();
        for at in 0..100 {
            foreground.note(at, if at % 2 == 0 { 300 } else { 1 });
        }
        assert!(foreground.p95 < 20_000, "{}", foreground.p95);
    }

    #[test]
    fn yielding_rate_has_a_floor_and_recovers() {
        let mut foreground = Foreground::default();
        let mut now = 0;
        let mut run = |took: Nanos, seconds: u64| {
            for _ in 0..seconds * 100 {
                now += SECOND / 100;
                foreground.note(now, took);
                foreground.adjust(now, 20_000_000, 5_000, foreground.allowed);
            }
            foreground.allowed
        };
        let free = run(5_000_000, 30);
        assert!(free > 100_000, "{free}");
        assert_eq!(run(60_000_000, 30), 5_000);
        assert!(run(5_000_000, 30) > 50_000);
    }

    #[test]
    fn pauses_double_and_end_with_a_success() {
        let mut control = RateController::default();
        let mut now = SECOND;
        let mut pauses = Vec::new();
        for _ in 0..10 {
            pauses.extend(control.failed(now));
            assert_eq!(control.failed(now), None, "one pause at a time");
            now = control.backoff_until();
        }
        assert_eq!(pauses[..3], [SECOND / 10, SECOND / 5, SECOND * 2 / 5]);
        assert_eq!(pauses[9], 10 * SECOND);
        control.succeeded();
        assert!(!control.is_backing_off(now));
        assert_eq!(control.failed(now), Some(SECOND / 10));
    }

    #[test]
    fn destage_share_grows_up_to_its_ceiling() {
        let free = Level { dirty: 0, soft: 900, high: 1000 };
        let share =
            |dirty| least_share(&Levels { capacity: 2000, volume: Level { dirty, ..free }, pool: free }, 100);
        let shares: Vec<u64> = (0..=1000).map(share).collect();
        assert!(shares.is_sorted(), "{shares:?}");
        assert_eq!(
            (shares[100], shares[900], shares[1000]),
            (FLOOR_SHARES.0, FLOOR_SHARES.1, FLOOR_SHARES.1)
        );
        assert!(shares[700] > FLOOR_SHARES.0 && shares[700] < FLOOR_SHARES.1, "{}", shares[700]);
        // The pool's level counts only above half of its limit.
        let idle = Level { dirty: 100, ..free };
        let of_pool =
            |dirty| least_share(&Levels { capacity: 2000, volume: idle, pool: Level { dirty, ..free } }, 100);
        assert_eq!((of_pool(620), of_pool(900)), (FLOOR_SHARES.0, FLOOR_SHARES.1));
    }

    #[test]
    fn rates_round_up_to_at_least_one() {
        assert_eq!(milli_rate(0, SECOND), 0);
        assert_eq!(milli_rate(1, 3600 * SECOND), 1);
        assert_eq!(milli_rate(500, 2 * SECOND), 250_000);
    }
}
