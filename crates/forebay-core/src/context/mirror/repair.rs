//! State of repairs of single copies: the suspects, and the one whose copies are being compared.

use crate::api::Nanos;
use crate::context::pages::Page;
use alloc::collections::BTreeSet;

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
