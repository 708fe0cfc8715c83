//! Encryption of cached data at rest: the cipher between a cache and its devices.
//!
//! ```text
//!   key file, 64 bytes ── HKDF-SHA256, salt: UUID of the cache ──▶ key of the data, key of the tweaks ──▶ AES-256-XTS
//!                                                            ├──▶ key check, in the superblock
//!                                                            └──▶ HMAC-SHA256 of the settings that an export writes
//! ```
//!
//! The code that does I/O on cache devices calls [`CacheCipher::encrypt`] on all bytes before it
//! writes them, and [`CacheCipher::decrypt`] on all bytes that it has read. Both take the place of
//! the bytes in the pool's space. The engine is not involved.
//! docs/decisions/0023-encryption-at-rest.md and docs/operate/security.md explain the choice of XTS
//! and its limits.
//!
//! Invariants:
//! - The unit is a block of 4096 bytes, its tweak the number of the block in the pool's space. Each
//!   16 bytes of a unit are encrypted independently: a write that was torn between sectors decrypts
//!   to a mixture of the old and new sectors.
//! - Blocks below [`CHECKPOINT_START_BLOCK`] (the superblocks) stay in plaintext, everything else
//!   is encrypted: batch headers, payload, summaries, checkpoints. Headers of members do not lie in
//!   the pool's space.
//! - Checksums are computed over the plaintext.
//! - Keys have no `Debug`, appear in no error, and are overwritten when they are dropped.
//!
//! This crate knows no file, device, clock or random source.
#![forbid(unsafe_code)]

mod key;
mod xts;

pub use key::{FileKey, KEY_BYTES, KeyError};

use forebay_format::geometry::CHECKPOINT_START_BLOCK;
use forebay_format::{BLOCK_BYTES, SECTOR_BYTES};
use xts::Xts;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The cipher of one cache. Reads and writes use the same one; it keeps no state between calls.
pub struct CacheCipher {
    xts: Xts,
}

impl std::fmt::Debug for CacheCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheCipher").finish_non_exhaustive() // it contains keys
    }
}

impl CacheCipher {
    /// Encrypts bytes in place for a write at byte `offset` of the pool's space. To repeat a write
    /// elsewhere, start from the plaintext again.
    ///
    /// # Panics
    /// If `offset` or the length is not a multiple of 512: a bug of the caller.
    pub fn encrypt(&self, offset: u64, bytes: &mut [u8]) {
        self.each_unit(offset, bytes, Xts::encrypt);
    }

    /// Decrypts bytes in place after a read at byte `offset` of the pool's space.
    ///
    /// # Panics
    /// As [`CacheCipher::encrypt`].
    pub fn decrypt(&self, offset: u64, bytes: &mut [u8]) {
        self.each_unit(offset, bytes, Xts::decrypt);
    }

    /// Calls `apply` for each unit of the range, or part of one, with its number, the first byte
    /// within it, and the bytes.
    fn each_unit(&self, mut offset: u64, mut bytes: &mut [u8], apply: impl Fn(&Xts, u64, usize, &mut [u8])) {
        let sector = SECTOR_BYTES as u64;
        let whole = offset.is_multiple_of(sector) && (bytes.len() as u64).is_multiple_of(sector);
        assert!(whole, "{} bytes at {offset} are not whole sectors", bytes.len());
        while !bytes.is_empty() {
            let (unit, from) = (offset / BLOCK, (offset % BLOCK) as usize);
            let (piece, rest) = bytes.split_at_mut((BLOCK_BYTES - from).min(bytes.len()));
            offset += piece.len() as u64;
            if unit >= CHECKPOINT_START_BLOCK {
                apply(&self.xts, unit, from, piece);
            }
            bytes = rest;
        }
    }
}
