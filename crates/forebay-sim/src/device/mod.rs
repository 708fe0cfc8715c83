//! A simulated device with fault injection.
//!
//! # Fault model
//!
//! **Volatile write cache.** A device has a *durable* image and a list of *fragments*: pieces of
//! writes that have landed in its volatile cache, in the order of landing. Reads see the *visible*
//! image: the durable image with all fragments on top. A write lands when it completes; some of its
//! sectors, drawn at random, may land as early as its submission. A read sees the device at its
//! submission or at its completion, drawn at random.
//!
//! **Flush** makes durable, at its completion, everything that had landed when it was *submitted*.
//! It does not cover writes that land while it is in flight.
//!
//! **Power cut.** Every fragment survives, is lost, or is torn (any subset of its sectors
//! survives), each on its own; the surviving fragments are applied in the order of landing. So a
//! sector holds its last durable bytes or any later version: a device may write back an older
//! version, receive a newer one and lose it; but it never lets an older version replace a newer one
//! *that had already landed on top of it in the cache*, because its cache holds one version per
//! sector. Writes still in flight land wholly, partly or not at all, in any order among themselves,
//! after the fragments (landing before one of them is the same as being lost in that sector). A
//! sector of 512 bytes is never torn.
//!
//! **Kill** of the daemon: everything that had landed stays, and stays volatile, so that a power
//! cut after the restart can still lose it; writes in flight settle wholly, partly or not at all
//! before the restart.
//!
//! **Errors.** Transient errors of reads, writes and flushes: a failed write has landed wholly,
//! partly or not at all; a failed flush has made nothing durable, and its data stays in the
//! volatile cache, or (`flush_drops`) is dropped from it while reads still see it, as on Linux
//! files: no later flush covers it. Latent errors: a sector cannot be read until it is written.
//! Lost writes: acknowledged, never landed. Misdirected writes: landed elsewhere, at a block
//! boundary. Bit rot: bits flip at rest.
//!
//! **Discards** may leave each sector unchanged, or put zeroes or garbage there, like a write that
//! lands in the volatile cache: so a crash may undo the discard, or a part of it.
//!
//! **Unplugging** takes the same from the volatile cache as a power cut, while the engine runs.
//!
//! **Death.** From some instant on all operations fail, or all but reads, or, with two devices as
//! one cache, all on the second one and every flush. Writes in flight fail too, and have landed
//! wholly, partly or not at all. A restart brings the device back with its content.

use crate::image::Image;
use crate::rng::{Rng, mix};
use forebay_format::{BLOCK_BYTES, SECTOR_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A set of sectors of a write.
#[derive(Clone, Debug)]
enum Sectors {
    All,
    Some(Vec<bool>),
}

impl Sectors {
    fn random(count: usize, rng: &mut Rng) -> Self {
        match rng.below(4) {
            // A prefix or a suffix, as left by devices that write in order; else any subset.
            0 => {
                let cut = rng.below(count as u64 + 1) as usize;
                Self::Some((0..count).map(|index| index < cut).collect())
            }
            1 => {
                let cut = rng.below(count as u64 + 1) as usize;
                Self::Some((0..count).map(|index| index >= cut).collect())
            }
            _ => Self::Some((0..count).map(|_| rng.chance(1, 2)).collect()),
        }
    }

    /// Draws everything, nothing (`None`) or a part.
    fn fate(count: usize, rng: &mut Rng) -> Option<Self> {
        match rng.below(5) {
            0 | 1 => Some(Self::All),
            2 | 3 => None,
            _ => Some(Self::random(count, rng)),
        }
    }

    fn of(count: usize, has: impl Fn(usize) -> bool) -> Self {
        Self::Some((0..count).map(has).collect())
    }

    fn has(&self, index: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(mask) => mask[index],
        }
    }

    fn both(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, any) | (any, Self::All) => any.clone(),
            (Self::Some(a), Self::Some(b)) => Self::Some(a.iter().zip(b).map(|(a, b)| *a && *b).collect()),
        }
    }
}

/// The remains of one write after a crash, for callers that choose them instead of drawing them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WriteRemains {
    /// Everything.
    All,
    /// Nothing.
    Nothing,
    /// This many sectors from its start.
    Head(usize),
    /// Everything but this many sectors at its start.
    Tail(usize),
    /// Every other sector.
    Comb,
}

impl WriteRemains {
    fn sectors(self, count: usize) -> Option<Sectors> {
        match self {
            Self::All => Some(Sectors::All),
            Self::Nothing => None,
            Self::Head(end) => Some(Sectors::of(count, |index| index < end)),
            Self::Tail(start) => Some(Sectors::of(count, |index| index >= start)),
            Self::Comb => Some(Sectors::of(count, |index| index % 2 == 0)),
        }
    }
}

/// Writes some sectors of `data`.
fn write_sectors(image: &mut Image, offset: u64, data: &[u8], sectors: &Sectors) {
    let Sectors::Some(mask) = sectors else { return image.write(offset, data) };
    for (index, bytes) in data.chunks(SECTOR_BYTES).enumerate().filter(|(index, _)| mask[*index]) {
        image.write(offset + (index * SECTOR_BYTES) as u64, bytes);
    }
}

/// A piece of a write in the volatile cache.
#[derive(Clone)]
struct Fragment {
    landing: u64,
    offset: u64,
    data: Rc<Vec<u8>>,
    sectors: Sectors,
}

/// The outcome of a write at its completion.
#[derive(Clone, Debug)]
enum Fate {
    Good,
    Fail(Option<Sectors>),
    Lost,
    Misdirected(u64),
}

/// A write in flight.
#[derive(Clone)]
struct InFlight {
    offset: u64,
    data: Rc<Vec<u8>>,
    /// Sectors that have not landed yet.
    rest: Sectors,
    fate: Fate,
}

/// Rates of faults, in parts per million of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Reads that fail once.
    pub read_error: u32,
    /// Writes (and zeroes) that fail.
    pub write_error: u32,
    /// Flushes that fail.
    pub flush_error: u32,
    /// A failed flush drops half of the data that it should have made durable: still visible, but
    /// no later flush covers it.
    pub flush_drops: bool,
    /// Writes that are acknowledged and never land.
    pub lost: u32,
    /// Writes that land at another place.
    pub misdirected: u32,
    /// Writes below [`SimDevice::misdirect_from`] do not fail.
    pub spares_metadata: bool,
    /// Range of bytes in which all writes fail.
    pub barred: Option<(u64, u64)>,
}

/// Latencies of operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// Minimum time of a read.
    pub read_ns: u64,
    /// Minimum time of a write.
    pub write_ns: u64,
    /// Minimum time of a flush.
    pub flush_ns: u64,
    /// Added per block.
    pub block_ns: u64,
    /// At most this many times the minimum is added at random.
    pub spread: u64,
    /// Very slow operations, in parts per million.
    pub slow_ppm: u32,
    /// Upper limit of the time added to those.
    pub slow_ns: u64,
}

/// The end of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteEnd {
    /// It landed.
    Good,
    /// The device reported an error.
    Failed,
    /// The device reported success, but the write did not land.
    Lost {
        /// Its offset.
        offset: u64,
        /// Its length.
        len: u64,
    },
    /// The device reported success, but the write landed at another place.
    Misdirected {
        /// Its offset.
        offset: u64,
        /// The offset at which it landed.
        landed: u64,
        /// Its length.
        len: u64,
    },
}

/// How a device dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// All operations fail.
    All,
    /// All but reads fail.
    Writes,
    /// The device consists of two, and the second one is gone.
    Second,
    /// One flush fails and drops half of the data that it should have made durable; all else works.
    FlushDrops,
}

/// A kind of operation, for its latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// Read.
    Read,
    /// Write or zero.
    Write,
    /// Flush.
    Flush,
}

/// The device. See the top of the file.
#[derive(Clone)]
pub struct SimDevice {
    durable: Image,
    visible: Image,
    fragments: Vec<Fragment>,
    landings: u64,
    in_flight: BTreeMap<u64, InFlight>,
    next_write: u64,
    latent: BTreeSet<u64>,
    /// A sector, and how many more reads of it return wrong bytes.
    misread: (u64, u32),
    dead: Option<Death>,
    /// A failed flush has dropped data.
    dropped: bool,
    /// A failed flush has dropped data at any time, also before a restart.
    ever_dropped: bool,
    /// Rates of faults; may change at any time.
    pub faults: Faults,
    /// Latencies of operations.
    pub latency: Latency,
    /// Writes below this offset, in bytes, are never misdirected, and none is misdirected to there.
    pub misdirect_from: u64,
    /// Offset of the second of two devices, in bytes.
    pub second_at: u64,
    /// Of the writes that will succeed, one in this many shows some of its sectors as early as its
    /// submission; 0: none does.
    pub early_of: u64,
    /// Flushes succeed and do nothing.
    pub ignores_flushes: bool,
}

impl SimDevice {
    /// Creates a device full of zeroes.
    #[must_use]
    pub fn new(bytes: u64, latency: Latency) -> Self {
        let image = Image::new(bytes);
        Self {
            durable: image.clone(),
            visible: image,
            fragments: Vec::new(),
            landings: 0,
            in_flight: BTreeMap::new(),
            next_write: 0,
            latent: BTreeSet::new(),
            misread: (0, 0),
            dead: None,
            dropped: false,
            ever_dropped: false,
            faults: Faults::default(),
            latency,
            misdirect_from: 0,
            second_at: u64::MAX,
            early_of: 6,
            ignores_flushes: false,
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.durable.bytes()
    }

    /// Returns the image that reads see.
    #[must_use]
    pub fn visible(&self) -> &Image {
        &self.visible
    }

    /// Returns the image that a power cut cannot take away.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Returns true if a power cut leaves these bytes as reads see them now: nothing of the range
    /// is only in the volatile cache.
    #[must_use]
    pub fn is_durable(&self, offset: u64, len: usize) -> bool {
        let bytes = |image: &Image| {
            let mut bytes = vec![0; len];
            image.read(offset, &mut bytes);
            bytes
        };
        bytes(&self.durable) == bytes(&self.visible)
    }

    /// Puts bytes on the medium at once, while the device is not in use. First makes the content of
    /// the volatile cache durable.
    pub fn preset(&mut self, offset: u64, data: &[u8]) {
        self.fragments.clear();
        self.durable = self.visible.clone();
        self.durable.write(offset, data);
        self.visible.write(offset, data);
    }

    /// Puts bytes on the medium at once, in whole sectors, while the rest of the device is in use:
    /// no write to them is in flight, and fragments of them in the volatile cache are dropped.
    pub fn poke(&mut self, offset: u64, data: &[u8]) {
        let range = offset..offset + data.len() as u64;
        for fragment in &mut self.fragments {
            let count = fragment.data.len() / SECTOR_BYTES;
            let end = fragment.offset + fragment.data.len() as u64;
            if fragment.offset < range.end && range.start < end {
                let outside = |index: usize| {
                    !range.contains(&(fragment.offset + (index * SECTOR_BYTES) as u64))
                        && fragment.sectors.has(index)
                };
                fragment.sectors = Sectors::Some((0..count).map(outside).collect());
            }
        }
        self.durable.write(offset, data);
        self.visible.write(offset, data);
    }

    /// Fails the device until it is restarted.
    pub fn die(&mut self, death: Death, rng: &mut Rng) {
        self.dead = Some(death);
        let second_at = self.second_at;
        let meets = |write: &InFlight| match death {
            Death::All | Death::Writes => true,
            Death::Second => write.offset + write.data.len() as u64 > second_at,
            Death::FlushDrops => false,
        };
        for write in self.in_flight.values_mut().filter(|write| meets(write)) {
            let count = write.data.len() / SECTOR_BYTES;
            write.fate = Fate::Fail(Sectors::fate(count, rng).map(|part| part.both(&write.rest)));
        }
    }

    /// Brings the device back after unplugging: it may lack unflushed data. No operation is in
    /// flight.
    pub fn replug(&mut self, rng: &mut Rng) {
        assert!(self.in_flight.is_empty(), "the kernel ends what is under way on a device that is gone");
        let back = self.power_cut(rng);
        (self.durable, self.visible) = (back.durable, back.visible);
        self.fragments.clear();
    }

    /// Brings a dead device back, at a restart.
    pub fn revive(&mut self) {
        self.dead = None;
    }

    /// Returns true if the device has died.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.is_some()
    }

    /// Returns true if a failed flush has dropped data: it is not there after a restart.
    #[must_use]
    pub fn has_dropped(&self) -> bool {
        self.dropped
    }

    /// Returns true if a failed flush has dropped data at any time. A start rewrites dirty data
    /// that may have been dropped, but not fills (I72): a dropped fill may be found damaged later,
    /// and is then no longer cached.
    #[must_use]
    pub fn has_ever_dropped(&self) -> bool {
        self.ever_dropped
    }

    /// Returns true if these bytes reach into a second device that is gone.
    fn is_gone(&self, offset: u64, len: usize) -> bool {
        self.dead == Some(Death::Second) && offset + len as u64 > self.second_at
    }

    fn takes_no_writes(&self) -> bool {
        matches!(self.dead, Some(Death::All | Death::Writes))
    }

    /// Draws the time of an operation of `len` bytes.
    pub fn time(&self, kind: OpKind, len: u64, rng: &mut Rng) -> u64 {
        let l = &self.latency;
        let least = match kind {
            OpKind::Read => l.read_ns,
            OpKind::Write => l.write_ns,
            OpKind::Flush => l.flush_ns,
        } + len.div_ceil(BLOCK_BYTES as u64) * l.block_ns;
        if rng.ppm(l.slow_ppm) {
            return least + rng.below(l.slow_ns.max(1));
        }
        least + rng.below(least * l.spread + 1)
    }

    /// Submits a write. Returns its number.
    pub fn submit_write(&mut self, offset: u64, data: Rc<Vec<u8>>, rng: &mut Rng) -> u64 {
        let count = data.len() / SECTOR_BYTES;
        let fate = self.draw_fate(offset, count, rng);
        let mut rest = Sectors::All;
        if matches!(fate, Fate::Good) && self.early_of > 0 && rng.chance(1, self.early_of) {
            let early = Sectors::random(count, rng);
            rest = Sectors::Some((0..count).map(|index| !early.has(index)).collect());
            self.land(offset, &data, early);
        }
        let number = self.next_write;
        self.next_write += 1;
        self.in_flight.insert(number, InFlight { offset, data, rest, fate });
        number
    }

    /// Submits a discard; it completes as a write. Returns its number.
    pub fn submit_discard(&mut self, offset: u64, len: u64, fails: bool, rng: &mut Rng) -> u64 {
        let count = len as usize / SECTOR_BYTES;
        let mut data = vec![0; len as usize];
        if rng.chance(1, 2) {
            let mut word = rng.word();
            for bytes in data.chunks_mut(8) {
                word = mix(word);
                bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
            }
        }
        // Unchanged sectors do not land.
        let rest = Sectors::fate(count, rng).unwrap_or_else(|| Sectors::of(count, |_| false));
        let refuses = self.takes_no_writes() || self.is_gone(offset, len as usize);
        let fate = match (refuses, fails) {
            (true, _) => Fate::Fail(None),
            (false, true) => Fate::Fail(Sectors::fate(count, rng).map(|part| part.both(&rest))),
            (false, false) => Fate::Good,
        };
        let number = self.next_write;
        self.next_write += 1;
        self.in_flight.insert(number, InFlight { offset, data: Rc::new(data), rest, fate });
        number
    }

    fn draw_fate(&self, offset: u64, count: usize, rng: &mut Rng) -> Fate {
        if self.takes_no_writes() || self.is_gone(offset, count * SECTOR_BYTES) {
            return Fate::Fail(None);
        }
        if let Some((from, to)) = self.faults.barred {
            let at = |index: usize| offset + (index * SECTOR_BYTES) as u64;
            if at(0) < to && from < at(count) {
                let outside = Sectors::of(count, |index| !(from..to).contains(&at(index)));
                return Fate::Fail(Sectors::fate(count, rng).map(|part| part.both(&outside)));
            }
        }
        let spared = self.faults.spares_metadata && offset < self.misdirect_from;
        if !spared && rng.ppm(self.faults.write_error) {
            return Fate::Fail(Sectors::fate(count, rng));
        }
        if offset < self.misdirect_from {
            return Fate::Good;
        }
        if rng.ppm(self.faults.lost) {
            return Fate::Lost;
        }
        if rng.ppm(self.faults.misdirected) {
            let len = (count * SECTOR_BYTES) as u64;
            let places = (self.bytes() - self.misdirect_from - len) / BLOCK_BYTES as u64;
            return Fate::Misdirected(self.misdirect_from + rng.below(places + 1) * BLOCK_BYTES as u64);
        }
        Fate::Good
    }

    /// Completes a write.
    pub fn complete_write(&mut self, number: u64) -> WriteEnd {
        let write = self.in_flight.remove(&number).expect("a write completes once");
        let len = write.data.len() as u64;
        match write.fate {
            Fate::Good => {
                self.land(write.offset, &write.data, write.rest);
                WriteEnd::Good
            }
            Fate::Fail(part) => {
                if let Some(part) = part {
                    self.land(write.offset, &write.data, part);
                }
                WriteEnd::Failed
            }
            Fate::Lost => WriteEnd::Lost { offset: write.offset, len },
            Fate::Misdirected(landed) => {
                self.land(landed, &write.data, Sectors::All);
                WriteEnd::Misdirected { offset: write.offset, landed, len }
            }
        }
    }

    fn land(&mut self, offset: u64, data: &Rc<Vec<u8>>, sectors: Sectors) {
        if !self.latent.is_empty() {
            for index in (0..data.len() / SECTOR_BYTES).filter(|index| sectors.has(*index)) {
                self.latent.remove(&(offset / SECTOR_BYTES as u64 + index as u64));
            }
        }
        write_sectors(&mut self.visible, offset, data, &sectors);
        self.landings += 1;
        self.fragments.push(Fragment { landing: self.landings, offset, data: Rc::clone(data), sectors });
    }

    /// Submits a flush. Returns the argument for `complete_flush`.
    pub fn submit_flush(&self) -> u64 {
        self.landings
    }

    /// Completes a flush that was submitted when `covered` was returned; true if it succeeded.
    pub fn complete_flush(&mut self, covered: u64, rng: &mut Rng) -> bool {
        if self.takes_no_writes() || self.dead == Some(Death::Second) {
            return false;
        }
        let drops = self.dead == Some(Death::FlushDrops) && !self.dropped;
        if drops || rng.ppm(self.faults.flush_error) {
            if drops || self.faults.flush_drops {
                self.dropped |= drops;
                let before = self.fragments.len();
                self.fragments.retain(|fragment| fragment.landing > covered || rng.chance(1, 2));
                self.ever_dropped |= self.fragments.len() < before;
            }
            return false;
        }
        if self.ignores_flushes {
            return true;
        }
        let end = self.fragments.partition_point(|fragment| fragment.landing <= covered);
        for fragment in self.fragments.drain(..end) {
            write_sectors(&mut self.durable, fragment.offset, &fragment.data, &fragment.sectors);
        }
        true
    }

    /// Returns the number of writes submitted since the start.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.next_write
    }

    /// Reads the visible image; false if the device reports an error.
    pub fn read(&mut self, offset: u64, to: &mut [u8], rng: &mut Rng) -> bool {
        if self.dead == Some(Death::All) || self.is_gone(offset, to.len()) || rng.ppm(self.faults.read_error)
        {
            return false;
        }
        if !self.latent.is_empty() {
            let first = offset / SECTOR_BYTES as u64;
            let end = first + (to.len() / SECTOR_BYTES) as u64;
            if self.latent.range(first..end).next().is_some() {
                return false;
            }
        }
        self.visible.read(offset, to);
        let (first, sectors) = (offset / SECTOR_BYTES as u64, (to.len() / SECTOR_BYTES) as u64);
        let (at, reads) = &mut self.misread;
        if *reads > 0 && (first..first + sectors).contains(at) {
            *reads -= 1;
            to[(*at - first) as usize * SECTOR_BYTES] ^= 1;
        }
        true
    }

    /// Flips a bit at rest.
    pub fn rot(&mut self, offset: u64, bit: u8) {
        self.durable.flip(offset, bit);
        self.visible.flip(offset, bit);
    }

    /// Makes a sector unreadable until it is written.
    pub fn spoil(&mut self, offset: u64) {
        self.latent.insert(offset / SECTOR_BYTES as u64);
    }

    /// The next `reads` reads of this sector return wrong bytes, without an error; the sector
    /// itself does not change.
    pub fn misread(&mut self, offset: u64, reads: u32) {
        self.misread = (offset / SECTOR_BYTES as u64, reads);
    }

    /// Stops all faults that occur at a rate.
    pub fn quiet(&mut self) {
        self.faults = Faults::default();
        self.latency.slow_ppm = 0;
    }

    /// Returns true if no write is in flight between this offset and the end of the range.
    #[must_use]
    pub fn idle(&self, offset: u64, len: u64) -> bool {
        self.in_flight
            .values()
            .all(|write| write.offset + write.data.len() as u64 <= offset || offset + len <= write.offset)
    }

    /// Returns the device after a power cut at this instant.
    #[must_use]
    pub fn power_cut(&self, rng: &mut Rng) -> Self {
        let mut image = self.durable.clone();
        // Mostly a mixture; sometimes everything or nothing, which are the likeliest states of real
        // devices.
        let style = rng.below(8);
        for fragment in &self.fragments {
            let count = fragment.data.len() / SECTOR_BYTES;
            let fate = match style {
                0 => Some(Sectors::All),
                1 => None,
                _ => Sectors::fate(count, rng),
            };
            if let Some(part) = fate {
                write_sectors(&mut image, fragment.offset, &fragment.data, &part.both(&fragment.sectors));
            }
        }
        for (offset, data, part) in self.settle(rng) {
            write_sectors(&mut image, offset, &data, &part);
        }
        self.restarted(image.clone(), image, Vec::new())
    }

    /// Returns the device after a kill of the daemon at this instant.
    #[must_use]
    pub fn kill(&self, rng: &mut Rng) -> Self {
        let mut device = self.restarted(self.durable.clone(), self.visible.clone(), self.fragments.clone());
        device.landings = self.landings;
        for (offset, data, part) in self.settle(rng) {
            device.land(offset, &data, part);
        }
        device
    }

    /// Returns a hash of everything that determines a crash now: it stays the same while nothing
    /// lands, is submitted or is made durable.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        let writes = self.in_flight.keys().fold(self.next_write, |key, number| mix(key ^ number));
        mix(mix(writes ^ self.landings) ^ self.fragments.len() as u64)
    }

    /// Returns the numbers of sectors of the writes that a crash decides about: those in the
    /// volatile cache (for a power cut), then those in flight.
    #[must_use]
    pub fn undecided(&self, power: bool) -> Vec<usize> {
        let volatile = self.fragments.iter().filter(|_| power).map(|fragment| &fragment.data);
        let all = volatile.chain(self.in_flight.values().map(|write| &write.data));
        all.map(|data| data.len() / SECTOR_BYTES).collect()
    }

    /// Returns the device after a crash; `left` is the remains of each write of
    /// [`SimDevice::undecided`]. Those in flight land in the order of submission.
    #[must_use]
    pub fn crash_to(&self, power: bool, mut left: impl Iterator<Item = WriteRemains>) -> Self {
        let mut next =
            |data: &Rc<Vec<u8>>| left.next().unwrap_or(WriteRemains::All).sectors(data.len() / SECTOR_BYTES);
        if !power {
            let mut device =
                self.restarted(self.durable.clone(), self.visible.clone(), self.fragments.clone());
            device.landings = self.landings;
            for write in self.in_flight.values() {
                if let Some(part) = next(&write.data) {
                    device.land(write.offset, &write.data, part.both(&write.rest));
                }
            }
            return device;
        }
        let mut image = self.durable.clone();
        for fragment in &self.fragments {
            if let Some(part) = next(&fragment.data) {
                write_sectors(&mut image, fragment.offset, &fragment.data, &part.both(&fragment.sectors));
            }
        }
        for write in self.in_flight.values() {
            if let Some(part) = next(&write.data) {
                write_sectors(&mut image, write.offset, &write.data, &part.both(&write.rest));
            }
        }
        self.restarted(image.clone(), image, Vec::new())
    }

    /// Draws which sectors of the writes in flight land, in random order.
    fn settle(&self, rng: &mut Rng) -> Vec<(u64, Rc<Vec<u8>>, Sectors)> {
        let mut landed = Vec::new();
        for write in self.in_flight.values() {
            if matches!(write.fate, Fate::Lost | Fate::Misdirected(_)) {
                continue;
            }
            let count = write.data.len() / SECTOR_BYTES;
            if let Some(part) = Sectors::fate(count, rng) {
                let at = rng.below(landed.len() as u64 + 1) as usize;
                landed.insert(at, (write.offset, Rc::clone(&write.data), part.both(&write.rest)));
            }
        }
        landed
    }

    fn restarted(&self, durable: Image, visible: Image, fragments: Vec<Fragment>) -> Self {
        Self {
            durable,
            visible,
            fragments,
            landings: 0,
            in_flight: BTreeMap::new(),
            next_write: 0,
            latent: self.latent.clone(),
            dead: None,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests;
