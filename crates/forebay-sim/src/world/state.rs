//! State that several parts of a world work on: requests, operations of devices, and what the owner
//! and the operator are at. It lives as long as its engine.

use crate::disks::{Disks, Record};
use crate::oracle::WriteTicket;
use forebay_core::{Action, DeviceFailure, RequestKind, RiskWalk, Span};
use forebay_format::VolumeId;
use std::rc::Rc;

/// A request that has not been answered.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(super) volume: usize,
    pub(super) kind: RequestKind,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) buffer: Option<u32>,
    /// When it was made.
    pub(super) submitted_at: u64,
    pub(super) begun: u64,
    pub(super) ticket: Option<WriteTicket>,
    pub(super) errors: u64,
    /// Times that the owner had refused to record the failure of the cache.
    pub(super) refusals: u64,
    pub(super) data_crc: u32,
    pub(super) invalid: bool,
    pub(super) refused: bool,
}

impl Pending {
    /// What it asks for, of which volume and how much, and when it was made.
    pub(crate) fn asked(&self) -> (RequestKind, (VolumeId, u64), u64) {
        (self.kind, (VolumeId(self.volume as u16), self.len), self.submitted_at)
    }

    /// It is a request to this volume.
    #[must_use]
    pub(crate) fn is_of(&self, volume: usize) -> bool {
        self.volume == volume && !self.invalid
    }
}

/// A device operation under way.
pub(crate) struct Flight {
    pub(super) device: usize,
    pub(super) spans: Vec<Span>,
    pub(super) kind: FlightKind,
}

pub(crate) enum FlightKind {
    Read { offset: u64, len: usize, crc: bool, early: Option<Sampled> },
    ReadMeta { offset: u64, len: usize },
    Write { number: u64, offset: u64, data: Rc<Vec<u8>>, header: usize },
    // Bytes of a device, and the number of the write that it is for the device.
    Discard { number: u64, offset: u64, len: u64 },
    Flush { covered: u64 },
    // A write or flush of a device that had ended: nothing was done.
    Refused,
    // A discard of a device that had ended, or does not have it.
    RefusedDiscard,
    // It was not started yet.
    Held(Held),
}

impl Flight {
    /// It discards some of these bytes.
    pub(super) fn discards(&self, device: usize, offset: u64, len: u64) -> bool {
        let FlightKind::Discard { offset: at, len: discarded, .. } = self.kind else { return false };
        self.device == device && at < offset + len && offset < at + discarded
    }

    /// It reads some of these bytes.
    pub(super) fn reads(&self, device: usize, offset: u64, len: u64) -> bool {
        let (FlightKind::Read { offset: at, len: read, .. } | FlightKind::ReadMeta { offset: at, len: read }) =
            self.kind
        else {
            return false;
        };
        self.device == device && at < offset + len && offset < at + read as u64
    }
}

/// What a device returns for a read.
pub(super) type Sampled = Result<Vec<u8>, DeviceFailure>;

/// An operation that was not started yet.
pub(crate) struct Held {
    pub(super) action: Action,
    /// What a write will write.
    pub(super) bytes: Vec<u8>,
}

impl Held {
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.action, Action::Read { .. })
    }
}

/// The owner at work.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(super) due: u64,
    /// `None`: ask the engine to ask again.
    pub(super) ticket: Option<u64>,
    pub(super) ok: bool,
    pub(super) record: Record,
    /// What belongs into it is being looked for, in pieces.
    pub(super) walk: Option<RiskWalk>,
}

impl Task {
    /// The record that a crash now may find.
    pub(crate) fn record(&self) -> Option<&Record> {
        (self.ok && self.ticket.is_some() && self.walk.is_none()).then_some(&self.record)
    }
}

/// The owner notes that a member has failed.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(super) due: u64,
    pub(super) ticket: u64,
    pub(super) ok: bool,
    pub(super) tag: u64,
}

impl Note {
    /// The note is durable.
    pub(crate) fn enter(&self, disks: &mut Disks) {
        if let Some(member_notes) = &mut disks.member_notes {
            member_notes.noted.insert(self.tag);
        }
    }

    /// A crash now may find it.
    pub(crate) fn may_be_durable(&self) -> bool {
        self.ok
    }
}

/// A device that takes long now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    pub(super) device: usize,
    pub(super) spares_reads: bool,
    pub(super) until: u64,
}

/// A device that is too short now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    pub(super) device: usize,
    pub(super) bytes: u64,
    pub(super) until: u64,
    /// It is a cache device, and back in time.
    pub(super) is_harmless: bool,
    /// It is a backing store that was unplugged.
    pub(super) unplugged: Option<Unplugged>,
}

/// How far a backing store that was unplugged is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unplugged {
    /// It is not there, or operations are under way on the old device.
    Away,
    /// The engine forgets its clean blocks.
    Reopened,
}

/// What is known of scrubs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scrubs {
    /// The one under way, as it began.
    pub(super) began: Option<Began>,
    /// The same of one that has found everything.
    pub(super) sound_at: Option<u64>,
}

/// How things were when a scrub began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    /// Errors of the cache device until then.
    pub(super) errors: u64,
    /// Copies that counted.
    pub(super) total_blocks: u64,
    /// Blocks in the cache, and bytes written to its device until then.
    pub(super) cached_blocks: u64,
    pub(super) written_bytes: u64,
    /// Writes were under way: what they replace leaves the cache later, and nobody knows how much
    /// that is.
    pub(super) writes: bool,
}

impl Scrubs {
    pub(crate) fn is_running(&self) -> bool {
        self.began.is_some()
    }
}
