//! A single cache device: opening it while it may still be in use, and recognising its content.
//!
//! Other modules find damage behind the superblocks.

use forebay_format::geometry::CHECKPOINT_START_BLOCK;
use forebay_format::settings_copy::{SETTINGS_BLOCKS, SETTINGS_COPY_BYTES};
use forebay_format::superblock::{Superblock, being_made};
use forebay_format::{BLOCK_BYTES, FormatError, Geometry, SettingsCopy};
use forebay_io::{Device, DeviceError};
use std::time::{Duration, Instant};

/// Time to wait for a device in use, and interval of the attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Bytes at the start of a device that must be zero for it to count as unused.
pub const BLANK_BYTES: usize = 256 << 10;

/// A device that is being formatted or rebuilt is empty from the first block to here.
const UNUSED_UNTIL: usize = CHECKPOINT_START_BLOCK as usize * BLOCK_BYTES;

/// The content of a cache device.
#[derive(Debug)]
pub enum Found {
    /// A cache, with its superblock in effect.
    Cache(Box<Superblock>),
    /// Its beginning is zero.
    Blank,
    /// The formatting of a cache, or a rebuild of a mirrored cache, was not finished: nothing on it
    /// counts.
    Begun,
    /// Other content, with the reason why it cannot be used.
    Foreign(String),
}

/// Opens a device, with retries for a while if it is in use: after a kill of a daemon the kernel
/// still finishes its operations in flight, and holds its locks until then.
///
/// # Errors
/// Returns the last error of `open`.
pub fn wait_for(open: impl Fn() -> Result<Device, DeviceError>) -> Result<Device, DeviceError> {
    let timeout = Instant::now() + LOCK_TIMEOUT;
    loop {
        match open() {
            Err(DeviceError::InUse { .. }) if Instant::now() < timeout => std::thread::sleep(LOCK_PAUSE),
            other => return other,
        }
    }
}

/// Determines the content of a cache device.
#[must_use]
pub fn look(device: &Device) -> Found {
    let mut start = vec![0; BLANK_BYTES.min(device.size_bytes() as usize)];
    if let Err(error) = device.read_at(0, &mut start) {
        return Found::Foreign(error.to_string());
    }
    let copies = [0, 1].map(|copy| {
        let offset = Geometry::superblock_offset(copy) as usize;
        let missing = FormatError::Magic { structure: "superblock" };
        start.get(offset..offset + BLOCK_BYTES).map_or(Err(missing), Superblock::decode)
    });
    // Between the two superblocks there is nothing, except foreign data.
    let is_zero = |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
    let begun = start.starts_with(&being_made()) && is_zero(start.get(BLOCK_BYTES..UNUSED_UNTIL));
    match Superblock::choose(copies) {
        Err(FormatError::Magic { .. }) if begun => Found::Begun,
        Ok(superblock) => Found::Cache(Box::new(superblock)),
        Err(FormatError::Magic { .. }) if start.iter().all(|byte| *byte == 0) => Found::Blank,
        Err(error) => Found::Foreign(error.to_string()),
    }
}

/// Returns both superblocks as they are on the device.
pub fn superblocks(device: &Device) -> [Result<Superblock, FormatError>; 2] {
    [0, 1].map(|copy| {
        let mut block = vec![0; BLOCK_BYTES];
        let offset = Geometry::superblock_offset(copy);
        if offset + BLOCK_BYTES as u64 > device.size_bytes() {
            return Err(FormatError::TooShort { structure: "superblock", needed: BLOCK_BYTES, found: 0 });
        }
        // An unreadable copy is all zeroes, and so not a superblock.
        let _ = device.read_at(offset, &mut block);
        Superblock::decode(&block)
    })
}

/// Returns both copies of the settings on a device.
pub fn settings_copies(device: &Device) -> [Result<SettingsCopy, FormatError>; 2] {
    SETTINGS_BLOCKS.map(|block| {
        let mut bytes = vec![0; SETTINGS_COPY_BYTES];
        let missing = FormatError::TooShort { structure: "settings copy", needed: bytes.len(), found: 0 };
        device.read_at(block * BLOCK_BYTES as u64, &mut bytes).map_err(|_| missing)?;
        SettingsCopy::decode(&bytes)
    })
}
