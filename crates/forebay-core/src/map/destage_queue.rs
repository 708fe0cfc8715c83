//! Dirty blocks of a volume that wait for destage, and which of them may be destaged now.
//!
//! Without an order this is a set of blocks, and all of them may be destaged. With one ([`Order`],
//! decision 0011) blocks are queued by **flush epoch**: the number of the client's last FLUSH (or
//! FUA write) that had arrived when they were logged. Only those of the *active* epoch may be
//! destaged; `ordered` decides when the next one becomes active. A block that is overwritten in a
//! later epoch remains as a **shadow**: dirty, not in the index, waiting for its turn.
//!
//! Epoch 0 has the blocks that were dirty before the order began. They are destaged first, in any
//! order.
//!
//! Invariants (I23, I24, asserted by `CacheMap::check`):
//! - no block waits in an epoch before the active one;
//! - the shadows of a block have ascending epochs, all below that of its slot in the index, which
//!   is dirty.
//!
//! Memory: about 30 bytes for each waiting block of an ordered volume and 60 for each shadow, and 4
//! bytes per slot of segments that hold some (see `segment`).

use crate::base::bitset::BlockSet;
use crate::fault::{self, PlantedBug};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use forebay_format::VolumeId;

/// Phase of the guarantee of an ordered volume. A checkpoint records its begin and its end, because
/// recovery must know whether it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OrderPhase {
    /// The blocks that were dirty before are being drained.
    Entering,
    /// They are drained; the next checkpoint will record the guarantee.
    Confirming,
    /// The backing store alone is a crash-consistent older image.
    InForce,
    /// It ends with the next checkpoint; until then nothing is destaged.
    Leaving,
}

/// Flush epochs of an ordered volume.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) phase: OrderPhase,
    /// The open epoch, to which blocks that are logged now belong. Its low 32 bits are never all
    /// zero.
    pub(crate) current: u64,
    /// A block was logged in it.
    pub(crate) used: bool,
    /// Slots of earlier epochs are from before the order began.
    pub(crate) base: u64,
    /// The epoch being destaged.
    pub(crate) active: u64,
    /// While entering: the guarantee does not begin before this epoch is active, because of a
    /// bypass write.
    pub(crate) until: u64,
    /// Stream sequence of the first write batch that can belong to the open epoch.
    pub(crate) barrier: u64,
    /// The cache flush that makes the last clean mark of this volume durable.
    pub(crate) marks_ticket: u64,
    /// The checkpoint in progress records the guarantee.
    pub(crate) claimed: bool,
    /// Waiting slots, by epoch and block.
    queue: BTreeMap<(u64, u64), u32>,
    /// Shadows, waiting or not, by block and epoch.
    shadows: BTreeMap<(u64, u64), u32>,
}

impl Order {
    /// Creates an order that begins in epoch `current`.
    pub(crate) fn new(phase: OrderPhase, current: u64) -> Self {
        let current = if current as u32 == 0 { current + 1 } else { current };
        Self {
            phase,
            current,
            used: false,
            base: if phase == OrderPhase::Entering { current } else { 1 },
            active: 0,
            until: 0,
            barrier: 0,
            marks_ticket: 0,
            claimed: false,
            queue: BTreeMap::new(),
            shadows: BTreeMap::new(),
        }
    }

    /// Begins the next epoch.
    pub(crate) fn advance(&mut self) {
        self.current += 1;
        if self.current as u32 == 0 && !fault::planted(PlantedBug::WrapEpoch) {
            self.current += 1; // Zero in an entry means that there is no order.
        }
        self.used = false;
    }

    /// Returns the epoch of an entry: the nearest to the open one that ends in these 32 bits. Live
    /// epochs lie closer together than 2^31, because each but the open one has a dirty slot of its
    /// own.
    pub(crate) fn widen(&self, low: u32) -> u64 {
        if low == 0 {
            return 0;
        }
        let ahead = i64::from(low.wrapping_sub(self.current as u32) as i32);
        let epoch = self.current.saturating_add_signed(ahead);
        if epoch < self.base { 0 } else { epoch }
    }

    /// Returns the first epoch with a waiting block.
    pub(crate) fn first(&self) -> Option<u64> {
        self.queue.first_key_value().map(|((epoch, _), _)| *epoch)
    }

    /// Returns true if the volume's guarantee holds, and a checkpoint may record it.
    pub(crate) fn is_promised(&self) -> bool {
        matches!(self.phase, OrderPhase::Confirming | OrderPhase::InForce)
    }

    /// Returns the epoch whose blocks may be destaged.
    fn going(&self) -> Option<u64> {
        (self.phase != OrderPhase::Leaving)
            .then(|| self.first())
            .flatten()
            .filter(|epoch| *epoch <= self.active)
    }
}

/// Dirty blocks of a volume that wait for destage.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Blocks whose slot in the index waits: all waiting blocks, or with an order those of epoch 0.
    blocks: BlockSet,
    pub(crate) order: Option<Box<Order>>,
    /// Last epoch of the previous order: epochs are not reused while slots still have them.
    last_epoch: u64,
}

impl Waiting {
    /// Begins an order, in which the blocks that wait now are epoch 0.
    pub(crate) fn begin(&mut self, barrier: u64) {
        let mut order = Order::new(OrderPhase::Entering, self.last_epoch + 1);
        order.barrier = barrier;
        self.order = Some(Box::new(order));
    }

    /// Returns the number of waiting blocks, including those that may not be destaged now.
    pub(crate) fn len(&self) -> u64 {
        self.blocks.len() + self.order.as_ref().map_or(0, |order| order.queue.len() as u64)
    }

    /// Returns the bytes allocated, approximately.
    pub(crate) fn bytes(&self) -> usize {
        let order = self.order.as_ref().map_or(0, |order| order.queue.len() + order.shadows.len());
        self.blocks.bytes() + order * 30
    }

    /// Adds neighbouring dirty blocks of a volume without an order.
    pub(crate) fn load(&mut self, first: u64, count: u64) {
        debug_assert!(self.order.is_none());
        self.blocks.insert_run(first, count);
    }

    /// Returns true if a block waits, disregarding shadows and epochs.
    pub(crate) fn has(&self, block: u64) -> bool {
        self.blocks.contains(block)
    }

    fn blocks_may_go(&self) -> bool {
        self.order.as_ref().is_none_or(|order| order.active == 0 && order.phase != OrderPhase::Leaving)
    }

    /// Returns true if the block may be destaged now.
    pub(crate) fn contains(&self, block: u64) -> bool {
        self.blocks_may_go() && self.blocks.contains(block) || self.queued(block).is_some()
    }

    /// Returns the first block from `from` on that may be destaged now.
    pub(crate) fn next_from(&self, from: u64) -> Option<u64> {
        let loose = if self.blocks_may_go() { self.blocks.next_from(from) } else { None };
        let queued = self.order.as_ref().and_then(|order| {
            let epoch = order.going()?;
            order.queue.range((epoch, from)..=(epoch, u64::MAX)).next().map(|((_, block), _)| *block)
        });
        loose.into_iter().chain(queued).min()
    }

    /// Returns the slot to destage for a block that may be destaged, if it is not the one in the
    /// index.
    pub(crate) fn queued(&self, block: u64) -> Option<u32> {
        let order = self.order.as_ref()?;
        order.queue.get(&(order.going()?, block)).copied()
    }

    /// Removes a block that may be destaged: its destage begins.
    pub(crate) fn remove(&mut self, block: u64) {
        if let Some(order) = &mut self.order
            && let Some(epoch) = order.going()
            && order.queue.remove(&(epoch, block)).is_some()
        {
            return;
        }
        self.blocks.remove(block);
    }

    /// Adds a dirty slot.
    pub(crate) fn enter(&mut self, slot: u32, block: u64, epoch: u64, shadow: bool) {
        match &mut self.order {
            Some(order) if epoch > 0 || shadow => drop(order.queue.insert((epoch, block), slot)),
            _ => self.blocks.insert(block),
        }
    }

    /// Removes a slot, if it waits.
    pub(crate) fn leave(&mut self, slot: u32, block: u64, epoch: u64, shadow: bool) {
        match &mut self.order {
            Some(order) if epoch > 0 || shadow => {
                if order.queue.get(&(epoch, block)) == Some(&slot) {
                    order.queue.remove(&(epoch, block));
                }
            }
            _ => self.blocks.remove(block),
        }
    }

    /// Makes the slot in the index of a block a shadow; if it waits it continues to wait.
    pub(crate) fn add_shadow(&mut self, slot: u32, block: u64, epoch: u64) {
        let order = self.order.as_mut().expect("only ordered volumes have shadows");
        order.shadows.insert((block, epoch), slot);
        if epoch == 0 && self.blocks.contains(block) {
            self.blocks.remove(block);
            order.queue.insert((epoch, block), slot);
        }
    }

    /// Removes a shadow.
    pub(crate) fn end_shadow(&mut self, block: u64, epoch: u64) {
        if let Some(order) = &mut self.order {
            order.shadows.remove(&(block, epoch));
        }
    }

    /// Returns a shadow of one of these blocks that is not older than `epoch`.
    pub(crate) fn shadow_in(&self, first: u64, last: u64, epoch: u64) -> Option<u32> {
        let shadows = &self.order.as_ref()?.shadows;
        shadows.range((first, 0)..=(last, u64::MAX)).find(|((_, of), _)| *of >= epoch).map(|(_, slot)| *slot)
    }

    /// Returns the number of shadows.
    pub(crate) fn shadows(&self) -> usize {
        self.order.as_ref().map_or(0, |order| order.shadows.len())
    }

    /// Returns blocks and slots of all shadows.
    pub(crate) fn each_shadow(&self) -> impl Iterator<Item = (u64, u32)> {
        self.order.iter().flat_map(|order| &order.shadows).map(|((block, _), slot)| (*block, *slot))
    }

    /// Returns the shadows of a block, oldest first.
    pub(crate) fn shadows_of(&self, block: u64) -> impl Iterator<Item = u32> {
        let shadows = self.order.iter().map(|order| &order.shadows);
        shadows.flat_map(move |shadows| shadows.range((block, 0)..=(block, u64::MAX)).map(|(_, slot)| *slot))
    }

    /// Ends the order. There must be no shadows; waiting blocks continue to wait. Returns the slots
    /// that had an epoch.
    pub(crate) fn dissolve(&mut self) -> Vec<u32> {
        let Some(order) = self.order.take() else { return Vec::new() };
        assert!(order.shadows.is_empty(), "I24: shadows end before their order");
        self.last_epoch = order.current;
        let mut slots = Vec::with_capacity(order.queue.len());
        for ((_, block), slot) in order.queue {
            self.blocks.insert(block);
            slots.push(slot);
        }
        slots
    }

    /// Panics if I23 does not hold.
    pub(crate) fn check(&self) {
        if let Some(order) = &self.order {
            let early = order.first().filter(|first| *first < order.active);
            assert!(early.is_none(), "I23: {early:?} waits though epoch {} is active", order.active);
            assert!(order.active == 0 || self.blocks.len() == 0, "I23: epoch 0 waits though it is over");
            assert!(order.active <= order.current, "I23: an epoch is active that has not begun");
        }
    }
}

/// A bypass write that waits for its epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderWaiter {
    pub(crate) direct: u32,
    pub(crate) volume: VolumeId,
    pub(crate) epoch: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered() -> Waiting {
        Waiting { order: Some(Box::new(Order::new(OrderPhase::InForce, 1))), ..Waiting::default() }
    }

    #[test]
    fn only_the_active_epoch_is_destaged() {
        let mut waiting = ordered();
        waiting.enter(10, 7, 1, false);
        waiting.enter(11, 3, 2, false);
        waiting.enter(12, 7, 2, false);
        assert_eq!(waiting.next_from(0), None);
        waiting.order.as_mut().unwrap().active = 1;
        assert_eq!((waiting.next_from(0), waiting.queued(7)), (Some(7), Some(10)));
        assert!(!waiting.contains(3));
        waiting.remove(7);
        assert_eq!((waiting.next_from(0), waiting.len()), (None, 2));
        waiting.order.as_mut().unwrap().active = 2;
        assert_eq!((waiting.next_from(4), waiting.queued(7)), (Some(7), Some(12)));
        assert!(waiting.contains(3));
    }

    #[test]
    fn epochs_are_widened_across_the_wrap() {
        let mut order = Order::new(OrderPhase::InForce, (1 << 32) - 1);
        assert_eq!(order.widen(u32::MAX), (1 << 32) - 1);
        order.advance();
        assert_eq!(order.current, (1 << 32) + 1, "an epoch that would be stored as zero is left out");
        assert_eq!(
            (order.widen(u32::MAX), order.widen(1), order.widen(2)),
            ((1 << 32) - 1, (1 << 32) + 1, (1 << 32) + 2)
        );
        assert_eq!(order.widen(0), 0);
        order.base = 1 << 32;
        assert_eq!(order.widen(u32::MAX), 0, "from before the order began");
    }

    #[test]
    fn older_dirty_blocks_are_destaged_first() {
        let mut waiting = Waiting::default();
        waiting.enter(1, 5, 0, false);
        waiting.enter(2, 6, 0, false);
        waiting.order = Some(Box::new(Order::new(OrderPhase::Entering, 1)));
        waiting.add_shadow(1, 5, 0);
        waiting.enter(3, 5, 1, false);
        assert_eq!((waiting.next_from(0), waiting.queued(5)), (Some(5), Some(1)));
        waiting.remove(5);
        assert_eq!((waiting.next_from(0), waiting.queued(6)), (Some(6), None));
        waiting.remove(6);
        assert_eq!(waiting.next_from(0), None);
        waiting.end_shadow(5, 0);
        waiting.dissolve();
        assert_eq!(waiting.next_from(0), Some(5));
    }
}
