//! Exclusive locks on ranges of blocks, granted in the order of the requests.
//!
//! Two such tables exist: one serialises all changes of block content (client writes, zeroes,
//! relocation), and one serialises writes to the backing store (destage, bypass writes). A holder
//! of the first may wait for the second, never the reverse, so there is no cycle.

use crate::map::segment::{BLOCK_LAST, Key};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use forebay_format::VolumeId;

/// The waiter for a block lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockOwner(pub(crate) u32);

/// Blocks `first..=last` of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockRange {
    pub(crate) first: Key,
    pub(crate) last: Key,
}

impl BlockRange {
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Returns the range of all blocks of a volume.
pub(crate) fn whole_volume(id: VolumeId) -> BlockRange {
    BlockRange { first: Key::new(id, 0), last: Key::new(id, BLOCK_LAST) }
}

/// Lock table; `Owner` identifies the waiter of a delayed grant.
#[derive(Debug)]
pub(crate) struct RangeLocks<Owner> {
    /// Held ranges, sorted; they do not overlap.
    held: Vec<BlockRange>,
    waiting: VecDeque<(BlockRange, Owner)>,
}

impl<Owner: Copy> RangeLocks<Owner> {
    pub(crate) fn new() -> Self {
        Self { held: Vec::new(), waiting: VecDeque::new() }
    }

    pub(crate) fn is_held(&self, range: BlockRange) -> bool {
        let at = self.held.partition_point(|held| held.last < range.first);
        self.held.get(at).is_some_and(|held| held.overlaps(range))
    }

    /// Returns the held ranges that lie entirely in this one, by address.
    pub(crate) fn held_inside(&self, range: BlockRange) -> &[BlockRange] {
        let from = self.held.partition_point(|held| held.first < range.first);
        let to = self.held.partition_point(|held| held.last <= range.last);
        self.held.get(from..to).unwrap_or_default()
    }

    /// Returns true if nothing is held or waited for in the range.
    pub(crate) fn is_idle(&self, range: BlockRange) -> bool {
        !self.is_held(range) && !self.waiting.iter().any(|(other, _)| other.overlaps(range))
    }

    /// Takes the lock if it is free and no overlapping one is waited for.
    pub(crate) fn try_acquire(&mut self, range: BlockRange) -> bool {
        let free = self.is_idle(range);
        if free {
            self.hold(range);
        }
        free
    }

    /// Takes the lock, or queues for it; returns whether it was taken.
    pub(crate) fn acquire(&mut self, range: BlockRange, owner: Owner) -> bool {
        let taken = self.try_acquire(range);
        if !taken {
            self.waiting.push_back((range, owner));
        }
        taken
    }

    /// Releases a held range and appends the owners that get theirs now to `granted`.
    pub(crate) fn release(&mut self, range: BlockRange, granted: &mut Vec<Owner>) {
        let at = self.held.partition_point(|held| held.first < range.first);
        assert!(self.held.get(at) == Some(&range), "I8: a block lock is held until it is given back");
        self.held.remove(at);
        self.grant(range, granted);
    }

    /// Stops waiting for a range; waiters behind it can get theirs now.
    pub(crate) fn forget(&mut self, range: BlockRange, owner: Owner, granted: &mut Vec<Owner>)
    where
        Owner: PartialEq,
    {
        self.waiting.retain(|waiting| *waiting != (range, owner));
        self.grant(range, granted);
    }

    /// Grants waiting ranges that overlap `range`.
    fn grant(&mut self, range: BlockRange, granted: &mut Vec<Owner>) {
        let mut index = 0;
        while index < self.waiting.len() {
            let (wanted, owner) = self.waiting[index];
            let blocked = !wanted.overlaps(range)
                || self.is_held(wanted)
                || self.waiting.iter().take(index).any(|(earlier, _)| earlier.overlaps(wanted));
            if blocked {
                index += 1;
                continue;
            }
            self.waiting.remove(index);
            self.hold(wanted);
            granted.push(owner);
        }
    }

    fn hold(&mut self, range: BlockRange) {
        let at = self.held.partition_point(|held| held.first < range.first);
        self.held.insert(at, range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::VolumeId;

    fn range(first: u64, last: u64) -> BlockRange {
        BlockRange { first: Key::new(VolumeId(1), first), last: Key::new(VolumeId(1), last) }
    }

    #[test]
    fn overlapping_ranges_are_granted_in_order() {
        let mut locks = RangeLocks::new();
        assert!(locks.acquire(range(0, 9), 'a'));
        assert!(!locks.acquire(range(5, 15), 'b'));
        assert!(!locks.acquire(range(12, 12), 'c'), "it would overtake b");
        assert!(locks.acquire(range(20, 29), 'd'));
        let mut granted = Vec::new();
        locks.release(range(0, 9), &mut granted);
        assert_eq!(granted, ['b']);
        granted.clear();
        locks.release(range(5, 15), &mut granted);
        assert_eq!(granted, ['c']);
    }

    #[test]
    fn waiter_is_granted_after_earlier_waiters() {
        let mut locks = RangeLocks::new();
        assert!(locks.acquire(range(0, 0), 'a'));
        assert!(locks.acquire(range(9, 9), 'b'));
        assert!(!locks.acquire(range(0, 9), 'c'));
        assert!(!locks.acquire(range(5, 5), 'd'));
        let mut granted = Vec::new();
        locks.release(range(0, 0), &mut granted);
        assert!(granted.is_empty());
        locks.release(range(9, 9), &mut granted);
        assert_eq!(granted, ['c']);
        granted.clear();
        locks.release(range(0, 9), &mut granted);
        assert_eq!(granted, ['d']);
    }
}
