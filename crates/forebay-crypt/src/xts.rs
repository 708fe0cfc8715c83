//! XTS (IEEE 1619) over AES-256, for units of whole cipher blocks.
//!
//! The crate `xts-mode` passes the cipher one block of 16 bytes at a time, which leaves the
//! processor's AES unit idle most of the time. This implementation passes 32 blocks. The tests
//! compare it with the vectors of the standard, and with that crate.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Aes256Enc};

/// Bytes of a cipher block.
const CELL: usize = 16;
/// Blocks passed to the cipher at once: all registers of any processor are busy, and the tweaks fit
/// the stack.
const CELLS: usize = 32;

/// The two ciphers of XTS.
pub(crate) struct Xts {
    data: Aes256,
    tweak: Aes256Enc,
}

impl Xts {
    /// Creates the ciphers from the two 32-byte keys, one behind the other.
    pub(crate) fn new(keys: &[u8; 64]) -> Self {
        let (mut data, mut tweak) = ([0; 32], [0; 32]);
        data.copy_from_slice(&keys[..32]);
        tweak.copy_from_slice(&keys[32..]);
        let xts = Self { data: Aes256::new(&Array(data)), tweak: Aes256Enc::new(&Array(tweak)) };
        zeroize::Zeroize::zeroize(&mut data);
        zeroize::Zeroize::zeroize(&mut tweak);
        xts
    }

    /// Encrypts bytes of a unit, starting at its byte `from`.
    pub(crate) fn encrypt(&self, unit: u64, from: usize, bytes: &mut [u8]) {
        self.apply(unit, from, bytes, |cells| self.data.encrypt_blocks(cells));
    }

    /// Decrypts bytes of a unit, starting at its byte `from`.
    pub(crate) fn decrypt(&self, unit: u64, from: usize, bytes: &mut [u8]) {
        self.apply(unit, from, bytes, |cells| self.data.decrypt_blocks(cells));
    }

    fn apply(
        &self,
        unit: u64,
        from: usize,
        bytes: &mut [u8],
        cipher: impl Fn(&mut [Array<u8, aes::cipher::consts::U16>]),
    ) {
        debug_assert!(from.is_multiple_of(CELL) && bytes.len().is_multiple_of(CELL));
        let mut start = Array(u128::from(unit).to_le_bytes());
        self.tweak.encrypt_block(&mut start);
        let mut tweak = u128::from_le_bytes(start.0);
        for _ in 0..from / CELL {
            tweak = times_alpha(tweak);
        }
        let mut tweaks = [0; CELLS];
        let (cells, _) = Array::slice_as_chunks_mut(bytes);
        for cells in cells.chunks_mut(CELLS) {
            for (cell, of_cell) in cells.iter_mut().zip(&mut tweaks) {
                *of_cell = tweak;
                mask(cell, tweak);
                tweak = times_alpha(tweak);
            }
            cipher(cells);
            for (cell, of_cell) in cells.iter_mut().zip(&tweaks) {
                mask(cell, *of_cell);
            }
        }
    }
}

fn mask(cell: &mut Array<u8, aes::cipher::consts::U16>, tweak: u128) {
    cell.0 = (u128::from_le_bytes(cell.0) ^ tweak).to_le_bytes();
}

/// The tweak of the next cell: multiplication by the primitive element of the field of 2^128
/// elements.
fn times_alpha(tweak: u128) -> u128 {
    // Without a branch that depends on the key.
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

#[cfg(test)]
#[path = "xts_tests.rs"]
mod tests;
