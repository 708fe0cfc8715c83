//! State of the log: three append streams with their queues and batches in flight, and clean marks
//! that wait for a batch.

use crate::api::{Nanos, Span};
use crate::context::clean_marks::CleanMarks;
use crate::context::pages::Page;
use crate::context::queue::Queue;
use crate::map::MASK_FULL;
use crate::map::segment::Key;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use forebay_format::batch::Entry;
use forebay_format::{Slot, StreamKind, VolumeId};

/// Items that are always worth a batch: its header is then a ninth of the write.
const WORTHWHILE_ITEMS: usize = 8;
/// No operation: a half of a batch that is not in flight.
pub(crate) const NO_OP: u32 = u32::MAX;

/// Notified when an item has been written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ItemOwner {
    /// A whole block of a client's write.
    Request(u32),
    /// A merged block of a client's write, in its page.
    Merge(u32, Page),
    /// A clean copy of a write-through to the backing store.
    Copy(u32),
    /// A fill, in its page, with the token of its registration.
    Fill(Page, u64),
    /// A block that had to be moved.
    Survivor(u32),
    /// A clean block that was moved because of its use.
    Kept(u32),
    /// The intent of a bypass write.
    Intent(u32),
    /// A drop mark of a bypass write.
    Drop(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ItemKind {
    Data { mask: u8, dirty: bool },
    Drop { slot: u32, count: u32 },
    Intent { volume: VolumeId, region: u64, count: u32 },
}

/// An item to append.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) crc: u32,
    pub(crate) kind: ItemKind,
    /// The payload block of data.
    pub(crate) span: Option<Span>,
    pub(crate) done: ItemOwner,
}

/// A batch in flight.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) op: u32,
    /// In a mirrored cache: the write of the second copy.
    pub(crate) twin: u32,
    pub(crate) segment: u32,
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    pub(crate) stream_sequence: u64,
    pub(crate) items: Vec<Item>,
    /// Slots marked clean by this batch.
    pub(crate) marks: Vec<u32>,
    pub(crate) is_summary: bool,
    pub(crate) completed: Option<bool>,
    /// In a mirrored cache: bit masks of the members that have it, and of those whose write failed.
    pub(crate) kept: u8,
    pub(crate) missing: u8,
}

/// One append stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) queue: Queue,
    /// When the queue became non-empty.
    pub(crate) queued_since: Nanos,
    pub(crate) in_flight: VecDeque<Batch>,
    /// Summaries in flight, of segments that were open before.
    pub(crate) summaries: Vec<Batch>,
    /// Open segment and the next free block in it.
    pub(crate) open: Option<(u32, u32)>,
    /// Since when the items in the queue find no segment to open.
    pub(crate) without_room_since: Option<Nanos>,
    /// The open segment is full: to be closed when its batches have completed.
    pub(crate) closing: bool,
    /// A batch failed: no new batch until those in flight have ended.
    pub(crate) broken: bool,
    pub(crate) tries: u32,
    pub(crate) next_sequence: u64,
    /// All batches before this one have completed.
    pub(crate) completed_sequence: u64,
    /// The same at the start of the running cache flush.
    pub(crate) flushing: u64,
    /// All batches before this one are covered by a cache flush.
    pub(crate) flushed_sequence: u64,
}

impl Stream {
    pub(crate) fn new() -> Self {
        Self {
            queue: Queue::default(),
            queued_since: 0,
            in_flight: VecDeque::new(),
            summaries: Vec::new(),
            open: None,
            without_room_since: None,
            closing: false,
            broken: false,
            tries: 0,
            next_sequence: 0,
            completed_sequence: 0,
            flushing: 0,
            flushed_sequence: 0,
        }
    }

    /// Returns true if no batch of the stream is in flight.
    pub(crate) fn nothing_in_flight(&self) -> bool {
        self.in_flight.is_empty() && self.summaries.is_empty()
    }

    /// Adds a batch in flight.
    pub(crate) fn submitted(&mut self, batch: Batch) {
        if batch.is_summary {
            self.summaries.push(batch);
        } else {
            self.in_flight.push_back(batch);
        }
    }

    /// Returns the incomplete batch or summary for which `is_it` is true.
    pub(crate) fn incomplete(&mut self, is_it: impl Fn(&Batch) -> bool) -> Option<&mut Batch> {
        self.all_in_flight().find(|batch| batch.completed.is_none() && is_it(batch))
    }

    /// Returns everything in flight, batches first.
    pub(crate) fn all_in_flight(&mut self) -> impl Iterator<Item = &mut Batch> {
        self.in_flight.iter_mut().chain(&mut self.summaries)
    }

    /// Returns the blocks left in the open segment, of which batches may use `end`.
    pub(crate) fn room(&self, end: u32) -> u32 {
        self.open.filter(|_| !self.closing).map_or(0, |(_, next)| end - next)
    }

    /// Returns true if the queue should be written now, if another batch is allowed. Adaptive group
    /// commit: with nothing in flight, no item waits for more; next to one batch a second starts
    /// when it is as large, so a few clients get two equal ones in turn; a busy device gets large
    /// ones, which limits headers and device writes.
    pub(crate) fn is_worth_a_batch(&self) -> bool {
        let enough = match self.in_flight.len() {
            0 => 1,
            1 => self.in_flight[0].items.len().clamp(1, WORTHWHILE_ITEMS),
            _ => WORTHWHILE_ITEMS,
        };
        self.queue.len() >= enough
    }

    /// Returns the segment that is being filled.
    pub(crate) fn open_segment(&self) -> Option<u32> {
        self.open.map(|(segment, _)| segment)
    }

    /// Returns true if the queue is empty.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns true if a mark or an intent is in the queue.
    pub(crate) fn waits_without_payload(&self) -> bool {
        self.queue.iter().any(|item| item.span.is_none())
    }

    /// Takes all marks and intents out of the queue.
    pub(crate) fn take_without_payload(&mut self) -> Vec<Item> {
        self.queue.take(|item| item.span.is_none()).into()
    }

    pub(crate) fn describe(&self, end: u32) -> alloc::string::String {
        let (queued, flying, room) = (self.queue.len(), self.in_flight.len(), self.room(end));
        alloc::format!("{queued} queued, {flying} in flight, room {room}, broken {}", self.broken)
    }

    pub(crate) fn start_at(&mut self, sequence: u64) {
        self.next_sequence = sequence;
        self.completed_sequence = sequence;
        self.flushed_sequence = sequence;
    }
}

impl Item {
    pub(crate) fn mask(&self) -> u8 {
        match self.kind {
            ItemKind::Data { mask, .. } => mask,
            ItemKind::Drop { .. } | ItemKind::Intent { .. } => MASK_FULL,
        }
    }

    pub(crate) fn entry(&self, flush_epoch: u32) -> Entry {
        match self.kind {
            ItemKind::Data { mask, dirty } => Entry::Data {
                volume: self.key.volume(),
                block: self.key.block(),
                crc32c: self.crc,
                sector_mask: mask,
                dirty,
                flush_epoch,
            },
            ItemKind::Drop { slot, count } => Entry::DropMark { slot: Slot(slot), count },
            ItemKind::Intent { volume, region, count } => Entry::Intent { volume, region, count },
        }
    }
}

/// State of the log.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) streams: [Stream; 3],
    pub(crate) spare_batches: Vec<Batch>,
    /// Memory for the entries of a batch header; empty between uses.
    pub(crate) spare_entries: Vec<Entry>,
    pub(crate) next_sequence: u64,
    pub(crate) marks: CleanMarks,
    /// A snapshot is about to be taken: no batch may be started.
    pub(crate) on_hold: bool,
    /// Blocks of writes on their way to the log and not in the map yet.
    pub(crate) logging_blocks: u64,
    /// Blocks that reclaim is moving.
    pub(crate) moves: usize,
    /// Of those, blocks that are being read.
    pub(crate) survivor_reads: u32,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            streams: StreamKind::ALL.map(|_| Stream::new()),
            spare_batches: Vec::new(),
            spare_entries: Vec::new(),
            next_sequence: 0,
            marks: CleanMarks::default(),
            on_hold: false,
            logging_blocks: 0,
            moves: 0,
            survivor_reads: 0,
        }
    }
}
