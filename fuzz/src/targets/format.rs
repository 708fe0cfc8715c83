//! Every structure on a cache device, with the checksums made right or left as they are.
//!
//! What decodes must encode to bytes that decode to the same: whatever is believed can be written
//! again.

use forebay_format::batch::{BatchHeader, Entry};
use forebay_format::checkpoint::Checkpoint;
use forebay_format::member::MemberHeader;
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry, checksum, summary};

use crate::Target;

/// The first byte names the structure and says whether checksums are made right.
pub const TARGET: Target = Target {
    name: "format",
    about: "superblock, member header, checkpoint, batch header, summary; checksums made right in half of the inputs",
    run,
    seeds,
    words: &["FOREBAY\0", "FBAYMEMB", "FBAYCKPT", "FBAT"],
    bytes_max: 64 << 10,
    short_run: 30_000,
};

const SEAL: u8 = 0x80;

fn run(input: &[u8]) {
    let Some((how, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    let seal = how & SEAL != 0;
    match how & 7 {
        0 => {
            sealed(&mut bytes, seal, 508, 512);
            if let Ok(found) = Superblock::decode(&bytes) {
                let _ = found.geometry.validate(1 << 40);
                let again = Superblock::decode(&found.encode());
                // What people wrote is cut to whole characters.
                assert_eq!(again.map(|again| again.geometry), Ok(found.geometry));
            }
        }
        1 => {
            sealed(&mut bytes, seal, 4092, 4096);
            if let Ok(found) = MemberHeader::decode(&bytes) {
                assert_eq!(MemberHeader::decode(&found.encode()), Ok(found));
            }
        }
        2 => checkpoint(&mut bytes, seal),
        3 => {
            sealed(&mut bytes, seal, 60, 4096);
            let mut entries: Vec<Entry> = Vec::new();
            if let Ok(header) = BatchHeader::decode(&bytes, &mut entries) {
                let mut block = vec![0; BLOCK_BYTES];
                header.encode(&entries, &mut block);
                let mut again = Vec::new();
                assert_eq!(BatchHeader::decode(&block, &mut again), Ok(header));
                assert_eq!(entries, again);
            } else {
                assert!(entries.is_empty(), "entries of a header that is refused");
            }
        }
        4 => {
            let slots = bytes.first().map_or(0, |first| u32::from(*first) * 20);
            assert!(summary::decode(&bytes, slots).count() as u32 <= slots);
        }
        _ => {
            let word = |at: usize| {
                bytes.get(at..at + 8).map_or(0, |b| b.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
            };
            let _ = Geometry::with_growth(word(0), Some(word(8) as u32), word(16) as u32 % 1000);
            let _ = Geometry::for_device(word(0), None).map(|geometry| geometry.resized(word(24)));
        }
    }
}

/// Makes the checksum at `at` over the first `len` bytes right.
fn sealed(bytes: &mut [u8], seal: bool, at: usize, len: usize) {
    if let (true, Some(part)) = (seal, bytes.get_mut(..len)) {
        part[at..at + 4].fill(0);
        let crc = checksum(part);
        part[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

fn checkpoint(bytes: &mut [u8], seal: bool) {
    if seal && bytes.len() > BLOCK_BYTES {
        let stated = bytes[96..104].iter().rev().fold(0, |n: u64, b| n << 8 | u64::from(*b));
        let end = (stated as usize).saturating_add(BLOCK_BYTES).min(bytes.len());
        let crc = checksum(&bytes[BLOCK_BYTES..end]);
        bytes[92..96].copy_from_slice(&crc.to_le_bytes());
    }
    sealed(bytes, seal, 4092, 4096);
    if let Ok(found) = Checkpoint::decode(bytes) {
        assert_eq!(Checkpoint::decode(&found.encode()), Ok(found));
    }
}

/// The golden bytes of the format.
fn seeds() -> Vec<Vec<u8>> {
    let golden = [
        (0, include_str!("../../../crates/forebay-format/tests/golden/superblock.hex")),
        (1, include_str!("../../../crates/forebay-format/tests/golden/member.hex")),
        (2, include_str!("../../../crates/forebay-format/tests/golden/checkpoint.hex")),
        (3, include_str!("../../../crates/forebay-format/tests/golden/batch-records.hex")),
        (3, include_str!("../../../crates/forebay-format/tests/golden/batch-summary.hex")),
    ];
    let mut seeds = Vec::new();
    for (what, text) in golden {
        let bytes = unhex(text);
        seeds.push([&[what], &bytes[..]].concat());
        seeds.push([&[what | SEAL], &bytes[..]].concat());
        if what == 3 {
            seeds.push([&[4], &bytes[BLOCK_BYTES.min(bytes.len())..]].concat());
        }
    }
    seeds.push([&[5], &[0, 0, 0, 0, 64, 0, 0, 0][..], &[0; 24]].concat());
    seeds
}

/// Bytes of a golden file, which is a dump as `hexdump -C` makes it: `*` repeats the line before
/// it.
fn unhex(text: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    let number = |word: &str| u64::from_str_radix(word, 16).unwrap_or(0) as usize;
    for line in text.lines().filter(|line| *line != "*") {
        let mut words = line.split("  |").next().unwrap_or(line).split_whitespace();
        let offset = words.next().map_or(0, number);
        while bytes.len() < offset {
            let from = bytes.len().saturating_sub(16);
            bytes.extend_from_within(from..);
        }
        bytes.extend(words.map(|word| number(word) as u8));
    }
    bytes
}
