//! A slab: numbered records that are reused, without allocations once the table has grown to its
//! size.

use alloc::vec::Vec;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.items[id as usize] = Some(item);
            return id;
        }
        self.items.push(Some(item));
        (self.items.len() - 1) as u32
    }

    pub(crate) fn remove(&mut self, id: u32) -> T {
        let item = self.items[id as usize].take().expect("a record is removed once");
        self.free.push(id);
        item
    }

    pub(crate) fn get(&self, id: u32) -> &T {
        self.items[id as usize].as_ref().expect("a record is used only while it exists")
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> &mut T {
        self.items[id as usize].as_mut().expect("a record is used only while it exists")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}
