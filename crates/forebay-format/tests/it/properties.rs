//! Arbitrary structures survive encoding and decoding; arbitrary bytes never cause a panic, and
//! accepted bytes encode to themselves.

use forebay_format::batch::{BatchHeader, BatchKind, ENTRIES_MAX, Entry};
use forebay_format::checkpoint::increment::{
    BASE_MAGIC, BaseEncoder, CHANGE_SLOTS_MAX, ChainReader, INCREMENT_MAGIC, Increment, SlotChange,
    base_blocks,
};
use forebay_format::checkpoint::{
    self, BackingRecord, Checkpoint, Intent, Mode, NAME_BYTES_MAX, SAMPLES_MAX, SegmentEntry, SegmentState,
    SlotState, SlotStates, VolumeEntry,
};
use forebay_format::geometry::{
    CHECKPOINT_SLOTS, CHECKPOINT_START_BLOCK, INTENTS_MAX, SEGMENTS_MIN, VOLUMES_MAX,
};
use forebay_format::member::MEMBERS_MAX;
use forebay_format::structures;
use forebay_format::summary::{self, SummaryItem};
use forebay_format::superblock::{CacheState, Chain, Superblock};
use forebay_format::{
    BLOCK_BYTES, CacheUuid, Encryption, Geometry, Members, MirrorMark, Slot, StreamKind, VolumeId,
};
use proptest::collection::vec;
use proptest::prelude::*;

prop_compose! {
    fn superblocks()(
        (uuid, generation, epoch, checkpoint_generation, state) in any::<([u8; 16], u64, u64, u64, Option<bool>)>(),
        (device_blocks, segments_start_block) in any::<(u64, u64)>(),
        (segment_blocks, segment_count, checkpoint_slot_blocks) in any::<(u32, u32, u32)>(),
        (shard_index, shard_count) in (1..=u16::MAX).prop_flat_map(|count| (0..count, Just(count))),
        created_unix_s in any::<u64>(),
        tags in vec(1_u64.., 0..MEMBERS_MAX),
        mirror in any::<Option<(bool, bool, u64)>>(),
        key_check in any::<Option<[u8; 16]>>(),
        chain in any::<Option<(u64, u32)>>(),
        written_by in "[ -~]{0,32}",
    ) -> Superblock {
        let geometry =
            Geometry { device_blocks, segment_blocks, segment_count, checkpoint_slot_blocks, segments_start_block };
        let mirror = mirror.map(|(second, out, tag)| MirrorMark {
            member: u8::from(second),
            out: out.then_some(u8::from(!second)),
            tags: [tag | 1, tag.wrapping_add(2) | 1],
        });
        let state = match state {
            None => CacheState::Failed,
            Some(clean) => if clean { CacheState::Clean } else { CacheState::Open },
        };
        Superblock {
            uuid: CacheUuid(uuid), generation, epoch, checkpoint_generation, state, geometry, shard_index,
            chain: chain
                .filter(|_| checkpoint_generation > 1)
                .map(|(base, blocks)| Chain { base: 1 + base % (checkpoint_generation - 1), blocks: blocks.max(1) }),
            members: Members::new(&tags).unwrap(), mirror,
            encryption: key_check.map(|key_check| Encryption { key_check }),
            shard_count, created_unix_s, written_by,
        }
    }
}

fn ranges(end: u64) -> impl Strategy<Value = (u64, u32)> {
    (1..=end.min(u64::from(u32::MAX)) as u32)
        .prop_flat_map(move |count| (0..=end - u64::from(count), Just(count)))
}

fn entries() -> impl Strategy<Value = Entry> {
    prop_oneof![
        (0_u16..64, 0_u64..1 << 40, any::<u32>(), 1_u8.., any::<Option<u32>>()).prop_map(
            |(volume, block, crc32c, sector_mask, dirty)| Entry::Data {
                volume: VolumeId(volume),
                block,
                crc32c,
                sector_mask,
                dirty: dirty.is_some(),
                flush_epoch: dirty.unwrap_or(0),
            }
        ),
        ranges(1 << 32).prop_map(|(slot, count)| Entry::CleanMark { slot: Slot(slot as u32), count }),
        ranges(1 << 32).prop_map(|(slot, count)| Entry::DropMark { slot: Slot(slot as u32), count }),
        (0_u16..64, ranges(1 << 26)).prop_map(|(volume, (region, count))| Entry::Intent {
            volume: VolumeId(volume),
            region,
            count
        }),
    ]
}

prop_compose! {
    fn batches()(
        entries in prop_oneof![
            4 => vec(entries(), 0..=ENTRIES_MAX),
            1 => (1_u32..=4096, any::<u32>()).prop_map(|(slots, crc32c)| vec![Entry::Summary { slots, crc32c }]),
        ],
        (uuid_tag, epoch, sequence, segment) in any::<(u64, u64, u64, u32)>(),
        (stream_sequence, flushed_stream_sequence) in any::<u64>().prop_flat_map(|s| (Just(s), 0..=s)),
        block_in_segment in 0_u32..4096 - 1 - ENTRIES_MAX as u32,
        stream in 0_u8..3,
    ) -> (BatchHeader, Vec<Entry>) {
        let (kind, payload_blocks) = match entries[..] {
            [Entry::Summary { slots, .. }] => (BatchKind::Summary, summary::payload_blocks(slots) as u16),
            _ => (BatchKind::Records, entries.iter().filter(|entry| entry.has_payload()).count() as u16),
        };
        let stream = StreamKind::from_u8(stream).unwrap();
        let header = BatchHeader {
            kind, stream, uuid_tag, epoch, sequence, stream_sequence, flushed_stream_sequence, segment,
            block_in_segment, payload_blocks,
        };
        (header, entries)
    }
}

prop_compose! {
    fn volumes()(
        (uuid, kind, backing_size, unique) in any::<([u8; 16], u32, u64, [u64; 2])>(),
        id in 0_u16..64,
        mode in 0..Mode::ALL.len(),
        name in ".{0,16}",
        sectors in 0_u64..=1 << 43,
        flush_epoch in any::<u64>(),
        stamp_ns in any::<Option<i64>>(),
        samples in vec(any::<(u64, u32)>(), 0..=SAMPLES_MAX),
    ) -> VolumeEntry {
        assert!(name.len() <= NAME_BYTES_MAX);
        let backing = BackingRecord { kind, size_bytes: backing_size, unique, stamp_ns, samples };
        let (id, mode, size_bytes) = (VolumeId(id), Mode::ALL[mode], sectors * 512);
        VolumeEntry { id, mode, name, size_bytes, uuid, flush_epoch, backing }
    }
}

fn segments(segment_blocks: u32) -> impl Strategy<Value = SegmentEntry> {
    let states = prop_oneof![
        Just(SegmentState::Free),
        Just(SegmentState::Open),
        Just(SegmentState::Sealed),
        Just(SegmentState::Twin)
    ];
    let slots = prop_oneof![
        Just(SlotState::Void),
        Just(SlotState::Clean),
        Just(SlotState::Dirty),
        Just(SlotState::Shadow)
    ];
    let slots = vec(slots, segment_blocks as usize);
    (states, 0_u8..3, any::<[u64; 2]>(), 0..=segment_blocks, 0..segment_blocks, slots).prop_map(
        |(state, stream, [first_stream_sequence, first_sequence], used_blocks, summary_block, slots)| {
            SegmentEntry {
                state,
                stream,
                first_stream_sequence,
                first_sequence,
                used_blocks,
                summary_block,
                slots: if state.has_slots() { slots.into_iter().collect() } else { SlotStates::default() },
            }
        },
    )
}

prop_compose! {
    fn checkpoints()(segment_blocks in (4_u32..7).prop_map(|bits| 1 << bits), count in 0_usize..40)(
        (uuid, generation, epoch, next_sequence) in any::<([u8; 16], u64, u64, u64)>(),
        next_stream_sequence in any::<[u64; 3]>(),
        segment_blocks in Just(segment_blocks),
        mut volumes in vec(volumes(), 0..4),
        (count, segments) in (Just(count), vec(segments(segment_blocks), count)),
        window_order in vec(any::<u32>(), count),
        intents in vec((0_u16..64, ranges(1 << 26)), 0..20),
    ) -> Checkpoint {
        volumes.sort_by_key(|volume| volume.id);
        volumes.dedup_by_key(|volume| volume.id);
        let free = |index: &u32| segments[*index as usize].state == SegmentState::Free;
        let mut window: Vec<u32> = (0..count as u32).filter(free).collect();
        window.sort_by_key(|index| window_order[*index as usize]);
        window.truncate(window_order.first().map_or(0, |order| *order as usize % (count + 1)));
        let intents = intents
            .into_iter()
            .map(|(volume, (region, count))| Intent { volume: VolumeId(volume), region, count })
            .collect();
        Checkpoint {
            uuid: CacheUuid(uuid), generation, epoch, next_sequence, next_stream_sequence, segment_blocks,
            volumes, segments, window, intents,
        }
    }
}

fn slot_states() -> impl Strategy<Value = SlotState> {
    (0_u8..4).prop_map(SlotState::from_bits)
}

prop_compose! {
    fn increments()(checkpoint in checkpoints())(
        follows in any::<u64>(),
        numbers in vec(any::<u32>(), checkpoint.segments.len()),
        changes in vec((any::<u32>(), 1..=CHANGE_SLOTS_MAX, slot_states()), 0..300),
        mut rest in Just(checkpoint),
    ) -> Increment {
        let bare = |entry: SegmentEntry| SegmentEntry { slots: SlotStates::default(), ..entry };
        let entries = std::mem::take(&mut rest.segments).into_iter().map(bare);
        let changes = changes.into_iter().map(|(slot, count, state)| SlotChange { slot, count, state });
        Increment { follows, rest, segments: numbers.into_iter().zip(entries).collect(), changes: changes.collect() }
    }
}

/// A change of a cache, or of its chain.
#[derive(Clone, Debug)]
enum Step {
    /// Slots of segments in use get another state.
    Slots(u32, u16, SlotState),
    /// A segment gets another entry.
    Entry(u32, SegmentEntry),
    Increment,
    /// The encoder appends one more entry or table of a base.
    Base,
}

fn steps() -> impl Strategy<Value = Step> {
    let bare = |entry: SegmentEntry| SegmentEntry { slots: SlotStates::default(), ..entry };
    prop_oneof![
        6 => (0..SLOTS, 1..40_u16, slot_states()).prop_map(|(slot, count, state)| {
            Step::Slots(slot, count.min((SLOTS - slot) as u16), state)
        }),
        3 => (0..SEGMENTS, segments(BLOCKS)).prop_map(move |(number, entry)| Step::Entry(number, bare(entry))),
        2 => Just(Step::Increment),
        8 => Just(Step::Base),
    ]
}

/// Size of the cache in the chain tests.
const SEGMENTS: u32 = 7;
const BLOCKS: u32 = 16;
const SLOTS: u32 = SEGMENTS * BLOCKS;

/// The current cache, and its chain.
struct Model {
    entries: Vec<SegmentEntry>,
    slots: Vec<SlotState>,
    /// Slot changes since the last increment, in order; and segments.
    changes: Vec<SlotChange>,
    touched: Vec<u32>,
    /// The last generation in effect, and the last one assigned.
    last: u64,
    given: u64,
    chain: ChainReader,
    base: Option<Base>,
}

/// A base and the increments after it.
struct Base {
    encoder: BaseEncoder,
    body: Vec<u8>,
    entries: usize,
    /// Segments whose table is not yet encoded.
    used: Vec<usize>,
    increments: Vec<Vec<u8>>,
}

impl Model {
    fn new() -> Self {
        let rest = Checkpoint { segment_blocks: BLOCKS, generation: 1, ..Checkpoint::default() };
        let segments = vec![SegmentEntry::default(); SEGMENTS as usize];
        let chain = ChainReader::begin(&Checkpoint { segments: segments.clone(), ..rest }.encode()).unwrap();
        Self {
            entries: segments,
            slots: vec![SlotState::Void; SLOTS as usize],
            changes: Vec::new(),
            touched: Vec::new(),
            last: 1,
            given: 1,
            chain,
            base: None,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Slots(slot, count, state) => self.change(slot, count, state),
            Step::Entry(number, entry) => {
                if !entry.state.has_slots() {
                    self.change(number * BLOCKS, BLOCKS as u16, SlotState::Void);
                }
                self.entries[number as usize] = entry;
                self.touched.push(number);
            }
            Step::Increment => self.increment(),
            Step::Base => self.encode_more(),
        }
    }

    fn change(&mut self, slot: u32, count: u16, state: SlotState) {
        for slot in slot..slot + u32::from(count) {
            if self.entries[(slot / BLOCKS) as usize].state.has_slots() {
                self.slots[slot as usize] = state;
                self.changes.push(SlotChange { slot, count: 1, state });
            }
        }
    }

    fn packed(&self, number: usize) -> SlotStates {
        self.slots[number * BLOCKS as usize..][..BLOCKS as usize].iter().copied().collect()
    }

    /// The state as a whole checkpoint.
    fn whole(&self, rest: Checkpoint) -> Checkpoint {
        let with_slots = |(number, entry): (usize, &SegmentEntry)| {
            let has_slots = entry.state.has_slots();
            let slots = if has_slots { self.packed(number) } else { SlotStates::default() };
            SegmentEntry { slots, ..entry.clone() }
        };
        Checkpoint { segments: self.entries.iter().enumerate().map(with_slots).collect(), ..rest }
    }

    /// The next increment, and its contents except segments.
    fn next_increment(&mut self) -> (Vec<u8>, Checkpoint) {
        self.given += 1;
        let is_free = |number: &u32| self.entries[*number as usize].state == SegmentState::Free;
        let rest = Checkpoint {
            generation: self.given,
            segment_blocks: BLOCKS,
            window: (0..SEGMENTS).filter(is_free).collect(),
            ..Checkpoint::default()
        };
        let touched = std::mem::take(&mut self.touched).into_iter();
        let increment = Increment {
            follows: std::mem::replace(&mut self.last, self.given),
            segments: touched.map(|number| (number, self.entries[number as usize].clone())).collect(),
            changes: std::mem::take(&mut self.changes),
            rest: rest.clone(),
        };
        (increment.encode(), rest)
    }

    /// Takes a checkpoint: an increment, and if the base is complete also the first of its chain.
    fn increment(&mut self) {
        let (bytes, rest) = self.next_increment();
        self.chain.next(&bytes).unwrap();
        assert_eq!(self.chain.clone().finish(), Ok(self.whole(rest.clone())));
        let Some(base) = &mut self.base else { return };
        base.increments.push(bytes);
        let is_complete = base.entries == SEGMENTS as usize && base.used.is_empty();
        if let Some(base) = self.base.take_if(|_| is_complete) {
            let body_blocks = base.body.len().div_ceil(BLOCK_BYTES) as u64;
            assert!(body_blocks < base_blocks(SEGMENTS, BLOCKS), "increments begin behind it");
            self.chain = ChainReader::begin(&[base.encoder.header(), base.body].concat()).unwrap();
            for increment in &base.increments {
                self.chain.next(increment).unwrap();
            }
            assert_eq!(self.chain.clone().finish(), Ok(self.whole(rest)));
        }
    }

    fn encode_more(&mut self) {
        let base = self.base.get_or_insert_with(|| {
            self.given += 1;
            let rest = Checkpoint { segment_blocks: BLOCKS, generation: self.given, ..Checkpoint::default() };
            Base {
                encoder: BaseEncoder::new(rest, self.last, SEGMENTS),
                body: Vec::new(),
                entries: 0,
                used: Vec::new(),
                increments: Vec::new(),
            }
        });
        if let Some(entry) = self.entries.get(base.entries) {
            base.encoder.entry(entry, &mut base.body);
            base.used.extend(entry.state.has_slots().then_some(base.entries));
            base.entries += 1;
        } else if !base.used.is_empty() {
            let number = base.used.remove(0);
            let slots = &self.slots[number * BLOCKS as usize..][..BLOCKS as usize];
            let packed: SlotStates = slots.iter().copied().collect();
            base.encoder.table(|to| to.extend_from_slice(packed.packed()), &mut base.body);
        }
    }
}

fn header_block((header, entries): &(BatchHeader, Vec<Entry>)) -> Vec<u8> {
    let mut block = vec![0xee; BLOCK_BYTES];
    header.encode(entries, &mut block);
    block
}

/// Overwrites a few bytes, then corrects the checksum half of the time, so that the later checks
/// are reached too.
fn mutate(bytes: &mut [u8], changes: &[(usize, u8)], reseal: bool, structure: &str) {
    let len = bytes.len();
    for (at, byte) in changes {
        bytes[at % len] = *byte;
    }
    let structure = structures::ALL.into_iter().find(|s| s.name == structure).unwrap();
    if !reseal {
        return;
    }
    if structure.name == "checkpoint header" {
        let at = |name| structure.fields.iter().find(|field| field.name == name).unwrap().offset;
        let body_bytes = u64::from_le_bytes(bytes[at("body_bytes")..][..8].try_into().unwrap()) as usize;
        if let Some(body) = bytes.get(BLOCK_BYTES..BLOCK_BYTES.saturating_add(body_bytes)) {
            let crc = crc32c::crc32c(body);
            bytes[at("body_crc32c")..][..4].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let crc = structure.fields.iter().find(|field| field.name == "crc32c").unwrap().offset;
    bytes[crc..crc + 4].fill(0);
    let sum = crc32c::crc32c(&bytes[..structure.len]);
    bytes[crc..crc + 4].copy_from_slice(&sum.to_le_bytes());
}

fn changes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    // Most changes near the front, where the fields are.
    vec((prop_oneof![0_usize..128, any::<usize>()], any::<u8>()), 1..8)
}

proptest! {
    #[test]
    fn superblocks_round_trip(superblock in superblocks()) {
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn batches_round_trip(batch in batches()) {
        let mut entries = Vec::new();
        prop_assert_eq!(BatchHeader::decode(&header_block(&batch), &mut entries), Ok(batch.0));
        prop_assert_eq!(entries, batch.1);
    }

    #[test]
    fn checkpoints_round_trip(checkpoint in checkpoints()) {
        let bytes = checkpoint.encode();
        prop_assert!(bytes.len().is_multiple_of(BLOCK_BYTES));
        let most = checkpoint::slot_blocks_for(checkpoint.segments.len() as u64, checkpoint.segment_blocks);
        prop_assert!(bytes.len() as u64 / BLOCK_BYTES as u64 <= most);
        prop_assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint));
    }

    #[test]
    fn increments_round_trip(increment in increments()) {
        let bytes = increment.encode();
        let blocks = (bytes.len() / BLOCK_BYTES) as u64;
        let most =
            Increment::blocks_for(&increment.rest, increment.segments.len(), increment.changes.len());
        prop_assert_eq!((bytes.len() % BLOCK_BYTES, blocks), (0, most));
        prop_assert_eq!(Increment::decode(&bytes), Ok((increment, blocks)));
    }

    #[test]
    fn chain_equals_a_whole_checkpoint(steps in vec(steps(), 0..300)) {
        let mut model = Model::new();
        steps.into_iter().for_each(|step| model.step(step));
        model.step(Step::Increment);
    }

    #[test]
    fn mutated_increment_is_refused_or_sound(
        steps in vec(steps(), 0..100), changes in changes(), reseal in any::<bool>(),
    ) {
        let mut model = Model::new();
        steps.into_iter().for_each(|step| model.step(step));
        let mut bytes = model.next_increment().0;
        mutate(&mut bytes, &changes, reseal, "checkpoint header");
        if let Ok((decoded, blocks)) = Increment::decode(&bytes) {
            prop_assert_eq!(Increment::decode(&decoded.encode()), Ok((decoded, blocks)));
        }
        let before = model.chain.state().clone();
        match model.chain.next(&bytes) {
            Ok(_) => drop(model.chain.finish()),
            Err(_) => prop_assert_eq!(model.chain.state(), &before),
        }
    }

    #[test]
    fn mutated_base_is_refused_or_sound(
        steps in vec(steps(), 0..100), changes in changes(), reseal in any::<bool>(),
    ) {
        let mut model = Model::new();
        steps.into_iter().for_each(|step| model.step(step));
        model.base = None;
        (0..2 * SEGMENTS).for_each(|_| model.step(Step::Base));
        let base = model.base.take().unwrap();
        let mut bytes = [base.encoder.header(), base.body].concat();
        mutate(&mut bytes, &changes, reseal, "checkpoint header");
        if let Ok(mut chain) = ChainReader::begin(&bytes) {
            let _ = chain.next(&model.next_increment().0);
            let _ = chain.finish();
        }
    }

    #[test]
    fn summaries_round_trip(items in vec(
        proptest::option::of((0_u16..64, 0_u64..1 << 40, 1_u8.., any::<[u32; 2]>())), 0..600,
    )) {
        let items: Vec<_> = items
            .into_iter()
            .map(|item| item.map(|(volume, block, sector_mask, [crc32c, flush_epoch])| SummaryItem {
                volume: VolumeId(volume), block, sector_mask, crc32c, flush_epoch,
            }))
            .collect();
        let payload = summary::encode(items.iter().copied());
        prop_assert_eq!(payload.len(), summary::payload_blocks(items.len() as u32) as usize * BLOCK_BYTES);
        prop_assert_eq!(summary::decode(&payload, items.len() as u32).collect::<Vec<_>>(), items);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in vec(any::<u8>(), 0..3 * BLOCK_BYTES), magic in 0..6, slots in any::<u32>(),
    ) {
        let start: &[u8] = match magic {
            0 => &forebay_format::superblock::MAGIC,
            1 => &checkpoint::MAGIC,
            2 => &forebay_format::batch::MAGIC,
            3 => &INCREMENT_MAGIC,
            4 => &BASE_MAGIC,
            _ => &[],
        };
        if let Some(to) = bytes.get_mut(..start.len()) {
            to.copy_from_slice(start);
        }
        let _ = Superblock::decode(&bytes);
        let _ = Checkpoint::decode(&bytes);
        let _ = Increment::decode(&bytes);
        let _ = ChainReader::begin(&bytes);
        let _ = BatchHeader::decode(&bytes, &mut Vec::new());
        prop_assert!(summary::decode(&bytes, slots).count() <= bytes.len());
        let _ = summary::payload_blocks(slots);
        let _ = summary::reserved_blocks(slots);
    }

    #[test]
    fn mutated_superblock_is_refused_or_sound(
        superblock in superblocks(), changes in changes(), reseal in any::<bool>(), device_bytes in any::<u64>(),
    ) {
        let mut block = superblock.encode();
        block.truncate(512);
        mutate(&mut block, &changes, reseal, "superblock");
        if let Ok(decoded) = Superblock::decode(&block) {
            let _ = decoded.geometry.validate(device_bytes);
            let _ = decoded.checkpoint_place(1);
            let _ = decoded.read_checkpoint(&block);
            let again = Superblock::decode(&decoded.encode());
            prop_assert_eq!(again.map(|s| s.geometry), Ok(decoded.geometry));
        }
    }

    #[test]
    fn mutated_batch_is_refused_or_sound(batch in batches(), changes in changes(), reseal in any::<bool>()) {
        let mut block = header_block(&batch);
        mutate(&mut block, &changes, reseal, "batch header");
        let mut entries = Vec::new();
        if let Ok(decoded) = BatchHeader::decode(&block, &mut entries) {
            prop_assert_eq!(header_block(&(decoded, entries)), block);
        }
    }

    #[test]
    fn mutated_checkpoint_is_refused_or_sound(
        checkpoint in checkpoints(), changes in changes(), reseal in any::<bool>(),
    ) {
        let mut bytes = checkpoint.encode();
        mutate(&mut bytes, &changes, reseal, "checkpoint header");
        if let Ok(decoded) = Checkpoint::decode(&bytes) {
            prop_assert_eq!(Checkpoint::decode(&decoded.encode()), Ok(decoded));
        }
    }

    #[test]
    fn geometry_is_valid_and_fits_the_device(
        device_bytes in prop_oneof![0_u64..1 << 25, 0_u64..1 << 45, any::<u64>()],
        segment_blocks in proptest::option::of(0_u32..14),
    ) {
        let segment_blocks = segment_blocks.map(|bits| 1 << bits);
        let Ok(geometry) = Geometry::for_device(device_bytes, segment_blocks) else { return Ok(()) };
        prop_assert_eq!(geometry.validate(device_bytes), Ok(()));
        prop_assert_eq!(Geometry::superblock_offset(0), 0);
        let checkpoints = (0..CHECKPOINT_SLOTS).map(|slot| geometry.checkpoint_offset(slot / 2, slot % 2));
        let mut at = CHECKPOINT_START_BLOCK * BLOCK_BYTES as u64;
        prop_assert!(Geometry::superblock_offset(1) < at);
        for offset in checkpoints {
            prop_assert_eq!(offset, at);
            at += u64::from(geometry.checkpoint_slot_blocks) * BLOCK_BYTES as u64;
        }
        prop_assert!(at <= geometry.segment_offset(0, 0));
        let last = geometry.segment_offset(geometry.segment_count - 1, geometry.segment_blocks);
        prop_assert!(last <= device_bytes);
        prop_assert!(geometry.slot_count() >= geometry.segment_count);
        // It can grow to its reported limit and no farther, and only the number of segments
        // changes.
        let end = |count: u32| {
            geometry.segments_start_block * BLOCK_BYTES as u64 + u64::from(count) * geometry.segment_bytes()
        };
        let most = geometry.segments_max();
        prop_assert!(most >= geometry.segment_count);
        let grown = geometry.resized(end(most)).unwrap();
        prop_assert_eq!(grown.validate(end(most)), Ok(()));
        prop_assert_eq!((grown.segment_count, grown.segment_offset(3, 1)), (most, geometry.segment_offset(3, 1)));
        prop_assert!(geometry.resized(end(most) + geometry.segment_bytes()).is_err());
        prop_assert!(geometry.resized(end(SEGMENTS_MIN) - 1).is_err());
        prop_assert_eq!(grown.resized(geometry.device_blocks * BLOCK_BYTES as u64), Ok(geometry));
    }
}

#[test]
fn the_largest_checkpoint_fits_its_slot() {
    for (segment_count, segment_blocks) in [(16_u32, 16_u32), (300, 256), (1000, 4096)] {
        let segment = SegmentEntry {
            state: SegmentState::Sealed,
            slots: (0..segment_blocks).map(|_| SlotState::Dirty).collect(),
            ..SegmentEntry::default()
        };
        let volume = |id| VolumeEntry { id: VolumeId(id), ..VolumeEntry::default() };
        let largest = Checkpoint {
            segment_blocks,
            volumes: (0..VOLUMES_MAX as u16).map(volume).collect(),
            segments: vec![segment; segment_count as usize],
            intents: vec![Intent { volume: VolumeId(0), region: 0, count: 1 }; INTENTS_MAX as usize],
            ..Checkpoint::default()
        };
        let blocks = largest.encode().len() as u64 / BLOCK_BYTES as u64;
        // The slot has room for a segment to be both in use and in the window, which never happens.
        let spare = u64::from(segment_count) * 4 / BLOCK_BYTES as u64 + 1;
        let slot_blocks = checkpoint::slot_blocks_for(u64::from(segment_count), segment_blocks);
        assert!((slot_blocks - spare..=slot_blocks).contains(&blocks), "{blocks} of {slot_blocks} blocks");
        assert_eq!(Checkpoint::decode(&largest.encode()), Ok(largest));
    }
}
