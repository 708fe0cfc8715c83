//! Damaged, truncated, misdirected and too new bytes are refused, with the right error.

use crate::samples;
use forebay_format::batch::{self, BatchHeader};
use forebay_format::checkpoint::increment::{
    BaseEncoder, CHANGE_SLOTS_MAX, ChainReader, Increment, SlotChange, base_blocks,
};
use forebay_format::checkpoint::{self, Checkpoint, SegmentEntry, SlotState};
use forebay_format::layout::Structure;
use forebay_format::superblock::{self, CacheState, Chain, Superblock};
use forebay_format::{
    BLOCK_BYTES, CacheUuid, FormatError, Geometry, SECTOR_BYTES, SettingsCopy, WindowExtension, structures,
    summary,
};

fn decode_header(bytes: &[u8]) -> Result<BatchHeader, FormatError> {
    BatchHeader::decode(bytes, &mut Vec::new())
}

fn records_block() -> Vec<u8> {
    let (header, entries) = samples::records();
    samples::header_block(&header, &entries)
}

/// Calls `check` with every single-bit error of the first `len` bytes.
fn with_each_bit_flipped(bytes: &[u8], len: usize, check: impl Fn(&[u8], usize)) {
    let mut bytes = bytes.to_vec();
    for bit in 0..len * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        check(&bytes, bit);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn superblock_detects_any_flipped_bit() {
    for superblock in [samples::superblock(), samples::chained_superblock()] {
        with_each_bit_flipped(&superblock.encode(), SECTOR_BYTES, |bytes, bit| {
            assert!(Superblock::decode(bytes).is_err(), "bit {bit}");
        });
    }
}

#[test]
fn batch_header_detects_any_flipped_bit() {
    let (header, entries, _payload) = samples::summary();
    for block in [records_block(), samples::header_block(&header, &entries)] {
        with_each_bit_flipped(&block, BLOCK_BYTES, |bytes, bit| {
            assert!(decode_header(bytes).is_err(), "bit {bit}");
        });
    }
}

#[test]
fn window_extension_detects_any_flipped_bit() {
    with_each_bit_flipped(&samples::extension().encode(), BLOCK_BYTES, |bytes, bit| {
        assert!(WindowExtension::decode(bytes).is_err(), "bit {bit}");
    });
}

#[test]
fn settings_copy_detects_any_flipped_bit() {
    let settings = samples::settings();
    let bytes = settings.encode();
    let end = SECTOR_BYTES + settings.text.len();
    with_each_bit_flipped(&bytes, end, |bytes, bit| {
        assert!(SettingsCopy::decode(bytes).is_err(), "bit {bit}");
    });
    let mut behind = bytes.clone();
    behind[end] = 1;
    assert_eq!(SettingsCopy::decode(&behind), Ok(settings), "what is behind the text does not count");
}

/// A forged settings copy has valid checksums.
#[test]
fn impossible_settings_copies_are_refused() {
    let text_bytes = field("settings copy", "text_bytes").0;
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = samples::settings().encode();
        change(&mut bytes);
        let text = bytes[SECTOR_BYTES..][..samples::settings().text.len()].to_vec();
        let at = field("settings copy", "text_crc32c").0;
        bytes[at..at + 4].copy_from_slice(&forebay_format::checksum(&text).to_le_bytes());
        let mut head = bytes[..SECTOR_BYTES].to_vec();
        head[508..].fill(0);
        bytes[508..512].copy_from_slice(&forebay_format::checksum(&head).to_le_bytes());
        SettingsCopy::decode(&bytes).map_err(|error| error.to_string())
    };
    assert_eq!(sealed(&|_| {}), Ok(samples::settings()));
    let too_long =
        sealed(&|bytes| bytes[text_bytes..text_bytes + 4].copy_from_slice(&28_161_u32.to_le_bytes()));
    assert!(too_long.unwrap_err().contains("`text_bytes` holds 28161"));
    let endless = sealed(&|bytes| bytes[text_bytes..text_bytes + 4].fill(0xff));
    assert!(endless.unwrap_err().contains("`text_bytes` holds 4294967295"));
    assert!(sealed(&|bytes| bytes[SECTOR_BYTES + 3] = 0xff).unwrap_err().contains("no UTF-8 here"));
    assert!(sealed(&|bytes| bytes[8] = 2).unwrap_err().contains("format version 2"));
    assert!(sealed(&|bytes| bytes[200] = 2).unwrap_err().contains("`reserved`"));
    let bytes = samples::settings().encode();
    for len in [0, 511, SECTOR_BYTES, SECTOR_BYTES + samples::settings().text.len() - 1] {
        let error = SettingsCopy::decode(&bytes[..len]).unwrap_err();
        assert!(matches!(error, FormatError::TooShort { .. }), "{len}: {error}");
    }
}

#[test]
fn settings_copy_must_match_its_superblock() {
    let superblock = Superblock { state: CacheState::Clean, ..samples::superblock() };
    let copy =
        SettingsCopy { uuid: superblock.uuid, generation: superblock.generation, ..samples::settings() };
    assert!(copy.is_current(&superblock));
    assert!(!copy.is_current(&Superblock { state: CacheState::Open, ..superblock.clone() }));
    assert!(!copy.is_current(&Superblock { generation: superblock.generation + 1, ..superblock.clone() }));
    assert!(!copy.is_current(&Superblock { uuid: CacheUuid([1; 16]), ..superblock }));
    let none = FormatError::Magic { structure: "settings copy" };
    let newer = SettingsCopy { generation: copy.generation + 1, ..copy.clone() };
    let torn = FormatError::Checksum { structure: "settings copy", found: 1, computed: 2 };
    let version = FormatError::Version { structure: "settings copy", found: 2, supported: 1 };
    let choose = |a: &Result<_, _>, b: &Result<_, _>| {
        let (one, other) =
            (SettingsCopy::choose([a.clone(), b.clone()]), SettingsCopy::choose([b.clone(), a.clone()]));
        assert_eq!(one, other);
        one
    };
    assert_eq!(choose(&Ok(copy.clone()), &Ok(newer.clone())), Ok(newer), "an export was interrupted");
    assert_eq!(choose(&Ok(copy.clone()), &Err(torn.clone())), Ok(copy.clone()));
    assert_eq!(choose(&Err(none.clone()), &Err(torn.clone())), Err(torn));
    assert_eq!(choose(&Err(none.clone()), &Err(none.clone())), Err(none));
    assert_eq!(
        choose(&Ok(copy), &Err(version.clone())),
        Err(version),
        "its writer may have changed anything"
    );
}

#[test]
fn checkpoint_detects_any_flipped_bit() {
    let bytes = samples::checkpoint().encode();
    let field = field("checkpoint header", "body_bytes");
    let end = BLOCK_BYTES + u64::from_le_bytes(bytes[field.0..field.0 + 8].try_into().unwrap()) as usize;
    assert!(end > BLOCK_BYTES && end < bytes.len(), "the example has padding");
    with_each_bit_flipped(&bytes, end, |bytes, bit| {
        assert!(Checkpoint::decode(bytes).is_err(), "bit {bit}");
    });
    let mut padding = bytes.clone();
    padding[end] = 1;
    assert_eq!(Checkpoint::decode(&padding), Ok(samples::checkpoint()), "padding does not count");
}

/// Bytes of header and body; padding follows.
fn body_end(bytes: &[u8]) -> usize {
    let (at, len) = field("checkpoint header", "body_bytes");
    BLOCK_BYTES + u64::from_le_bytes(bytes[at..at + len].try_into().unwrap()) as usize
}

#[test]
fn increment_and_base_detect_flipped_bits() {
    let increment = samples::increment().encode();
    with_each_bit_flipped(&increment, body_end(&increment), |bytes, bit| {
        assert!(Increment::decode(bytes).is_err(), "bit {bit}");
    });
    let base = samples::base();
    with_each_bit_flipped(&base, body_end(&base), |bytes, bit| {
        assert!(ChainReader::begin(bytes).is_err(), "bit {bit}");
    });
}

#[test]
fn truncated_increment_or_base_is_refused() {
    let increment = samples::increment().encode();
    for len in 0..body_end(&increment) {
        let found = Increment::decode(&increment[..len]);
        assert!(matches!(found, Err(FormatError::TooShort { .. })), "{len}");
    }
    assert!(Increment::decode(&increment[..body_end(&increment)]).is_ok());
    let base = samples::base();
    assert!((0..body_end(&base)).all(|len| ChainReader::begin(&base[..len]).is_err()));
    assert!(ChainReader::begin(&base[..body_end(&base)]).is_ok());
}

#[test]
fn unconnected_increment_changes_nothing() {
    let refused = |change: &dyn Fn(&mut Increment), why: &str| {
        for begin in [samples::checkpoint().encode(), samples::base()] {
            let mut chain = ChainReader::begin(&begin).unwrap();
            let mut increment = samples::increment();
            change(&mut increment);
            let before = chain.state().clone();
            let error = chain.next(&increment.encode()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            assert_eq!(*chain.state(), before);
            chain.next(&samples::increment().encode()).unwrap();
            assert_eq!(chain.finish(), Ok(samples::incremented()));
        }
    };
    refused(&|i| i.follows = 9, "`follows_generation` says 0x9 where 0xa");
    refused(&|i| i.follows = 11, "`follows_generation`");
    refused(&|i| i.rest.uuid.0[0] ^= 1, "`uuid`");
    refused(&|i| i.rest.uuid.0[15] ^= 1, "`uuid`");
    refused(&|i| i.rest.segment_blocks = 32, "`segment_blocks`");
    refused(&|i| i.rest.generation = 10, "`generation` holds 10");
    refused(&|i| i.segments[0].0 = 4, "`segment` holds 4");
    refused(&|i| i.segments[1].0 = u32::MAX, "`segment`");
    refused(
        &|i| i.changes[3] = SlotChange { slot: 63, count: 2, state: SlotState::Dirty },
        "`slot` holds 63",
    );
    refused(&|i| i.changes[0].slot = u32::MAX, "`slot`");
}

#[test]
fn number_before_a_base_is_not_in_its_chain() {
    let mut increment = samples::increment();
    increment.rest.generation = 11;
    assert!(ChainReader::begin(&samples::checkpoint().encode()).unwrap().next(&increment.encode()).is_ok());
    assert!(ChainReader::begin(&samples::base()).unwrap().next(&increment.encode()).is_err());
}

#[test]
fn a_base_alone_means_nothing() {
    let magic = FormatError::Magic { structure: "checkpoint increment" };
    assert_eq!(ChainReader::begin(&samples::base()).unwrap().finish(), Err(magic));
    let magic = Err(FormatError::Magic { structure: "checkpoint header" });
    assert_eq!(Checkpoint::decode(&samples::base()), magic);
    assert_eq!(Checkpoint::decode(&samples::increment().encode()), magic);
    assert_eq!(ChainReader::begin(&samples::increment().encode()).map(drop), magic.map(drop));
}

/// Slots of a change past 2^32 do not wrap around to the first slots.
#[test]
fn slot_numbers_do_not_wrap_around() {
    let segments = (1 << 20) + 1;
    let rest = Checkpoint { generation: 2, segment_blocks: 4096, ..Checkpoint::default() };
    let mut encoder = BaseEncoder::new(rest.clone(), 1, segments);
    let mut body = Vec::new();
    for _ in 0..segments {
        encoder.entry(&SegmentEntry::default(), &mut body);
    }
    let mut chain = ChainReader::begin(&[encoder.header(), body].concat()).unwrap();
    let change = SlotChange { slot: u32::MAX, count: 4096, state: SlotState::Dirty };
    let rest = Checkpoint { generation: 3, ..rest };
    let increment = Increment { follows: 1, rest, changes: vec![change], ..Increment::default() };
    assert_eq!(chain.next(&increment.encode()), Ok(2));
    assert_eq!(chain.finish().unwrap().segments[0], SegmentEntry::default());
}

#[test]
fn out_of_range_increment_is_not_encoded() {
    let refused = |change: &dyn Fn(&mut Increment)| {
        let mut increment = samples::increment();
        change(&mut increment);
        std::panic::catch_unwind(|| increment.encode()).expect_err("not even written");
    };
    refused(&|i| i.changes[1].count = 0);
    refused(&|i| i.changes[1].count = CHANGE_SLOTS_MAX + 1);
    refused(&|i| i.segments[1].1.used_blocks = 17);
    refused(&|i| i.rest.intents[0].count = 0);
    let mut longest = samples::increment();
    longest.changes[1].count = CHANGE_SLOTS_MAX;
    assert_eq!(Increment::decode(&longest.encode()), Ok((longest, 2)));
}

/// A superblock for the samples, with a slot of 500 blocks.
fn superblock_of(chain: Option<Chain>, checkpoint_generation: u64) -> Superblock {
    let geometry = Geometry {
        segment_blocks: 16,
        segment_count: 4,
        checkpoint_slot_blocks: 500,
        ..samples::superblock().geometry
    };
    Superblock { chain, checkpoint_generation, geometry, ..samples::superblock() }
}

/// The first part of a chain, and the increment at this block.
fn chain_bytes(first: Vec<u8>, start: u64) -> Vec<u8> {
    let mut bytes = first;
    bytes.resize(start as usize * BLOCK_BYTES, 0xee);
    bytes.extend(samples::increment().encode());
    bytes
}

#[test]
fn superblock_reads_exactly_its_named_chain() {
    let whole = samples::checkpoint().encode();
    let of_whole = chain_bytes(whole.clone(), (whole.len() / BLOCK_BYTES) as u64);
    let of_base = chain_bytes(samples::base(), base_blocks(4, 16));
    let chain = |base, blocks| Some(Chain { base, blocks });
    for (superblock, bytes, expected) in [
        (superblock_of(None, 10), &of_whole, samples::checkpoint()),
        (superblock_of(chain(10, 2), 13), &of_whole, samples::incremented()),
        (superblock_of(chain(11, 2), 13), &of_base, samples::incremented()),
    ] {
        assert_eq!(superblock.read_checkpoint(bytes), Ok(expected));
        let (offset, len) = superblock.checkpoint_place(1);
        assert_eq!(offset, superblock.geometry.checkpoint_offset(superblock.image_generation(), 1));
        assert!(len >= bytes.len() as u64 || superblock.chain.is_none());
    }
    let mut other = superblock_of(chain(10, 2), 13);
    other.geometry.segment_count = 5;
    let mut stranger = superblock_of(chain(10, 2), 13);
    stranger.uuid.0[0] ^= 1;
    for (superblock, bytes) in [
        (superblock_of(None, 11), &of_whole),
        (superblock_of(None, 11), &of_base),
        (superblock_of(chain(10, 2), 14), &of_whole),
        (superblock_of(chain(10, 1), 13), &of_whole),
        (superblock_of(chain(10, 3), 13), &of_whole),
        (superblock_of(chain(11, 2), 13), &of_whole),
        (other, &of_whole),
        (stranger, &of_whole),
    ] {
        assert!(superblock.read_checkpoint(bytes).is_err(), "{superblock:?}");
    }
    let chained = superblock_of(chain(10, 2), 13);
    for len in (0..of_whole.len() - BLOCK_BYTES).step_by(1111) {
        assert!(chained.read_checkpoint(&of_whole[..len]).is_err(), "{len}");
    }
}

#[test]
fn contradictory_chain_fields_are_refused() {
    let chained = Superblock { chain: Some(Chain { base: 7, blocks: 2 }), ..samples::superblock() };
    assert_eq!(Superblock::decode(&chained.encode()), Ok(chained.clone()));
    let refused = |block: Vec<u8>, name: &str, value| {
        let changed = with_field(block, "superblock", name, value);
        assert!(Superblock::decode(&changed).is_err(), "{name} {value}");
    };
    for (name, value) in [
        ("base_generation", 0),
        ("base_generation", 10),
        ("base_generation", u64::MAX),
        ("increment_blocks", 0),
        ("version", 1),
        ("version", 2),
        ("version", 3),
        ("encryption", 2),
        ("mirror", 3),
    ] {
        refused(chained.encode(), name, value);
        refused(samples::chained_superblock().encode(), name, value);
    }
    for (name, value) in [("base_generation", 7), ("increment_blocks", 2), ("version", 4)] {
        refused(samples::superblock().encode(), name, value);
        refused(samples::mirrored_superblock().encode(), name, value);
        refused(samples::encrypted_superblock().encode(), name, value);
    }
}

#[test]
fn bytes_cut_off_at_any_length_are_refused() {
    let superblock = samples::superblock().encode();
    for len in 0..SECTOR_BYTES {
        assert!(matches!(Superblock::decode(&superblock[..len]), Err(FormatError::TooShort { .. })), "{len}");
    }
    assert_eq!(Superblock::decode(&superblock[..SECTOR_BYTES]), Ok(samples::superblock()));
    let block = records_block();
    for len in 0..BLOCK_BYTES {
        assert!(matches!(decode_header(&block[..len]), Err(FormatError::TooShort { .. })), "{len}");
    }
    let bytes = samples::checkpoint().encode();
    let whole = (0..bytes.len()).find(|len| Checkpoint::decode(&bytes[..*len]).is_ok()).unwrap();
    for len in 0..whole {
        assert!(matches!(Checkpoint::decode(&bytes[..len]), Err(FormatError::TooShort { .. })), "{len}");
    }
}

#[test]
fn truncated_summary_yields_whole_items() {
    let payload = summary::encode(samples::summary_items().into_iter());
    for len in 0..=summary::ITEM_BYTES * 5 {
        let items: Vec<_> = summary::decode(&payload[..len], 5).collect();
        assert_eq!(items, samples::summary_items()[..len / summary::ITEM_BYTES]);
    }
    assert!(summary::decode(&payload, u32::MAX).count() <= BLOCK_BYTES / summary::ITEM_BYTES);
}

#[test]
fn contradictory_mirror_fields_are_refused() {
    let refused = |block: Vec<u8>, name: &str, value| {
        let changed = with_field(block, "superblock", name, value);
        assert!(Superblock::decode(&changed).is_err(), "{name} {value}");
    };
    for (name, value) in [("mirror", 0), ("mirror", 3), ("mirror_out", 3), ("mirror_out", 2), ("version", 1)]
    {
        refused(samples::mirrored_superblock().encode(), name, value);
    }
    for (name, value) in [("mirror", 1), ("mirror_out", 1), ("version", 2)] {
        refused(samples::superblock().encode(), name, value);
    }
}

#[test]
fn contradictory_encryption_is_refused() {
    let refused = |block: Vec<u8>, name: &str, value| {
        let changed = with_field(block, "superblock", name, value);
        assert!(Superblock::decode(&changed).is_err(), "{name} {value}");
    };
    for (name, value) in [("encryption", 0), ("encryption", 2), ("version", 1), ("version", 2), ("mirror", 1)]
    {
        refused(samples::encrypted_superblock().encode(), name, value);
    }
    for (name, value) in [("encryption", 1), ("version", 3)] {
        refused(samples::superblock().encode(), name, value);
        refused(samples::mirrored_superblock().encode(), name, value);
    }
    let both = Superblock {
        encryption: samples::encrypted_superblock().encryption,
        ..samples::mirrored_superblock()
    };
    assert_eq!(Superblock::decode(&both.encode()), Ok(both));
}

#[test]
fn a_newer_version_is_refused_by_name() {
    let message = |error: FormatError| error.to_string();
    let superblock = with_field(samples::superblock().encode(), "superblock", "version", 5);
    let checkpoint = with_field(samples::checkpoint().encode(), "checkpoint header", "version", 2);
    let increment = with_field(samples::increment().encode(), "checkpoint header", "version", 2);
    let base = with_field(samples::base(), "checkpoint header", "version", 2);
    let header = with_field(records_block(), "batch header", "version", 2);
    for (name, found, message) in [
        ("superblock", 5, message(Superblock::decode(&superblock).unwrap_err())),
        ("checkpoint header", 2, message(Checkpoint::decode(&checkpoint).unwrap_err())),
        ("checkpoint increment", 2, message(Increment::decode(&increment).unwrap_err())),
        ("checkpoint base", 2, message(ChainReader::begin(&base).unwrap_err())),
        ("batch header", 2, message(decode_header(&header).unwrap_err())),
    ] {
        let known = found - 1;
        assert_eq!(
            message,
            format!(
                "{name}: format version {found}, but this forebay reads up to version {known}: \
                 use a newer forebay, or make a new cache"
            )
        );
    }
}

#[test]
fn version_zero_is_not_called_newer() {
    let superblock = with_field(samples::superblock().encode(), "superblock", "version", 0);
    let expected = FormatError::Field { structure: "superblock", field: "version", value: 0 };
    assert_eq!(Superblock::decode(&superblock), Err(expected));
}

#[test]
fn another_magic_is_not_called_damage() {
    for structure in ["superblock", "checkpoint header", "batch header"] {
        let expected = Err(FormatError::Magic { structure });
        let mut bytes = vec![0; 2 * BLOCK_BYTES];
        for fill in [0, 0xff] {
            bytes.fill(fill);
            let found = match structure {
                "superblock" => Superblock::decode(&bytes).map(drop),
                "checkpoint header" => Checkpoint::decode(&bytes).map(drop),
                _ => decode_header(&bytes).map(drop),
            };
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_misplaced_batch_is_refused() {
    let (header, _) = samples::records();
    assert_eq!(header.check_place(samples::UUID, 7, 33), Ok(()));
    let misplaced = |field, expected, found| {
        Err(FormatError::Misplaced { structure: "batch header", field, expected, found })
    };
    let other = CacheUuid([1; 16]);
    assert_eq!(header.check_place(other, 7, 33), misplaced("uuid_tag", other.tag(), samples::UUID.tag()));
    assert_eq!(header.check_place(samples::UUID, 8, 33), misplaced("segment", 8, 7));
    assert_eq!(header.check_place(samples::UUID, 7, 34), misplaced("block_in_segment", 34, 33));
}

/// Sealed with a valid checksum, but with values that no writer of this version produces: a hostile
/// or future device.
#[test]
fn unwritable_values_are_refused() {
    for (field, value) in [("state", 4), ("reserved", 1), ("shard_index", 2)] {
        let block = with_field(samples::superblock().encode(), "superblock", field, value);
        assert_eq!(Superblock::decode(&block).map(drop), bad("superblock", field, value));
    }
    for (field, value) in [
        ("kind", 3),
        ("stream", 3),
        ("entry_count", batch::ENTRIES_MAX as u64 + 1),
        ("payload_blocks", 1),
        ("flushed_stream_sequence", 901),
        ("block_in_segment", 16382),
    ] {
        let block = with_field(records_block(), "batch header", field, value);
        assert_eq!(decode_header(&block).map(drop), bad("batch header", field, value));
    }
    let forgotten = with_field(records_block(), "batch header", "entry_count", 4);
    assert!(matches!(decode_header(&forgotten), Err(FormatError::Field { field: "entries", .. })));
    for (field, value) in [
        ("volume_count", 65),
        ("window_count", 5),
        ("intent_count", 4097),
        ("segment_blocks", 16385),
        ("body_bytes", 1),
        ("reserved", 1),
        ("volume_count", 0xffff_ffff),
        ("segment_count", 0xffff_ffff),
    ] {
        let bytes = with_field(samples::checkpoint().encode(), "checkpoint header", field, value);
        assert!(Checkpoint::decode(&bytes).is_err(), "{field} = {value}");
    }
    for (field, value) in [("change_count", 1), ("follows_generation", 9)] {
        let bytes = with_field(samples::checkpoint().encode(), "checkpoint header", field, value);
        assert_eq!(Checkpoint::decode(&bytes).map(drop), bad("checkpoint header", field, value));
    }
    for (field, value) in [("change_count", 1), ("follows_generation", 11), ("generation", 10)] {
        let bytes = with_field(samples::base(), "checkpoint header", field, value);
        assert!(ChainReader::begin(&bytes).is_err(), "{field} = {value}");
    }
    for (field, value) in [
        ("change_count", 3),
        ("change_count", 0xffff_ffff),
        ("segment_count", 1),
        ("segment_count", 0xffff_ffff),
        ("segment_blocks", 16385),
        ("body_bytes", u64::MAX),
    ] {
        let bytes = with_field(samples::increment().encode(), "checkpoint header", field, value);
        assert!(Increment::decode(&bytes).is_err(), "{field} = {value}");
    }
}

#[test]
fn unwritable_entries_are_refused() {
    // (entry of the example, field, value)
    for (index, field, value) in [
        (0, "kind", 0),
        (0, "kind", 6), // a summary among records
        (0, "kind", 7),
        (0, "sector_mask", 0),
        (0, "block", 1 << 40),
        (0, "volume", 64),
        (0, "count", 2),
        (1, "flush_epoch", 1),
        (2, "flush_epoch", 1), // clean data
        (4, "flush_epoch", 1),
        (1, "block", 1 << 32),
        (1, "count", 0),
        (1, "count", 0xffff_ffff),
        (1, "crc32c", 1),
        (1, "volume", 1),
        (3, "sector_mask", 1),
        (4, "block", 1 << 26),
        (4, "count", 0),
        (4, "volume", 64),
        (4, "crc32c", 1),
    ] {
        let (offset, len) = self::field("batch entry", field);
        let at = self::field("batch header", "entries").0 + index * 24 + offset;
        let mut block = records_block();
        block[at..at + len].copy_from_slice(&u64::to_le_bytes(value)[..len]);
        let block = sealed(block, "batch header");
        let mut entries = vec![samples::records().1[0]];
        let found = BatchHeader::decode(&block, &mut entries);
        assert!(
            matches!(found, Err(FormatError::Field { .. })),
            "entry {index}, {field} = {value}: {found:?}"
        );
        assert!(entries.is_empty(), "nothing of a refused batch is handed out");
    }
}

/// The checkpoint's body, which has its own checksum.
#[test]
fn contradictory_checkpoint_is_refused() {
    let refused = |change: &dyn Fn(&mut Checkpoint), structure: &str| {
        let mut checkpoint = samples::checkpoint();
        change(&mut checkpoint);
        let panic = std::panic::catch_unwind(|| checkpoint.encode()).expect_err("not even written");
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains(structure), "{message}");
    };
    refused(&|c| c.window = vec![1, 1], "append window");
    refused(&|c| c.window = vec![0], "append window");
    refused(&|c| c.window = vec![4], "append window");
    refused(&|c| c.volumes[1].id = c.volumes[0].id, "volume entry");
    refused(&|c| c.volumes[1].id.0 = 64, "volume entry");
    refused(&|c| c.volumes[1].size_bytes = 511, "volume entry");
    refused(&|c| c.volumes[1].size_bytes = (1 << 52) + 512, "volume entry");
    refused(&|c| c.segments[0].used_blocks = 17, "segment entry");
    refused(&|c| c.segments[0].summary_block = 16, "segment entry");
    refused(&|c| c.segments[0].stream = 3, "segment entry");
    refused(&|c| c.intents[0].count = 0, "intent");
    refused(&|c| c.intents[0].region = 1 << 26, "intent");
    refused(&|c| c.intents[0].volume.0 = 64, "intent");
    // The same bounds hold for decoding.
    for (offset, value, structure) in [
        (0, 64, "volume entry"),
        (2, 9, "volume entry"),
        (3, 2, "volume entry"),
        (4, 65, "volume entry"),
        (6, 17, "volume entry"),
        (32, 0xff, "volume entry"),
        (100, 1, "volume entry"),
        (511, 1, "volume entry"),
        (1024 + 24, 4, "segment entry"),
        (1024 + 31, 1, "segment entry"),
        (1024 + 4 * 32 + 8, 1, "append window"),
        (1024 + 4 * 32 + 16 + 14, 1, "intent"),
    ] {
        let mut bytes = samples::checkpoint().encode();
        bytes[BLOCK_BYTES + offset] = value;
        let (body_bytes, _) = field("checkpoint header", "body_bytes");
        let len = u64::from_le_bytes(bytes[body_bytes..body_bytes + 8].try_into().unwrap()) as usize;
        let crc = u64::from(crc32c::crc32c(&bytes[BLOCK_BYTES..BLOCK_BYTES + len]));
        let bytes = with_field(bytes, "checkpoint header", "body_crc32c", crc);
        match Checkpoint::decode(&bytes) {
            Err(FormatError::Field { structure: found, .. }) => {
                assert_eq!(found, structure, "body byte {offset}")
            }
            other => panic!("body byte {offset}: {other:?}"),
        }
    }
}

/// A base has no volumes, no window and no intents, and a change has slots.
#[test]
fn unwritable_chain_parts_are_refused() {
    let (at, _) = field("checkpoint header", "magic");
    let volumes = Checkpoint { volumes: samples::checkpoint().volumes, ..Checkpoint::default() };
    let window =
        Checkpoint { segments: vec![SegmentEntry::default()], window: vec![0], ..Checkpoint::default() };
    let intents = Checkpoint { intents: samples::checkpoint().intents, ..Checkpoint::default() };
    for (rest, name) in [(volumes, "volume_count"), (window, "window_count"), (intents, "intent_count")] {
        let mut bytes = Checkpoint { generation: 4, ..rest }.encode();
        bytes[at..at + 8].copy_from_slice(b"FBAYBASE");
        let bytes = with_field(bytes, "checkpoint header", "follows_generation", 3);
        let found = ChainReader::begin(&bytes).map(drop);
        assert!(matches!(found, Err(FormatError::Field { field, .. }) if field == name), "{found:?}");
    }
    let mut bytes = samples::increment().encode();
    let run = BLOCK_BYTES + 512 + 2 * 4 + 2 * 32 + 4;
    assert_eq!(bytes[run], 2 << 2 | 2);
    bytes[run] = 2;
    let crc = u64::from(crc32c::crc32c(&bytes[BLOCK_BYTES..body_end(&bytes)]));
    let bytes = with_field(bytes, "checkpoint header", "body_crc32c", crc);
    assert_eq!(Increment::decode(&bytes).map(drop), bad("slot change", "run", 0));
}

#[test]
fn summary_batch_needs_a_summary_entry() {
    let (header, entries, _payload) = samples::summary();
    for (kind, block) in [(1, samples::header_block(&header, &entries)), (2, records_block())] {
        let block = with_field(block, "batch header", "kind", kind);
        assert_eq!(decode_header(&block).map(drop), bad("batch header", "kind", kind));
    }
}

#[test]
fn newer_intact_superblock_wins() {
    let copy = |generation| Ok(Superblock { generation, ..samples::superblock() });
    let torn = || Err(FormatError::Checksum { structure: "superblock", found: 1, computed: 2 });
    let magic = || Err(FormatError::Magic { structure: "superblock" });
    let newer = || Err(FormatError::Version { structure: "superblock", found: 2, supported: 1 });
    assert_eq!(Superblock::choose([copy(5), copy(6)]), copy(6));
    assert_eq!(Superblock::choose([copy(6), copy(5)]), copy(6));
    assert_eq!(Superblock::choose([torn(), copy(5)]), copy(5));
    assert_eq!(Superblock::choose([copy(5), magic()]), copy(5));
    assert_eq!(Superblock::choose([magic(), torn()]), torn());
    assert_eq!(Superblock::choose([torn(), magic()]), torn());
    assert_eq!(Superblock::choose([copy(5), newer()]), newer());
    assert_eq!(Superblock::choose([newer(), torn()]), newer());
}

#[test]
fn long_names_are_cut_between_characters() {
    let mut superblock = samples::superblock();
    superblock.written_by = "x".to_owned() + &"ü".repeat(20);
    superblock.state = CacheState::Clean;
    let decoded = Superblock::decode(&superblock.encode()).unwrap();
    assert_eq!(decoded.written_by, "x".to_owned() + &"ü".repeat(15));
    let mut checkpoint = samples::checkpoint();
    checkpoint.volumes[0].name = "x".to_owned() + &"ü".repeat(40);
    let decoded = Checkpoint::decode(&checkpoint.encode()).unwrap();
    assert_eq!(decoded.volumes[0].name, "x".to_owned() + &"ü".repeat(31));
}

#[test]
fn bad_geometry_is_refused_with_a_remedy() {
    let geometry = Geometry::for_device(64 << 20, None).unwrap();
    assert_eq!(geometry.validate(64 << 20), Ok(()));
    let why = |geometry: Geometry, bytes: u64| geometry.validate(bytes).unwrap_err().to_string();
    assert!(why(geometry, 32 << 20).contains("restore its full length"));
    assert!(why(Geometry { segment_blocks: 17, ..geometry }, 64 << 20).contains("make a new cache"));
    assert!(why(Geometry { segment_count: u32::MAX, ..geometry }, 64 << 20).contains("make a new cache"));
    assert!(
        why(Geometry { segments_start_block: u64::MAX, ..geometry }, 64 << 20).contains("make a new cache")
    );
    assert!(
        why(Geometry { checkpoint_slot_blocks: u32::MAX, ..geometry }, 64 << 20).contains("make a new cache")
    );
    assert!(why(Geometry { checkpoint_slot_blocks: 1, ..geometry }, 64 << 20).contains("make a new cache"));
    for (tib, mib) in [(1, 4), (2, 8), (4, 16), (15, 64), (16, 64)] {
        let large = Geometry::for_device(tib << 40, None).unwrap();
        assert_eq!(large.segment_bytes() >> 20, mib, "segments of a cache of {tib} TiB, in MiB");
    }
    let small = Geometry::for_device(1 << 20, None).unwrap_err().to_string();
    assert!(small.contains("give the cache a larger SIZE"), "{small}");
}

#[test]
fn size_named_in_the_error_is_enough() {
    for segment_blocks in (4..=12).map(|bits| 1_u32 << bits) {
        let error = Geometry::for_device(0, Some(segment_blocks)).unwrap_err().to_string();
        let bytes: u64 = error.split_whitespace().rev().find_map(|word| word.parse().ok()).unwrap();
        assert!(Geometry::for_device(bytes, Some(segment_blocks)).is_ok(), "{error}");
    }
}

fn bad(structure: &'static str, field: &'static str, value: u64) -> Result<(), FormatError> {
    Err(FormatError::Field { structure, field, value })
}

fn structure(name: &str) -> Structure {
    structures::ALL.into_iter().find(|structure| structure.name == name).unwrap()
}

/// Offset and length of a field.
fn field(in_structure: &str, name: &str) -> (usize, usize) {
    let field = structure(in_structure).fields.iter().find(|field| field.name == name).unwrap();
    (field.offset, field.len)
}

/// The bytes with another value in a field, and a matching checksum.
fn with_field(mut bytes: Vec<u8>, in_structure: &str, name: &str, value: u64) -> Vec<u8> {
    let (offset, len) = field(in_structure, name);
    let len = len.min(8);
    bytes[offset..offset + len].copy_from_slice(&value.to_le_bytes()[..len]);
    sealed(bytes, in_structure)
}

fn sealed(mut bytes: Vec<u8>, in_structure: &str) -> Vec<u8> {
    let (offset, _) = field(in_structure, "crc32c");
    bytes[offset..offset + 4].fill(0);
    let crc = crc32c::crc32c(&bytes[..structure(in_structure).len]);
    bytes[offset..offset + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn the_magic_numbers_differ() {
    assert_ne!(superblock::MAGIC, checkpoint::MAGIC);
    assert_ne!(checkpoint::increment::INCREMENT_MAGIC, checkpoint::MAGIC);
    assert_ne!(checkpoint::increment::BASE_MAGIC, checkpoint::MAGIC);
    assert_ne!(checkpoint::increment::BASE_MAGIC, checkpoint::increment::INCREMENT_MAGIC);
    assert_ne!(batch::MAGIC[..], superblock::MAGIC[..4]);
    assert_ne!(batch::MAGIC[..], checkpoint::MAGIC[..4]);
}

#[test]
fn member_header_detects_any_flipped_bit() {
    let good = samples::member().encode();
    for bit in (0..512).chain(4092 * 8..4096 * 8) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(forebay_format::member::MemberHeader::decode(&bytes).is_err(), "bit {bit}");
    }
}
