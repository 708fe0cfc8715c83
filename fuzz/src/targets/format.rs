//! Every structure on a cache device, with corrected or unchanged checksums.
//!
//! A decoded structure must encode to bytes that decode to the same: all accepted content can be
//! written again.

use forebay_config::PoolSection;
use forebay_format::batch::{BatchHeader, Entry};
use forebay_format::checkpoint::Checkpoint;
use forebay_format::checkpoint::increment::{BASE_MAGIC, ChainReader, INCREMENT_MAGIC, Increment};
use forebay_format::member::MemberHeader;
use forebay_format::superblock::{Chain, Superblock};
use forebay_format::{BLOCK_BYTES, Geometry, SECTOR_BYTES, SettingsCopy, checksum, summary};

use crate::Target;

/// The first byte selects the structure and whether checksums are corrected.
pub const TARGET: Target = Target {
    name: "format",
    about: "superblock, member header, checkpoint, increment, base, batch header, summary, settings copy; checksums made right in half of the inputs",
    run,
    seeds,
    words: &["FOREBAY\0", "FBAYMEMB", "FBAYCKPT", "FBAYINCR", "FBAYBASE", "FBAT", "FBAYSETS"],
    bytes_max: 64 << 10,
    short_run: 30_000,
};

const SEAL: u8 = 0x80;

const SUPERBLOCK: &str = include_str!("../../../crates/forebay-format/tests/golden/superblock.hex");
const CHECKPOINT: &str = include_str!("../../../crates/forebay-format/tests/golden/checkpoint.hex");
const BASE: &str = include_str!("../../../crates/forebay-format/tests/golden/base.hex");
const INCREMENT: &str = include_str!("../../../crates/forebay-format/tests/golden/increment.hex");

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
                // Text written by users is truncated to whole characters.
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
        6 => chain(&mut bytes, seal),
        7 => settings(&mut bytes, seal),
        _ => {
            let word = |at: usize| {
                bytes.get(at..at + 8).map_or(0, |b| b.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
            };
            let _ = Geometry::with_growth(word(0), Some(word(8) as u32), word(16) as u32 % 1000);
            let _ = Geometry::for_device(word(0), None).map(|geometry| geometry.resized(word(24)));
        }
    }
}

/// Corrects the checksum at `at` over the first `len` bytes.
fn sealed(bytes: &mut [u8], seal: bool, at: usize, len: usize) {
    if let (true, Some(part)) = (seal, bytes.get_mut(..len)) {
        part[at..at + 4].fill(0);
        let crc = checksum(part);
        part[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Corrects the checksums of a checkpoint, an increment or a base.
fn sealed_part(bytes: &mut [u8], seal: bool) {
    if seal && bytes.len() > BLOCK_BYTES {
        let stated = bytes[96..104].iter().rev().fold(0, |n: u64, b| n << 8 | u64::from(*b));
        let end = (stated as usize).saturating_add(BLOCK_BYTES).min(bytes.len());
        let crc = checksum(&bytes[BLOCK_BYTES..end]);
        bytes[92..96].copy_from_slice(&crc.to_le_bytes());
    }
    sealed(bytes, seal, 4092, 4096);
}

fn checkpoint(bytes: &mut [u8], seal: bool) {
    sealed_part(bytes, seal);
    if let Ok(found) = Checkpoint::decode(bytes) {
        assert_eq!(Checkpoint::decode(&found.encode()), Ok(found));
    }
    if let Ok((found, blocks)) = Increment::decode(bytes) {
        assert_eq!(Increment::decode(&found.encode()), Ok((found, blocks)));
    }
}

/// Decodes a settings copy, and parses its text as sections of a configuration file.
fn settings(bytes: &mut [u8], seal: bool) {
    if seal && bytes.len() > SECTOR_BYTES {
        let stated = bytes[12..16].iter().rev().fold(0, |n: usize, b| n << 8 | usize::from(*b));
        let end = stated.saturating_add(SECTOR_BYTES).min(bytes.len());
        let crc = checksum(&bytes[SECTOR_BYTES..end]);
        bytes[144..148].copy_from_slice(&crc.to_le_bytes());
    }
    sealed(bytes, seal, 508, SECTOR_BYTES);
    if let Ok(found) = SettingsCopy::decode(bytes) {
        // Names for users are truncated to whole characters.
        let again = SettingsCopy::decode(&found.encode()).map(|again| (again.text, again.generation));
        assert_eq!(again, Ok((found.text.clone(), found.generation)));
        if let Ok(section) = PoolSection::parse(&found.text) {
            let text = section.text().unwrap_or_default();
            assert_eq!(PoolSection::parse(&text).map(|again| again.text()), Ok(Ok(text)));
        }
    }
}

/// Reads a whole checkpoint or a base of two blocks, and increments behind it.
fn chain(bytes: &mut [u8], seal: bool) {
    let mut at = 0;
    while at + BLOCK_BYTES <= bytes.len() {
        let part = &mut bytes[at..];
        let known = at == 0 || part.starts_with(&INCREMENT_MAGIC);
        sealed_part(part, seal && known);
        at += BLOCK_BYTES * 2;
    }
    let Ok(mut reader) = ChainReader::begin(bytes) else { return };
    let base = reader.generation();
    assert!(bytes.starts_with(&BASE_MAGIC) || reader.clone().finish().is_ok());
    let (start, mut blocks) = (reader.start(), 0);
    let rest = |at: u64| bytes.get(at as usize * BLOCK_BYTES..).unwrap_or_default();
    while let Ok(more) = reader.next(rest(start + blocks)) {
        blocks += more;
    }
    let chain = (blocks > 0).then_some(Chain { base, blocks: blocks as u32 });
    let Some(superblock) = superblock_of(&reader, chain) else { return };
    let _ = superblock.checkpoint_place(0);
    assert_eq!(superblock.read_checkpoint(bytes), reader.finish());
}

/// Returns a superblock that names the chain read.
fn superblock_of(reader: &ChainReader, chain: Option<Chain>) -> Option<Superblock> {
    let mut superblock = Superblock::decode(&unhex(SUPERBLOCK)).ok()?;
    let state = reader.state();
    superblock.geometry.segment_count = state.segments.len() as u32;
    superblock.geometry.segment_blocks = state.segment_blocks;
    Some(Superblock { uuid: state.uuid, checkpoint_generation: reader.generation(), chain, ..superblock })
}

/// Returns the golden bytes of the format.
fn seeds() -> Vec<Vec<u8>> {
    let golden = [
        (0, SUPERBLOCK),
        (1, include_str!("../../../crates/forebay-format/tests/golden/member.hex")),
        (0, include_str!("../../../crates/forebay-format/tests/golden/superblock-chain.hex")),
        (2, CHECKPOINT),
        (2, INCREMENT),
        (3, include_str!("../../../crates/forebay-format/tests/golden/batch-records.hex")),
        (3, include_str!("../../../crates/forebay-format/tests/golden/batch-summary.hex")),
        (7, include_str!("../../../crates/forebay-format/tests/golden/settings.hex")),
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
    for first in [CHECKPOINT, BASE] {
        let chain = [unhex(first), unhex(INCREMENT)].concat();
        seeds.push([&[6], &chain[..]].concat());
        seeds.push([&[6 | SEAL], &chain[..]].concat());
    }
    seeds.push([&[5], &[0, 0, 0, 0, 64, 0, 0, 0][..], &[0; 24]].concat());
    seeds
}

/// Returns the bytes of a golden file: a dump in the format of `hexdump -C`, except that `*` stands
/// for zeroes.
fn unhex(text: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    let number = |word: &str| u64::from_str_radix(word, 16).unwrap_or(0) as usize;
    for line in text.lines().filter(|line| *line != "*") {
        let mut words = line.split("  |").next().unwrap_or(line).split_whitespace();
        let offset = words.next().map_or(0, number);
        bytes.resize(offset, 0);
        bytes.extend(words.map(|word| number(word) as u8));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_bytes_come_out_of_their_dumps() {
        assert!(Superblock::decode(&unhex(SUPERBLOCK)).is_ok());
        assert!(Checkpoint::decode(&unhex(CHECKPOINT)).is_ok());
        for first in [CHECKPOINT, BASE] {
            let chain = [unhex(first), unhex(INCREMENT)].concat();
            let mut reader = ChainReader::begin(&chain).unwrap();
            assert!(reader.next(&chain[reader.start() as usize * BLOCK_BYTES..]).is_ok());
            assert!(superblock_of(&reader, None).is_some());
        }
    }
}
