//! Metadata blocks: 256 slots of 16 bytes each, written when a slot becomes dirty, and when it
//! becomes clean.
//!
//! Invariants
//! - A metadata block has at most one write in flight. Marks that arrive meanwhile wait, and the
//!   next write includes all of them (`metadata_batch` counts those that shared a write with
//!   another one).
//! - Marks of one turn of the owner share a write as well: the write begins when the owner takes
//!   actions, as FlashCache leaves it to a worker.
//! - A slot has at most one mark in flight: it is busy until its mark is written.

use crate::config::SLOTS_PER_META_BLOCK;
use crate::table::Slot;

/// Bytes of a metadata block.
pub const META_BYTES: usize = 4096;
/// Bytes that describe a slot: the sector (64 bits), the state (32 bits), unused (32 bits),
/// little-endian.
const SLOT_BYTES: usize = META_BYTES / SLOTS_PER_META_BLOCK as usize;
const SECTORS_PER_BLOCK: u64 = 8;

// States, as FlashCache numbers them.
const INVALID: u32 = 0x01;
const VALID: u32 = 0x02;
const DIRTY: u32 = 0x40;

/// The new state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// Dirty, by the write of this part.
    Dirty(u32),
    /// Clean.
    Clean,
}

/// A slot and its new state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Update {
    pub(crate) slot: u32,
    pub(crate) mark: Mark,
}

#[derive(Clone, Debug, Default)]
struct MetaBlock {
    /// Its write is waiting to begin or in flight.
    under_way: bool,
    /// Marks of the write in flight.
    current: Vec<Update>,
    queued: Vec<Update>,
}

/// All metadata blocks.
#[derive(Debug)]
pub(crate) struct Metadata {
    blocks: Vec<MetaBlock>,
    /// Metadata blocks whose write is ready to begin.
    ready: Vec<u32>,
}

impl Metadata {
    pub(crate) fn new(meta_blocks: u32) -> Self {
        Self { blocks: vec![MetaBlock::default(); meta_blocks as usize], ready: Vec::new() }
    }

    /// Queues a mark for writing.
    pub(crate) fn add(&mut self, update: Update) {
        let number = update.slot / SLOTS_PER_META_BLOCK;
        let block = &mut self.blocks[number as usize];
        block.queued.push(update);
        if !std::mem::replace(&mut block.under_way, true) {
            self.ready.push(number);
        }
    }

    /// Begins the write of the next metadata block. Returns its number, and the number of its
    /// marks.
    pub(crate) fn begin(&mut self) -> Option<(u32, usize)> {
        let number = self.ready.pop()?;
        let block = &mut self.blocks[number as usize];
        std::mem::swap(&mut block.current, &mut block.queued);
        Some((number, block.current.len()))
    }

    /// Ends a write and returns its marks. Marks that arrived meanwhile are written next.
    pub(crate) fn end(&mut self, number: u32) -> Vec<Update> {
        let block = &mut self.blocks[number as usize];
        block.under_way = !block.queued.is_empty();
        if block.under_way {
            self.ready.push(number);
        }
        std::mem::take(&mut block.current)
    }

    /// Renders a metadata block with the marks of the write in flight.
    pub(crate) fn render(&self, number: u32, slots: &[Slot], bytes: &mut [u8; META_BYTES]) {
        let mut put = |at: usize, slot: &Slot, dirty: bool| {
            let state = if slot.valid { VALID | if dirty { DIRTY } else { 0 } } else { INVALID };
            let entry = &mut bytes[at * SLOT_BYTES..(at + 1) * SLOT_BYTES];
            entry.fill(0);
            entry[..8].copy_from_slice(&(slot.block * SECTORS_PER_BLOCK).to_le_bytes());
            entry[8..12].copy_from_slice(&state.to_le_bytes());
        };
        for (at, slot) in slots.iter().enumerate() {
            put(at, slot, slot.dirty);
        }
        for Update { slot, mark } in &self.blocks[number as usize].current {
            let at = (slot % SLOTS_PER_META_BLOCK) as usize;
            put(at, &slots[at], matches!(mark, Mark::Dirty(_)));
        }
    }
}
