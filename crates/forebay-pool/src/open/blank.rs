//! Whether a block device is blank: it has nothing but zeroes wherever one looks.
//!
//! A new flash device, or one that was discarded, reads as zeroes. It may be taken for a cache
//! without a question. Looked at are 1 MiB at either end, where file systems, partition tables,
//! RAID and LVM have their marks, and one block in each 256th of the rest. So a 128th of the device
//! in one piece is found. Scattered blocks that fill a hundredth of it are missed with a
//! probability of 8 %, a twentieth with one of 2 in a million. A file is never blank: it may be
//! that of a cache which was cut and made as long again.

use forebay_io::{Device, DeviceError, DeviceKind};

const BLOCK_BYTES: u64 = 4096;
/// Looked at as a whole at either end.
const END_BYTES: u64 = 1 << 20;
/// Blocks looked at between the ends.
const SAMPLES: u64 = 256;

/// Whether nothing is found on it. Reads up to 3 MiB.
///
/// # Errors
/// It cannot be read.
pub fn is_blank(device: &Device) -> Result<bool, DeviceError> {
    if device.kind() != DeviceKind::Block {
        return Ok(false);
    }
    let size_bytes = device.size_bytes();
    let ends = [0, size_bytes.saturating_sub(END_BYTES) / BLOCK_BYTES * BLOCK_BYTES];
    for offset in ends {
        if !is_zero(device, offset, (size_bytes - offset).min(END_BYTES + BLOCK_BYTES))? {
            return Ok(false);
        }
    }
    for offset in samples(size_bytes) {
        if !is_zero(device, offset, BLOCK_BYTES)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where the blocks between the ends begin: one in each of [`SAMPLES`] equal parts, at another
/// place of each, as what is there may be regular itself.
fn samples(size_bytes: u64) -> impl Iterator<Item = u64> {
    let part = (size_bytes / SAMPLES).max(BLOCK_BYTES);
    let parts = size_bytes / part;
    // The golden ratio of 2^32 spreads the places evenly (Knuth, TAOCP 3, 6.4).
    let place = move |at: u64| at * part + (((at * 2_654_435_769) >> 16) % (1 << 16)) * part / (1 << 16);
    let places = (0..parts).map(move |at| place(at) / BLOCK_BYTES * BLOCK_BYTES);
    places.filter(move |offset| offset + BLOCK_BYTES <= size_bytes)
}

fn is_zero(device: &Device, offset: u64, bytes: u64) -> Result<bool, DeviceError> {
    let mut content = vec![0; bytes as usize];
    device.read_at(offset, &mut content)?;
    Ok(content.iter().all(|&byte| byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_whole_blocks_of_the_device_one_in_each_part() {
        for size in [4096, 8192, 1 << 20, 20 << 20, 3_000_000_512, 100 << 40] {
            let found: Vec<u64> = samples(size).collect();
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{size}");
            assert!(found.iter().all(|at| at % BLOCK_BYTES == 0 && at + BLOCK_BYTES <= size), "{size}");
        }
        let found: Vec<u64> = samples(1 << 40).collect();
        assert_eq!(found.len(), 256);
        assert!(found.iter().enumerate().all(|(at, offset)| offset >> 32 == at as u64), "one in each part");
    }
}
