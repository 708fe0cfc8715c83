//! States of the slots of a segment, packed as in a checkpoint: two bits each, the first slot
//! lowest. They are kept so in memory too, since there can be hundreds of millions.

/// What a slot holds according to a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum SlotState {
    /// Nothing that counts.
    #[default]
    Void = 0,
    /// A block that the backing store has too.
    Clean = 1,
    /// A block that only the cache has.
    Dirty = 2,
    /// An older version of a block, of an earlier flush epoch: it must reach the backing store
    /// before the newer one does.
    Shadow = 3,
}

impl SlotState {
    fn from_bits(bits: u8) -> Self {
        [Self::Void, Self::Clean, Self::Dirty, Self::Shadow][usize::from(bits & 3)]
    }
}

/// States of the slots of one segment, from the first on. Slots behind its end are void.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SlotStates(Vec<u8>);

impl SlotStates {
    /// Takes states as they lie in a checkpoint.
    #[must_use]
    pub fn from_packed(packed: Vec<u8>) -> Self {
        Self(packed)
    }

    /// States as they lie in a checkpoint.
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

    /// States of all slots; the last few may lie behind the end of the segment, and are void.
    pub fn iter(&self) -> impl Iterator<Item = SlotState> + '_ {
        self.0.iter().flat_map(|byte| [0, 2, 4, 6].map(|shift| SlotState::from_bits(byte >> shift)))
    }

    /// Slots that are not void.
    #[must_use]
    pub fn live(&self) -> u32 {
        // A bit for every pair of bits that is not zero.
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
}
