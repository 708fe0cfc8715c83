//! One hand-made example of each structure, with a different value in every field, shared by the
//! tests.

use forebay_format::batch::{BatchHeader, BatchKind, Entry};
use forebay_format::checkpoint::increment::{BaseEncoder, Increment, SlotChange};
use forebay_format::checkpoint::{
    BackingRecord, Checkpoint, Intent, Mode, SegmentEntry, SegmentState, SlotState, SlotStates, VolumeEntry,
};
use forebay_format::member::MemberHeader;
use forebay_format::summary::{self, SummaryItem};
use forebay_format::superblock::{CacheState, Chain, Superblock};
use forebay_format::{
    BLOCK_BYTES, CacheUuid, Encryption, Geometry, Members, MirrorMark, SettingsCopy, Slot, StreamKind,
    VolumeId, WindowExtension,
};

pub(crate) const UUID: CacheUuid = CacheUuid([
    0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0x0f, 0x1e, 0x2d, 0x3c, 0x4b, 0x5a, 0x69, 0x78,
]);

pub(crate) fn superblock() -> Superblock {
    Superblock {
        uuid: UUID,
        generation: 0x0102_0304_0506_0708,
        epoch: 9,
        checkpoint_generation: 10,
        chain: None,
        state: CacheState::Open,
        geometry: Geometry::for_device(64 << 20, None).unwrap(),
        members: Members::new(&[0x1112_1314_1516_1718, 0x2122_2324_2526_2728]).unwrap(),
        mirror: None,
        encryption: None,
        shard_index: 1,
        shard_count: 2,
        created_unix_s: 1_793_226_645,
        written_by: "forebay 0.1.0".into(),
    }
}

pub(crate) fn mirrored_superblock() -> Superblock {
    let tags = [0x3132_3334_3536_3738, 0x4142_4344_4546_4748];
    Superblock {
        geometry: Geometry::mirrored(32 << 20, None).unwrap(),
        members: Members::default(),
        mirror: Some(MirrorMark { member: 1, out: Some(0), tags }),
        ..superblock()
    }
}

pub(crate) fn encrypted_superblock() -> Superblock {
    let key_check = core::array::from_fn(|index| 0x51 + index as u8);
    Superblock { encryption: Some(Encryption { key_check }), ..superblock() }
}

/// A superblock with a chain; also mirrored and encrypted, each of which alone implies an older
/// version.
pub(crate) fn chained_superblock() -> Superblock {
    Superblock {
        chain: Some(Chain { base: 7, blocks: 0x0102 }),
        encryption: encrypted_superblock().encryption,
        ..mirrored_superblock()
    }
}

pub(crate) fn member() -> MemberHeader {
    MemberHeader {
        uuid: UUID,
        index: 2,
        tag: 0x2122_2324_2526_2728,
        first_block: 0x0031_3233,
        blocks: 0x0041_4200,
    }
}

pub(crate) fn extension() -> WindowExtension {
    WindowExtension {
        uuid: UUID,
        checkpoint_generation: 0x0102_0304,
        epoch: 0x1112,
        number: 3,
        segments: vec![5, 0x2122_2324, 7],
    }
}

pub(crate) fn settings() -> SettingsCopy {
    SettingsCopy {
        uuid: UUID,
        generation: 0x0102_0304,
        exported_unix_s: 1_700_000_000,
        host: "old".into(),
        written_by: "forebay 0.1.0".into(),
        mac: std::array::from_fn(|index| 0x80 + index as u8),
        text: "[pool.fast]\ndevices = [\"/dev/nvme0n1\"]\n\n[volume.db]\npool = \"fast\"\nbacking = \"/dev/sdb\"\nexports = [\"ublk:\"]\n".into(),
    }
}

pub(crate) fn records() -> (BatchHeader, Vec<Entry>) {
    let header = BatchHeader {
        kind: BatchKind::Records,
        stream: StreamKind::Write,
        uuid_tag: UUID.tag(),
        epoch: 9,
        sequence: 1000,
        stream_sequence: 900,
        flushed_stream_sequence: 890,
        segment: 7,
        block_in_segment: 33,
        payload_blocks: 2,
    };
    let data = |block, crc32c, sector_mask, dirty| Entry::Data {
        volume: VolumeId(3),
        block,
        crc32c,
        sector_mask,
        dirty,
        flush_epoch: if dirty { 0x0102_0304 } else { 0 },
    };
    let entries = vec![
        data(0xab_cdef_0123, 0xdead_beef, 0xff, true),
        Entry::CleanMark { slot: Slot(0x1234_5678), count: 12 },
        data(5, 0x0bad_cafe, 0b0001_0010, false),
        Entry::DropMark { slot: Slot(77), count: 1 },
        Entry::Intent { volume: VolumeId(3), region: 40, count: 2 },
    ];
    (header, entries)
}

pub(crate) fn summary_items() -> Vec<Option<SummaryItem>> {
    let item = |block, sector_mask, crc32c| {
        let flush_epoch = if sector_mask == 1 { 0x0102_0304 } else { 0 };
        Some(SummaryItem { volume: VolumeId(63), block, sector_mask, crc32c, flush_epoch })
    };
    vec![None, item(0xab_cdef_0123, 0xff, 0xdead_beef), item(6, 1, 0), None, item(7, 0x80, 1)]
}

pub(crate) fn summary() -> (BatchHeader, Vec<Entry>, Vec<u8>) {
    let payload = summary::encode(summary_items().into_iter());
    let header = BatchHeader {
        kind: BatchKind::Summary,
        stream: StreamKind::Survivor,
        stream_sequence: 901,
        flushed_stream_sequence: 901,
        block_in_segment: 5,
        payload_blocks: (payload.len() / BLOCK_BYTES) as u16,
        ..records().0
    };
    let entries = vec![Entry::Summary { slots: 5, crc32c: crc32c::crc32c(&payload) }];
    (header, entries, payload)
}

/// The states of the first slots of a segment of 16 blocks; the others are void.
fn slots(first: &[SlotState]) -> SlotStates {
    let mut slots = first.to_vec();
    slots.resize(16, SlotState::Void);
    slots.into_iter().collect()
}

pub(crate) fn checkpoint() -> Checkpoint {
    use SlotState::{Clean, Dirty, Shadow, Void};
    let sealed = SegmentEntry {
        state: SegmentState::Sealed,
        stream: 0,
        first_stream_sequence: 880,
        first_sequence: 970,
        used_blocks: 16,
        summary_block: 14,
        slots: slots(&[Void, Dirty, Clean, Clean, Dirty, Shadow]),
    };
    let open = SegmentEntry {
        state: SegmentState::Open,
        stream: 1,
        first_stream_sequence: 58,
        first_sequence: 995,
        used_blocks: 4,
        summary_block: 0,
        slots: slots(&[Void, Clean, Clean]),
    };
    Checkpoint {
        uuid: UUID,
        generation: 10,
        epoch: 9,
        next_sequence: 1000,
        next_stream_sequence: [900, 60, 40],
        segment_blocks: 16,
        volumes: vec![
            VolumeEntry {
                id: VolumeId(3),
                mode: Mode::Writearound,
                name: "grüner see".into(),
                size_bytes: 1 << 30,
                uuid: [0xaa; 16],
                flush_epoch: 0x1_0102_0305,
                backing: BackingRecord {
                    kind: 1,
                    size_bytes: (1 << 30) + 512,
                    unique: [0x11, 0x2222],
                    stamp_ns: Some(1_793_226_645_123_456_789),
                    samples: vec![(0, 0x1111_1111), (262_143, 0x2222_2222)],
                },
            },
            VolumeEntry { id: VolumeId(4), name: "in use".into(), size_bytes: 512, ..VolumeEntry::default() },
        ],
        segments: vec![sealed, SegmentEntry::default(), open, SegmentEntry::default()],
        window: vec![3, 1],
        intents: vec![
            Intent { volume: VolumeId(3), region: 0, count: 1 },
            Intent { volume: VolumeId(3), region: 9, count: 7 },
        ],
    }
}

/// Follows [`checkpoint`] and [`base`]: segment 0 has become free, and 1 is open.
pub(crate) fn increment() -> Increment {
    let change = |slot, count, state| SlotChange { slot, count, state };
    let open = SegmentEntry {
        state: SegmentState::Open,
        stream: 2,
        first_stream_sequence: 41,
        first_sequence: 1001,
        used_blocks: 3,
        summary_block: 0,
        slots: SlotStates::default(),
    };
    Increment {
        follows: 10,
        rest: Checkpoint {
            generation: 13,
            next_sequence: 1010,
            next_stream_sequence: [905, 60, 42],
            volumes: checkpoint().volumes[1..].to_vec(),
            segments: Vec::new(),
            window: vec![3, 0],
            intents: vec![Intent { volume: VolumeId(4), region: 2, count: 3 }],
            ..checkpoint()
        },
        segments: vec![(0, SegmentEntry::default()), (1, open)],
        changes: vec![
            change(17, 2, SlotState::Dirty),
            change(0, 16, SlotState::Void),
            change(33, 1, SlotState::Shadow),
            change(18, 1, SlotState::Clean),
        ],
    }
}

/// A base begun while [`checkpoint`] was in effect. It has some of the changes of [`increment`]:
/// segment 0 is free, and segment 2 has a shadow.
pub(crate) fn base() -> Vec<u8> {
    let rest =
        Checkpoint { uuid: UUID, generation: 11, epoch: 9, segment_blocks: 16, ..Checkpoint::default() };
    let mut segments = checkpoint().segments;
    segments[0] = SegmentEntry::default();
    let mut encoder = BaseEncoder::new(rest, 10, 4);
    let mut body = Vec::new();
    for entry in &segments {
        encoder.entry(entry, &mut body);
    }
    let states = slots(&[SlotState::Void, SlotState::Shadow, SlotState::Clean]);
    encoder.table(|to| to.extend_from_slice(states.packed()), &mut body);
    let mut bytes = encoder.header();
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes
}

/// The result of applying [`increment`] to [`checkpoint`].
pub(crate) fn incremented() -> Checkpoint {
    use SlotState::{Clean, Dirty, Shadow, Void};
    let increment = increment();
    let mut segments = checkpoint().segments;
    segments[0] = SegmentEntry::default();
    segments[1] = SegmentEntry { slots: slots(&[Void, Dirty, Clean]), ..increment.segments[1].1.clone() };
    segments[2].slots = slots(&[Void, Shadow, Clean]);
    Checkpoint { segments, ..increment.rest }
}

/// Header block of a batch.
pub(crate) fn header_block(header: &BatchHeader, entries: &[Entry]) -> Vec<u8> {
    let mut block = vec![0xee; BLOCK_BYTES];
    header.encode(entries, &mut block);
    block
}
