//! The queue of a stream: items that wait for a batch, in order. Every turn asks for the number of
//! items without a waiter, so the queue counts them.

use crate::context::streams::{Item, ItemOwner};
use alloc::collections::VecDeque;

/// Items of a stream, the next one first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    fills: usize,
    survivors: usize,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the number of fills.
    pub(crate) fn fills(&self) -> usize {
        self.fills
    }

    /// Returns the number of relocated blocks.
    pub(crate) fn survivors(&self) -> usize {
        self.survivors
    }

    /// Returns the number of other items.
    pub(crate) fn others(&self) -> usize {
        self.items.len() - self.fills - self.survivors
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.items.iter()
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&Item> {
        self.items.front()
    }

    #[inline]
    pub(crate) fn push_back(&mut self, item: Item) {
        if let Some(count) = self.count(item.done) {
            *count += 1;
        }
        self.items.push_back(item);
    }

    pub(crate) fn push_front(&mut self, item: Item) {
        if let Some(count) = self.count(item.done) {
            *count += 1;
        }
        self.items.push_front(item);
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        if let Some(count) = self.count(item.done) {
            *count -= 1;
        }
        Some(item)
    }

    /// Takes all items for which `is_it` is true; the others keep their order.
    pub(crate) fn take(&mut self, is_it: impl Fn(&Item) -> bool) -> VecDeque<Item> {
        let items = core::mem::take(&mut self.items);
        let (taken, others): (VecDeque<Item>, VecDeque<Item>) = items.into_iter().partition(is_it);
        *self = Self::default();
        others.into_iter().for_each(|item| self.push_back(item));
        taken
    }

    /// Returns the count that includes an item.
    #[inline]
    fn count(&mut self, owner: ItemOwner) -> Option<&mut usize> {
        match owner {
            ItemOwner::Fill(..) => Some(&mut self.fills),
            ItemOwner::Survivor(_) | ItemOwner::Kept(_) => Some(&mut self.survivors),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::streams::ItemKind;
    use crate::map::segment::Key;

    fn item(at: u32, done: ItemOwner) -> Item {
        Item {
            key: Key(at.into()),
            crc: at,
            kind: ItemKind::Data { mask: 1, dirty: false },
            span: None,
            done,
        }
    }

    #[test]
    fn queue_counts_match_its_items() {
        let mut queue = Queue::default();
        for at in 0..30 {
            let done = match at % 3 {
                0 => ItemOwner::Survivor(at),
                1 => ItemOwner::Request(at),
                _ => ItemOwner::Copy(at),
            };
            if at % 2 == 0 { queue.push_back(item(at, done)) } else { queue.push_front(item(at, done)) }
        }
        let counts = |queue: &Queue| {
            let survivors = queue.iter().filter(|item| matches!(item.done, ItemOwner::Survivor(_))).count();
            assert_eq!((queue.survivors(), queue.fills()), (survivors, 0));
            assert_eq!(queue.others(), queue.len() - survivors);
        };
        counts(&queue);
        assert_eq!(queue.pop_front().map(|item| item.crc), Some(29), "a copy");
        assert_eq!(queue.pop_front().map(|item| item.crc), Some(27), "a survivor");
        counts(&queue);
        let taken = queue.take(|item| item.crc % 4 == 0);
        assert_eq!(taken.len(), 8);
        assert!(queue.iter().zip(queue.iter().skip(1)).all(|(one, next)| one.crc != next.crc));
        assert_eq!(queue.front().map(|item| item.crc), Some(25), "the others keep their order");
        counts(&queue);
    }
}
