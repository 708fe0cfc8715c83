//! Caches whose checkpoint is a chain: their contents are the same as with a whole one.

use super::*;
use crate::rebuild::rebuild;
use crate::space::Space;
use forebay_format::checkpoint::Checkpoint;
use forebay_format::checkpoint::increment::{BaseEncoder, ChainReader, Increment, SlotChange};
use forebay_format::superblock::Chain;

/// Creates a cache with dirty blocks 1, 3, 4 and 5 and a whole checkpoint of them.
fn whole() -> Cache {
    let cache = logged();
    cache.checkpoint(3, sealed(4, 10), &[1, 3]);
    cache.checkpoint(4, sealed(3, 11), &[1, 2]);
    cache
}

/// The same, with a chain of a whole checkpoint 2 and increments 3 and 5.
fn chained() -> Cache {
    let cache = logged();
    cache.checkpoint(3, sealed(4, 10), &[1, 2, 3]);
    cache.increment(vec![(4, sealed(3, 11))], vec![change(4, 1, 2, SlotState::Dirty)]);
    cache.increment(Vec::new(), vec![change(3, 2, 1, SlotState::Void)]);
    cache
}

/// Creates a cache with two segments of one batch each.
fn logged() -> Cache {
    let mut cache = Cache::new();
    for (segment, blocks, number) in [(3, &[1, 2, 3][..], 10), (4, &[4, 5], 11)] {
        cache.next = (number, number);
        let (entries, bytes) = dirty(blocks);
        cache.batch(segment, 0, &entries, &bytes);
    }
    cache
}

/// Returns a segment with one batch.
fn sealed(used_blocks: u32, number: u64) -> SegmentEntry {
    SegmentEntry {
        state: SegmentState::Sealed,
        stream: StreamKind::Write as u8,
        first_stream_sequence: number,
        first_sequence: number,
        used_blocks,
        summary_block: 0,
        slots: SlotStates::default(),
    }
}

fn change(segment: u32, block: u32, count: u16, state: SlotState) -> SlotChange {
    SlotChange { slot: segment * 16 + block, count, state }
}

impl Cache {
    fn opened(&self) -> Image {
        Image::open(std::slice::from_ref(&self.path)).unwrap()
    }

    /// Returns the checkpoint in effect, and its superblock.
    fn in_effect(&self) -> (Checkpoint, Superblock) {
        let image = self.opened();
        (image.checkpoint().unwrap().clone(), image.superblock.clone())
    }

    /// Returns the start of the increments of a copy, in bytes.
    fn increments_at(&self, image_generation: u64, copy: u64) -> u64 {
        let offset = self.geometry.checkpoint_offset(image_generation, copy);
        let mut bytes = vec![0; self.geometry.checkpoint_slot_blocks as usize * BLOCK_BYTES];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        offset + ChainReader::begin(&bytes).unwrap().start() * BLOCK_BYTES as u64
    }

    /// Puts an increment into effect, behind the present chain.
    fn increment(&self, segments: Vec<(u32, SegmentEntry)>, changes: Vec<SlotChange>) {
        let (_, superblock) = self.in_effect();
        let chain = superblock.chain.unwrap_or(Chain { base: superblock.checkpoint_generation, blocks: 0 });
        self.increment_of(chain, segments, changes);
    }

    fn increment_of(&self, chain: Chain, segments: Vec<(u32, SegmentEntry)>, changes: Vec<SlotChange>) {
        let (mut rest, superblock) = self.in_effect();
        let follows = rest.generation;
        rest.generation = next_number(follows.max(chain.base), superblock.image_generation());
        rest.segments.clear();
        rest.window.retain(|number| segments.iter().all(|(taken, _)| taken != number));
        let generation = rest.generation;
        let bytes = Increment { follows, rest, segments, changes }.encode();
        for copy in 0..2 {
            let at = self.increments_at(chain.base, copy) + u64::from(chain.blocks) * BLOCK_BYTES as u64;
            self.file.write_all_at(&bytes, at).unwrap();
        }
        let blocks = chain.blocks + (bytes.len() / BLOCK_BYTES) as u32;
        self.superblock(|superblock| {
            superblock.checkpoint_generation = generation;
            superblock.chain = Some(Chain { blocks, ..chain });
        });
    }

    /// Writes a base of the present state to the slots that are not in effect. Returns its number.
    fn base(&self) -> u64 {
        let (state, superblock) = self.in_effect();
        let generation = next_number(state.generation, superblock.image_generation());
        let (uuid, epoch, segment_blocks) = (state.uuid, state.epoch, state.segment_blocks);
        let rest = Checkpoint { uuid, epoch, segment_blocks, generation, ..Checkpoint::default() };
        let mut encoder = BaseEncoder::new(rest, state.generation, self.geometry.segment_count);
        let mut body = Vec::new();
        for entry in &state.segments {
            encoder.entry(entry, &mut body);
        }
        for entry in state.segments.iter().filter(|entry| entry.state.has_slots()) {
            encoder.table(|to| to.extend_from_slice(entry.slots.packed()), &mut body);
        }
        for copy in 0..2 {
            let bytes = [encoder.header(), body.clone()].concat();
            self.file.write_all_at(&bytes, self.geometry.checkpoint_offset(generation, copy)).unwrap();
        }
        generation
    }

    fn lose_superblocks(&self) {
        for copy in 0..2 {
            self.file.write_all_at(&[0xff; 512], Geometry::superblock_offset(copy)).unwrap();
        }
    }

    /// Returns the superblock rebuilt without superblocks, and whether it is certain.
    fn rebuilt(&self) -> (Superblock, bool) {
        let space = Space::open(std::slice::from_ref(&self.path), &|_, _| Ok(None)).unwrap();
        let rebuilt = rebuild(&space).unwrap();
        (rebuilt.superblock, rebuilt.certain)
    }
}

fn next_number(last: u64, image: u64) -> u64 {
    let next = last + 1;
    next + u64::from(next % 2 == image % 2)
}

fn blocks(found: &Found) -> Vec<(u64, Worth)> {
    let mut blocks: Vec<_> = found.iter().map(|piece| (piece.1 / 4096, piece.2)).collect();
    blocks.sort_unstable();
    blocks
}

const DIRTY: [(u64, Worth); 4] = [(1, Worth::Dirty), (3, Worth::Dirty), (4, Worth::Dirty), (5, Worth::Dirty)];
const UNCERTAIN: [(u64, Worth); 4] =
    [(1, Worth::Uncertain), (3, Worth::Uncertain), (4, Worth::Uncertain), (5, Worth::Uncertain)];

#[test]
fn a_chain_is_read_as_a_whole_checkpoint_is() {
    let (whole, chained) = (whole(), chained());
    let (mut expected, superblock) = whole.in_effect();
    assert!(superblock.chain.is_none());
    let (found, superblock) = chained.in_effect();
    assert_eq!((found.generation, superblock.chain.unwrap().base), (5, 2));
    expected.generation = 5;
    assert_eq!(found, expected);
    assert_eq!(chained.counts(), whole.counts());
    assert_eq!(chained.counts(), (4, 0, 0));
    assert_eq!(chained.found(|_| {}), whole.found(|_| {}));
    assert_eq!(blocks(&chained.found(|_| {})), DIRTY);
}

#[test]
fn a_chain_goes_on_behind_a_base() {
    let cache = chained();
    let (expected, _) = cache.in_effect();
    let base = cache.base();
    cache.increment_of(Chain { base, blocks: 0 }, Vec::new(), vec![change(4, 1, 1, SlotState::Dirty)]);
    let (found, superblock) = cache.in_effect();
    assert_eq!((superblock.chain.unwrap().base, superblock.image_generation()), (base, base));
    assert_eq!(Checkpoint { generation: expected.generation, ..found }, expected);
    assert_eq!((cache.counts(), blocks(&cache.found(|_| {}))), ((4, 0, 0), DIRTY.to_vec()));
    cache.lose_superblocks();
    let (rebuilt, certain) = cache.rebuilt();
    let names = |superblock: &Superblock| (superblock.checkpoint_generation, superblock.chain);
    assert_eq!((names(&rebuilt), certain), (names(&superblock), false));
    assert_eq!(blocks(&cache.found(|_| {})), UNCERTAIN);
}

#[test]
fn increment_damaged_once_is_no_loss() {
    for copy in 0..2 {
        let cache = chained();
        let at = cache.increments_at(2, copy);
        cache.file.write_all_at(&[0xff; 64], at + 8).unwrap();
        let (_, findings) = cache.verdict();
        assert_eq!((findings.damaged, findings.lost), (1, 0));
        assert!(findings.kept[0].what.contains("checkpoint increment: checksum"), "{findings:?}");
        assert!(findings.kept[0].what.contains("the other copy is intact"), "{findings:?}");
        assert_eq!(blocks(&cache.found(|_| {})), DIRTY);
    }
}

#[test]
fn chain_damaged_twice_keeps_its_start() {
    let cache = chained();
    let last = u64::from(cache.in_effect().1.chain.unwrap().blocks) - 1;
    for copy in 0..2 {
        let at = cache.increments_at(2, copy) + last * BLOCK_BYTES as u64;
        cache.file.write_all_at(&[0xff; 64], at + 8).unwrap();
    }
    let image = cache.opened();
    let mut findings = Findings::default();
    image.judge(&mut findings);
    assert!(image.checkpoint().is_none() && findings.lost == 2, "{findings:?}");
    drop(image);
    let found = cache.found(|salvage| {
        assert!(salvage.knows_volumes || salvage.doubts[0].contains("read from checkpoint 3 "));
    });
    let kept: Vec<u64> = blocks(&found).iter().map(|block| block.0).collect();
    assert_eq!(kept, [1, 2, 3, 4, 5], "the last increment said that block 2 is void");
    assert!(found.iter().all(|piece| piece.2 == Worth::Uncertain));
}

#[test]
fn chain_without_superblocks_is_uncertain() {
    let cache = chained();
    let (_, superblock) = cache.in_effect();
    cache.lose_superblocks();
    let (rebuilt, certain) = cache.rebuilt();
    assert_eq!((rebuilt.chain, rebuilt.checkpoint_generation), (superblock.chain, 5));
    assert_eq!((rebuilt.geometry, certain), (superblock.geometry, false));
    assert_eq!(blocks(&cache.found(|_| {})), UNCERTAIN);
    // One copy of it suffices.
    cache.file.write_all_at(&[0xff; 64], cache.increments_at(2, 1) + 8).unwrap();
    assert_eq!(cache.rebuilt().0.checkpoint_generation, 5);
}

#[test]
fn base_without_superblocks_is_ignored() {
    let cache = chained();
    let (_, superblock) = cache.in_effect();
    cache.base();
    cache.lose_superblocks();
    let (rebuilt, certain) = cache.rebuilt();
    assert_eq!((rebuilt.chain, rebuilt.checkpoint_generation, certain), (superblock.chain, 5, false));
    assert_eq!(rebuilt.geometry, superblock.geometry);
}

#[test]
fn whole_checkpoint_alone_is_mostly_certain() {
    let certain = |change: &dyn Fn(&Cache)| {
        let cache = whole();
        change(&cache);
        cache.lose_superblocks();
        assert_eq!(cache.rebuilt().0.checkpoint_generation, 3);
        let found = blocks(&cache.found(|_| {}));
        assert_eq!(found, if cache.rebuilt().1 { DIRTY } else { UNCERTAIN });
        cache.rebuilt().1
    };
    let put = |cache: &Cache, copy: u64, bytes: &[u8]| {
        cache.file.write_all_at(bytes, cache.increments_at(3, copy)).unwrap();
    };
    let increment = |follows: u64| {
        let rest = Checkpoint { uuid: UUID, generation: 9, segment_blocks: 16, ..Checkpoint::default() };
        Increment { follows, rest, ..Increment::default() }.encode()
    };
    let mut damaged = increment(2);
    damaged[100] ^= 1;
    assert!(certain(&|_| {}));
    assert!(certain(&|cache| put(cache, 0, &[0xa5; 4096])), "of a longer checkpoint");
    assert!(certain(&|cache| put(cache, 0, &increment(2))), "of an earlier chain");
    assert!(!certain(&|cache| put(cache, 0, &damaged)));
    assert!(!certain(&|cache| put(cache, 1, &damaged)));
    // Destroys a copy of the previous one.
    let gone = |cache: &Cache, copy| {
        cache.file.write_all_at(&[0xff; 64], cache.geometry.checkpoint_offset(2, copy)).unwrap();
    };
    assert!(certain(&|cache| gone(cache, 0)));
    assert!(!certain(&|cache| {
        gone(cache, 0);
        gone(cache, 1);
    }));
}

/// The whole checkpoint behind a chain may have a number higher by two.
#[test]
fn whole_checkpoint_behind_chain_is_certain() {
    let cache = logged();
    cache.checkpoint(3, sealed(4, 10), &[1, 3]);
    cache.increment(Vec::new(), Vec::new());
    assert_eq!(cache.in_effect().0.generation, 3);
    let (state, _) = cache.in_effect();
    for (generation, expected) in [(5, true), (7, false)] {
        let mut next = Checkpoint { generation, ..state.clone() };
        next.window.retain(|number| *number != 4);
        next.segments[4] = SegmentEntry {
            slots: [SlotState::Void, SlotState::Dirty, SlotState::Dirty, SlotState::Void]
                .into_iter()
                .chain([SlotState::Void; 12])
                .collect(),
            ..sealed(3, 11)
        };
        for copy in 0..2 {
            let offset = cache.geometry.checkpoint_offset(generation, copy);
            cache.file.write_all_at(&next.encode(), offset).unwrap();
        }
        cache.lose_superblocks();
        let (rebuilt, certain) = cache.rebuilt();
        assert_eq!((rebuilt.checkpoint_generation, rebuilt.chain, certain), (generation, None, expected));
        assert_eq!(blocks(&cache.found(|_| {})), if expected { DIRTY } else { UNCERTAIN });
    }
}

/// A start reuses the number of an increment that is not in effect.
#[test]
fn checkpoint_of_a_later_start_wins() {
    let cache = chained();
    let (state, _) = cache.in_effect();
    let next = Checkpoint { epoch: state.epoch + 1, ..state };
    for copy in 0..2 {
        let offset = cache.geometry.checkpoint_offset(next.generation, copy);
        cache.file.write_all_at(&next.encode(), offset).unwrap();
    }
    cache.lose_superblocks();
    let (rebuilt, certain) = cache.rebuilt();
    assert_eq!((rebuilt.epoch, rebuilt.chain, certain), (next.epoch, None, false));
}

#[test]
fn no_byte_of_a_chain_makes_it_panic() {
    let cache = chained();
    let good = std::fs::read(&cache.path).unwrap();
    let at = cache.increments_at(2, 0) as usize;
    let end = at + 5 * BLOCK_BYTES;
    for step in 0..300 {
        let mut bytes = good.clone();
        let offset = (step * 173) % 200 + step % 5 * BLOCK_BYTES;
        bytes[(at + offset).min(end)] ^= step as u8 | 1;
        if step % 2 == 0 {
            bytes[..512].fill(0xff);
            bytes[Geometry::superblock_offset(1) as usize..][..512].fill(0xff);
        }
        std::fs::write(&cache.path, &bytes).unwrap();
        assert!(cache.found(|_| {}).len() >= 4, "the other copy is intact");
    }
}
