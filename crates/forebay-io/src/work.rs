//! What is computed over the bytes of a transfer, by whoever carries it out: decryption and
//! checksums of what was read, encryption of what is written. An I/O thread does it beside the
//! transfer; where there is none the reactor does it itself, before it hands a write over and when
//! a read is back.
//!
//! Invariants:
//! - It is done once for an operation, over all of its bytes, and never while the kernel has them:
//!   a write before its first step, a read after a step that read all of it or else after the last.
//! - What is written is encrypted where it lies: its memory belongs to that operation alone.

use std::fmt;
use std::sync::Arc;

use crate::buffer::CRC_BLOCK_BYTES;

/// A cipher whose result depends on the place of the bytes, and that does not change their number.
pub trait PlaceCipher: Send + Sync {
    /// Encrypts bytes that will lie at `place`.
    fn encrypt(&self, place: u64, bytes: &mut [u8]);

    /// Decrypts bytes that lay at `place`.
    fn decrypt(&self, place: u64, bytes: &mut [u8]);
}

/// The work of one operation.
#[derive(Default)]
pub(crate) struct Work {
    /// The cipher, and the place of the first byte.
    pub(crate) cipher: Option<(Arc<dyn PlaceCipher>, u64)>,
    pub(crate) wants_checksums: bool,
    /// A CRC-32C of each 4096 bytes of each part.
    pub(crate) checksums: Vec<u32>,
    pub(crate) is_done: bool,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("is_done", &self.is_done).finish_non_exhaustive()
    }
}

impl Work {
    /// Ready for the next operation, which has none yet.
    pub(crate) fn clear(&mut self) {
        (self.cipher, self.wants_checksums, self.is_done) = (None, false, false);
        self.checksums.clear();
    }

    /// Is there anything to do?
    pub(crate) fn is_wanted(&self) -> bool {
        self.wants_checksums || self.cipher.is_some()
    }

    /// The work of a read, over the parts that it was read into.
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

    /// The work of a write, over its parts.
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
