//! The bytes of a device at one instant.
//!
//! Unwritten pages are zeroes and not allocated; copies share the others until they are written. So
//! a device of real size costs only its written pages, and a copy, of which every crash takes
//! several, costs a pointer for each 256 KiB.

use crate::rng::mix;
use forebay_format::BLOCK_BYTES;
use std::rc::Rc;

/// Pages that are shared as a unit.
const CHUNK_PAGES: usize = 64;

type Bytes = [u8; BLOCK_BYTES];
type Page = Option<Rc<Bytes>>;
type Chunk = Option<Rc<[Page; CHUNK_PAGES]>>;

/// The bytes. See the top of the file.
#[derive(Clone)]
pub struct Image {
    chunks: Vec<Chunk>,
    bytes: u64,
}

impl Image {
    /// Creates an image of zeroes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let pages = bytes.div_ceil(BLOCK_BYTES as u64) as usize;
        Self { chunks: vec![None; pages.div_ceil(CHUNK_PAGES)], bytes }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn page(&self, number: usize) -> Option<&Rc<Bytes>> {
        self.chunks[number / CHUNK_PAGES].as_ref()?[number % CHUNK_PAGES].as_ref()
    }

    fn page_mut(&mut self, number: usize) -> &mut Page {
        let chunk = &mut self.chunks[number / CHUNK_PAGES];
        let chunk = chunk.get_or_insert_with(|| Rc::new([const { None }; CHUNK_PAGES]));
        &mut Rc::make_mut(chunk)[number % CHUNK_PAGES]
    }

    /// Returns the bytes of a page for a change.
    fn bytes_mut(&mut self, number: usize) -> &mut Bytes {
        Rc::make_mut(self.page_mut(number).get_or_insert_with(|| Rc::new([0; BLOCK_BYTES])))
    }

    /// Copies bytes out.
    pub fn read(&self, offset: u64, mut to: &mut [u8]) {
        let (mut page, mut at) = place(offset);
        while !to.is_empty() {
            let len = to.len().min(BLOCK_BYTES - at);
            let (now, later) = to.split_at_mut(len);
            match self.page(page) {
                Some(bytes) => now.copy_from_slice(&bytes[at..at + len]),
                None => now.fill(0),
            }
            to = later;
            (page, at) = (page + 1, 0);
        }
    }

    /// Copies bytes in.
    pub fn write(&mut self, offset: u64, mut from: &[u8]) {
        let (mut page, mut at) = place(offset);
        while !from.is_empty() {
            let len = from.len().min(BLOCK_BYTES - at);
            let (now, later) = from.split_at(len);
            match <&Bytes>::try_from(now) {
                // Already zeroes.
                Ok(whole) if self.page(page).is_none() && is_zero(whole) => {}
                Ok(whole) => *self.page_mut(page) = Some(Rc::new(*whole)),
                Err(_) => self.bytes_mut(page)[at..at + len].copy_from_slice(now),
            }
            from = later;
            (page, at) = (page + 1, 0);
        }
    }

    /// Flips a bit.
    pub(crate) fn flip(&mut self, offset: u64, bit: u8) {
        let (page, at) = place(offset);
        self.bytes_mut(page)[at] ^= 1 << bit;
    }

    /// Returns true if no page of this range was ever written.
    #[must_use]
    pub fn is_blank(&self, offset: u64, len: u64) -> bool {
        let block = BLOCK_BYTES as u64;
        (offset / block..(offset + len).div_ceil(block)).all(|page| self.page(page as usize).is_none())
    }

    /// Returns the written pages, with their numbers.
    pub fn written(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        let chunks = self.chunks.iter().enumerate();
        chunks.filter_map(|(at, chunk)| Some((at, chunk.as_deref()?))).flat_map(|(at, pages)| {
            let first = (at * CHUNK_PAGES) as u64;
            (first..).zip(pages).filter_map(|(number, page)| Some((number, &**page.as_ref()?)))
        })
    }

    /// Returns a hash of the pages that differ from those of `base`, by identity: unwritten pages
    /// do not count.
    #[must_use]
    pub fn key(&self, base: &Self) -> u64 {
        let mut key = 0;
        for (number, bytes) in self.written() {
            let same =
                base.page(number as usize).is_some_and(|other| std::ptr::eq(&raw const **other, bytes));
            if !same {
                key = mix(key ^ mix(number) ^ page_key(bytes));
            }
        }
        key
    }
}

fn is_zero(page: &Bytes) -> bool {
    page.iter().all(|byte| *byte == 0)
}

fn page_key(page: &Bytes) -> u64 {
    let mut key = 0;
    for word in page.chunks_exact(8) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        key = (key ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
    key
}

fn place(offset: u64) -> (usize, usize) {
    ((offset / BLOCK_BYTES as u64) as usize, (offset % BLOCK_BYTES as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritten_image_is_zero_and_sparse() {
        let mut image = Image::new(1 << 36);
        let mut bytes = [7; 10_000];
        image.read((1 << 36) - 10_000, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0) && image.is_blank(0, 1 << 36));
        image.write(0, &[0; BLOCK_BYTES]);
        assert_eq!(image.written().count(), 0, "zeroes are there already");
        image.write((1 << 30) + 100, &[9; 5000]);
        assert_eq!(image.written().map(|(page, _)| page).collect::<Vec<u64>>(), [1 << 18, (1 << 18) + 1]);
        assert!(!image.is_blank((1 << 30) - 10, 20) && image.is_blank(0, 1 << 30));
    }

    #[test]
    fn image_copy_ignores_later_writes() {
        let mut image = Image::new(1 << 20);
        image.write(5000, b"before");
        let copy = image.clone();
        assert_eq!(copy.key(&image), 0);
        image.write(5000, b"after!");
        image.write(9000, b"new");
        let mut found = [0; 6];
        copy.read(5000, &mut found);
        assert_eq!(&found, b"before");
        assert!(copy.is_blank(8192, 4096) && image.key(&copy) != 0);
        image.read(5000, &mut found);
        assert_eq!(&found, b"after!");
    }
}
