//! Requests of guests on their path through the engine.
//!
//! A read or write is done in pieces of at most [`PIECE_BYTES`], each with its own buffer: so the
//! one buffer that an export owns from its start is enough for any request to progress. A piece
//! ends at a block boundary unless it is the last.

use forebay_core::Treatment;
use forebay_export::request::ClientRequest;
use forebay_export::virtio::block::{BlockRequest, Status, Work};
use forebay_format::BLOCK_BYTES;
use forebay_io::BufId;

/// Maximum length of a piece.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Room for a piece, with any offset within its first block.
pub(super) const PIECE_BUFFER_BYTES: usize = PIECE_BYTES as usize;

/// A request that was taken from a ring.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ring: u16,
    /// Number of its ring (`ServedRing::number`).
    pub(super) number: u32,
    pub(super) head: u16,
    pub(super) request: BlockRequest,
    pub(super) treatment: Treatment,
    /// How much of it was begun: bytes, or ranges.
    begun: u64,
    /// Pieces in the engine.
    pub(super) under_way: u32,
    pub(super) has_failed: bool,
    /// It is not answered: the next server of the ring takes it again.
    pub(super) is_left: bool,
}

/// The next part of a request to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) request: ClientRequest,
    /// Offset of its data in the data of the request.
    pub(super) data_at: u64,
}

/// A part that the engine works on.
#[derive(Debug)]
pub(super) struct Piece {
    /// Its request.
    pub(super) pending: u32,
    pub(super) part: Part,
    pub(super) buffer: Option<BufId>,
}

impl Pending {
    pub(super) fn new(
        (ring, number): (u16, u32),
        head: u16,
        request: BlockRequest,
        treatment: Treatment,
    ) -> Self {
        Self {
            ring,
            number,
            head,
            request,
            treatment,
            begun: 0,
            under_way: 0,
            has_failed: false,
            is_left: false,
        }
    }

    /// The next part to begin; `None` if all were begun, or the request has failed.
    pub(super) fn next(&self) -> Option<Part> {
        if self.has_failed || self.is_left {
            return None;
        }
        match &self.request.work {
            Work::Transfer { request, .. } => {
                let (offset_bytes, left) =
                    (request.offset_bytes + self.begun, request.length_bytes - self.begun);
                let length_bytes = left.min(PIECE_BYTES - offset_bytes % BLOCK);
                let request = ClientRequest { offset_bytes, length_bytes, ..*request };
                (left > 0).then_some(Part { request, data_at: self.begun })
            }
            Work::Plain(requests) => {
                let request = *requests.get(self.begun as usize)?;
                Some(Part { request, data_at: 0 })
            }
            Work::Answered(..) => None,
        }
    }

    /// Counts a part as begun.
    pub(super) fn began(&mut self, part: &Part) {
        self.under_way += 1;
        self.begun += match self.request.work {
            Work::Transfer { .. } => part.request.length_bytes,
            _ => 1,
        };
    }

    /// The result, once no piece is in flight or left to begin. (A request that is left to the next
    /// server has ended too, with any result.)
    pub(super) fn status(&self) -> Option<Status> {
        if self.under_way > 0 || self.next().is_some() {
            return None;
        }
        Some(match self.request.work {
            _ if self.has_failed => Status::IoError,
            Work::Answered(status, _) => status,
            _ => Status::Ok,
        })
    }
}

/// Entries by number; numbers are reused.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(super) fn add(&mut self, entry: T) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        self.entries[number as usize] = Some(entry);
        number
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn take(&mut self, number: u32) -> Option<T> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(entry)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Numbers of the entries that satisfy the condition.
    pub(super) fn numbers(&self, holds: impl Fn(&T) -> bool) -> Vec<u32> {
        let entries = self.entries.iter().enumerate();
        let held = entries.filter(|(_, entry)| entry.as_ref().is_some_and(&holds));
        held.map(|(number, _)| number as u32).collect()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
    }
}
