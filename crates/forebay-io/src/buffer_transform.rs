//! Computation over the bytes of a transfer: decryption and checksums after a read, encryption
//! before a write. The I/O thread that runs the transfer also runs the computation. Without an I/O
//! thread the reactor does, before it submits a write and after a read returns.
//!
//! Invariants:
//! - It runs once per operation, over all of its bytes, and never while the kernel uses them: for a
//!   write before the first step, for a read after a step that read all of it, or else after the
//!   last.
//! - Writes are encrypted in place: their memory belongs to that operation alone.

use std::fmt;
use std::sync::Arc;

use crate::buffer::CRC_BLOCK_BYTES;

/// A length-preserving cipher whose result depends on the place of the bytes.
pub trait PlaceCipher: Send + Sync {
    /// Encrypts bytes that will lie at `place`.
    fn encrypt(&self, place: u64, bytes: &mut [u8]);

    /// Decrypts bytes read from `place`.
    fn decrypt(&self, place: u64, bytes: &mut [u8]);
}

/// The computation of one operation.
#[derive(Default)]
pub(crate) struct BufferTransform {
    /// The cipher, and the place of the first byte.
    pub(crate) cipher: Option<(Arc<dyn PlaceCipher>, u64)>,
    pub(crate) wants_checksums: bool,
    /// A CRC-32C of each 4096 bytes of each part.
    pub(crate) checksums: Vec<u32>,
    pub(crate) is_done: bool,
}

impl fmt::Debug for BufferTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferTransform").field("is_done", &self.is_done).finish_non_exhaustive()
    }
}

impl BufferTransform {
    /// Prepares for the next operation, with no computation set.
    pub(crate) fn clear(&mut self) {
        (self.cipher, self.wants_checksums, self.is_done) = (None, false, false);
        self.checksums.clear();
    }

    /// Returns whether there is anything to compute.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wants_checksums || self.cipher.is_some()
    }

    /// Processes a completed read, over the parts that it was read into.
    pub(crate) fn after_read<'a>(&mut self, parts: impl Iterator<Item = &'a mut [u8]>) {
        let mut at = 0;
        for part in parts {
            if let Some((cipher, place)) = &self.cipher {
                cipher.decrypt(place + at, part);
            }
            if self.wants_checksums {
                self.checksums.extend(part.chunks(CRC_BLOCK_BYTES).map(crc32c::crc32c));
            }
            at += part.len() as u64;
        }
        self.is_done = true;
    }

    /// Encrypts the parts of a write.
    pub(crate) fn before_write<'a>(&mut self, parts: impl Iterator<Item = &'a mut [u8]>) {
        let mut at = 0;
        for part in parts {
            if let Some((cipher, place)) = &self.cipher {
                cipher.encrypt(place + at, part);
            }
            at += part.len() as u64;
        }
        self.is_done = true;
    }
}
