//! A cache device is copied onto another one while it is used: what is copied when, which writes
//! and flushes go to both, and when the new one counts. Only the state: the engine knows nothing of
//! it. Its owner submits the operations, in the daemon `forebay-pool`, and the simulator.
//!
//! - The old device alone counts until the configuration names the new one. It has every write and
//!   every flush until then.
//! - A write goes to the new device as well as soon as anything that it touches was copied. So what
//!   was copied stays equal.
//! - A chunk is copied again if a write of it was under way meanwhile: nobody knows which of both
//!   the copy has.
//! - Flushes go to both before the new device is flushed for the first time. So once that flush
//!   has ended, the new device holds whatever a flush has promised, before it or since.
//! - Its head, with the superblocks or the header of a member, is copied last, and only after that
//!   flush: a device with a head has all the rest, durably.
//! - What fails on the new device is nothing to the engine until that device counts
//!   ([`DeviceCopy::begin_to_count`]): just before the configuration names it. From then on an
//!   operation has succeeded only if both devices have done it ([`joint`]).
//!
//! In a mirrored cache the device is a member, and a flush of the cache is one of each member:
//! those of the member that is copied go to both. All else is the same: the new device has the
//! bytes of the member, its tag included. So the change has not ended before the old one is too far
//! behind to be believed beside the other member ([`is_left_behind`]).

use crate::fault::{self, PlantedBug};

/// The beginning of a cache device: superblocks or headers, and nothing else. A device that is
/// being filled says so there.
pub const HEAD_BYTES: u64 =
    forebay_format::geometry::CHECKPOINT_START_BLOCK * forebay_format::BLOCK_BYTES as u64;

/// How an operation ends that goes to both devices: as on the old one; once the new one `counts`
/// only if it has succeeded there too.
///
/// # Errors
/// That of the old device, else that of the new one.
pub fn joint<E>(old: Result<(), E>, new: Result<(), E>, counts: bool) -> Result<(), E> {
    if counts && !fault::planted(PlantedBug::TrustFailedSecond) { old.and(new) } else { old }
}

/// Generations of the superblock by which a device that was replaced must be behind. A start
/// believes a member that is behind by one. The checkpoint that was under way when the new device
/// took over may have written one to the old device.
const GENERATIONS_BEHIND: u64 = 3;

/// The device of a mirrored cache that was replaced when the superblock had the generation `then`
/// is believed by no start that finds the other member as well, now that it has the generation
/// `now`: nobody needs the notes of this host for that.
#[must_use]
pub fn is_left_behind(then: u64, now: u64) -> bool {
    now >= then.saturating_add(GENERATIONS_BEHIND) || fault::planted(PlantedBug::LeaveOldBelieved)
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyStep {
    /// Read so many bytes of the old device from here, and write them to the same place of the new
    /// one.
    Copy {
        /// The first byte.
        from: u64,
        /// How many.
        len: u64,
    },
    /// Flush the new device.
    Flush,
}

/// How far a copy is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    /// Everything behind the head is copied.
    Body,
    /// That is made durable.
    BodyFlush,
    /// The head is copied.
    Head,
    /// That is made durable.
    HeadFlush,
    /// The new device could take the place of the old one.
    Whole,
}

/// Bytes that are being copied.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    from: u64,
    to: u64,
    /// A write of them was under way meanwhile.
    is_spoiled: bool,
}

/// The copy of one device onto another one.
#[derive(Debug)]
pub struct DeviceCopy {
    phase: Phase,
    /// Bytes of the old device that are used.
    used: u64,
    /// Most bytes that are copied at once.
    chunk_bytes: u64,
    /// From the head to here everything is on the new device.
    copied: u64,
    chunk: Option<Chunk>,
    is_flushing: bool,
    counts: bool,
}

impl DeviceCopy {
    /// Nothing is copied yet of the bytes that are used of a device; so many are copied at once.
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

    /// Begins the next step, if none is under way and one is left. `is_written` says whether a
    /// write to these bytes of the old device is under way, from and to.
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

    /// A write to the old device begins: true if it must go to the new one as well, and ends when
    /// both have ended.
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

    /// Whether a flush that begins now must go to the new device as well.
    #[must_use]
    pub fn flushes_both(&self) -> bool {
        self.phase >= Phase::BodyFlush && !fault::planted(PlantedBug::FlushOldDeviceOnly)
    }

    /// The chunk under way is on the new device.
    pub fn chunk_written(&mut self) {
        let Some(chunk) = self.chunk.take() else { return };
        match self.phase {
            _ if chunk.is_spoiled && !fault::planted(PlantedBug::CopyBehindWrite) => {}
            Phase::Body => self.copied = chunk.to,
            Phase::Head => self.phase = Phase::HeadFlush,
            Phase::BodyFlush | Phase::HeadFlush | Phase::Whole => {}
        }
    }

    /// The flush under way has ended.
    pub fn flushed(&mut self) {
        self.is_flushing = false;
        self.phase = match self.phase {
            Phase::BodyFlush => Phase::Head,
            Phase::HeadFlush => Phase::Whole,
            other => other,
        };
    }

    /// The head of the new device is that of the old one, and what is written to it goes to both.
    /// Before, it may be one that was written while it was copied.
    #[must_use]
    pub fn has_head(&self) -> bool {
        self.phase >= Phase::HeadFlush
    }

    /// The new device has everything that the old one has, durably as far as a flush has promised
    /// it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.phase == Phase::Whole
    }

    /// The configuration is about to name the new device, which has everything.
    ///
    /// # Panics
    /// It has not.
    pub fn begin_to_count(&mut self) {
        assert!(self.is_whole(), "I80: a device counts that has not everything");
        self.counts = true;
    }

    /// An operation has succeeded only if the new device has done it too.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.counts
    }

    /// Bytes that are not on the new device yet.
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
    fn a_device_that_was_replaced_is_left_behind_by_more_than_a_start_believes() {
        // The checkpoint under way at the change may have reached it: then it has generation 8.
        assert!(!is_left_behind(7, 9), "behind by one at most");
        assert!(is_left_behind(7, 10));
    }

    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    const CHUNK_BYTES: u64 = 1 << 20;

    /// The unit of this model, and how many a device has.
    const UNIT: u64 = 64 << 10;
    const UNITS: u64 = 70;

    /// A device that loses what was not flushed, or keeps it, as it likes.
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

        /// A flush that began when the device had this has ended. What one that began later has
        /// made durable stays.
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

    /// A write under way: where, what, and on which devices it has not ended.
    struct Write {
        unit: u64,
        value: u64,
        on_old: bool,
        on_new: bool,
    }

    /// A flush under way: what it promises, and what each device had when it began there.
    struct Flush {
        promises: BTreeMap<u64, u64>,
        on_old: Option<BTreeMap<u64, u64>>,
        on_new: Option<BTreeMap<u64, u64>>,
    }

    /// One run: the copy and its client take steps in an order that the seed says, and the new
    /// device is judged whenever it has a head.
    struct Run {
        draw: Draw,
        old: Model,
        new: Model,
        copy: DeviceCopy,
        writes: Vec<Write>,
        flushes: Vec<Flush>,
        /// What was acknowledged, and what of it was promised to be durable.
        acknowledged: BTreeMap<u64, u64>,
        promised: BTreeMap<u64, u64>,
        values: u64,
        /// Read from the old device, and not written to the new one.
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
            // Nobody writes to one place twice at once, and mostly to few places.
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

        /// After a loss of power now, the new device alone has what was promised: durable values of
        /// one place only grow, so it may have something newer.
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
    fn a_device_with_a_head_has_all_that_was_acknowledged_and_promised() {
        let whole = (1..=400).filter(|seed| Run::new(*seed).run()).count();
        assert!(whole > 390, "{whole} of 400 copies came to an end");
    }

    #[test]
    fn the_head_comes_last_and_what_is_left_gets_less() {
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
