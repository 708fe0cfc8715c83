//! The oracle: the legal contents of every sector.
//!
//! # Scheme
//!
//! A sector has a list of *versions*, one per write that may still matter, each a concrete 512-byte
//! content. Every event (a write submitted or acknowledged, a flush or read submitted) has a
//! *step*, so that "before" and "after" are comparisons of numbers. A version is **superseded**
//! when a write that was submitted after the version was acknowledged is itself acknowledged; two
//! writes in flight at the same time never supersede each other.
//!
//! - A read may return any version that was not superseded when the read was submitted, or was
//!   submitted before it ended.
//! - When a flush submitted at step `f` is acknowledged, the oracle forgets versions superseded up
//!   to `f`: they cannot return. A FUA write makes it forget versions acknowledged before its
//!   submission.
//! - After a **kill** a sector holds a version that is not superseded; writes in flight may have
//!   happened.
//! - After a **power cut** a sector holds any version on its list: the last flushed one or a later
//!   one.
//! - An acknowledged write that **bypassed the cache** and survived a power cut on the backing
//!   store is not hidden by anything older, flushed or not: no stale resurrection.
//! - The first read after a crash settles which version it is, and that version must stay: after a
//!   power cut the others are forgotten; after a kill, older ones may come back only by a power cut
//!   before the next flush.
//! - A failed write may have happened or not, also partly: old and new stay legal until the next
//!   write.
//!
//! Writes of part of a sector are allowed only where the sector has one version and no other writer
//! ([`Oracle::can_write`]), so that every version stays a concrete content.
//!
//! **Damage.** Where a fault was injected into the only copy, the world marks the block as tainted:
//! an I/O error is then legal. In runs with damage to the cache device, the oracle keeps all
//! contents that a sector ever had. A crash may end the log at the damage: the blocks that were
//! logged behind it are *unknown* afterwards ([`Oracle::doubt`]). Any earlier content is legal
//! there, and an error. The first read settles it, as after any crash; a write of the whole sector
//! ends it. A later power cut before the next FLUSH makes the sector unknown again. All other
//! blocks are judged as if nothing were damaged.

use crate::content::Content;
use crate::image::Image;
use forebay_format::{SECTOR_BYTES, SECTORS_PER_BLOCK};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

const NEVER: u64 = u64::MAX;
const SECTORS_PER_CHUNK: usize = 64;
const SECTOR: u64 = SECTOR_BYTES as u64;
/// Writes to one sector that may be in flight at once.
const WRITERS_MAX: usize = 3;

/// Why a version may or may not have happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Doubt {
    /// It happened, or is in flight.
    None,
    /// It failed.
    Failed,
    /// It was in flight at a kill.
    Kill,
    /// The power was cut.
    Power,
}

/// The path of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// Into the cache.
    Cached,
    /// Bypassing the cache: it is on the backing store before the acknowledgement.
    Past,
    /// The engine decides.
    Either,
}

/// The content that one write left, or may have left, in a sector.
#[derive(Clone, Debug)]
struct Version {
    content: Content,
    submitted: u64,
    acked: u64,
    superseded: u64,
    doubt: Doubt,
    /// It was durable at its acknowledgement.
    fua: bool,
    part: bool,
    way: Way,
    /// The step at which it was forgotten. It may still be here because a read from the time when
    /// it was current is in flight.
    forgotten: u64,
}

impl Version {
    fn current(&self) -> bool {
        self.superseded == NEVER
    }

    fn past(&self) -> bool {
        self.forgotten != NEVER
    }
}

#[derive(Clone)]
struct Chunk {
    sectors: Vec<Vec<Version>>,
    history: Vec<Vec<Content>>,
    /// Forgotten versions, for [`Oracle::check_order`].
    dead: Vec<Vec<Dead>>,
}

/// A version that a disk could have shown after a power cut in this range of steps, but not later.
#[derive(Clone)]
struct Dead {
    content: Content,
    steps: Steps,
}

/// A range of steps.
type Steps = core::ops::Range<u64>;

#[derive(Clone)]
struct Volume {
    sectors: u64,
    chunks: Vec<Rc<Chunk>>,
    /// Chunks with a sector of more than one version.
    busy: BTreeSet<usize>,
    /// Step at which the newest successful FLUSH began.
    flushed: u64,
}

/// A write announced to the oracle.
#[derive(Clone, Copy, Debug)]
pub struct WriteTicket {
    volume: usize,
    first: u64,
    count: u64,
    submitted: u64,
}

/// The judge of all volumes of a world. Cheap to clone.
#[derive(Clone)]
pub struct Oracle {
    volumes: Vec<Volume>,
    /// All sectors zero, never written: shared by the greater part of a large volume.
    blank: Rc<Chunk>,
    step: u64,
    /// Steps at which the reads in flight were submitted.
    reads: BTreeSet<u64>,
    keep_history: bool,
    keep_dead: bool,
    /// There was a crash with damage on the cache device: it may be refused.
    pub relaxed: bool,
    /// Sectors whose content damage may have changed at a crash, and the step since which the
    /// content is known but not yet flushed.
    unknown: BTreeMap<(usize, u64), u64>,
    /// Every sector is unknown, for good.
    all_unknown: bool,
    /// Blocks whose only copy may be damaged: an I/O error is legal there.
    pub tainted: BTreeSet<(usize, u64)>,
}

impl Oracle {
    /// Creates an oracle for volumes whose sectors hold `initial(volume, sector)`, durably. `None`,
    /// which it must return for 64 sectors at once, stands for zeroes, which take no memory until
    /// they are written. `keep_history`: there will be damage. `keep_dead`: [`Oracle::check_order`]
    /// will be called.
    pub fn new(
        sectors: &[u64],
        keep_history: bool,
        keep_dead: bool,
        mut initial: impl FnMut(usize, u64) -> Option<Content>,
    ) -> Self {
        let chunk = |versions: Vec<Vec<Version>>| {
            let history = vec![Vec::new(); if keep_history { versions.len() } else { 0 }];
            let dead = vec![Vec::new(); if keep_dead { versions.len() } else { 0 }];
            Rc::new(Chunk { sectors: versions, history, dead })
        };
        let blank = chunk(vec![vec![settled(Content::Zero, 0)]; SECTORS_PER_CHUNK]);
        let mut volumes = Vec::new();
        for (volume, count) in sectors.iter().enumerate() {
            let mut chunks = Vec::new();
            for first in (0..*count).step_by(SECTORS_PER_CHUNK) {
                let len = (*count - first).min(SECTORS_PER_CHUNK as u64);
                let head = initial(volume, first);
                if head.is_none() && len == SECTORS_PER_CHUNK as u64 {
                    chunks.push(Rc::clone(&blank));
                    continue;
                }
                let rest = (first + 1..first + len).map(|sector| initial(volume, sector));
                let contents = core::iter::once(head).chain(rest);
                let contents = contents.map(|content| content.unwrap_or(Content::Zero));
                chunks.push(chunk(contents.map(|content| vec![settled(content, 0)]).collect()));
            }
            volumes.push(Volume { sectors: *count, chunks, busy: BTreeSet::new(), flushed: 0 });
        }
        Self {
            volumes,
            blank,
            step: 1,
            reads: BTreeSet::new(),
            keep_history,
            keep_dead,
            relaxed: false,
            unknown: BTreeMap::new(),
            all_unknown: false,
            tainted: BTreeSet::new(),
        }
    }

    /// Returns the next step; pass it to [`Oracle::flushed`] later.
    pub fn begin(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    /// Returns the step of a read; pass it to [`Oracle::check_read`], and then to
    /// [`Oracle::end_read`].
    pub fn begin_read(&mut self) -> u64 {
        let step = self.begin();
        self.reads.insert(step);
        step
    }

    /// Ends a read.
    pub fn end_read(&mut self, begun: u64) {
        self.reads.remove(&begun);
    }

    fn oldest_read(&self) -> u64 {
        self.reads.first().copied().unwrap_or(NEVER)
    }

    /// Returns the current step.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns a hash of the legal contents of all sectors: same hash, same verdicts (except on
    /// steps of order).
    #[must_use]
    pub fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for volume in &self.volumes {
            for versions in volume.chunks.iter().flat_map(|chunk| &chunk.sectors) {
                versions.len().hash(&mut hasher);
                for v in versions {
                    (&v.content, v.current(), v.doubt, v.way, v.past(), v.acked == NEVER).hash(&mut hasher);
                }
            }
        }
        hasher.finish()
    }

    /// Returns the number of sectors of a volume.
    #[must_use]
    pub fn sectors(&self, volume: usize) -> u64 {
        self.volumes[volume].sectors
    }

    /// Returns true if none of these sectors was ever written: they are zero.
    #[must_use]
    pub fn is_blank(&self, volume: usize, sectors: core::ops::Range<u64>) -> bool {
        let chunks = place(sectors.start).0..(sectors.end as usize).div_ceil(SECTORS_PER_CHUNK);
        self.volumes[volume].chunks[chunks].iter().all(|chunk| Rc::ptr_eq(chunk, &self.blank))
    }

    fn versions(&self, volume: usize, sector: u64) -> &[Version] {
        let (chunk, at) = place(sector);
        &self.volumes[volume].chunks[chunk].sectors[at]
    }

    /// Returns true if the oracle can still judge after a write of these bytes.
    #[must_use]
    pub fn can_write(&self, volume: usize, offset: u64, len: u64) -> bool {
        sectors_of(offset, len).all(|sector| {
            let versions = self.versions(volume, sector);
            let writers = versions.iter().filter(|version| version.acked == NEVER);
            let (count, parts) = writers.fold((0, 0), |(n, p), v| (n + 1, p + usize::from(v.part)));
            if is_whole(sector, offset, len) {
                return parts == 0 && count < WRITERS_MAX;
            }
            if self.is_unknown(volume, sector, self.step) {
                return false;
            }
            count == 0 && versions.iter().filter(|version| version.current()).count() == 1
        })
    }

    /// Announces a write of `len` bytes, which [`Oracle::can_write`] allowed. `fill` maps the
    /// present content of a sector, and the range of bytes written in it, to its new content.
    pub fn begin_write(
        &mut self,
        volume: usize,
        (offset, len): (u64, u64),
        way: Way,
        mut fill: impl FnMut(u64, &Content, core::ops::Range<usize>) -> Content,
    ) -> WriteTicket {
        let submitted = self.begin();
        let range = sectors_of(offset, len);
        for sector in range.clone() {
            let base = self.versions(volume, sector).iter().rfind(|version| version.current());
            let base = base.map_or(Content::Zero, |version| version.content.clone());
            let start = offset.saturating_sub(sector * SECTOR) as usize;
            let end = (offset + len - sector * SECTOR).min(SECTOR) as usize;
            let content = fill(sector, &base, start..end);
            let part = !is_whole(sector, offset, len);
            self.edit(volume, sector, |versions| {
                versions.push(Version {
                    content,
                    submitted,
                    acked: NEVER,
                    superseded: NEVER,
                    doubt: Doubt::None,
                    fua: false,
                    part,
                    way,
                    forgotten: NEVER,
                });
                Vec::new()
            });
        }
        WriteTicket { volume, first: range.start, count: range.end - range.start, submitted }
    }

    /// Notes that a write was acknowledged or failed.
    pub fn end_write(&mut self, ticket: WriteTicket, ok: bool, fua: bool) {
        let (step, oldest) = (self.begin(), self.oldest_read());
        for sector in ticket.first..ticket.first + ticket.count {
            if ok {
                self.know(ticket.volume, sector, step, fua);
            }
            self.edit(ticket.volume, sector, |versions| {
                for version in versions.iter_mut() {
                    if version.submitted == ticket.submitted && version.acked == NEVER {
                        (version.acked, version.fua) = (step, ok && fua);
                        version.doubt = if ok { Doubt::None } else { Doubt::Failed };
                    } else if ok && version.acked <= ticket.submitted {
                        version.superseded = version.superseded.min(step);
                    }
                }
                if ok && fua {
                    forget(versions, step, oldest, |version| version.acked <= ticket.submitted)
                } else {
                    Vec::new()
                }
            });
        }
    }

    /// Notes the acknowledgement of a flush of the volume that was submitted at step `begun`.
    pub fn flushed(&mut self, volume: usize, begun: u64) {
        let (step, oldest) = (self.begin(), self.oldest_read());
        self.volumes[volume].flushed = self.volumes[volume].flushed.max(begun);
        self.unknown.retain(|(of, _), since| *of != volume || *since >= begun);
        self.edit_busy(volume, |_, versions| {
            forget(versions, step, oldest, |version| version.superseded <= begun)
        });
    }

    /// Notes that a FLUSH of the volume failed, and that an earlier flush of the backing store
    /// dropped some of the data that only the backing store had: as after a failed write, old and
    /// new stay legal there until the next write.
    pub fn dropped(&mut self, volume: usize) {
        self.begin();
        self.edit_busy(volume, |_, versions| {
            let at_risk = |v: &Version| {
                let answered = v.acked != NEVER && v.doubt == Doubt::None && !v.fua;
                v.way != Way::Cached && answered && !v.past()
            };
            let mut dropped = false;
            for version in versions.iter_mut().filter(|version| at_risk(version)) {
                (version.doubt, dropped) = (Doubt::Failed, true);
            }
            if !dropped {
                return Vec::new();
            }
            // A read that saw one of them does not settle the content after a crash either.
            let firm = versions.iter().filter(|v| v.acked != NEVER && v.doubt != Doubt::Failed);
            let firm: Vec<(u64, u64)> = firm.map(|version| (version.submitted, version.acked)).collect();
            for version in versions.iter_mut().filter(|version| !version.current()) {
                let own = version.submitted;
                let later =
                    firm.iter().filter(|(submitted, _)| *submitted >= version.acked && *submitted != own);
                version.superseded = later.map(|(_, acked)| *acked).min().unwrap_or(NEVER);
            }
            Vec::new()
        });
    }

    /// Notes a crash with damage that may have changed the contents of these blocks: after it any
    /// earlier content of them is legal, and an error.
    pub fn doubt(&mut self, blocks: Vec<(usize, u64)>) {
        self.relaxed = true;
        let known = self.unknown.values_mut();
        known.for_each(|since| *since = NEVER);
        for (volume, block) in blocks {
            let first = block * SECTORS_PER_BLOCK as u64;
            let end = (first + SECTORS_PER_BLOCK as u64).min(self.sectors(volume));
            self.unknown.extend((first..end).map(|sector| ((volume, sector), NEVER)));
        }
    }

    /// Like [`Oracle::doubt`], for all blocks, for good.
    pub fn doubt_everything(&mut self) {
        (self.relaxed, self.all_unknown) = (true, true);
    }

    /// Returns true if damage may have changed what a read submitted at step `begun` finds.
    fn is_unknown(&self, volume: usize, sector: u64, begun: u64) -> bool {
        self.all_unknown || self.unknown.get(&(volume, sector)).is_some_and(|since| *since > begun)
    }

    /// Returns true if damage may have changed any of these blocks.
    #[must_use]
    pub fn is_any_unknown(&self, volume: usize, first: u64, end: u64) -> bool {
        let block = SECTORS_PER_BLOCK as u64;
        let mut sectors = self.unknown.range((volume, first * block)..(volume, end * block));
        self.all_unknown || sectors.any(|(_, since)| *since == NEVER)
    }

    /// Notes that the content of a sector is known since this step; `durable`: after any crash too.
    fn know(&mut self, volume: usize, sector: u64, step: u64, durable: bool) {
        if durable {
            self.unknown.remove(&(volume, sector));
        } else if let Some(since) = self.unknown.get_mut(&(volume, sector)) {
            *since = (*since).min(step);
        }
    }

    /// Returns true if a sector holds its content after any crash: no write followed the last FLUSH
    /// or FUA that covers it. Where a kill left two versions possible, that FLUSH promises either
    /// one; no FLUSH promises an unacknowledged write.
    pub fn is_promised(&self, volume: usize, sector: u64) -> bool {
        let (chunk, at) = place(sector);
        let versions = &self.volumes[volume].chunks[chunk].sectors[at];
        // Failed writes were not acknowledged: no FLUSH promises them.
        let answered = |version: &Version| version.acked != NEVER && version.doubt != Doubt::Failed;
        let mut left = versions.iter().filter(|version| !version.past() && answered(version));
        // Of two concurrent writes either may be there: a FUA need not be answered before the FLUSH
        // that covers the other.
        let flushed = self.volumes[volume].flushed;
        left.clone().count() <= 1 || left.all(|version| version.fua || version.acked < flushed)
    }

    /// Notes a kill of the daemon.
    pub fn kill(&mut self) {
        let step = self.begin();
        self.reads.clear();
        for volume in 0..self.volumes.len() {
            self.edit_busy(volume, |_, versions| {
                let gone = forget(versions, step, NEVER, Version::past);
                for version in versions.iter_mut().filter(|version| version.acked == NEVER) {
                    (version.acked, version.doubt, version.part) = (step, Doubt::Kill, false);
                }
                gone
            });
        }
    }

    /// Call this before [`Oracle::power_cut`], with the remains of the backing store: acknowledged
    /// bypass writes that are there can never again be hidden by anything older.
    pub fn no_resurrection(&mut self, volume: usize, left: &Image) {
        let step = self.begin();
        self.edit_busy(volume, |sector, versions| {
            let acknowledged =
                |v: &&Version| v.way == Way::Past && v.acked != NEVER && v.doubt == Doubt::None;
            let mut found = [0; SECTOR_BYTES];
            if !versions.iter().any(|version| acknowledged(&version)) {
                return Vec::new();
            }
            left.read(sector * SECTOR, &mut found);
            let there = |v: &&Version| acknowledged(v) && v.content != Content::Zero && v.content.is(&found);
            match versions.iter().find(there).map(|version| version.submitted) {
                Some(since) => forget(versions, step, NEVER, |version| version.acked <= since),
                None => Vec::new(),
            }
        });
    }

    /// Notes a power cut.
    pub fn power_cut(&mut self) {
        let step = self.begin();
        self.reads.clear();
        for volume in 0..self.volumes.len() {
            self.edit_busy(volume, |_, versions| {
                let gone = forget(versions, step, NEVER, Version::past);
                for version in versions.iter_mut() {
                    (version.acked, version.superseded) = (step, NEVER);
                    (version.doubt, version.part) = (Doubt::Power, false);
                }
                gone
            });
        }
    }

    /// Judges the bytes of a read submitted at step `begun`, and narrows the legal versions
    /// accordingly.
    ///
    /// # Errors
    /// Names the sector, its content and the legal versions.
    pub fn check_read(&mut self, volume: usize, offset: u64, found: &[u8], begun: u64) -> Result<(), String> {
        for sector in sectors_of(offset, found.len() as u64) {
            let start = offset.max(sector * SECTOR);
            let end = (offset + found.len() as u64).min((sector + 1) * SECTOR);
            let bytes = &found[(start - offset) as usize..(end - offset) as usize];
            let at = (start - sector * SECTOR) as usize;
            let versions = self.versions(volume, sector);
            let is_unknown = self.is_unknown(volume, sector, begun);
            if let [only] = versions
                && only.content.is_part(at, bytes)
                && !is_unknown
            {
                continue;
            }
            let legal = |version: &Version| version.superseded > begun && version.content.is_part(at, bytes);
            let is_legal =
                versions.iter().any(legal) || is_unknown && self.in_history(volume, sector, at, bytes);
            if !is_legal {
                return Err(self.wrong(volume, sector, bytes, begun));
            }
            if bytes.len() == SECTOR_BYTES && is_unknown {
                self.adopt(volume, sector, bytes, begun);
            } else if bytes.len() == SECTOR_BYTES {
                self.settle(volume, sector, bytes, begun);
            }
        }
        Ok(())
    }

    fn in_history(&self, volume: usize, sector: u64, at: usize, bytes: &[u8]) -> bool {
        let (chunk, index) = place(sector);
        let chunk = &self.volumes[volume].chunks[chunk];
        chunk.sectors[index].iter().any(|version| version.content.is_part(at, bytes))
            || chunk.history[index].iter().any(|content| content.is_part(at, bytes))
    }

    fn wrong(&self, volume: usize, sector: u64, bytes: &[u8], begun: u64) -> String {
        let versions: Vec<String> = self
            .versions(volume, sector)
            .iter()
            .map(|v| {
                let step = |step: u64| if step == NEVER { "-".into() } else { step.to_string() };
                let content = match &v.content {
                    Content::Bytes(bytes) => Content::describe(&bytes[..]),
                    Content::Tag(tag) => format!("tag {tag:#x}"),
                    Content::Zero => "zeroes".into(),
                };
                let (acked, superseded) = (step(v.acked), step(v.superseded));
                format!(
                    "[{content}: written {} acked {acked} superseded {superseded} {:?}]",
                    v.submitted, v.doubt
                )
            })
            .collect();
        format!(
            "volume {volume} sector {sector} (block {} sector {}): found {} at step {begun}..{}, versions: {}",
            sector / SECTORS_PER_BLOCK as u64,
            sector % SECTORS_PER_BLOCK as u64,
            Content::describe(bytes),
            self.step,
            versions.join(" ")
        )
    }

    /// Narrows the current versions of a sector to the one that a read saw. The read overlapped no
    /// writer.
    fn settle(&mut self, volume: usize, sector: u64, found: &[u8], begun: u64) {
        let versions = self.versions(volume, sector);
        let settles = |v: &Version| v.acked < begun && v.doubt != Doubt::Failed;
        let (mut current, mut open) = (0, false);
        for version in versions.iter().filter(|version| version.current()) {
            current += 1;
            open |= !settles(version);
        }
        if current < 2 || open {
            return;
        }
        let step = self.step;
        self.edit(volume, sector, |versions| {
            let seen = versions.iter().rposition(|v| v.current() && v.content.is(found));
            let Some(seen) = seen.map(|index| versions[index].clone()) else { return Vec::new() };
            for version in versions.iter_mut().filter(|version| version.submitted != seen.submitted) {
                version.superseded = version.superseded.min(step);
            }
            let gone = versions.extract_if(.., |v| {
                let undone = v.doubt == Doubt::Kill && seen.doubt == Doubt::None && seen.acked <= v.submitted;
                let lost = v.doubt == Doubt::Power && seen.doubt == Doubt::Power;
                v.submitted != seen.submitted && (undone || lost)
            });
            gone.collect()
        });
    }

    /// Takes the content that a read found in an unknown sector as its only version, unless the
    /// read overlapped a writer.
    fn adopt(&mut self, volume: usize, sector: u64, found: &[u8], begun: u64) {
        let overlaps = |v: &Version| v.submitted > begun || v.acked == NEVER || v.acked > begun;
        let Ok(found) = found.try_into() else { return };
        if self.all_unknown || self.versions(volume, sector).iter().any(overlaps) {
            return;
        }
        let step = self.begin();
        self.know(volume, sector, step, false);
        self.edit(volume, sector, |versions| {
            let gone = core::mem::take(versions);
            versions.push(Version { doubt: Doubt::Power, ..settled(Content::of(found), begun) });
            gone
        });
    }

    /// Judges the device's content of a sector while no write is in flight: only a current version
    /// is legal.
    ///
    /// # Errors
    /// Reports the content found and the expected one.
    pub fn check_at_rest(&self, volume: usize, sector: u64, found: &[u8]) -> Result<(), String> {
        let versions = self.versions(volume, sector);
        if versions.iter().any(|version| version.current() && version.content.is(found)) {
            return Ok(());
        }
        Err(self.wrong(volume, sector, found, self.step))
    }

    /// Like [`Oracle::check_at_rest`], for a device after a power cut: any version that a power cut
    /// may leave is legal. Call it on an oracle that has noted the crash.
    ///
    /// # Errors
    /// Reports the content found and the expected one.
    pub fn check_image(&self, volume: usize, image: &Image, what: &str) -> Result<(), String> {
        let mut bytes = [0; SECTOR_BYTES * SECTORS_PER_CHUNK];
        for first in (0..self.sectors(volume)).step_by(SECTORS_PER_CHUNK) {
            let count = (self.sectors(volume) - first).min(SECTORS_PER_CHUNK as u64);
            let bytes = &mut bytes[..count as usize * SECTOR_BYTES];
            if self.is_blank_on(image, volume, first..first + count) {
                continue;
            }
            image.read(first * SECTOR, bytes);
            for (sector, found) in (first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
                let is_tainted = self.tainted.contains(&(volume, sector / SECTORS_PER_BLOCK as u64));
                if !is_tainted && !self.is_unknown(volume, sector, self.step) {
                    self.check_at_rest(volume, sector, found).map_err(|why| format!("{what}: {why}"))?;
                }
            }
        }
        Ok(())
    }

    /// Judges the content of an ordered volume's backing store: there must be one step at which a
    /// plain disk with a volatile cache could have held all of it after a power cut. Every version
    /// of a sector is legal from its submission until it is forgotten; these ranges are intersected
    /// over all sectors.
    ///
    /// # Errors
    /// Names the sector that does not fit the others.
    pub fn check_order(&self, volume: usize, bytes: u64, image: &Image) -> Result<(), String> {
        let end = bytes / SECTOR;
        let mut legal: Vec<Steps> = core::iter::once(0..NEVER).collect();
        let mut bytes = [0; SECTOR_BYTES];
        let mut blank = false;
        for sector in 0..self.sectors(volume).min(end) {
            let chunk = sector..(sector + SECTORS_PER_CHUNK as u64).min(self.sectors(volume));
            if sector.is_multiple_of(SECTORS_PER_CHUNK as u64) {
                blank = self.is_blank_on(image, volume, chunk);
            }
            if blank || self.tainted.contains(&(volume, sector / SECTORS_PER_BLOCK as u64)) {
                continue;
            }
            image.read(sector * SECTOR, &mut bytes);
            if self.never_written(volume, sector, &bytes) {
                continue;
            }
            let steps = self.steps_of(volume, sector, &bytes);
            let both = |a: &Steps, b: &Steps| a.start.max(b.start)..a.end.min(b.end);
            let left: Vec<Steps> = legal
                .iter()
                .flat_map(|a| steps.iter().map(move |b| both(a, b)))
                .filter(|steps| !steps.is_empty())
                .collect();
            if left.is_empty() {
                let wrong = self.wrong(volume, sector, &bytes, self.step);
                return Err(format!("held in steps {steps:?}, but sectors before it in {legal:?}: {wrong}"));
            }
            legal = left;
        }
        Ok(())
    }

    /// Returns true if these sectors were never written, and the image has nothing there either.
    fn is_blank_on(&self, image: &Image, volume: usize, sectors: Steps) -> bool {
        let len = (sectors.end - sectors.start) * SECTOR;
        self.is_blank(volume, sectors.clone()) && image.is_blank(sectors.start * SECTOR, len)
    }

    /// Returns true if a sector holds its initial content: every step explains that.
    fn never_written(&self, volume: usize, sector: u64, found: &[u8]) -> bool {
        let (chunk, at) = place(sector);
        let chunk = &self.volumes[volume].chunks[chunk];
        match &chunk.sectors[at][..] {
            [only] => only.submitted == 0 && chunk.dead[at].is_empty() && only.content.is(found),
            _ => false,
        }
    }

    /// Returns the ranges of steps in which a sector could hold this content, in order and
    /// disjoint.
    fn steps_of(&self, volume: usize, sector: u64, found: &[u8]) -> Vec<Steps> {
        let (chunk, at) = place(sector);
        let chunk = &self.volumes[volume].chunks[chunk];
        let alive = chunk.sectors[at].iter().filter(|version| version.content.is(found));
        let dead = chunk.dead[at].iter().filter(|dead| dead.content.is(found));
        let alive = alive.map(|version| version.submitted..version.forgotten);
        let mut all: Vec<Steps> = alive.chain(dead.map(|dead| dead.steps.clone())).collect();
        all.sort_unstable_by_key(|steps| steps.start);
        all.dedup_by(|later, kept| {
            let joins = later.start <= kept.end;
            if joins {
                kept.end = kept.end.max(later.end);
            }
            joins
        });
        all
    }

    /// Replaces the content of a sector. With `or_old` the old content stays legal.
    pub fn replace(&mut self, volume: usize, sector: u64, content: Content, or_old: bool) {
        let step = self.begin();
        self.edit(volume, sector, |versions| {
            let gone = if or_old { Vec::new() } else { forget(versions, step, NEVER, |_| true) };
            // Every step explains foreign content.
            versions.push(settled(content, if or_old { step } else { 0 }));
            gone
        });
        if self.keep_dead && !or_old {
            let (chunk, at) = place(sector);
            Rc::make_mut(&mut self.volumes[volume].chunks[chunk]).dead[at].clear();
        }
    }

    /// Changes the versions of a sector. The versions that `change` returns go to the history.
    fn edit(&mut self, volume: usize, sector: u64, change: impl FnOnce(&mut Vec<Version>) -> Vec<Version>) {
        let (chunk, at) = place(sector);
        let (history, step) = (self.keep_history, self.keep_dead.then_some(self.step));
        let volume = &mut self.volumes[volume];
        let content = Rc::make_mut(&mut volume.chunks[chunk]);
        let gone = change(&mut content.sectors[at]);
        if content.sectors[at].len() > 1 {
            volume.busy.insert(chunk);
        }
        content.bury(at, gone, history, step);
    }

    /// Changes every sector that has more than one version.
    fn edit_busy(&mut self, volume: usize, mut change: impl FnMut(u64, &mut Vec<Version>) -> Vec<Version>) {
        let (history, step) = (self.keep_history, self.keep_dead.then_some(self.step));
        let volume = &mut self.volumes[volume];
        let mut still = BTreeSet::new();
        for chunk in core::mem::take(&mut volume.busy) {
            let content = Rc::make_mut(&mut volume.chunks[chunk]);
            for at in 0..content.sectors.len() {
                if content.sectors[at].len() < 2 {
                    continue;
                }
                let gone = change((chunk * SECTORS_PER_CHUNK + at) as u64, &mut content.sectors[at]);
                content.bury(at, gone, history, step);
                if content.sectors[at].len() > 1 {
                    still.insert(chunk);
                }
            }
        }
        volume.busy = still;
    }
}

impl Chunk {
    /// Keeps the needed facts of versions that are gone since this step.
    fn bury(&mut self, at: usize, gone: Vec<Version>, history: bool, step: Option<u64>) {
        for version in gone {
            if history {
                self.history[at].push(version.content.clone());
            }
            if let Some(step) = step {
                let steps = version.submitted..version.forgotten.min(step);
                self.dead[at].push(Dead { content: version.content, steps });
            }
        }
    }
}

fn settled(content: Content, step: u64) -> Version {
    Version {
        content,
        submitted: step,
        acked: step,
        superseded: NEVER,
        doubt: Doubt::None,
        fua: false,
        part: false,
        way: Way::Cached,
        forgotten: NEVER,
    }
}

/// Removes versions and returns them. Versions that were current at `oldest_read` stay until that
/// read ends, but only for reads.
fn forget(
    versions: &mut Vec<Version>,
    step: u64,
    oldest_read: u64,
    which: impl Fn(&Version) -> bool,
) -> Vec<Version> {
    for version in versions.iter_mut().filter(|version| which(version)) {
        version.forgotten = version.forgotten.min(step);
    }
    let unread = |version: &mut Version| version.past() && version.superseded.min(NEVER - 1) < oldest_read;
    versions.extract_if(.., unread).collect()
}

fn place(sector: u64) -> (usize, usize) {
    (sector as usize / SECTORS_PER_CHUNK, sector as usize % SECTORS_PER_CHUNK)
}

fn sectors_of(offset: u64, len: u64) -> core::ops::Range<u64> {
    offset / SECTOR..(offset + len).div_ceil(SECTOR)
}

fn is_whole(sector: u64, offset: u64, len: u64) -> bool {
    offset <= sector * SECTOR && (sector + 1) * SECTOR <= offset + len
}

#[cfg(test)]
mod tests;
