//! State of the members of the cache: which ones are active, the rebuild of a new one, and repairs
//! of single copies.
//!
//! A member that has failed is first *asking*: the owner has not recorded yet that it is stale.
//! Only then is it *out*. Fields change only by the transitions below; `mirror` decides when.

mod rebuild;
mod repair;

pub(crate) use rebuild::{Copying, Rebuild};
pub(crate) use repair::{Outcome, Repair, Repairs};

use crate::api::{Nanos, OwnerAction};
use crate::context::actions::ActionQueue;
use alloc::boxed::Box;
use alloc::vec::Vec;
use forebay_format::Geometry;

/// State of the members of a mirrored cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Standing {
    /// Both are active.
    #[default]
    Whole,
    /// This one has failed, and the engine has asked the owner to record that.
    Asking(u8),
    /// This one is out.
    Out(u8),
}

/// The members of the cache: the two of a mirrored one, or the only one.
#[derive(Debug, Default)]
pub(crate) struct Members {
    mirror: Option<Box<Mirror>>,
}

impl Members {
    /// Creates the members of a mirrored cache, both active.
    pub(crate) fn mirrored(geometry: &Geometry) -> Self {
        Self { mirror: Some(Box::new(Mirror::new(geometry.columns()))) }
    }

    #[inline]
    pub(crate) fn is_mirrored(&self) -> bool {
        self.mirror.is_some()
    }

    /// Returns the state of a mirrored cache.
    #[inline]
    pub(crate) fn mirror(&self) -> Option<&Mirror> {
        self.mirror.as_deref()
    }

    #[inline]
    pub(crate) fn mirror_mut(&mut self) -> Option<&mut Mirror> {
        self.mirror.as_deref_mut()
    }

    /// Returns true if this member is active; the only one always is.
    pub(crate) fn counts(&self, member: u8) -> bool {
        self.mirror().is_none_or(|mirror| mirror.counts(member))
    }

    /// Returns true if no member has failed.
    pub(crate) fn is_whole(&self) -> bool {
        self.mirror().is_none_or(Mirror::is_whole)
    }
}

/// State of a mirrored cache.
#[derive(Debug)]
pub(crate) struct Mirror {
    /// Segments of each member.
    columns: u32,
    standing: Standing,
    /// At a start: the member that is out was not recorded as out.
    unrecorded: bool,
    /// The request that the owner has not answered, and the number of attempts.
    ticket: Option<u64>,
    last_ticket: u64,
    asked: u32,
    ask_again_at: Option<Nanos>,
    /// The other half of a column of which the fill stream has taken the first.
    spare: Option<u32>,
    /// Half of a column whose other half is free: a victim that makes it whole.
    wanted: Option<u32>,
    /// Flushes of members in flight, and for each member whether its flush succeeded.
    flushes: u32,
    flushed: [bool; 2],
    /// A flush of the cache has ended, and waits for the owner's record.
    flush_waits: bool,
    /// Segments that could not be read, in sequence.
    unreadable: [Vec<u32>; 2],
    /// Position of the sweep over blocks that only the lost member had.
    sweep: Option<(u32, u32)>,
    rebuild: Option<Rebuild>,
    repairs: Repairs,
}

impl Mirror {
    fn new(columns: u32) -> Self {
        Self {
            columns,
            standing: Standing::Whole,
            unrecorded: false,
            ticket: None,
            last_ticket: 0,
            asked: 0,
            ask_again_at: None,
            spare: None,
            wanted: None,
            flushes: 0,
            flushed: [false; 2],
            flush_waits: false,
            unreadable: [Vec::new(), Vec::new()],
            sweep: None,
            rebuild: None,
            repairs: Repairs::default(),
        }
    }

    /// Returns the segments of each member.
    #[inline]
    pub(crate) fn columns(&self) -> u32 {
        self.columns
    }

    /// Returns the two halves of the column of a segment.
    pub(crate) fn halves(&self, segment: u32) -> (u32, u32) {
        let first = segment % self.columns;
        (first, first + self.columns)
    }

    /// Returns the member of a segment that is not a pair.
    pub(crate) fn member_of(&self, segment: u32) -> u8 {
        u8::from(segment >= self.columns)
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.standing == Standing::Whole
    }

    /// Returns the member that has failed, recorded or not.
    pub(crate) fn failed(&self) -> Option<u8> {
        match self.standing {
            Standing::Whole => None,
            Standing::Asking(member) | Standing::Out(member) => Some(member),
        }
    }

    /// Returns the member that is out.
    pub(crate) fn out(&self) -> Option<u8> {
        if let Standing::Out(member) = self.standing { Some(member) } else { None }
    }

    /// Returns true if this member is active.
    pub(crate) fn counts(&self, member: u8) -> bool {
        self.failed() != Some(member)
    }

    /// Returns true if this member gets the writes for both members: it is active, or is being
    /// rebuilt.
    pub(crate) fn takes(&self, member: u8) -> bool {
        self.counts(member) || self.rebuild.as_ref().is_some_and(|rebuild| !rebuild.is_abandoned())
    }

    pub(crate) fn asks(&self) -> bool {
        matches!(self.standing, Standing::Asking(_))
    }

    /// At a start: this member is out, which the owner might not have recorded.
    pub(crate) fn leave_out(&mut self, member: u8, unrecorded: bool) {
        (self.standing, self.unrecorded) = (Standing::Out(member), unrecorded);
    }

    /// Takes the member that is out and was not recorded as out: it becomes active, to be failed
    /// out like any other.
    pub(crate) fn take_unrecorded(&mut self) -> Option<u8> {
        let member = self.out().filter(|_| self.unrecorded)?;
        (self.unrecorded, self.standing) = (false, Standing::Whole);
        Some(member)
    }

    /// A member has failed: asks the owner to record that.
    pub(crate) fn begin_asking(&mut self, member: u8, actions: &mut ActionQueue) {
        self.standing = Standing::Asking(member);
        self.ask(actions);
    }

    /// Asks the owner again.
    pub(crate) fn ask(&mut self, actions: &mut ActionQueue) {
        let Standing::Asking(member) = self.standing else { return };
        self.last_ticket += 1;
        self.asked += 1;
        (self.ticket, self.ask_again_at) = (Some(self.last_ticket), None);
        actions.push_owner(OwnerAction::RecordOut { ticket: self.last_ticket, member });
    }

    /// The owner has answered; returns true if it is the answer to the last request.
    pub(crate) fn answered(&mut self, ticket: u64) -> bool {
        self.ticket.take_if(|pending| *pending == ticket).is_some()
    }

    /// Returns how often the owner was asked to record the present failure.
    pub(crate) fn times_asked(&self) -> u32 {
        self.asked
    }

    /// Asks the owner again at this time.
    pub(crate) fn ask_again_at(&mut self, at: Nanos) {
        self.ask_again_at = Some(at);
    }

    /// Returns when the owner is asked again.
    pub(crate) fn ask_deadline(&self) -> Option<Nanos> {
        self.ask_again_at
    }

    /// The failure is recorded: what only this member had is to be swept.
    pub(crate) fn put_out(&mut self, member: u8) {
        self.standing = Standing::Out(member);
        self.asked = 0;
        self.sweep = Some((0, 0));
        self.spare = self.spare.filter(|spare| self.member_of(*spare) != member);
    }

    /// Notes a read of a segment from a member; returns the number of segments in sequence that
    /// could not be read if this one is new among them.
    pub(crate) fn note_read(&mut self, member: u8, segment: u32, ok: bool) -> Option<usize> {
        let known = self.failed() == Some(member);
        let unreadable = &mut self.unreadable[usize::from(member)];
        if ok {
            unreadable.clear();
        }
        if ok || known || unreadable.contains(&segment) {
            return None;
        }
        unreadable.push(segment);
        Some(unreadable.len())
    }

    /// Takes the position of the sweep, if it goes on; [`Self::sweep_on`] puts the next one.
    pub(crate) fn take_sweep(&mut self) -> Option<(u32, u32)> {
        self.sweep.take()
    }

    /// Continues the sweep at this segment and block.
    pub(crate) fn sweep_on(&mut self, at: (u32, u32)) {
        self.sweep = Some(at);
    }

    /// Returns true if nothing counts that only the failed member had.
    pub(crate) fn is_swept(&self) -> bool {
        self.sweep.is_none()
    }

    /// Returns the half of a column that a snapshot must list in its window in addition to the
    /// columns.
    pub(crate) fn spare(&self) -> Option<u32> {
        self.spare
    }

    /// Takes the half that the fill stream left for its next segment.
    pub(crate) fn take_spare(&mut self) -> Option<u32> {
        self.spare.take()
    }

    /// Chooses the half of a column that the fill stream takes: with both members active, the other
    /// one is its next segment.
    pub(crate) fn divide(&mut self, first: u32) -> u32 {
        let (first, twin) = self.halves(first);
        match self.standing {
            Standing::Whole => {
                let (now, later) = if first % 2 == 0 { (first, twin) } else { (twin, first) };
                self.spare = Some(later);
                now
            }
            Standing::Asking(0) | Standing::Out(0) => twin,
            Standing::Asking(_) | Standing::Out(_) => first,
        }
    }

    /// A half of a column is free and the other one is in use: that one is a victim.
    pub(crate) fn want(&mut self, half: u32) {
        self.wanted = Some(half);
    }

    /// Takes the victim that makes a column whole.
    pub(crate) fn take_wanted(&mut self) -> Option<u32> {
        self.wanted.take()
    }

    /// A column is free: this half is no longer a segment of its own.
    pub(crate) fn joined(&mut self, half: u32) {
        self.spare = self.spare.filter(|spare| *spare != half);
    }

    /// Notes that a pair has ended.
    pub(crate) fn pair_ended(&mut self, first: u32) {
        if let Some(rebuild) = &mut self.rebuild {
            rebuild.pending.remove(&first);
        }
    }

    /// Begins a flush of the cache: returns the members to flush, of those in `which`.
    pub(crate) fn begin_flush(&mut self, which: [bool; 2]) -> impl Iterator<Item = u8> + use<> {
        self.flushed = [false; 2];
        let members = [0, 1].map(|member: u8| self.takes(member) && which[usize::from(member)]);
        self.flushes = members.iter().filter(|takes| **takes).count() as u32;
        (0..2).filter(move |member| members[usize::from(*member)])
    }

    /// The flush of a member has ended.
    pub(crate) fn member_flushed(&mut self, member: u8, ok: bool) {
        self.flushes -= 1;
        self.flushed[usize::from(member)] = ok;
    }

    /// Returns true if no flush of a member is in flight; the flush of the cache then waits for
    /// [`Self::end_flush`].
    pub(crate) fn await_end_of_flush(&mut self) -> bool {
        self.flush_waits |= self.flushes == 0;
        self.flushes == 0
    }

    /// Returns whether the flush of the cache that waits for its end has succeeded.
    pub(crate) fn waiting_flush(&self) -> Option<bool> {
        let good = || (0..2).any(|member| self.flushed[usize::from(member)] && self.counts(member));
        self.flush_waits.then(good)
    }

    /// The flush of the cache has ended.
    pub(crate) fn end_flush(&mut self) {
        self.flush_waits = false;
    }

    pub(crate) fn rebuild(&self) -> Option<&Rebuild> {
        self.rebuild.as_ref()
    }

    pub(crate) fn rebuild_mut(&mut self) -> Option<&mut Rebuild> {
        self.rebuild.as_mut()
    }

    /// Begins to rebuild the member that is out on another device.
    pub(crate) fn begin_rebuild(&mut self, rebuild: Rebuild) {
        self.unreadable[usize::from(rebuild.member)].clear();
        self.rebuild = Some(rebuild);
    }

    /// Ends the rebuild if it is abandoned and has nothing in flight.
    pub(crate) fn drop_abandoned(&mut self) -> Option<Rebuild> {
        let is_idle = |rebuild: &mut Rebuild| rebuild.is_abandoned() && !rebuild.is_busy();
        self.rebuild.take_if(is_idle)
    }

    /// A checkpoint of this generation is in effect; returns true if it lists the new member: both
    /// are active from here on.
    pub(crate) fn note_checkpoint(&mut self, generation: u64) -> bool {
        let has_ended = |rebuild: &mut Rebuild| {
            rebuild.ticket.is_some_and(|ticket| generation >= ticket) && !rebuild.is_abandoned()
        };
        let ended = self.rebuild.take_if(has_ended).is_some();
        if ended {
            self.standing = Standing::Whole;
        }
        ended
    }

    pub(crate) fn repairs(&self) -> &Repairs {
        &self.repairs
    }

    pub(crate) fn repairs_mut(&mut self) -> &mut Repairs {
        &mut self.repairs
    }
}
