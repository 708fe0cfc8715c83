//! Dirty data on two devices (decision 0020).
//!
//! A mirrored cache has two *members* with equal layout ([`forebay_format::mirror`]). Dirty data
//! and metadata go to both: the write stream, the survivor stream (in a mirrored cache: relocated
//! dirty and destaged blocks), superblocks and checkpoints. Read fills and relocated clean blocks
//! go to one member.
//!
//! Segments `i` and `i + n` are a *column*. A column is free, in the window, or taken. The write
//! and the survivor stream use a column for a *pair*: segment `i`, with the same bytes on both
//! members; `i + n` is its *twin* and is not used separately. The fill stream uses the two halves
//! of a column one after the other, each as a segment of its own. So a slot never changes its
//! number, whichever member it is read from.
//!
//! ```text
//! Whole -> Asking(k) -> Out(k) -> Whole      the last step by a rebuild
//! ```
//!
//! A member is *failed out* if it fails a write or a flush, if its reads fail everywhere, if its
//! owner reports it as gone, or if it is missing at a start. The engine asks the owner to record
//! durably, outside the member, that its content is stale (I61). Until then nothing is acknowledged
//! that only the other member has: no batch is committed that is not on both, no flush of the cache
//! ends (I60), and no batch begins. Then clean blocks that only the failed member had are dropped
//! (I62), and operation continues with the other member. If that one fails as well, the cache has
//! failed (`failure`).
//!
//! A bad copy is rewritten if the other one is good (`repair`).
//!
//! A member that hangs delays the writes until its operations end; its owner must make them fail.
//!
//! Invariants: I60 to I65.

mod column;
mod log;
mod rebuild;
mod repair;

use crate::api::open_error::OpenError;
use crate::api::{Nanos, Notice};
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::mirror::{Members, Rebuild, Standing};
use crate::context::{Context, Status};
use crate::failure::damage::CACHE_READ_TRIES;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::SegmentPhase;
use alloc::boxed::Box;
use forebay_format::MirrorMark;
use forebay_format::superblock::Superblock;

/// Failed reads of this many different segments of a member, without a successful one in between,
/// mean that it has failed.
const READS_FAILED_MAX: usize = 8;
/// Attempts to get a record from the owner before the cache fails.
const ASK_TRIES: u32 = 3;
/// Time until the next attempt.
const ASK_PAUSE_NS: Nanos = 10_000_000_000;

/// The members of a mirrored cache as reported to its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MirrorState {
    /// The inactive member.
    pub out: Option<u8>,
    /// The owner has recorded that durably.
    pub noted: bool,
    /// Segments copied and segments to copy, during a rebuild.
    pub rebuild: Option<(u32, u32)>,
    /// Tags of the members.
    pub tags: [u64; 2],
    /// Blocks with a bad copy on one member that was rewritten, since the start.
    pub repaired_blocks: u64,
}

impl Members {
    /// True if the cache is mirrored and this is the first segment of a pair.
    pub(crate) fn is_pair(&self, map: &CacheMap, segment: u32) -> bool {
        let Some(mirror) = self.mirror() else { return false };
        let twin = (segment + mirror.columns()) as usize;
        segment < mirror.columns() && map.segments[twin].phase == SegmentPhase::Twin
    }

    /// True if no batch may begin: the engine waits for the owner's record.
    pub(crate) fn asks(&self) -> bool {
        self.mirror().is_some_and(|mirror| mirror.asks()) && !fault::planted(PlantedBug::CountBeforeNote)
    }

    /// True if the segment was only on the failed member.
    pub(crate) fn is_gone(&self, map: &CacheMap, segment: u32) -> bool {
        let Some(mirror) = self.mirror() else { return false };
        !mirror.counts(mirror.member_of(segment)) && !self.is_pair(map, segment)
    }

    /// Offset in the cache, in bytes, of this attempt to read a slot: attempts alternate between
    /// the members of a pair; one that is out comes last.
    pub(crate) fn slot_offset(&self, map: &CacheMap, slot: u32, tries: u32) -> u64 {
        let (segment, index) = map.place(slot);
        let Some(mirror) = self.mirror().filter(|_| self.is_pair(map, segment)) else {
            return map.offset(slot);
        };
        let member = match mirror.failed() {
            // The copy on the failed member may be the last one.
            Some(out) => u32::from(out) ^ u32::from(!tries.is_multiple_of(CACHE_READ_TRIES + 1)),
            // Reads are spread over both members.
            None if fault::planted(PlantedBug::ReadOneCopy) => segment % 2,
            None => (segment + tries - 1) % 2,
        };
        map.geometry.segment_offset(segment + member * mirror.columns(), index)
    }

    /// Attempts to read a slot before it is given up.
    pub(crate) fn slot_tries(&self, map: &CacheMap, slot: u32) -> u32 {
        let pair = self.is_mirrored() && self.is_pair(map, map.place(slot).0);
        CACHE_READ_TRIES + u32::from(pair)
    }

    /// Updates the state of the members in the superblock for the next checkpoint.
    pub(crate) fn mark_superblock(&mut self, superblock: &mut Superblock) {
        let Some(mirror) = self.mirror() else { return };
        let out = mirror.out();
        if let Some(mark) = &mut superblock.mirror {
            *mark = MirrorMark { out, ..*mark };
        }
    }

    /// A slot was read from this member on demand: if the other member is tried first, its copy is
    /// bad.
    pub(crate) fn suspect_first_copy(&mut self, map: &CacheMap, member: u8, slot: u32) {
        let segment = map.place(slot).0;
        let whole = self.mirror().is_some_and(|mirror| mirror.failed().is_none());
        if whole && u32::from(member) != segment % 2 && self.is_pair(map, segment) {
            self.suspect_copy(slot);
        }
    }

    /// Panics if an invariant does not hold. Slow.
    pub(crate) fn check(&self, map: &CacheMap) {
        let Some(mirror) = self.mirror() else { return };
        for (number, segment) in (0..).zip(&map.segments) {
            let paired = self.is_pair(map, number);
            assert!(paired || segment.unclean == 0, "I60: what is not clean is on both members");
            let forgotten = mirror.out().is_some() && mirror.is_swept();
            let lost = forgotten && self.is_gone(map, number) && segment.has_table();
            assert!(
                !lost || segment.live == 0,
                "I62: nothing counts that only the lost member has: segment {number}"
            );
            if segment.phase == SegmentPhase::Twin {
                let first = &map.segments[(number - mirror.columns()) as usize];
                let used = matches!(first.phase, SegmentPhase::Open | SegmentPhase::Sealed);
                assert!(used, "a twin belongs to a pair that is in use");
            }
        }
    }

    /// The state of the members; `None` if the cache is not mirrored.
    pub(crate) fn state(&self, superblock: &Superblock) -> Option<MirrorState> {
        let (mirror, mark) = (self.mirror()?, superblock.mirror?);
        Some(MirrorState {
            out: mirror.failed(),
            noted: mirror.out().is_some(),
            rebuild: mirror.rebuild().map(Rebuild::progress),
            tags: mark.tags,
            repaired_blocks: mirror.repairs().repaired_blocks(),
        })
    }
}

impl Context {
    /// An operation of a member failed: fails the member out, unless it is the last one.
    pub(crate) fn member_failed(&mut self, member: u8) {
        let Some(mirror) = self.members.mirror_mut() else { return };
        if self.failure.is_fenced() {
            return;
        }
        if mirror.failed() == Some(member) && mirror.rebuild().is_some() {
            if !self.abandon_rebuild() {
                return;
            }
        } else if mirror.failed().is_some() {
            return;
        }
        let Some(mirror) = self.members.mirror_mut() else { return };
        self.coverage.add(CoverageMark::MemberFailed);
        self.actions.notice(Notice::MemberFailed { member });
        mirror.begin_asking(member, &mut self.actions);
        if fault::planted(PlantedBug::CountBeforeNote) {
            self.put_out(member);
        }
    }

    /// The record is durable: the cache continues with the other member.
    fn put_out(&mut self, member: u8) {
        let Some(mirror) = self.members.mirror_mut() else { return };
        mirror.put_out(member);
        self.members.mark_superblock(&mut self.superblock);
        self.actions.notice(Notice::MemberOut { member });
        if !fault::planted(PlantedBug::KeepLostFill) {
            self.emit(Event::MemberOut);
        }
        self.settle_all_batches();
        self.end_waiting_flush();
        if self.status != Status::Opening {
            self.want_checkpoint(); // The checkpoint that ends an opening is taken anyway, and not earlier.
        }
        self.settle_again();
    }

    /// A read of a slot from a member has ended.
    pub(crate) fn note_member_read(&mut self, member: u8, slot: u32, ok: bool) {
        let segment = self.map.place(slot).0;
        let Some(mirror) = self.members.mirror_mut() else { return };
        if mirror.note_read(member, segment, ok).is_some_and(|failed| failed >= READS_FAILED_MAX) {
            if mirror.failed().is_some() && !self.failure.is_fenced() {
                self.fence();
            } else {
                self.member_failed(member);
            }
        }
    }

    pub(crate) fn step_mirror(&mut self) {
        let (now, stopping) = (self.now, self.stopping);
        let Some(mirror) = self.members.mirror_mut() else { return };
        if self.failure.is_fenced() {
            return;
        }
        if mirror.ask_deadline().is_some_and(|at| stopping || now >= at) {
            mirror.ask(&mut self.actions);
        }
        self.sweep_lost();
        self.step_rebuild();
        self.step_repair();
    }

    pub(crate) fn mirror_deadline(&self) -> Option<Nanos> {
        let mirror = self.members.mirror().filter(|_| !self.failure.is_fenced())?;
        let sweep = (!mirror.is_swept()).then_some(self.now);
        let copy = mirror.rebuild().and_then(|rebuild| rebuild.deadline(self.now));
        let repair = self.repair_deadline();
        [mirror.ask_deadline(), sweep, copy, repair].into_iter().flatten().min()
    }

    /// The cache was fenced: ends waits for the owner and the rebuild.
    pub(crate) fn end_mirroring(&mut self) {
        if self.members.is_mirrored() {
            self.abandon_rebuild();
            self.settle_all_batches();
            self.end_waiting_flush();
        }
    }

    /// True if a shutdown has to wait.
    pub(crate) fn is_mirror_busy(&self) -> bool {
        !self.failure.is_fenced() && self.members.asks()
    }

    /// Answers [`OwnerAction::RecordOut`](crate::OwnerAction::RecordOut): the record is durable, or
    /// could not be written.
    pub(crate) fn member_recorded(&mut self, ticket: u64, ok: bool) {
        let (stopping, opening) = (self.stopping, self.status == Status::Opening);
        let failed = matches!(self.status, Status::Failed(_));
        let Some(mirror) = self.members.mirror_mut() else { return };
        if !mirror.answered(ticket) || failed {
            return;
        }
        let Standing::Asking(member) = mirror.standing() else { return };
        if ok {
            self.put_out(member);
        } else if opening {
            self.coverage.add(CoverageMark::NoteRefused);
            self.emit(Event::OpeningFailed(Box::new(OpenError::NoNote)));
        } else if mirror.times_asked() >= ASK_TRIES || stopping {
            // Nothing can be guaranteed, with one member or two.
            self.coverage.add(CoverageMark::NoteRefused);
            self.fence();
        } else {
            mirror.ask_again_at(self.now + ASK_PAUSE_NS);
        }
    }

    /// The owner has noticed that a member is gone: fails it out without waiting for an error.
    pub(crate) fn member_gone(&mut self, member: u8) {
        let Some(mirror) = self.members.mirror() else { return };
        if !self.status.is_ready() {
            return;
        }
        if mirror.failed().is_some_and(|failed| failed != member) {
            self.fence();
        } else {
            self.member_failed(member);
        }
    }
}
