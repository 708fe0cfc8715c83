//! Requests in flight of a ring, recorded in memory that outlives the process.
//!
//! The frontend keeps the memory. After the end of this process it passes the memory to the next
//! one, which repeats the requests in flight in the order in which they were taken.
//!
//! Invariants
//! - A request is marked before the ring's position moves past it, and unmarked after the driver
//!   can see that it is used. A kill in between leaves it marked and used; the next process detects
//!   that because the ring's used index has moved and the copy here has not.
//! - Whatever the memory contains, only heads within the ring are returned, each once.
//!
//! Layout: vhost-user specification, "Inflight I/O tracking", split rings.

use super::memory::{Gone, GuestMemory};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_memory::{AtomicAccess, Bytes, GuestAddress};

/// Version of the layout.
const VERSION: u16 = 1;
/// Each ring's part begins at a multiple of this.
const ALIGN: u64 = 64;
/// Bytes before the first entry, and of an entry.
const HEAD_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 16;

// Fields of the head.
const AT_VERSION: u64 = 8;
const AT_SIZE: u64 = 10;
const AT_LAST_HEAD: u64 = 12;
const AT_USED: u64 = 14;
// Fields of an entry.
const AT_MARK: u64 = 0;
const AT_NEXT: u64 = 6;
const AT_COUNTER: u64 = 8;

/// Returns the bytes for one ring of this many descriptors.
pub fn bytes_for(size: u16) -> u64 {
    (HEAD_BYTES + ENTRY_BYTES * u64::from(size)).next_multiple_of(ALIGN)
}

/// Why the memory cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InflightError {
    /// It is too short.
    #[error("the in-flight memory is too short")]
    Gone(#[from] Gone),
    /// Another version of the layout.
    #[error("the in-flight memory has version {0}; 1 is known")]
    Version(u16),
    /// It was created for a ring of another size.
    #[error("the in-flight memory is for a ring of {there} descriptors, and the ring has {wanted}")]
    Size {
        /// The size in the memory.
        there: u16,
        /// The size of the ring.
        wanted: u16,
    },
}

/// The in-flight record of one ring.
#[derive(Debug)]
pub struct Inflight {
    memory: Arc<GuestMemory>,
    base: u64,
    size: u16,
    counter: u64,
}

impl Inflight {
    /// Opens the part of the ring with this number, in an area for rings of `area_size`
    /// descriptors, of which this ring has `size`. Initializes an area of zeroes.
    ///
    /// # Errors
    /// [`InflightError`].
    pub fn open(
        memory: Arc<GuestMemory>,
        ring: u16,
        area_size: u16,
        size: u16,
    ) -> Result<Self, InflightError> {
        let base = u64::from(ring) * bytes_for(area_size);
        let it = Self { memory, base, size, counter: 0 };
        if size > area_size {
            return Err(InflightError::Size { there: area_size, wanted: size });
        }
        it.load::<u64>(u64::from(size - 1) * ENTRY_BYTES + HEAD_BYTES + AT_COUNTER)?;
        match it.load::<u16>(AT_VERSION)? {
            0 => {
                it.store(AT_SIZE, size)?;
                it.store(AT_VERSION, VERSION)?;
            }
            VERSION => {
                let there = it.load(AT_SIZE)?;
                if there != size {
                    return Err(InflightError::Size { there, wanted: size });
                }
            }
            version => return Err(InflightError::Version(version)),
        }
        Ok(it)
    }

    /// Returns the requests in flight, in the order in which they were taken; `used` is the ring's
    /// used index.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn recover(&mut self, used: u16) -> Result<Vec<u16>, Gone> {
        let behind = used.wrapping_sub(self.load(AT_USED)?).min(self.size);
        let mut head: u16 = self.load(AT_LAST_HEAD)?;
        for _ in 0..behind {
            if head >= self.size {
                break;
            }
            self.store(entry(head) + AT_MARK, 0u8)?;
            head = self.load(entry(head) + AT_NEXT)?;
        }
        self.store(AT_USED, used)?;
        let mut taken = Vec::new();
        for head in 0..self.size {
            if self.load::<u8>(entry(head) + AT_MARK)? == 1 {
                taken.push((self.load::<u64>(entry(head) + AT_COUNTER)?, head));
            }
        }
        taken.sort_unstable();
        self.counter = taken.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(taken.into_iter().map(|(_, head)| head).collect())
    }

    /// Records that a request is being taken. `head` is within the ring.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn take(&mut self, head: u16) -> Result<(), Gone> {
        self.store(entry(head) + AT_COUNTER, self.counter)?;
        self.counter = self.counter.wrapping_add(1);
        self.store(entry(head) + AT_MARK, 1u8)
    }

    /// Records that a request is about to become used.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn using(&self, head: u16) -> Result<(), Gone> {
        self.store(entry(head) + AT_NEXT, self.load::<u16>(AT_LAST_HEAD)?)?;
        self.store(AT_LAST_HEAD, head)
    }

    /// Records that a request is used: the ring's used index is `used`.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn used(&self, head: u16, used: u16) -> Result<(), Gone> {
        self.store(entry(head) + AT_MARK, 0u8)?;
        self.store(AT_USED, used)
    }

    fn load<T: AtomicAccess>(&self, at: u64) -> Result<T, Gone> {
        self.memory.load(GuestAddress(self.base + at), Ordering::SeqCst).map_err(|_| Gone)
    }

    fn store<T: AtomicAccess>(&self, at: u64, value: T) -> Result<(), Gone> {
        self.memory.store(value, GuestAddress(self.base + at), Ordering::SeqCst).map_err(|_| Gone)
    }
}

fn entry(head: u16) -> u64 {
    HEAD_BYTES + u64::from(head) * ENTRY_BYTES
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn area() -> Arc<GuestMemory> {
        Arc::new(GuestMemory::from_ranges(&[(GuestAddress(0), 2 * bytes_for(8) as usize)]).unwrap())
    }

    fn open(area: &Arc<GuestMemory>) -> Inflight {
        Inflight::open(Arc::clone(area), 1, 8, 8).unwrap()
    }

    #[test]
    fn taken_requests_are_recovered_in_order() {
        let area = area();
        let mut first = open(&area);
        assert!(first.recover(0).unwrap().is_empty());
        [5, 2, 7, 0].into_iter().for_each(|head| first.take(head).unwrap());
        first.using(2).unwrap();
        first.used(2, 1).unwrap();
        let mut second = open(&area);
        assert_eq!(second.recover(1).unwrap(), [5, 7, 0]);
        second.take(2).unwrap();
        assert_eq!(open(&area).recover(1).unwrap(), [5, 7, 0, 2], "the order goes on");
    }

    #[test]
    fn kill_before_unmarking_completes_once() {
        let area = area();
        let mut first = open(&area);
        [4, 1].into_iter().for_each(|head| first.take(head).unwrap());
        first.using(1).unwrap();
        assert_eq!(open(&area).recover(0).unwrap(), [4, 1], "the driver has seen nothing");
        first.using(1).unwrap();
        assert_eq!(open(&area).recover(1).unwrap(), [4], "the driver has seen it");
    }

    #[test]
    fn hostile_inflight_area_is_bounded() {
        let area = area();
        for at in 0..2 * bytes_for(8) {
            area.write_obj(0xA5u8, GuestAddress(at)).unwrap();
        }
        let version = Inflight::open(Arc::clone(&area), 1, 8, 8).unwrap_err();
        assert_eq!(version, InflightError::Version(0xA5A5));
        area.write_obj(1u16, GuestAddress(bytes_for(8) + AT_VERSION)).unwrap();
        let size = Inflight::open(Arc::clone(&area), 1, 8, 8).unwrap_err();
        assert_eq!(size, InflightError::Size { there: 0xA5A5, wanted: 8 });
        area.write_obj(8u16, GuestAddress(bytes_for(8) + AT_SIZE)).unwrap();
        assert!(open(&area).recover(9).unwrap().is_empty(), "a mark is 1, nothing else");
        for head in 0..8 {
            area.write_obj(1u8, GuestAddress(bytes_for(8) + entry(head))).unwrap();
        }
        let mut all = open(&area).recover(9).unwrap();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
        let beyond = Inflight::open(Arc::clone(&area), 2, 8, 8).unwrap_err();
        assert_eq!(beyond, InflightError::Gone(Gone));
        assert!(Inflight::open(area, 0, 4, 8).is_err());
    }
}
