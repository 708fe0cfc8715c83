//! Caches that are encrypted at rest: the cipher between the engine and the cache device, and the
//! check for cleartext.
//!
//! The owner encrypts writes to the cache device and decrypts reads, as the daemon does and with
//! the same module (`forebay-crypt`); the engine does not know. Faults affect the ciphertext on the
//! device: a torn write tears it, rot flips its bits.
//!
//! The check (`nothing_shows`): behind the superblocks no sector of the device, after any crash,
//! holds contents that a client wrote, and no block begins like a structure of the format. It uses
//! only the device, so it finds any way around the cipher.
//!
//! Planted bugs: [`PlantedBug::WriteMetaInClear`] and [`PlantedBug::TweakOfFailedWrite`], both here
//! and not in the engine.

use crate::content::Content;
use crate::device::SimDevice;
use crate::ensure::ensure;
use crate::image::Image;
use crate::plan::{CipherPlan, Plan};
use forebay_core::{PlantedBug, fault};
use forebay_format::SECTOR_BYTES;
use forebay_format::geometry::CHECKPOINT_START_BLOCK;

/// Magic numbers of structures that lie behind the superblocks.
const MAGICS: [&[u8]; 2] = [b"FBAT", b"FBAYCKPT"];

/// A write to a cache device, as its owner sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheWrite {
    pub(crate) offset: u64,
    /// Whether it is metadata: a checkpoint, a superblock, or a summary.
    pub(crate) meta: bool,
}

/// Returns the bytes for the cache device. `failed` is the offset of a batch of the same length
/// that has just failed.
pub(crate) fn encrypt(plan: &Plan, write: CacheWrite, failed: Option<u64>, data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    let Some(CipherPlan { cipher, .. }) = &plan.cipher else { return data };
    match failed.filter(|_| fault::planted(PlantedBug::TweakOfFailedWrite)) {
        Some(failed) => cipher.encrypt(failed, &mut data),
        None if write.meta && fault::planted(PlantedBug::WriteMetaInClear) => {}
        None => cipher.encrypt(write.offset, &mut data),
    }
    data
}

/// Like [`encrypt`], for writes of a tool while no engine runs.
pub(crate) fn encrypted(plan: &Plan, offset: u64, data: &[u8]) -> Vec<u8> {
    encrypt(plan, CacheWrite { offset, meta: false }, None, data)
}

/// Decrypts a read from a cache device.
pub(crate) fn open(plan: &Plan, offset: u64, data: &mut [u8]) {
    if let Some(CipherPlan { cipher, .. }) = &plan.cipher {
        cipher.decrypt(offset, data);
    }
}

/// Reads whole sectors of a cache device at rest.
pub(crate) fn read_at_rest(plan: &Plan, image: &Image, offset: u64, to: &mut [u8]) {
    image.read(offset, to);
    open(plan, offset, to);
}

/// Checks that no data written by the engine is readable on an encrypted cache device without the
/// key.
///
/// # Errors
/// Names the place and the cleartext.
pub(crate) fn nothing_shows(plan: &Plan, cache: &SimDevice) -> Result<(), String> {
    if plan.cipher.is_none() {
        return Ok(());
    }
    let written = cache.visible().written();
    for (number, block) in written.filter(|(number, _)| *number >= CHECKPOINT_START_BLOCK) {
        let clear = MAGICS.iter().any(|magic| block.starts_with(magic));
        ensure!(!clear, "a structure can be read on the encrypted cache device, in block {number}");
        for (sector, bytes) in block.chunks_exact(SECTOR_BYTES).enumerate() {
            let shows = matches!(Content::of_sector(bytes), Some(Content::Tag(_)));
            ensure!(
                !shows,
                "{} of a client can be read on the encrypted cache device, in sector {sector} of block {number}",
                Content::describe(bytes)
            );
        }
    }
    Ok(())
}
