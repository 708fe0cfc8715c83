//! Numbered items; the numbers of removed ones are reused.

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.entries[number as usize] = Some(value);
            return number;
        }
        self.entries.push(Some(value));
        (self.entries.len() - 1) as u32
    }

    /// # Panics
    /// Panics if there is no such item: a bug of the caller.
    pub(crate) fn remove(&mut self, number: u32) -> T {
        let value = self.entries[number as usize].take().expect("it is there");
        self.free.push(number);
        value
    }

    /// # Panics
    /// Panics like [`Slab::remove`].
    pub(crate) fn get(&self, number: u32) -> &T {
        self.entries[number as usize].as_ref().expect("it is there")
    }

    /// # Panics
    /// Panics like [`Slab::remove`].
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut T {
        self.entries[number as usize].as_mut().expect("it is there")
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}
