//! Data that a stop saves first, because it ends with this process.
//!
//! At a stop, dirty data normally stays in the cache. If the cache file was deleted, there is no
//! cache afterwards, so the stop drains first: the exports are closed, and only the operator waits.
//! A stop also waits for a backing file that is being written to another path (`saving`).
//!
//! Invariants
//! - A stop waits as long as there is progress. Without progress for [`STALL`] it continues, and
//!   its end reports the losses.
//! - Nothing is destaged to a backing file that is gone afterwards too.

use super::stall_watchdog::STALL;
use super::{Pool, PoolEvent};
use forebay_core::Drain;
use forebay_format::{BLOCK_BYTES, VolumeId};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval of progress checks.
const LOOK: Duration = Duration::from_millis(50);

/// A drain before the cache is closed.
#[derive(Debug)]
struct LastDrain {
    left_blocks: u64,
    /// Time of the last progress.
    moved: Instant,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct BeforeStop {
    draining: Option<LastDrain>,
    /// The stop begins once no file is being saved.
    waits_for_files: bool,
}

impl Pool {
    /// A stop was requested; returns true if it begins later, on its own.
    pub(super) fn stop_waits(&mut self) -> bool {
        let Some(volume) = self.saved_volume().map(str::to_owned) else { return false };
        if !std::mem::replace(&mut self.before_stop.waits_for_files, true) {
            let what = format!("before the stop, the backing file of {volume} is saved to another path");
            self.emit(PoolEvent::BeforeStop { what });
        }
        true
    }

    /// Begins a waiting stop if no file is being saved.
    pub(super) fn stop_if_it_waits(&mut self) {
        if self.saved_volume().is_none() && std::mem::take(&mut self.before_stop.waits_for_files) {
            self.stop();
        }
    }

    /// Begins to drain if dirty data would be lost; returns true if the cache is closed later. All
    /// exports are closed.
    pub(super) fn begin_last_drain(&mut self) -> bool {
        let left_blocks = self.left_to_drain();
        if left_blocks == 0 || !self.is_cache_nameless() || self.engine.is_fenced() {
            return false;
        }
        let now = self.io.now();
        for id in self.drained_at_last() {
            self.engine.set_drain(now, id, Drain::Full);
        }
        let what = format!(
            "the cache file {} was deleted, so {} bytes of dirty data are written back before the stop. \
             Another signal ends this process at once, and that data is lost",
            self.cache_paths(),
            left_blocks * BLOCK_BYTES as u64
        );
        self.emit(PoolEvent::BeforeStop { what });
        self.before_stop.draining = Some(LastDrain { left_blocks, moved: Instant::now() });
        true
    }

    fn drained_at_last(&self) -> Vec<VolumeId> {
        let all = (0..self.volumes.len()).map(|at| VolumeId(at as u16));
        all.filter(|id| self.served(*id).is_some_and(|served| !self.is_nameless(served.device))).collect()
    }

    fn left_to_drain(&self) -> u64 {
        let reports = self.drained_at_last().into_iter().filter_map(|id| self.engine.destage_report(id));
        reports.map(|report| report.dirty_blocks + report.write_back_requests).sum()
    }

    /// Closes the cache once the drain has ended, or has stalled; returns how long the loop may
    /// sleep until the next check.
    pub(super) fn look_after_last_drain(&mut self) -> Option<Duration> {
        self.before_stop.draining.as_ref()?;
        let (left, now) = (self.left_to_drain(), Instant::now());
        let draining = self.before_stop.draining.as_mut()?;
        if left < draining.left_blocks {
            (draining.left_blocks, draining.moved) = (left, now);
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
        let is_over = left == 0 || now.duration_since(draining.moved) >= STALL;
        if is_over || self.engine.is_fenced() {
            self.before_stop.draining = None;
            let now = self.io.now();
            self.engine.begin_shutdown(now);
            return Some(Duration::ZERO);
        }
        Some(LOOK)
    }
}
