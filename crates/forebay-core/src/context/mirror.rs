//! State of a mirrored cache: the state of its members, the rebuild of a new one, and repairs of
//! single copies.

use crate::api::{Nanos, Span};
use crate::context::pages::Page;
use crate::context::sectors::push_span;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use forebay_format::{BLOCK_BYTES, Geometry};

/// State of the members.
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

#[derive(Debug)]
pub(crate) struct Mirror {
    /// Segments of each member.
    pub(crate) columns: u32,
    pub(crate) standing: Standing,
    /// At a start: the member that is out was not recorded as out.
    pub(crate) unnoted: bool,
    /// The request that the owner has not answered, and the number of attempts.
    pub(crate) ticket: Option<u64>,
    pub(crate) last_ticket: u64,
    pub(crate) asked: u32,
    pub(crate) ask_again_at: Option<Nanos>,
    /// The other half of a column of which the fill stream has taken the first.
    pub(crate) spare: Option<u32>,
    /// Half of a column whose other half is free: a victim that makes it whole.
    pub(crate) wanted: Option<u32>,
    /// Flushes of members in flight, and for each member whether its flush succeeded.
    pub(crate) flushes: u32,
    pub(crate) flushed: [bool; 2],
    /// A flush of the cache has ended, and waits for the owner's record.
    pub(crate) flush_waits: bool,
    /// Segments that could not be read, in sequence.
    pub(crate) unreadable: [Vec<u32>; 2],
    /// Position of the sweep over blocks that only the lost member had.
    pub(crate) sweep: Option<(u32, u32)>,
    pub(crate) rebuild: Option<Rebuild>,
    pub(crate) repairs: Repairs,
}

impl Mirror {
    pub(crate) fn new(geometry: &Geometry) -> Box<Self> {
        Box::new(Self {
            columns: geometry.columns(),
            standing: Standing::Whole,
            unnoted: false,
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
        })
    }

    /// Returns the member of a segment that is not a pair.
    pub(crate) fn member_of(&self, segment: u32) -> u8 {
        u8::from(segment >= self.columns)
    }

    /// Returns the member that has failed, recorded or not.
    pub(crate) fn failed(&self) -> Option<u8> {
        match self.standing {
            Standing::Whole => None,
            Standing::Asking(member) | Standing::Out(member) => Some(member),
        }
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
}

/// A copy in progress.
#[derive(Debug)]
pub(crate) struct Copying {
    pub(crate) segment: u32,
    pub(crate) at: u32,
    pub(crate) blocks: u32,
    /// Up to here one block at a time, after a failed read.
    pub(crate) careful_until: u32,
    pub(crate) tries: u32,
    pub(crate) pages: Vec<Page>,
    /// An operation is in flight.
    pub(crate) busy: bool,
}

/// A rebuild of a member.
#[derive(Debug)]
pub(crate) struct Rebuild {
    pub(crate) member: u8,
    pub(crate) tag: u64,
    /// Pairs that have no second copy yet.
    pub(crate) pending: BTreeSet<u32>,
    pub(crate) all: u32,
    pub(crate) copying: Option<Copying>,
    pub(crate) next_at: Nanos,
    pub(crate) abandoned: bool,
    /// The checkpoint that lists the new member.
    pub(crate) ticket: Option<u64>,
    pub(crate) wanted: bool,
}

impl Rebuild {
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Returns the number of copied segments, and of all.
    pub(crate) fn progress(&self) -> (u32, u32) {
        (self.all - self.pending.len() as u32, self.all)
    }

    pub(crate) fn deadline(&self, now: Nanos) -> Option<Nanos> {
        let busy = self.copying.as_ref().is_some_and(|copying| copying.busy);
        (!busy && self.ticket.is_none() && !self.wanted).then(|| self.next_at.max(now))
    }
}

impl Mirror {
    /// Notes that a pair has ended.
    pub(crate) fn pair_ended(&mut self, first: u32) {
        if let Some(rebuild) = &mut self.rebuild {
            rebuild.pending.remove(&first);
        }
    }
}

/// Suspect slots and their repair.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    pub(crate) suspects: BTreeSet<u32>,
    /// Suspects, or the current one, whose outcome the running scrub waits for.
    pub(crate) asked: BTreeSet<u32>,
    pub(crate) current: Option<Repair>,
    pub(crate) next_at: Nanos,
    pub(crate) repaired: u64,
}

/// A suspect whose copies are being read or written: an operation is in flight.
#[derive(Debug)]
pub(crate) struct Repair {
    pub(crate) slot: u32,
    pub(crate) page: Page,
    /// The member that is being read.
    pub(crate) reads: u8,
    /// The member with the bad copy, once that is known.
    pub(crate) bad: Option<u8>,
    /// How often both copies have been compared.
    pub(crate) looks: u32,
    /// A read failed, or a copy was right before: the last reads are inconclusive.
    pub(crate) unread: bool,
}

/// Outcome of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Both copies are right, or the block has gone.
    Sound,
    /// The good copy has replaced the bad one.
    Repaired,
    /// Both copies were read more than once, and were wrong each time.
    Wrong,
    /// Neither is right, and at least one could not be read: that might be transient.
    Unread,
    /// One member is no longer active: the block is checked again as one with a single copy.
    Alone,
}

impl Repairs {
    pub(crate) fn repaired_blocks(&self) -> u64 {
        self.repaired
    }
}

impl Mirror {
    /// Returns the two halves of the column of a segment.
    pub(crate) fn halves(&self, segment: u32) -> (u32, u32) {
        let first = segment % self.columns;
        (first, first + self.columns)
    }

    /// Returns the half of a column that a snapshot must list in its window in addition to the
    /// columns.
    pub(crate) fn spare(&self) -> Option<u32> {
        self.spare
    }
}

impl Copying {
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES as u64
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        self.pages[..self.blocks as usize].iter().for_each(|page| push_span(&mut spans, page.span()));
        spans
    }
}
