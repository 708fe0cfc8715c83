//! Reads: repeated at once when their session ends.

use forebay_export::nbd::codec::{Errno, cmd};

use super::changes::pieces;
use super::connections::Tag;
use super::{Lane, LaneError};
use crate::session::Request;

/// Longest piece of a read.
const READ_BYTES_MAX: u64 = 4 << 20;

/// A part of a read.
#[derive(Debug)]
pub(super) struct Read {
    op: u64,
    offset: u64,
    len: u32,
    /// The slot that it is in flight on.
    slot: Option<usize>,
}

impl Lane {
    pub(super) fn submit_read(&mut self, id: u64, offset: u64, len: u64) {
        let piece = self.piece_bytes(READ_BYTES_MAX);
        for part in pieces(len, piece) {
            let seq = self.next_seq();
            let len = u32::try_from(part.end - part.start).unwrap_or(u32::MAX); // at most a piece
            self.reads.insert(seq, Read { op: id, offset: offset + part.start, len, slot: None });
            if let Some(op) = self.ops.get_mut(&id) {
                op.parts += 1;
            }
        }
    }

    pub(super) fn send_reads(&mut self) {
        if !(0..self.connections.len()).any(|slot| self.is_up(slot)) {
            return;
        }
        let waiting = self.reads.iter().filter(|(_, read)| read.slot.is_none());
        for seq in waiting.map(|(seq, _)| *seq).collect::<Vec<_>>() {
            let Some(Read { offset, len, .. }) = self.reads.get(&seq) else { continue };
            let (offset, length) = (*offset, *len);
            if self.must_be_repeated(offset, length.into()) {
                continue;
            }
            let slots = if self.is_kept(offset, length.into()) { 0..1 } else { 0..self.connections.len() };
            let free = slots.filter(|slot| self.has_room(*slot, 0));
            let Some(slot) = free.min_by_key(|slot| self.load_of(*slot)) else { continue };
            if let Some(read) = self.reads.get_mut(&seq) {
                read.slot = Some(slot);
            }
            let request = Request { kind: cmd::READ, flags: 0, offset, length };
            self.send_on(slot, Tag::Read(seq), request, &[]);
        }
    }

    pub(super) fn read_answered(&mut self, seq: u64, result: Result<&[u8], Errno>) {
        if result == Err(Errno::Shutdown) {
            self.reads.entry(seq).and_modify(|read| read.slot = None);
            return;
        }
        let Some(read) = self.reads.remove(&seq) else { return };
        if let (Ok(data), Some(op)) = (result, self.ops.get_mut(&read.op)) {
            let start = (read.offset - op.offset) as usize;
            op.data[start..start + data.len()].copy_from_slice(data);
        }
        self.part_ended(read.op, result.map(drop).map_err(LaneError::Server));
    }

    /// The session of a slot has ended.
    pub(super) fn reads_lost(&mut self, slot: usize) {
        for read in self.reads.values_mut().filter(|read| read.slot == Some(slot)) {
            read.slot = None;
        }
    }

    pub(super) fn fail_reads(&mut self, error: LaneError) {
        for read in std::mem::take(&mut self.reads).into_values() {
            self.part_ended(read.op, Err(error));
        }
    }
}
