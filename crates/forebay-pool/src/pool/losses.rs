//! Damaged cache blocks and losses, collected so that a device that fails in many places causes
//! only a few lines.
//!
//! Once a second, while some data is lost, the pool compares the current losses with its last
//! report. So alarm, event and log lag at most that much behind `volume show`, which asks the
//! engine.

use super::{Pool, PoolEvent};
use forebay_admin::size::ByteSize;
use forebay_core::{Loss, LossTotal};
use forebay_format::{BLOCK_BYTES, VolumeId};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Rate at which dirty data is checked against its checksums after a start. An earlier start may
/// have found losses, but kept no list: the checksums reveal them again.
pub(super) const CHECK_BYTES_PER_S: u64 = 64 << 20;
/// Shortest interval of reports.
const PAUSE: Duration = Duration::from_secs(1);
/// Shortest interval, as a multiple of the time that a report takes.
const EFFORT: u32 = 20;

/// Amount of lost data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Bytes.
    pub bytes: u64,
    /// Ranges that contain them.
    pub ranges: u64,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = if self.ranges == 1 { "range" } else { "ranges" };
        write!(f, "{} in {} {ranges}", ByteSize(self.bytes), self.ranges)
    }
}

/// Damaged clean blocks that have not been reported.
#[derive(Clone, Copy, Debug)]
struct Damaged {
    blocks: u64,
    first_offset_bytes: u64,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Losses {
    damaged: BTreeMap<VolumeId, Damaged>,
    /// The last report, with the name that the volume had then.
    told: BTreeMap<VolumeId, (String, Lost)>,
    next_at: Option<Instant>,
}

impl Pool {
    /// A clean block was damaged.
    pub(super) fn note_damaged(&mut self, volume: VolumeId, block: u64) {
        if self.is_cache_gone() {
            return; // No block is damaged: the device is gone.
        }
        let first_offset_bytes = block * BLOCK_BYTES as u64;
        let damaged = self.losses.damaged.entry(volume).or_insert(Damaged { blocks: 0, first_offset_bytes });
        damaged.blocks += 1;
    }

    /// Returns the lost data of a volume.
    pub(super) fn lost_of(&self, id: VolumeId) -> Lost {
        self.losses_by_volume().remove(&id).unwrap_or_default()
    }

    /// Returns the lost data of each volume that has any, attached or not.
    pub(super) fn losses_by_volume(&self) -> BTreeMap<VolumeId, Lost> {
        let lost = |total: &LossTotal| Lost { bytes: total.bytes, ranges: total.ranges };
        self.engine.loss_totals().iter().map(|total| (total.volume, lost(total))).collect()
    }

    /// Names of the volumes with lost data, as of the last report.
    pub(super) fn losers(&self) -> Vec<String> {
        self.losses.told.values().map(|(name, _)| name.clone()).collect()
    }

    /// Lost data of all volumes.
    pub fn lost_in_all(&self) -> Lost {
        let add = |sum: Lost, bytes, ranges| Lost { bytes: sum.bytes + bytes, ranges: sum.ranges + ranges };
        let totals = self.engine.loss_totals();
        totals.iter().fold(Lost::default(), |sum, total| add(sum, total.bytes, total.ranges))
    }

    /// Reports changes when that is due; returns how long the loop may sleep until the next report.
    pub(super) fn look_after_losses(&mut self) -> Option<Duration> {
        if self.engine.has_lost_nothing() && self.losses.told.is_empty() && self.losses.damaged.is_empty() {
            return None;
        }
        if self.engine.runs_without_cache() && !self.engine.is_rescue_over() {
            return Some(PAUSE); // Reported once no more can be lost: there may be millions of pieces.
        }
        let now = Instant::now();
        if let Some(left) = self.losses.next_at.map(|due| due.saturating_duration_since(now))
            && !left.is_zero()
        {
            return Some(left);
        }
        self.tell_losses();
        let pause = PAUSE.max(now.elapsed() * EFFORT);
        self.losses.next_at = Some(now + pause);
        Some(pause)
    }

    /// Reports changes now.
    pub(super) fn tell_losses(&mut self) {
        let damaged = std::mem::take(&mut self.losses.damaged);
        let is_gone = self.is_cache_gone();
        for (id, damaged) in damaged.into_iter().filter(|_| !is_gone) {
            let Damaged { blocks, first_offset_bytes } = damaged;
            self.emit(PoolEvent::BlocksDamaged { volume: self.name_of(id), blocks, first_offset_bytes });
        }
        let mut before = std::mem::take(&mut self.losses.told);
        for (id, losses) in self.engine.losses() {
            let lost = total(&losses);
            let was = before.remove(&id);
            let volume = was.as_ref().map_or_else(|| self.name_of(id), |(name, _)| name.clone());
            let was = was.map_or(0, |(_, lost)| lost.bytes);
            if lost.bytes != was {
                let first_offset_bytes = losses.first().map_or(0, |loss| loss.offset);
                let more = lost.bytes > was;
                self.emit(PoolEvent::Lost { volume: volume.clone(), lost, first_offset_bytes, more });
            }
            self.losses.told.insert(id, (volume, lost));
        }
        for (volume, _) in before.into_values() {
            self.emit(PoolEvent::LossEnded { volume });
        }
    }
}

fn total(losses: &[Loss]) -> Lost {
    Lost { bytes: losses.iter().map(|loss| loss.bytes).sum(), ranges: losses.len() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_printed_in_words() {
        assert_eq!(Lost { bytes: 4096, ranges: 1 }.to_string(), "4KiB in 1 range");
        assert_eq!(Lost { bytes: 8704, ranges: 2 }.to_string(), "8704B in 2 ranges");
    }
}
