//! A simulated device with fault injection.
//!
//! # Fault model
//!
//! **Volatile write cache.** A device has a *durable* image and a list of *fragments*: pieces of
//! writes that have landed in its volatile cache, in the order of landing. What a read sees (the
//! *visible* image) is the durable image with all fragments on top. A write lands when it
//! completes; some of its sectors, drawn at random, may land as early as its submission. A read
//! sees the device at its submission or at its completion, drawn at random.
//!
//! **Flush** makes durable, at its completion, everything that had landed when it was *submitted*.
//! It does not cover what lands while it is under way.
//!
//! **Power cut.** Every fragment survives, is lost, or is torn (any subset of its sectors
//! survives), each on its own; the survivors are applied in the order of landing. So a sector holds
//! its last durable bytes or any later version: a device may write back an older version, receive a
//! newer one and lose it; but it never lets an older version replace a newer one *that had already
//! landed on top of it in the cache*, because its cache holds one version per sector. Writes still
//! in flight land wholly, partly or not at all, in any order among themselves, after the fragments
//! (landing before one of them is the same as being lost in that sector). A sector of 512 bytes is
//! never torn.
//!
//! **Kill** of the daemon: everything that had landed stays, and stays volatile, so that a power
//! cut after the restart can still lose it; writes in flight settle wholly, partly or not at all
//! before the restart.
//!
//! **Errors.** Transient errors of reads, writes and flushes: a failed write has landed wholly,
//! partly or not at all; a failed flush has made nothing durable, and what it did not make durable
//! stays in the volatile cache, or (`flush_drops`) is dropped from it while reads go on to see it,
//! as Linux does it to files: no later flush brings it back. Latent errors: a sector cannot be read
//! until it is written. Lost writes: acknowledged, never landed. Misdirected writes: landed
//! elsewhere, at a block boundary. Bit rot: bits flip at rest.
//!
//! **Discards** may leave each sector as it is, or put zeroes or garbage there, as a write that
//! lands in the volatile cache would: so a crash may take that back, or a part of it.
//!
//! **Unplugging** takes from the volatile cache what a power cut does, while the engine runs.
//!
//! **Death.** From an instant on everything fails, or everything but reads, or, of two devices that
//! are one cache, everything on the second one and every flush. Writes in flight fail
//! too, and have landed wholly, partly or not at all. A restart brings the device back: what it
//! holds is what it held.

use crate::image::Image;
use crate::rng::{Rng, mix};
use forebay_format::{BLOCK_BYTES, SECTOR_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Which sectors of a write.
#[derive(Clone, Debug)]
enum Sectors {
    All,
    Some(Vec<bool>),
}

impl Sectors {
    fn random(count: usize, rng: &mut Rng) -> Self {
        match rng.below(4) {
            // A prefix or a suffix, as devices that write in order leave it; else any subset.
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

    /// Everything, nothing (`None`) or a part.
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

/// What a crash leaves of one write, for those who decide it instead of drawing it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WriteRemains {
    /// Everything.
    All,
    /// Nothing.
    Nothing,
    /// So many sectors from its start.
    Head(usize),
    /// Everything but so many sectors at its start.
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

/// What will become of a write when it completes.
#[derive(Clone, Debug)]
enum Fate {
    Good,
    Fail(Option<Sectors>),
    Lost,
    Misdirected(u64),
}

/// A write that has been submitted and not completed.
#[derive(Clone)]
struct InFlight {
    offset: u64,
    data: Rc<Vec<u8>>,
    /// Sectors that have not landed yet.
    rest: Sectors,
    fate: Fate,
}

/// How often things go wrong, in parts per million of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Reads that fail once.
    pub read_error: u32,
    /// Writes (and zeroes) that fail.
    pub write_error: u32,
    /// Flushes that fail.
    pub flush_error: u32,
    /// A failed flush drops half of what it should have made durable: visible still, but no later
    /// flush covers it.
    pub flush_drops: bool,
    /// Writes that are acknowledged and never land.
    pub lost: u32,
    /// Writes that land elsewhere.
    pub misdirected: u32,
    /// Writes below [`SimDevice::misdirect_from`] do not fail.
    pub spares_metadata: bool,
    /// Bytes from here to there take no write: no one that meets them succeeds.
    pub barred: Option<(u64, u64)>,
}

/// How long operations take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// Least time of a read.
    pub read_ns: u64,
    /// Least time of a write.
    pub write_ns: u64,
    /// Least time of a flush.
    pub flush_ns: u64,
    /// Added per block.
    pub block_ns: u64,
    /// At most so many times the least time is added at random.
    pub spread: u64,
    /// Operations that take very long, in parts per million.
    pub slow_ppm: u32,
    /// How long those take.
    pub slow_ns: u64,
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteEnd {
    /// It landed.
    Good,
    /// The device reported an error.
    Failed,
    /// The device said that it landed, but it did not.
    Lost {
        /// Where it should have landed.
        offset: u64,
        /// Its length.
        len: u64,
    },
    /// The device said that it landed, but it landed elsewhere.
    Misdirected {
        /// Where it should have landed.
        offset: u64,
        /// Where it did.
        landed: u64,
        /// Its length.
        len: u64,
    },
}

/// How a device dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// It is gone.
    All,
    /// Reads go on.
    Writes,
    /// It is two devices, and the second one is gone.
    Second,
    /// One flush fails, and drops half of what it should have made durable; everything else goes
    /// on.
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
    /// A sector, and how many more reads of it bring wrong bytes.
    misread: (u64, u32),
    dead: Option<Death>,
    /// A failed flush dropped something.
    dropped: bool,
    /// One did so at any time, also before a restart.
    ever_dropped: bool,
    /// Rates of faults; change them at any time.
    pub faults: Faults,
    /// Times of operations.
    pub latency: Latency,
    /// Writes to blocks below this one are never misdirected, and none is misdirected there.
    pub misdirect_from: u64,
    /// Where the second of two devices begins.
    pub second_at: u64,
    /// Of the writes that will succeed, one in so many shows some of its sectors as early as its
    /// submission; 0: none does.
    pub early_of: u64,
    /// Flushes succeed and do nothing.
    pub ignores_flushes: bool,
}

impl SimDevice {
    /// A device full of zeroes.
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

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.durable.bytes()
    }

    /// What reads see.
    #[must_use]
    pub fn visible(&self) -> &Image {
        &self.visible
    }

    /// What a power cut cannot take away.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// True if a power cut leaves these bytes as reads see them now: nothing of the range is in the
    /// volatile cache only.
    #[must_use]
    pub fn is_durable(&self, offset: u64, len: usize) -> bool {
        let bytes = |image: &Image| {
            let mut bytes = vec![0; len];
            image.read(offset, &mut bytes);
            bytes
        };
        bytes(&self.durable) == bytes(&self.visible)
    }

    /// Puts bytes on the medium at once: for what happens while nobody uses the device. What is in
    /// the volatile cache becomes durable first.
    pub fn preset(&mut self, offset: u64, data: &[u8]) {
        self.fragments.clear();
        self.durable = self.visible.clone();
        self.durable.write(offset, data);
        self.visible.write(offset, data);
    }

    /// Puts bytes on the medium at once, in whole sectors, while the rest of the device is in use:
    /// nobody else writes them now, and what they had in the volatile cache is gone.
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

    /// The device fails for good, until it is restarted.
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

    /// The device was unplugged, and is back: it may lack what it had not flushed. Nothing is under
    /// way.
    pub fn replug(&mut self, rng: &mut Rng) {
        assert!(self.in_flight.is_empty(), "the kernel ends what is under way on a device that is gone");
        let back = self.power_cut(rng);
        (self.durable, self.visible) = (back.durable, back.visible);
        self.fragments.clear();
    }

    /// A restart brings a dead device back.
    pub fn revive(&mut self) {
        self.dead = None;
    }

    /// It has failed for good.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.is_some()
    }

    /// A failed flush has dropped something: it is not there after a restart.
    #[must_use]
    pub fn has_dropped(&self) -> bool {
        self.dropped
    }

    /// A failed flush has dropped something, at any time. A start writes dirty data again that may
    /// have been dropped, and fills not (I72): one of those may be found damaged later, and is
    /// cached no more.
    #[must_use]
    pub fn has_ever_dropped(&self) -> bool {
        self.ever_dropped
    }

    /// These bytes reach into a second device that is gone.
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

    /// Takes a write in. Returns its number.
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

    /// Takes a discard in; it completes as a write. Returns its number.
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
        // What is left as it was does not land.
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

    /// Ends a write.
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

    /// Takes a flush in. Returns what to hand to `complete_flush`.
    pub fn submit_flush(&self) -> u64 {
        self.landings
    }

    /// Ends a flush that was submitted when `covered` was returned; true if it succeeded.
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

    /// Writes taken in since the start.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.next_write
    }

    /// Reads what is visible now; false if the device reports an error.
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

    /// The next so many reads of this sector bring wrong bytes, without an error; what is there
    /// stays as it is.
    pub fn misread(&mut self, offset: u64, reads: u32) {
        self.misread = (offset / SECTOR_BYTES as u64, reads);
    }

    /// Stops all faults that happen by rate.
    pub fn quiet(&mut self) {
        self.faults = Faults::default();
        self.latency.slow_ppm = 0;
    }

    /// True if no write is under way between this offset and the end of the range.
    #[must_use]
    pub fn idle(&self, offset: u64, len: u64) -> bool {
        self.in_flight
            .values()
            .all(|write| write.offset + write.data.len() as u64 <= offset || offset + len <= write.offset)
    }

    /// The device after a power cut at this instant.
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

    /// The device after the daemon was killed at this instant.
    #[must_use]
    pub fn kill(&self, rng: &mut Rng) -> Self {
        let mut device = self.restarted(self.durable.clone(), self.visible.clone(), self.fragments.clone());
        device.landings = self.landings;
        for (offset, data, part) in self.settle(rng) {
            device.land(offset, &data, part);
        }
        device
    }

    /// A number for everything that a crash now depends on: it stays the same as long as nothing
    /// lands, is taken in or is made durable.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        let writes = self.in_flight.keys().fold(self.next_write, |key, number| mix(key ^ number));
        mix(mix(writes ^ self.landings) ^ self.fragments.len() as u64)
    }

    /// Sectors of the writes that a crash decides about: those in the volatile cache (for a power
    /// cut), then those in flight.
    #[must_use]
    pub fn undecided(&self, power: bool) -> Vec<usize> {
        let volatile = self.fragments.iter().filter(|_| power).map(|fragment| &fragment.data);
        let all = volatile.chain(self.in_flight.values().map(|write| &write.data));
        all.map(|data| data.len() / SECTOR_BYTES).collect()
    }

    /// The device after a crash of which `left` says what remains of each write of
    /// [`SimDevice::undecided`]. Those in flight land in the order of their submission.
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

    /// Draws what lands of the writes in flight, in random order.
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
