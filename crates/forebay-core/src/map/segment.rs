//! Segments and their slot tables: the content of each slot of the cache device.
//!
//! A slot table has one row per block of its segment, stored as columns so that a row costs 9
//! bytes: the low half of the key, a checksum and a state byte. The upper half, volume and the
//! number of 16 TiB, is the same in all rows of most segments and stored once; with several of them
//! it costs one byte a row ([`Uppers`]). Segments with blocks of an ordered volume have 4 bytes of
//! flush epoch more. Only segments in use have tables.

use crate::map::ages::Marks;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use forebay_format::checkpoint::SlotState;
use forebay_format::{StreamKind, VolumeId};

/// A block of a volume as one number: 6 bits of volume and 40 bits of block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    pub(crate) fn new(volume: VolumeId, block: u64) -> Self {
        debug_assert!(block >> 40 == 0 && volume.0 < 64);
        Self(u64::from(volume.0) << 40 | block)
    }

    pub(crate) fn volume(self) -> VolumeId {
        VolumeId((self.0 >> 40) as u16)
    }

    pub(crate) fn block(self) -> u64 {
        self.0 & ((1 << 40) - 1)
    }
}

/// Last block number of any volume.
pub(crate) const BLOCK_LAST: u64 = (1 << 40) - 1;

/// State of the block in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum BlockState {
    /// No block: overwritten, evicted, not yet complete, or no data.
    Void = 0,
    /// The backing store has it too, and the log records that.
    Clean = 1,
    /// Only the cache has it.
    Dirty = 2,
    /// The backing store has it durably, but the log does not record that yet: a crash makes it
    /// dirty again.
    Destaged = 3,
}

impl BlockState {
    /// Returns the state in a state byte.
    #[inline]
    fn of(byte: u8) -> Self {
        match byte & STATE_MASK {
            0 => Self::Void,
            1 => Self::Clean,
            2 => Self::Dirty,
            _ => Self::Destaged,
        }
    }
}

const STATE_MASK: u8 = 3;
const FLAG_HIT: u8 = 1 << 2;
const FLAG_PARTIAL: u8 = 1 << 3;
const FLAG_LOST: u8 = 1 << 4;
const FLAG_DATA: u8 = 1 << 5;
const FLAG_PINNED: u8 = 1 << 6;
const FLAG_SHADOW: u8 = 1 << 7;

/// Upper halves of the keys of a segment, by row.
#[derive(Debug)]
enum Uppers {
    /// All described rows have this one.
    One(u16),
    /// Up to 256 different ones, and the index of each row's.
    Some(Box<(Vec<u16>, Box<[u8]>)>),
    /// Each row has its own.
    All(Box<[u16]>),
}

impl Uppers {
    fn get(&self, row: usize) -> u16 {
        match self {
            Self::One(upper) => *upper,
            Self::Some(some) => some.0[usize::from(some.1[row])],
            Self::All(all) => all[row],
        }
    }

    /// Sets the upper half of a row; `is_first`: no row was described before.
    #[inline]
    fn set(&mut self, row: usize, rows: usize, upper: u16, is_first: bool) {
        match self {
            Self::One(one) if *one == upper || is_first => *one = upper,
            _ => self.set_other(row, rows, upper),
        }
    }

    /// As [`Uppers::set`], for a segment that has several.
    fn set_other(&mut self, row: usize, rows: usize, upper: u16) {
        match self {
            Self::One(one) => {
                let mut which: Box<[u8]> = vec![0; rows].into();
                which[row] = 1;
                *self = Self::Some(Box::new((vec![*one, upper], which)));
            }
            Self::Some(some) => {
                let (known, which) = &mut **some;
                let at = known.iter().position(|known| *known == upper).unwrap_or(known.len());
                if let Ok(number) = u8::try_from(at) {
                    if at == known.len() {
                        known.push(upper);
                    }
                    which[row] = number;
                    return;
                }
                let mut all: Box<[u16]> = which.iter().map(|at| known[usize::from(*at)]).collect();
                all[row] = upper;
                *self = Self::All(all);
            }
            Self::All(all) => all[row] = upper,
        }
    }

    /// Returns the bytes allocated.
    fn bytes(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Some(some) => size_of::<(Vec<u16>, Box<[u8]>)>() + some.0.capacity() * 2 + some.1.len(),
            Self::All(all) => all.len() * 2,
        }
    }
}

/// Packs eight state bytes as a checkpoint stores them. All eight at once, because writers wait at
/// a checkpoint while it does this for every slot of the cache.
///
/// Clean and destaged slots become clean, or void if they are shadows; dirty ones stay dirty, or
/// become shadows.
fn packed_word(states: [u8; 8]) -> u16 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(states);
    let (low, high) = (word & ONES, word >> 1 & ONES);
    let shadow = word >> FLAG_SHADOW.trailing_zeros() & ONES;
    let dirty = high & !low;
    let clean = low & !(high & shadow);
    let mut pairs = dirty << 1 | clean | dirty & shadow;
    // Every byte has a pair of bits now: gather the pairs.
    pairs = (pairs | pairs >> 6) & 0x000f_000f_000f_000f;
    pairs = (pairs | pairs >> 12) & 0x0000_00ff_0000_00ff;
    (pairs | pairs >> 24) as u16
}

#[derive(Debug)]
struct SlotTable {
    key_low: Box<[u32]>,
    uppers: Uppers,
    /// A row was described.
    used: bool,
    crc: Box<[u32]>,
    state: Box<[u8]>,
    /// Low halves of flush epochs; only once a slot has one.
    epochs: Option<Box<[u32]>>,
}

/// Phase of a segment: `Free -> Open -> Sealed -> Freed -> Free`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentPhase {
    /// Empty, and the checkpoint in effect records that.
    Free,
    /// The open segment of its stream.
    Open,
    /// Full, or closed early.
    Sealed,
    /// In a mirrored cache: the second half of a pair. The first half describes both.
    Twin,
    /// Empty, but the checkpoint in effect might still refer to its slots.
    Freed,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) phase: SegmentPhase,
    pub(crate) stream: StreamKind,
    /// Stream sequence of the first batch.
    pub(crate) first_stream_sequence: u64,
    /// Sequence of the first batch: the age of the segment.
    pub(crate) first_sequence: u64,
    /// Sequence of the last batch or summary, or that of the log when the segment was taken into
    /// use; kept when it becomes empty.
    pub(crate) last_sequence: u64,
    /// Once it is freed: generation of the last snapshot before that. A later checkpoint records
    /// the segment as empty.
    pub(crate) freed_after: u64,
    /// Flush epochs in its batches were cleared from the table: a summary would differ from them.
    pub(crate) forgot_epochs: bool,
    /// Blocks that complete batches occupy, from the start.
    pub(crate) completed: u32,
    /// Of those, blocks that a device flush has covered.
    pub(crate) durable: u32,
    /// Block of the summary's header, 0 if there is none.
    pub(crate) summary_block: u32,
    /// Slots that are not void.
    pub(crate) live: u32,
    /// Slots that are dirty or destaged.
    pub(crate) unclean: u32,
    /// Of those, slots that would lose their position in the destage order if they were moved.
    pub(crate) fixed: u32,
    /// Of those, slots whose only copy is damaged. They cannot be moved, so the segment is not
    /// emptied until they are overwritten.
    pub(crate) lost: u32,
    /// Round of reclaim that found it full of blocks that must be kept; 0: never.
    pub(crate) spared: u64,
    /// Blocks that are being moved out of it.
    pub(crate) leaving: u32,
    /// Slots that are pinned: reclaim keeps them.
    pub(crate) pinned: u32,
    /// Operations that still read from the segment or will look at its slots.
    pub(crate) pins: u32,
    /// When its dirty slots were written.
    pub(crate) written: Marks,
    table: Option<Box<SlotTable>>,
}

impl Segment {
    pub(crate) fn free() -> Self {
        Self {
            phase: SegmentPhase::Free,
            stream: StreamKind::Write,
            first_stream_sequence: 0,
            first_sequence: 0,
            last_sequence: 0,
            freed_after: 0,
            forgot_epochs: false,
            completed: 0,
            durable: 0,
            summary_block: 0,
            live: 0,
            unclean: 0,
            spared: 0,
            leaving: 0,
            pinned: 0,
            fixed: 0,
            lost: 0,
            pins: 0,
            written: Marks::default(),
            table: None,
        }
    }

    /// Takes the segment into use; `first` is the stream sequence and the sequence of its first
    /// batch.
    pub(crate) fn begin(&mut self, phase: SegmentPhase, stream: StreamKind, first: (u64, u64), blocks: u32) {
        let blocks = blocks as usize;
        *self = Self {
            phase,
            stream,
            first_stream_sequence: first.0,
            first_sequence: first.1,
            last_sequence: first.1,
            table: Some(Box::new(SlotTable {
                key_low: vec![0; blocks].into(),
                uppers: Uppers::One(0),
                used: false,
                crc: vec![0; blocks].into(),
                state: vec![0; blocks].into(),
                epochs: None,
            })),
            ..Self::free()
        };
    }

    /// Drops the table of an empty segment and sets its phase.
    pub(crate) fn end(&mut self, phase: SegmentPhase) {
        assert!(self.live == 0 && self.pins == 0, "I7: a segment is freed only when nothing refers to it");
        *self = Self { phase, last_sequence: self.last_sequence, ..Self::free() };
    }

    fn table(&self) -> &SlotTable {
        self.table.as_deref().expect("a segment in use has a table")
    }

    fn table_mut(&mut self) -> &mut SlotTable {
        self.table.as_deref_mut().expect("a segment in use has a table")
    }

    /// Returns the bytes allocated for the slot table and the times of its slots.
    pub(crate) fn bytes(&self) -> usize {
        let table = self.table.as_ref().map_or(0, |table| {
            let rows = table.state.len() * 9 + table.epochs.as_ref().map_or(0, |epochs| epochs.len() * 4);
            size_of::<SlotTable>() + rows + table.uppers.bytes()
        });
        table + self.written.bytes()
    }

    pub(crate) fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// Describes a slot that was written; it counts only after [`Segment::set_state`].
    #[inline]
    pub(crate) fn describe(&mut self, index: u32, key: Key, crc: u32) {
        let table = self.table_mut();
        let index = index as usize;
        debug_assert!(table.state[index] & STATE_MASK == 0, "a slot in use is not described again");
        table.key_low[index] = key.0 as u32;
        table.uppers.set(index, table.crc.len(), (key.0 >> 32) as u16, !table.used);
        table.used = true;
        table.crc[index] = crc;
        table.state[index] = FLAG_DATA;
    }

    /// As [`Segment::describe`] and [`Segment::set_state`], for a void slot; `state` is not
    /// `Destaged`.
    #[inline]
    pub(crate) fn load(&mut self, index: u32, key: Key, crc: u32, state: BlockState) {
        self.describe(index, key, crc);
        self.table_mut().state[index as usize] |= state as u8;
        self.live += u32::from(state != BlockState::Void);
        self.unclean += u32::from(state == BlockState::Dirty);
    }

    /// Calls `f` with number, key and state of every slot that is not void.
    #[inline]
    pub(crate) fn for_each_live(&self, mut f: impl FnMut(u32, Key, BlockState)) {
        let table = self.table();
        for (index, (state, low)) in table.state.iter().zip(&table.key_low).enumerate() {
            if state & STATE_MASK != 0 {
                let key = Key(u64::from(*low) | u64::from(table.uppers.get(index)) << 32);
                f(index as u32, key, BlockState::of(*state));
            }
        }
    }

    /// Returns true if data was written to this slot, even if it is void now.
    pub(crate) fn has_data(&self, index: u32) -> bool {
        self.table().state[index as usize] & FLAG_DATA != 0
    }

    pub(crate) fn key(&self, index: u32) -> Key {
        let table = self.table();
        let index = index as usize;
        Key(u64::from(table.key_low[index]) | u64::from(table.uppers.get(index)) << 32)
    }

    pub(crate) fn crc(&self, index: u32) -> u32 {
        self.table().crc[index as usize]
    }

    pub(crate) fn state(&self, index: u32) -> BlockState {
        BlockState::of(self.table().state[index as usize])
    }

    /// Appends the states of the slots as in a checkpoint: two bits each, numbered as
    /// [`forebay_format::checkpoint::SlotState`].
    pub(crate) fn pack_states(&self, packed: &mut Vec<u8>) {
        let (words, rest) = self.table().state.as_chunks::<8>();
        for word in words {
            packed.extend_from_slice(&packed_word(*word).to_le_bytes());
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        packed.extend_from_slice(&packed_word(last).to_le_bytes()[..rest.len().div_ceil(4)]);
    }

    /// Returns the state of a slot as [`Segment::pack_states`] stores it.
    pub(crate) fn packed_state(&self, index: u32) -> SlotState {
        match (self.state(index), self.is_shadow(index)) {
            (BlockState::Void, _) | (BlockState::Clean | BlockState::Destaged, true) => SlotState::Void,
            (BlockState::Clean | BlockState::Destaged, false) => SlotState::Clean,
            (BlockState::Dirty, false) => SlotState::Dirty,
            (BlockState::Dirty, true) => SlotState::Shadow,
        }
    }

    pub(crate) fn set_state(&mut self, index: u32, state: BlockState) {
        let old = self.state(index);
        self.live = self.live + u32::from(state != BlockState::Void) - u32::from(old != BlockState::Void);
        let unclean = |state| u32::from(matches!(state, BlockState::Dirty | BlockState::Destaged));
        self.unclean = self.unclean + unclean(state) - unclean(old);
        self.fixed -= u32::from(self.is_fixed(index));
        if state != BlockState::Dirty {
            // Only a sole copy can be lost: destage might have written the block before it was
            // damaged.
            self.lost -= u32::from(self.is_lost(index));
            self.set_flag(index, FLAG_LOST, false);
        }
        let byte = &mut self.table_mut().state[index as usize];
        *byte = *byte & !STATE_MASK | state as u8;
        if state == BlockState::Void {
            self.pinned -= u32::from(self.is_pinned(index));
            self.table_mut().state[index as usize] &= FLAG_DATA | FLAG_PARTIAL;
        }
        self.fixed += u32::from(self.is_fixed(index));
    }

    /// Returns true if the slot is unclean and has a position in the destage order.
    pub(crate) fn is_fixed(&self, index: u32) -> bool {
        matches!(self.state(index), BlockState::Dirty | BlockState::Destaged)
            && (self.epoch(index) != 0 || self.is_shadow(index))
    }

    /// Returns the low half of the flush epoch of a slot; 0 if it has none.
    pub(crate) fn epoch(&self, index: u32) -> u32 {
        self.table().epochs.as_ref().map_or(0, |epochs| epochs[index as usize])
    }

    /// Sets the flush epoch of a slot that was just described.
    pub(crate) fn set_epoch(&mut self, index: u32, epoch: u32) {
        let table = self.table_mut();
        debug_assert!(table.state[index as usize] & STATE_MASK == 0, "a slot in use keeps its epoch");
        if epoch != 0 || table.epochs.is_some() {
            let blocks = table.state.len();
            table.epochs.get_or_insert_with(|| vec![0; blocks].into())[index as usize] = epoch;
        }
    }

    /// Clears the flush epoch of a slot whose volume is no longer ordered.
    pub(crate) fn clear_epoch(&mut self, index: u32) {
        self.fixed -= u32::from(self.is_fixed(index));
        self.forgot_epochs |= self.epoch(index) != 0;
        if let Some(epochs) = &mut self.table_mut().epochs {
            epochs[index as usize] = 0;
        }
        self.fixed += u32::from(self.is_fixed(index));
    }

    /// Returns true if the slot holds an older version of a block, kept for the destage order.
    pub(crate) fn is_shadow(&self, index: u32) -> bool {
        self.flag(index, FLAG_SHADOW)
    }

    /// Makes an unclean slot a shadow.
    pub(crate) fn set_shadow(&mut self, index: u32) {
        self.fixed -= u32::from(self.is_fixed(index));
        self.set_flag(index, FLAG_SHADOW, true);
        self.fixed += u32::from(self.is_fixed(index));
    }

    fn flag(&self, index: u32, flag: u8) -> bool {
        self.table().state[index as usize] & flag != 0
    }

    fn set_flag(&mut self, index: u32, flag: u8, on: bool) {
        let byte = &mut self.table_mut().state[index as usize];
        *byte = if on { *byte | flag } else { *byte & !flag };
    }

    pub(crate) fn is_hit(&self, index: u32) -> bool {
        self.flag(index, FLAG_HIT)
    }

    pub(crate) fn set_hit(&mut self, index: u32) {
        self.set_flag(index, FLAG_HIT, true);
    }

    pub(crate) fn clear_hit(&mut self, index: u32) {
        self.set_flag(index, FLAG_HIT, false);
    }

    pub(crate) fn is_pinned(&self, index: u32) -> bool {
        self.flag(index, FLAG_PINNED)
    }

    pub(crate) fn set_pinned(&mut self, index: u32, on: bool) {
        self.pinned = self.pinned + u32::from(on) - u32::from(self.is_pinned(index));
        self.set_flag(index, FLAG_PINNED, on);
    }

    pub(crate) fn is_partial(&self, index: u32) -> bool {
        self.flag(index, FLAG_PARTIAL)
    }

    pub(crate) fn set_partial(&mut self, index: u32) {
        self.set_flag(index, FLAG_PARTIAL, true);
    }

    pub(crate) fn is_lost(&self, index: u32) -> bool {
        self.flag(index, FLAG_LOST)
    }

    pub(crate) fn set_lost(&mut self, index: u32) {
        self.lost += u32::from(!self.is_lost(index));
        self.set_flag(index, FLAG_LOST, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn described_keys_are_returned_and_compact() {
        let rows = 1024_u32;
        for (volumes, bytes) in [(1, 9), (2, 10), (60, 10), (700, 12)] {
            let mut segment = Segment::free();
            segment.begin(SegmentPhase::Open, StreamKind::Write, (1, 1), rows);
            // 64 volumes at most; the rest of the upper half is the part of the block above 2^32.
            let key = |row: u32| {
                let upper = u64::from(row % volumes);
                Key::new(VolumeId((upper % 64) as u16), ((upper / 64) << 32) | (u64::from(row) * 977))
            };
            for row in 0..rows {
                segment.describe(row, key(row), row);
            }
            for row in 0..rows {
                assert_eq!((segment.key(row), segment.crc(row)), (key(row), row));
            }
            let most = (rows * bytes) as usize + 700;
            assert!(segment.bytes() <= most, "{volumes} uppers: {} > {most}", segment.bytes());
        }
    }

    #[test]
    fn packed_states_match_checkpoint_states() {
        use forebay_format::checkpoint::{SlotState, SlotStates};
        let expected = |state: u8| match (state & STATE_MASK, state & FLAG_SHADOW != 0) {
            (0, _) | (3, true) => SlotState::Void,
            (1 | 3, _) => SlotState::Clean,
            (_, false) => SlotState::Dirty,
            (_, true) => SlotState::Shadow,
        };
        for rows in [16_u32, 20, 1024] {
            let mut segment = Segment::free();
            segment.begin(SegmentPhase::Open, StreamKind::Write, (1, 1), rows);
            let state = |row: u32| (row.wrapping_mul(0x9e37_79b1) >> 13) as u8;
            for row in 0..rows {
                segment.table_mut().state[row as usize] = state(row);
            }
            let mut packed = Vec::new();
            segment.pack_states(&mut packed);
            let packed = SlotStates::from_packed(packed);
            assert!((0..rows).all(|row| packed.get(row) == expected(state(row))));
            assert_eq!(packed.packed().len(), rows.div_ceil(4) as usize);
        }
    }

    #[test]
    fn slot_described_twice_has_its_last_key() {
        let mut segment = Segment::free();
        segment.begin(SegmentPhase::Open, StreamKind::Write, (1, 1), 16);
        let keys = [(3, 5), (4, 6), (3, 7), (9, 8)].map(|(volume, block)| Key::new(VolumeId(volume), block));
        for key in keys {
            segment.describe(2, key, 1);
            assert_eq!(segment.key(2), key);
        }
        segment.describe(3, keys[1], 1);
        assert_eq!((segment.key(2), segment.key(3)), (keys[3], keys[1]));
    }
}
