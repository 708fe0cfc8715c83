//! The bytes themselves, pinned: each example of `samples` encodes to exactly the bytes of its file
//! in `golden/`, and those bytes decode to the example. The files are hex dumps, so that reviews
//! can read changes of the format.
//!
//! A failing test here means that caches written by released versions now read differently. If the
//! format change is intended, raise `VERSION`, document it in `docs/internals/on-disk-format.md`,
//! keep the old files under a name with their version, and write the new ones with `FOREBAY_BLESS=1
//! cargo test -p forebay-format --test it golden`.

use crate::samples;
use forebay_format::batch::BatchHeader;
use forebay_format::checkpoint::Checkpoint;
use forebay_format::checkpoint::increment::{ChainReader, Increment};
use forebay_format::member::MemberHeader;
use forebay_format::superblock::{Superblock, being_made};
use forebay_format::{BLOCK_BYTES, FormatError, SettingsCopy, WindowExtension, summary};
use std::fmt::Write as _;
use std::path::PathBuf;

#[test]
fn superblock_of_a_mirrored_cache_bytes() {
    let golden = golden("superblock-mirrored", &samples::mirrored_superblock().encode());
    assert_eq!(Superblock::decode(&golden), Ok(samples::mirrored_superblock()));
}

#[test]
fn superblock_of_a_failed_cache_bytes() {
    let golden = golden("superblock-failed", &samples::superblock().failed().encode());
    assert_eq!(Superblock::decode(&golden), Ok(samples::superblock().failed()));
}

#[test]
fn bytes_of_a_cache_that_is_being_made() {
    let golden = golden("being-made", &being_made());
    assert!(matches!(Superblock::decode(&golden), Err(FormatError::Magic { .. })));
}

#[test]
fn superblock_of_an_encrypted_cache_bytes() {
    let golden = golden("superblock-encrypted", &samples::encrypted_superblock().encode());
    assert_eq!(Superblock::decode(&golden), Ok(samples::encrypted_superblock()));
}

#[test]
fn superblock_bytes() {
    let golden = golden("superblock", &samples::superblock().encode());
    assert_eq!(Superblock::decode(&golden), Ok(samples::superblock()));
}

#[test]
fn member_header_bytes() {
    let golden = golden("member", &samples::member().encode());
    assert_eq!(MemberHeader::decode(&golden), Ok(samples::member()));
}

#[test]
fn window_extension_bytes() {
    let golden = golden("extension", &samples::extension().encode());
    assert_eq!(WindowExtension::decode(&golden), Ok(samples::extension()));
}

#[test]
fn settings_copy_bytes() {
    let golden = golden("settings", &samples::settings().encode());
    assert_eq!(SettingsCopy::decode(&golden), Ok(samples::settings()));
}

#[test]
fn records_batch_bytes() {
    let (header, entries) = samples::records();
    let golden = golden("batch-records", &samples::header_block(&header, &entries));
    let mut decoded = Vec::new();
    assert_eq!(BatchHeader::decode(&golden, &mut decoded), Ok(header));
    assert_eq!(decoded, entries);
}

#[test]
fn summary_batch_bytes() {
    let (header, entries, payload) = samples::summary();
    let mut bytes = samples::header_block(&header, &entries);
    bytes.extend_from_slice(&payload);
    let golden = golden("batch-summary", &bytes);
    let mut decoded = Vec::new();
    assert_eq!(BatchHeader::decode(&golden, &mut decoded), Ok(header));
    assert_eq!(decoded, entries);
    let items: Vec<_> = summary::decode(&golden[BLOCK_BYTES..], 5).collect();
    assert_eq!(items, samples::summary_items());
}

#[test]
fn checkpoint_bytes() {
    let golden = golden("checkpoint", &samples::checkpoint().encode());
    assert_eq!(Checkpoint::decode(&golden), Ok(samples::checkpoint()));
}

#[test]
fn superblock_of_a_chain_bytes() {
    let golden = golden("superblock-chain", &samples::chained_superblock().encode());
    assert_eq!(Superblock::decode(&golden), Ok(samples::chained_superblock()));
}

#[test]
fn increment_bytes() {
    let golden = golden("increment", &samples::increment().encode());
    assert_eq!(Increment::decode(&golden), Ok((samples::increment(), (golden.len() / BLOCK_BYTES) as u64)));
    let mut chain = ChainReader::begin(&samples::checkpoint().encode()).unwrap();
    chain.next(&golden).unwrap();
    assert_eq!(chain.finish(), Ok(samples::incremented()));
}

#[test]
fn base_bytes() {
    let golden = golden("base", &samples::base());
    let mut chain = ChainReader::begin(&golden).unwrap();
    chain.next(&samples::increment().encode()).unwrap();
    assert_eq!(chain.finish(), Ok(samples::incremented()));
}

#[test]
fn the_dump_loses_nothing() {
    for len in [0, 1, 15, 16, 17, 4096, 5000] {
        let bytes: Vec<u8> = (0..len).map(|i| if i / 64 % 3 == 0 { i as u8 } else { 0 }).collect();
        assert_eq!(parse(&dump(&bytes)), bytes);
    }
}

/// Compares with the golden file and returns the file's bytes; writes the file instead if
/// `FOREBAY_BLESS` is set.
fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.hex"));
    let found = dump(bytes);
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let expected =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for (line, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, expected, "{name}.hex, line {}: the bytes on disk have changed", line + 1);
    }
    assert_eq!(found, expected, "{name}.hex: the length has changed");
    parse(&expected)
}

/// Sixteen bytes a line after their offset, `*` for lines of zeroes, the length at the end.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut elided = false;
    for (index, line) in bytes.chunks(16).enumerate() {
        if line.iter().all(|byte| *byte == 0) {
            if !elided {
                text.push_str("*\n");
            }
            elided = true;
            continue;
        }
        elided = false;
        write!(text, "{:08x} ", index * 16).unwrap();
        for byte in line {
            write!(text, " {byte:02x}").unwrap();
        }
        let shown = |byte: &u8| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '.' };
        let ascii: String = line.iter().map(shown).collect();
        writeln!(text, "{:pad$}  |{ascii}|", "", pad = (16 - line.len()) * 3).unwrap();
    }
    writeln!(text, "{:08x}", bytes.len()).unwrap();
    text
}

fn parse(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines().filter(|line| *line != "*") {
        let (hex, _ascii) = line.split_once("  |").unwrap_or((line, ""));
        let mut words = hex.split_whitespace();
        let offset = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        bytes.resize(offset, 0);
        bytes.extend(words.map(|word| u8::from_str_radix(word, 16).unwrap()));
    }
    bytes
}
