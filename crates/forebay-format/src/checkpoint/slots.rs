//! States of the slots of a segment, packed as in a checkpoint: two bits each, the first slot in
//! the lowest. Memory has the same form, since there can be hundreds of millions.

use core::ops::Range;

/// State of a slot in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum SlotState {
    /// Void: no current content.
    #[default]
    Void = 0,
    /// A block that the backing store has too.
    Clean = 1,
    /// A block that only the cache has.
    Dirty = 2,
    /// An older version of a block, of an earlier flush epoch: it must reach the backing store
    /// before the newer one.
    Shadow = 3,
}

impl SlotState {
    /// The state with this number on disk.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        [Self::Void, Self::Clean, Self::Dirty, Self::Shadow][usize::from(bits & 3)]
    }
}

/// States of the slots of one segment, in order. Slots past the stored end are void.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SlotStates(Vec<u8>);

impl SlotStates {
    /// Wraps states in the packed form of a checkpoint.
    #[must_use]
    pub fn from_packed(packed: Vec<u8>) -> Self {
        Self(packed)
    }

    /// The states in the packed form of a checkpoint.
    #[must_use]
    pub fn packed(&self) -> &[u8] {
        &self.0
    }

    /// State of one slot.
    #[must_use]
    pub fn get(&self, index: u32) -> SlotState {
        let byte = self.0.get(index as usize / 4).copied().unwrap_or(0);
        SlotState::from_bits(byte >> (index % 4 * 2))
    }

    /// Changes the state of neighbouring slots.
    pub(super) fn fill(&mut self, slots: Range<u32>, state: SlotState) {
        self.fill_up(slots.end.div_ceil(4) as usize);
        let mut at = slots.start;
        while at < slots.end {
            let (byte, shift, bytes) = (at as usize / 4, at % 4 * 2, (slots.end - at) / 4);
            if shift == 0 && bytes > 0 {
                self.0[byte..byte + bytes as usize].fill(state as u8 * 0b0101_0101);
                at += bytes * 4;
            } else {
                self.0[byte] = self.0[byte] & !(3 << shift) | (state as u8) << shift;
                at += 1;
            }
        }
    }

    /// Extends the states to at least this many bytes, the size of a segment's slot table.
    pub(super) fn fill_up(&mut self, table_bytes: usize) {
        if self.0.len() < table_bytes {
            self.0.resize(table_bytes, 0);
        }
    }

    /// States of all slots; the last few can lie past the end of the segment, and are void.
    pub fn iter(&self) -> impl Iterator<Item = SlotState> + '_ {
        self.0.iter().flat_map(|byte| [0, 2, 4, 6].map(|shift| SlotState::from_bits(byte >> shift)))
    }

    /// Slots that are not void.
    #[must_use]
    pub fn live(&self) -> u32 {
        // One bit for every nonzero pair of bits.
        let pairs = |bits: u64| ((bits | bits >> 1) & 0x5555_5555_5555_5555).count_ones();
        let (words, rest) = self.0.as_chunks::<8>();
        words.iter().map(|word| pairs(u64::from_le_bytes(*word))).sum::<u32>()
            + rest.iter().map(|byte| pairs(u64::from(*byte))).sum::<u32>()
    }
}

impl FromIterator<SlotState> for SlotStates {
    fn from_iter<T: IntoIterator<Item = SlotState>>(states: T) -> Self {
        let mut packed = Vec::new();
        for (index, state) in states.into_iter().enumerate() {
            if index % 4 == 0 {
                packed.push(0);
            }
            packed[index / 4] |= (state as u8) << (index % 4 * 2);
        }
        Self(packed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_back_and_are_counted() {
        let state = |index: u32| SlotState::from_bits((index * index / 3) as u8);
        for count in [0, 1, 3, 4, 31, 32, 33, 1000] {
            let states: SlotStates = (0..count).map(state).collect();
            assert_eq!(states.packed().len(), count.div_ceil(4) as usize);
            assert!((0..count).all(|index| states.get(index) == state(index)));
            assert!(states.iter().take(count as usize).eq((0..count).map(state)));
            let live = (0..count).filter(|index| state(*index) != SlotState::Void).count();
            assert_eq!((states.live() as usize, states.get(count + 4)), (live, SlotState::Void));
        }
    }

    #[test]
    fn a_run_changes_its_slots_and_no_others() {
        let before = |index: u32| SlotState::from_bits((index / 3) as u8);
        for (start, end) in [(0, 0), (0, 1), (1, 3), (3, 5), (0, 4), (4, 12), (5, 23), (2, 30), (29, 40)] {
            let mut states: SlotStates = (0..30).map(before).collect();
            states.fill(start..end, SlotState::Clean);
            let expected = |index| match index {
                _ if (start..end).contains(&index) => SlotState::Clean,
                0..30 => before(index),
                _ => SlotState::Void,
            };
            assert!((0..44).all(|index| states.get(index) == expected(index)), "{start}..{end}");
        }
    }
}
