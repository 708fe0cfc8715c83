//! State of a rebuild: the pairs that the new member lacks, and the copy in progress.

use crate::api::{Nanos, Span};
use crate::context::pages::Page;
use crate::context::sectors::push_span;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use forebay_format::BLOCK_BYTES;

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

    /// Returns true if an operation of the copy is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.copying.as_ref().is_some_and(|copying| copying.busy)
    }

    /// Returns the number of copied segments, and of all.
    pub(crate) fn progress(&self) -> (u32, u32) {
        (self.all - self.pending.len() as u32, self.all)
    }

    pub(crate) fn deadline(&self, now: Nanos) -> Option<Nanos> {
        (!self.is_busy() && self.ticket.is_none() && !self.wanted).then(|| self.next_at.max(now))
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
