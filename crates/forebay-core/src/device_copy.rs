//! Online copy of a cache device to a new one: the copy order, the writes and flushes that go to
//! both devices, and the point at which the new one becomes authoritative. This module holds only
//! the state, and the engine does not know of it. Its owner submits the operations: `forebay-pool`
//! in the daemon, or the simulator.
//!
//! - The old device alone is authoritative until the configuration names the new one. It receives
//!   every write and every flush until then.
//! - A write also goes to the new device once any byte of its range has been copied. So the copied
//!   range stays identical.
//! - A chunk is copied again if a write to it was in flight during the copy: the copy may have the
//!   old data or the new.
//! - Flushes go to both before the new device is flushed for the first time. So once that flush has
//!   completed, the new device holds durably all data that a completed flush covers, from before it
//!   or since.
//! - The head, with the superblocks or the header of a member, is copied last, and only after that
//!   flush: a device with a head has all the rest durably.
//! - A failure on the new device does not affect the engine until that device becomes authoritative
//!   ([`DeviceCopy::begin_to_count`]), just before the configuration names it. From then on an
//!   operation succeeds only if it succeeds on both devices ([`joint`]).
//!
//! In a mirrored cache the device is a member, and a flush of the cache flushes each member:
//! flushes of the copied member go to both devices. All else is the same: the new device has the
//! bytes of the member, its tag included. So the replacement is complete only when the old device
//! is too far behind for a start to accept it together with the other member ([`is_left_behind`]).

use crate::fault::{self, PlantedBug};

/// Bytes at the beginning of a cache device: superblocks or headers, and nothing else. They mark a
/// device that is still being filled.
pub const HEAD_BYTES: u64 =
    forebay_format::geometry::CHECKPOINT_START_BLOCK * forebay_format::BLOCK_BYTES as u64;

/// Combines the results of an operation on both devices: that of the old one; once the new one
/// `counts`, success requires success there too.
///
/// # Errors
/// That of the old device, else that of the new one.
pub fn joint<E>(old: Result<(), E>, new: Result<(), E>, counts: bool) -> Result<(), E> {
    if counts && !fault::planted(PlantedBug::TrustFailedSecond) { old.and(new) } else { old }
}

/// Generations by which the superblock of a replaced device must be behind. A start accepts a
/// member that is behind by one. The checkpoint in progress when the new device took over may have
/// written one to the old device.
const GENERATIONS_BEHIND: u64 = 3;

/// Returns true if no start that finds the other member of a mirrored cache accepts the device that
/// was replaced at superblock generation `then`, now that the generation is `now`. A start on
/// another host needs no records of this one for that.
#[must_use]
pub fn is_left_behind(then: u64, now: u64) -> bool {
    now >= then.saturating_add(GENERATIONS_BEHIND) || fault::planted(PlantedBug::LeaveOldBelieved)
}

/// The next step of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyStep {
    /// Read this range of the old device and write it to the same offset of the new one.
    Copy {
        /// First byte.
        from: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Flush the new device.
    Flush,
}

/// Progress of a copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    /// Copying everything behind the head.
    Body,
    /// Flushing it.
    BodyFlush,
    /// Copying the head.
    Head,
    /// Flushing it.
    HeadFlush,
    /// The new device can replace the old one.
    Whole,
}

/// Bytes that are being copied.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    from: u64,
    to: u64,
    /// A write to them was in flight during the copy.
    is_spoiled: bool,
}

/// The copy of one device onto another one.
#[derive(Debug)]
pub struct DeviceCopy {
    phase: Phase,
    /// Used bytes of the old device.
    used: u64,
    /// Maximum bytes per copy step.
    chunk_bytes: u64,
    /// End of the range behind the head that is on the new device.
    copied: u64,
    chunk: Option<Chunk>,
    is_flushing: bool,
    counts: bool,
}

impl DeviceCopy {
    /// Returns the state of a copy of `used_bytes` that has not begun, in steps of at most
    /// `chunk_bytes`.
    #[must_use]
    pub fn new(used_bytes: u64, chunk_bytes: u64) -> Self {
        let copied = HEAD_BYTES.min(used_bytes);
        Self {
            phase: Phase::Body,
            used: used_bytes,
            chunk_bytes,
            copied,
            chunk: None,
            is_flushing: false,
            counts: false,
        }
    }

    /// Begins the next step, if none is in progress and one is left. `is_written` returns whether a
    /// write to this range of the old device, from and to, is in flight.
    pub fn next(&mut self, is_written: impl FnOnce(u64, u64) -> bool) -> Option<CopyStep> {
        if self.chunk.is_some() || self.is_flushing {
            return None;
        }
        let (from, to) = match self.phase {
            Phase::Body if self.copied < self.used => {
                (self.copied, self.used.min(self.copied + self.chunk_bytes))
            }
            Phase::Body if fault::planted(PlantedBug::HeadBeforeFlush) => {
                self.phase = Phase::Head;
                (0, HEAD_BYTES.min(self.used))
            }
            Phase::Body => {
                self.phase = Phase::BodyFlush;
                self.is_flushing = true;
                return Some(CopyStep::Flush);
            }
            Phase::Head => (0, HEAD_BYTES.min(self.used)),
            Phase::HeadFlush => {
                self.is_flushing = true;
                return Some(CopyStep::Flush);
            }
            Phase::BodyFlush | Phase::Whole => return None,
        };
        let is_spoiled = is_written(from, to);
        self.chunk = Some(Chunk { from, to, is_spoiled });
        Some(CopyStep::Copy { from, len: to - from })
    }

    /// Notes that a write to the old device begins. Returns true if it must go to the new one as
    /// well; it completes when both have completed.
    pub fn write_begins(&mut self, from: u64, len: u64) -> bool {
        let to = from.saturating_add(len);
        if let Some(chunk) = &mut self.chunk {
            chunk.is_spoiled |= from < chunk.to && to > chunk.from;
        }
        if fault::planted(PlantedBug::CopyWithoutSecondWrite) {
            return false;
        }
        let in_body = from < self.copied && to > HEAD_BYTES;
        let in_head = from < HEAD_BYTES && self.phase >= Phase::HeadFlush;
        in_body || in_head
    }

    /// Returns true if a flush that begins now must go to the new device as well.
    #[must_use]
    pub fn flushes_both(&self) -> bool {
        self.phase >= Phase::BodyFlush && !fault::planted(PlantedBug::FlushOldDeviceOnly)
    }

    /// Notes that the current chunk is on the new device.
    pub fn chunk_written(&mut self) {
        let Some(chunk) = self.chunk.take() else { return };
        match self.phase {
            _ if chunk.is_spoiled && !fault::planted(PlantedBug::CopyBehindWrite) => {}
            Phase::Body => self.copied = chunk.to,
            Phase::Head => self.phase = Phase::HeadFlush,
            Phase::BodyFlush | Phase::HeadFlush | Phase::Whole => {}
        }
    }

    /// Notes that the flush in flight has completed.
    pub fn flushed(&mut self) {
        self.is_flushing = false;
        self.phase = match self.phase {
            Phase::BodyFlush => Phase::Head,
            Phase::HeadFlush => Phase::Whole,
            other => other,
        };
    }

    /// Returns true if the head of the new device equals that of the old one, and writes to it go
    /// to both. Before, a write may have changed it during the copy.
    #[must_use]
    pub fn has_head(&self) -> bool {
        self.phase >= Phase::HeadFlush
    }

    /// Returns true if the new device has all data of the old one, and durably all that completed
    /// flushes cover.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.phase == Phase::Whole
    }

    /// Makes the new device authoritative: it has everything, and the configuration is about to
    /// name it.
    ///
    /// # Panics
    /// If the copy is not complete.
    pub fn begin_to_count(&mut self) {
        assert!(self.is_whole(), "I80: a device counts that has not everything");
        self.counts = true;
    }

    /// Returns true if an operation succeeds only if it succeeds on the new device too.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.counts
    }

    /// Bytes that are not yet on the new device.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        let head = if self.phase < Phase::HeadFlush { HEAD_BYTES.min(self.used) } else { 0 };
        self.used - self.copied + head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_left_behind_needs_two_generations() {
        // The checkpoint in progress at the replacement may have reached it: then it has generation
        // 8.
        assert!(!is_left_behind(7, 9), "behind by one at most");
        assert!(is_left_behind(7, 10));
    }

    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    const CHUNK_BYTES: u64 = 1 << 20;

    /// The unit of this model in bytes, and the number of units of a device.
    const UNIT: u64 = 64 << 10;
    const UNITS: u64 = 70;

    /// A device that may lose or keep unflushed writes.
    #[derive(Clone, Default)]
    struct Model {
        durable: BTreeMap<u64, u64>,
        cached: BTreeMap<u64, u64>,
    }

    impl Model {
        fn read(&self, unit: u64) -> u64 {
            *self.cached.get(&unit).or_else(|| self.durable.get(&unit)).unwrap_or(&0)
        }

        fn write(&mut self, unit: u64, value: u64) {
            self.cached.insert(unit, value);
        }

        /// Completes a flush that began when the device had `seen`. Keeps data that a flush begun
        /// later has made durable.
        fn flush(&mut self, seen: &BTreeMap<u64, u64>) {
            for (unit, value) in seen {
                let kept = self.durable.entry(*unit).or_default();
                *kept = value.max(kept).to_owned();
            }
        }
    }

    /// xorshift64, by Marsaglia (2003).
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    /// A write in flight: place, data, and the devices on which it has not completed.
    struct Write {
        unit: u64,
        value: u64,
        on_old: bool,
        on_new: bool,
    }

    /// A flush in flight: the data that it covers, and the content of each device when it began
    /// there.
    struct Flush {
        promises: BTreeMap<u64, u64>,
        on_old: Option<BTreeMap<u64, u64>>,
        on_new: Option<BTreeMap<u64, u64>>,
    }

    /// One run: the copy and its client take steps in an order that the seed determines, and the
    /// new device is checked whenever it is complete.
    struct Run {
        draw: Draw,
        old: Model,
        new: Model,
        copy: DeviceCopy,
        writes: Vec<Write>,
        flushes: Vec<Flush>,
        /// Acknowledged data, and the part of it that completed flushes cover.
        acknowledged: BTreeMap<u64, u64>,
        promised: BTreeMap<u64, u64>,
        values: u64,
        /// Read from the old device, and not yet written to the new one.
        carried: Option<(u64, Vec<u64>)>,
        flushing: Option<BTreeMap<u64, u64>>,
    }

    impl Run {
        fn new(seed: u64) -> Self {
            Self {
                draw: Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
                old: Model::default(),
                new: Model::default(),
                copy: DeviceCopy::new(UNITS * UNIT, CHUNK_BYTES),
                writes: Vec::new(),
                flushes: Vec::new(),
                acknowledged: BTreeMap::new(),
                promised: BTreeMap::new(),
                values: 0,
                carried: None,
                flushing: None,
            }
        }

        fn begin_write(&mut self) {
            // The client has at most one write in flight per place, and writes mostly to few
            // places.
            let unit = if self.draw.below(2) == 0 { self.draw.below(UNITS) } else { self.draw.below(4) };
            if self.writes.iter().any(|write| write.unit == unit) || self.writes.len() > 5 {
                return;
            }
            self.values += 1;
            let on_new = self.copy.write_begins(unit * UNIT, UNIT);
            self.writes.push(Write { unit, value: self.values, on_old: true, on_new });
        }

        fn go_on_writing(&mut self) {
            if self.writes.is_empty() {
                return;
            }
            let at = self.draw.below(self.writes.len() as u64) as usize;
            let write = &mut self.writes[at];
            if write.on_old && (self.draw.below(2) == 0 || !write.on_new) {
                self.old.write(write.unit, write.value);
                write.on_old = false;
            } else if write.on_new {
                self.new.write(write.unit, write.value);
                write.on_new = false;
            }
            if !write.on_old && !write.on_new {
                let write = self.writes.swap_remove(at);
                self.acknowledged.insert(write.unit, write.value);
            }
        }

        fn begin_flush(&mut self) {
            if self.flushes.len() < 3 {
                let on_new = self.copy.flushes_both().then(|| self.new.cached.clone());
                let promises = self.acknowledged.clone();
                self.flushes.push(Flush { promises, on_old: Some(self.old.cached.clone()), on_new });
            }
        }

        fn go_on_flushing(&mut self) {
            if self.flushes.is_empty() {
                return;
            }
            let at = self.draw.below(self.flushes.len() as u64) as usize;
            let flush = &mut self.flushes[at];
            if self.draw.below(2) == 0 {
                flush.on_old.take().into_iter().for_each(|seen| self.old.flush(&seen));
            } else {
                flush.on_new.take().into_iter().for_each(|seen| self.new.flush(&seen));
            }
            if flush.on_old.is_none() && flush.on_new.is_none() {
                for (unit, value) in self.flushes.swap_remove(at).promises {
                    let newest = self.promised.entry(unit).or_default();
                    *newest = value.max(*newest);
                }
            }
        }

        fn go_on_copying(&mut self) {
            if let Some((unit, values)) = self.carried.take() {
                for (unit, value) in (unit..).zip(values) {
                    self.new.write(unit, value);
                }
                return self.copy.chunk_written();
            }
            if let Some(seen) = self.flushing.take() {
                self.new.flush(&seen);
                return self.copy.flushed();
            }
            let writes = &self.writes;
            let is_written = |from: u64, to: u64| {
                writes.iter().any(|write| write.unit * UNIT < to && (write.unit + 1) * UNIT > from)
            };
            match self.copy.next(is_written) {
                Some(CopyStep::Copy { from, len }) => {
                    let units = from / UNIT..(from + len).div_ceil(UNIT);
                    self.carried = Some((units.start, units.map(|unit| self.old.read(unit)).collect()));
                }
                Some(CopyStep::Flush) => self.flushing = Some(self.new.cached.clone()),
                None => {}
            }
        }

        /// Checks that after a power loss now, the new device alone has the data that flushes
        /// cover: durable values of one place only grow, so it may have newer data.
        fn judge(&self) {
            if !self.copy.is_whole() {
                return;
            }
            for (unit, value) in &self.promised {
                let kept = self.new.durable.get(unit).copied().unwrap_or_default();
                assert!(kept >= *value, "unit {unit}: {kept} is durable, {value} was promised");
            }
            for (unit, value) in &self.acknowledged {
                let there = self.new.read(*unit);
                assert!(there >= *value, "unit {unit}: {there} is there, {value} was acknowledged");
            }
        }

        fn run(mut self) -> bool {
            let mut after = 300;
            for _ in 0..20_000 {
                match self.draw.below(12) {
                    0..2 => self.begin_write(),
                    2..6 => self.go_on_writing(),
                    6 => self.begin_flush(),
                    7..9 => self.go_on_flushing(),
                    _ => self.go_on_copying(),
                }
                self.judge();
                after -= u32::from(self.copy.is_whole());
                if after == 0 {
                    return true;
                }
            }
            false
        }
    }

    #[test]
    fn copied_device_has_all_acknowledged_data() {
        let whole = (1..=400).filter(|seed| Run::new(*seed).run()).count();
        assert!(whole > 390, "{whole} of 400 copies came to an end");
    }

    #[test]
    fn device_copy_writes_the_head_last() {
        let mut copy = DeviceCopy::new(HEAD_BYTES + CHUNK_BYTES + 4096, CHUNK_BYTES);
        let mut steps = Vec::new();
        while !copy.is_whole() {
            let before = copy.left_bytes();
            match copy.next(|_, _| false).expect("it is not whole") {
                step @ CopyStep::Copy { .. } => {
                    assert_eq!(copy.next(|_, _| false), None, "one step at a time");
                    copy.chunk_written();
                    assert!(copy.left_bytes() < before);
                    steps.push(step);
                }
                step @ CopyStep::Flush => {
                    copy.flushed();
                    steps.push(step);
                }
            }
        }
        let copied = |from, len| CopyStep::Copy { from, len };
        assert_eq!(
            steps,
            [
                copied(HEAD_BYTES, CHUNK_BYTES),
                copied(HEAD_BYTES + CHUNK_BYTES, 4096),
                CopyStep::Flush,
                copied(0, HEAD_BYTES),
                CopyStep::Flush
            ]
        );
        assert_eq!((copy.left_bytes(), copy.next(|_, _| false)), (0, None));
    }
}
