//! State shared by several parts of a world: requests, operations of devices, and the tasks of
//! owner and operator. It lives as long as its engine.

use crate::disks::{Disks, Record};
use crate::oracle::WriteTicket;
use forebay_core::{DeviceFailure, IoAction, RequestKind, RiskWalk, Span};
use forebay_format::VolumeId;
use std::rc::Rc;

/// An unanswered request.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(super) volume: usize,
    pub(super) kind: RequestKind,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) buffer: Option<u32>,
    /// Time of its submission.
    pub(super) submitted_at: u64,
    pub(super) begun: u64,
    pub(super) ticket: Option<WriteTicket>,
    pub(super) errors: u64,
    /// Number of times the owner had refused to record the failure of the cache.
    pub(super) refusals: u64,
    pub(super) data_crc: u32,
    pub(super) invalid: bool,
    pub(super) refused: bool,
}

impl Pending {
    /// Returns kind, volume and length, and the time of submission.
    pub(crate) fn asked(&self) -> (RequestKind, (VolumeId, u64), u64) {
        (self.kind, (VolumeId(self.volume as u16), self.len), self.submitted_at)
    }

    /// Returns true if this is a request to the volume.
    #[must_use]
    pub(crate) fn is_of(&self, volume: usize) -> bool {
        self.volume == volume && !self.invalid
    }
}

/// A device operation in flight.
pub(crate) struct Flight {
    pub(super) device: usize,
    pub(super) spans: Vec<Span>,
    pub(super) kind: FlightKind,
}

pub(crate) enum FlightKind {
    Read { offset: u64, len: usize, crc: bool, early: Option<Sampled> },
    ReadMeta { offset: u64, len: usize },
    Write { number: u64, offset: u64, data: Rc<Vec<u8>>, header: usize },
    // Bytes of a device, and the number of the write that stands for the discard.
    Discard { number: u64, offset: u64, len: u64 },
    Flush { covered: u64 },
    // A write or flush of a device that had ended: it has no effect.
    Refused,
    // A discard of a device that had ended, or does not support it.
    RefusedDiscard,
    // Not started yet.
    Held(Held),
}

impl Flight {
    /// Returns true if it discards some of these bytes.
    pub(super) fn discards(&self, device: usize, offset: u64, len: u64) -> bool {
        let FlightKind::Discard { offset: at, len: discarded, .. } = self.kind else { return false };
        self.device == device && at < offset + len && offset < at + discarded
    }

    /// Returns true if it reads some of these bytes.
    pub(super) fn reads(&self, device: usize, offset: u64, len: u64) -> bool {
        let (FlightKind::Read { offset: at, len: read, .. } | FlightKind::ReadMeta { offset: at, len: read }) =
            self.kind
        else {
            return false;
        };
        self.device == device && at < offset + len && offset < at + read as u64
    }
}

/// The result of a read of a device.
pub(super) type Sampled = Result<Vec<u8>, DeviceFailure>;

/// An operation not started yet.
pub(crate) struct Held {
    pub(super) action: IoAction,
    /// The bytes of a write.
    pub(super) bytes: Vec<u8>,
}

impl Held {
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.action, IoAction::Read { .. })
    }
}

/// A task of the owner.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(super) due: u64,
    /// `None`: ask the engine to request the record again.
    pub(super) ticket: Option<u64>,
    pub(super) ok: bool,
    pub(super) record: Record,
    /// The walk that finds its content in pieces.
    pub(super) walk: Option<RiskWalk>,
}

impl Task {
    /// Returns the record that a start after a crash now may find.
    pub(crate) fn record(&self) -> Option<&Record> {
        (self.ok && self.ticket.is_some() && self.walk.is_none()).then_some(&self.record)
    }
}

/// The owner's note that a member has failed.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(super) due: u64,
    pub(super) ticket: u64,
    pub(super) ok: bool,
    pub(super) tag: u64,
}

impl Note {
    /// Makes the note durable.
    pub(crate) fn enter(&self, disks: &mut Disks) {
        if let Some(member_notes) = &mut disks.member_notes {
            member_notes.noted.insert(self.tag);
        }
    }

    /// Returns true if a start after a crash now may find it.
    pub(crate) fn may_be_durable(&self) -> bool {
        self.ok
    }
}

/// A device that is slow now.
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
    /// It is a cache device that is back in time.
    pub(super) is_harmless: bool,
    /// State of an unplugged backing store.
    pub(super) unplugged: Option<Unplugged>,
}

/// The state of an unplugged backing store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unplugged {
    /// It is absent, or operations on the old device are in flight.
    Away,
    /// The engine forgets its clean blocks.
    Reopened,
}

/// The state of scrubs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scrubs {
    /// The state at the beginning of the scrub in progress.
    pub(super) began: Option<Began>,
    /// Errors of the cache device at the beginning of the last scrub that found all damage.
    pub(super) sound_at: Option<u64>,
}

/// The state at the beginning of a scrub.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    /// Errors of the cache device so far.
    pub(super) errors: u64,
    /// Copies that counted.
    pub(super) total_blocks: u64,
    /// Blocks in the cache, and bytes written to its device so far.
    pub(super) cached_blocks: u64,
    pub(super) written_bytes: u64,
    /// Writes were in flight: the blocks that they replace leave the cache later, in unknown
    /// number.
    pub(super) writes: bool,
}

impl Scrubs {
    pub(crate) fn is_running(&self) -> bool {
        self.began.is_some()
    }
}
