//! Each rule of the algorithm by itself: the operations, their order, and the time of the replies.

use forebay_flashcache_model::api::{Action, CommandKind, Device, Failed, OpId, Request, SECOND};
use forebay_flashcache_model::config::{Config, Flush, Layout, Mode, Reclaim};
use forebay_flashcache_model::{META_BYTES, Model};

const BLOCK: u64 = 4096;
const ASSOC: u64 = 256;

/// A model whose operations end when the test requests it.
struct Rig {
    model: Model,
    now: u64,
    under_way: Vec<Action>,
    replies: Vec<(u64, bool)>,
    requests: u64,
}

fn config() -> Config {
    Config { assoc: ASSOC as u32, fallow_delay: 0, ..Config::default() }
}

impl Rig {
    fn new(config: Config, sets: u64) -> Self {
        let per_set = u64::from(config.assoc) + u64::from(config.assoc) / 256;
        let model = Model::new(config, (1 + sets * per_set) * BLOCK).expect("the settings are valid");
        assert_eq!(u64::from(model.layout().sets), sets);
        Self { model, now: 0, under_way: Vec::new(), replies: Vec::new(), requests: 0 }
    }

    /// Takes the pending actions of the model.
    fn pump(&mut self) {
        while let Some(action) = self.model.next_action() {
            match action {
                Action::Reply { request, result } => self.replies.push((request, result.is_ok())),
                other => self.under_way.push(other),
            }
        }
    }

    fn submit(&mut self, kind: CommandKind, offset: u64, len: u64) -> u64 {
        self.requests += 1;
        let id = self.requests;
        self.model.submit(self.now, Request { id, kind, offset, len, buffer: id as u32 });
        self.pump();
        id
    }

    fn write(&mut self, block: u64) -> u64 {
        self.submit(CommandKind::Write { fua: false }, block * BLOCK, BLOCK)
    }

    fn read(&mut self, block: u64) -> u64 {
        self.submit(CommandKind::Read, block * BLOCK, BLOCK)
    }

    /// Returns the operations in flight, in words: `R` or `W`, device, block there (of the flash:
    /// of its data).
    fn seen(&self) -> Vec<String> {
        let data = self.model.layout().data_offset / BLOCK;
        let place = |device: Device, offset: u64| match device {
            Device::Cache => format!("flash {}", offset / BLOCK - data),
            Device::Disk => format!("disk {}", offset / BLOCK),
        };
        let word = |action: &Action| match *action {
            Action::Read { device, offset, .. } => format!("R {}", place(device, offset)),
            Action::Write { device, offset, .. } => format!("W {}", place(device, offset)),
            Action::WriteMeta { meta_block, .. } => format!("M {meta_block}"),
            Action::Zero { offset, len, .. } => format!("Z {} +{}", offset / BLOCK, len / BLOCK),
            Action::Flush { device, .. } => format!("F {device:?}"),
            Action::Reply { .. } => unreachable!(),
        };
        self.under_way.iter().map(word).collect()
    }

    /// Ends the first operation in flight with this word, and takes the resulting actions.
    fn end(&mut self, word: &str, result: Result<(), Failed>) {
        let at = self.seen().iter().position(|seen| seen == word);
        let at = at.unwrap_or_else(|| panic!("{word} is not under way, but {:?}", self.seen()));
        let op = op(&self.under_way.remove(at));
        self.model.complete(self.now, op, result);
        self.pump();
    }

    fn ok(&mut self, word: &str) {
        self.end(word, Ok(()));
    }

    /// Ends all operations, including resulting ones.
    fn finish(&mut self) {
        while !self.under_way.is_empty() {
            let op = op(&self.under_way.remove(0));
            self.model.complete(self.now, op, Ok(()));
            self.pump();
        }
    }

    /// Makes a block dirty.
    fn dirty(&mut self, block: u64) {
        self.write(block);
        self.finish();
    }

    fn answered(&self, request: u64) -> bool {
        self.replies.contains(&(request, true))
    }

    /// Returns the number of blocks under cleaning: their reads, and the writes that follow.
    fn cleaning(&self) -> usize {
        self.under_way.len()
    }

    fn wait(&mut self, time: u64) {
        self.now += time;
        self.model.tick(self.now);
        self.pump();
    }
}

fn op(action: &Action) -> OpId {
    match *action {
        Action::Read { op, .. }
        | Action::Write { op, .. }
        | Action::WriteMeta { op, .. }
        | Action::Zero { op, .. }
        | Action::Flush { op, .. } => op,
        Action::Reply { .. } => unreachable!("replies have no operation"),
    }
}

#[test]
fn consecutive_blocks_share_a_set() {
    let layout = Layout::new((1 + 4 * 514) * BLOCK, 512).unwrap();
    assert_eq!((layout.sets, layout.slots(), layout.meta_blocks()), (4, 2048, 8));
    assert_eq!(layout.data_offset, 9 * BLOCK, "a superblock and the metadata come first");
    assert_eq!([0, 511, 512, 2047, 2048, 2560].map(|block| layout.set_of(block)), [0, 0, 1, 3, 0, 1]);
    assert!(Layout::new(514 * BLOCK, 512).is_err(), "no room for a set and the superblock");
}

#[test]
fn only_whole_blocks_are_cached() {
    let mut rig = Rig::new(config(), 1);
    rig.submit(CommandKind::Write { fua: false }, 512, 3 * BLOCK);
    assert_eq!(rig.seen(), ["W disk 0", "W flash 0", "W flash 1", "W disk 3"]);
    let lens: Vec<_> =
        rig.under_way.iter().map(|a| matches!(a, Action::Write { span, .. } if span.len == 4096)).collect();
    assert_eq!(lens, [false, true, true, false]);
    rig.finish();
    assert_eq!([0, 1, 2, 3].map(|block| rig.model.state_of(block).0), [false, true, true, false]);
    let counters = rig.model.counters();
    assert_eq!((counters.writes, counters.uncached_writes, counters.disk_writes), (4, 2, 2));
}

#[test]
fn dirtying_write_waits_for_its_metadata() {
    let mut rig = Rig::new(config(), 1);
    let first = rig.write(7);
    rig.ok("W flash 0");
    assert!(!rig.answered(first) && rig.seen() == ["M 0"], "{:?}", rig.seen());
    assert_eq!(rig.model.state_of(7), (true, false), "not dirty before the metadata is written");
    rig.ok("M 0");
    assert!(rig.answered(first));
    let again = rig.write(7);
    rig.ok("W flash 0");
    assert!(rig.answered(again) && rig.seen().is_empty(), "dirty stays dirty: no metadata");
    let counters = rig.model.counters();
    assert_eq!((counters.write_hits, counters.dirty_write_hits, counters.metadata_ssd_writes), (1, 1, 1));
    assert_eq!((counters.ssd_writes, counters.metadata_dirties), (3, 1));
}

#[test]
fn metadata_block_writes_are_batched() {
    let mut rig = Rig::new(Config { assoc: 512, ..config() }, 1);
    // Slots 0 to 3 share a metadata block.
    let writes: Vec<u64> = (0..4).map(|block| rig.write(block)).collect();
    rig.ok("W flash 0");
    for word in ["W flash 1", "W flash 2", "W flash 3"] {
        rig.ok(word);
    }
    assert_eq!(rig.seen(), ["M 0"], "one at a time");
    rig.ok("M 0");
    assert!(rig.answered(writes[0]) && !rig.answered(writes[1]));
    assert_eq!(rig.seen(), ["M 0"], "one for all three");
    rig.ok("M 0");
    assert!(writes.iter().all(|write| rig.answered(*write)));
    let counters = rig.model.counters();
    assert_eq!((counters.metadata_ssd_writes, counters.metadata_batch), (2, 2));
}

#[test]
fn metadata_records_place_and_dirty_state() {
    let mut rig = Rig::new(config(), 1);
    rig.read(9);
    rig.finish();
    rig.write(5);
    rig.ok("W flash 1");
    assert_eq!(rig.seen(), ["M 0"]);
    let mut bytes = [0; META_BYTES];
    rig.model.render_meta(0, &mut bytes);
    let entry = |slot: usize| {
        let bytes = &bytes[slot * 16..][..16];
        (
            u64::from_le_bytes(bytes[..8].try_into().unwrap()),
            u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
        )
    };
    assert_eq!(
        [entry(0), entry(1), entry(2)],
        [(72, 2), (40, 0x42), (0, 1)],
        "valid; valid and dirty; invalid"
    );
}

/// A fill writes no metadata.
#[test]
fn miss_is_answered_once_flash_has_it() {
    let mut rig = Rig::new(config(), 1);
    let miss = rig.read(3);
    rig.ok("R disk 3");
    assert!(!rig.answered(miss));
    rig.ok("W flash 0");
    assert!(rig.answered(miss) && rig.seen().is_empty());
    let hit = rig.read(3);
    rig.ok("R flash 0");
    assert!(rig.answered(hit));
    let counters = rig.model.counters();
    assert_eq!((counters.reads, counters.read_hits, counters.disk_reads), (2, 1, 1));
    assert_eq!(counters.metadata_ssd_writes, 0);
}

#[test]
fn only_sets_above_their_share_are_cleaned() {
    // 20 % of 256 are 51. Every other block, so that there are no neighbours.
    let mut rig = Rig::new(config(), 2);
    for at in 0..51 {
        rig.dirty(2 * at);
    }
    for at in 0..51 {
        rig.dirty(ASSOC + 2 * at);
    }
    assert_eq!(rig.model.counters().cleanings, 0, "both sets have just what they may");
    rig.write(2 * 51);
    rig.ok("W flash 51");
    rig.ok("M 0");
    assert!(rig.seen().is_empty(), "it is looked at when a write begins: {:?}", rig.seen());
    rig.write(2 * 52);
    assert_eq!(rig.seen(), ["W flash 52", "R flash 0"], "the first victim of the pointer");
    rig.ok("R flash 0");
    assert_eq!(rig.seen(), ["W flash 52", "W disk 0"]);
    rig.ok("W disk 0");
    assert_eq!(rig.seen(), ["W flash 52", "M 0"], "and its metadata");
    rig.ok("M 0");
    assert_eq!(rig.model.state_of(0), (true, false), "clean, and still cached");
    assert_eq!((rig.model.dirty_blocks_of(0), rig.model.dirty_blocks_of(1)), (51, 51));
    rig.finish();
    rig.write(ASSOC);
    assert_eq!(rig.seen(), ["W flash 256"], "the other set has not too much");
}

/// Fills sets with dirty blocks that have no neighbours, without completing any cleaning.
fn crowded(sets: u64, config: Config) -> Rig {
    let mut rig = Rig::new(config, sets);
    for set in 0..sets {
        for at in 0..120 {
            rig.write(set * ASSOC + 2 * at);
            // Complete only client writes and their metadata: cleaning stays in flight.
            loop {
                let data = rig.model.layout().data_offset / BLOCK;
                let client = |action: &Action| match *action {
                    Action::Write { device: Device::Cache, offset, .. } => offset / BLOCK >= data,
                    Action::WriteMeta { .. } => true,
                    _ => false,
                };
                let Some(at) = rig.under_way.iter().position(client) else { break };
                let op = op(&rig.under_way.remove(at));
                rig.model.complete(rig.now, op, Ok(()));
                rig.pump();
            }
        }
    }
    rig
}

#[test]
fn cleaning_is_limited_per_set_and_in_total() {
    let rig = crowded(1, config());
    assert_eq!(rig.cleaning(), 2, "{:?}", rig.seen());
    let mut rig = crowded(3, config());
    assert_eq!(rig.cleaning(), 4, "{:?}", rig.seen());
    let mut ended = 0;
    while let Some(action) = rig.under_way.first().copied() {
        assert!(rig.cleaning() <= 4, "{:?}", rig.seen());
        rig.under_way.remove(0);
        rig.model.complete(rig.now, op(&action), Ok(()));
        rig.pump();
        ended += 1;
    }
    assert!(ended > 100, "each end begins the next");
}

#[test]
fn the_limits_can_be_changed() {
    let wide = Config { max_clean_ios_set: 7, max_clean_ios_total: 9, ..config() };
    assert_eq!(crowded(1, wide).cleaning(), 7);
    assert_eq!(crowded(2, wide).cleaning(), 9);
}

#[test]
fn delayed_cleaning_begins_after_a_second() {
    let mut rig = crowded(3, config());
    // The third set has had no turn: others have used up the limit.
    assert!(rig.model.dirty_blocks_of(2) > 51 && rig.model.deadline().is_some());
    while rig.model.dirty_blocks_of(0) > 51 || rig.model.dirty_blocks_of(1) > 51 {
        let first = rig.under_way.remove(0);
        rig.model.complete(rig.now, op(&first), Ok(()));
        rig.pump();
    }
    rig.finish();
    assert_eq!(rig.model.dirty_blocks_of(2), 120, "nobody has looked at it");
    rig.wait(SECOND);
    assert_eq!(rig.cleaning(), 2, "{:?}", rig.seen());
    rig.finish();
    // Blocks under cleaning still count as dirty when the last victim is chosen, so one more may be
    // cleaned.
    assert!((50..=51).contains(&rig.model.dirty_blocks_of(2)));
}

#[test]
fn dirty_neighbours_are_cleaned_together() {
    let mut rig = Rig::new(Config { dirty_thresh_pct: 10, ..config() }, 1);
    // 25 may be dirty. The oldest one is in the middle of a run.
    for block in [105, 107, 104, 106, 108, 120].into_iter().chain((0..20).map(|at| 130 + 2 * at)) {
        rig.dirty(block);
    }
    assert_eq!(rig.model.counters().cleanings, 0);
    rig.write(200);
    assert_eq!(
        rig.seen(),
        ["W flash 26", "R flash 2", "R flash 0", "R flash 3", "R flash 1", "R flash 4"],
        "blocks 104 to 108"
    );
    let counters = rig.model.counters();
    assert_eq!((counters.back_merge, counters.front_merge), (1, 3));
}

#[test]
fn small_write_waits_for_the_dirty_block() {
    let mut rig = Rig::new(config(), 1);
    rig.dirty(5);
    let small = rig.submit(CommandKind::Write { fua: false }, 5 * BLOCK + 512, 512);
    rig.ok("R flash 0");
    rig.ok("W disk 5");
    rig.ok("M 0");
    assert_eq!((rig.seen(), rig.model.state_of(5)), (vec!["W disk 5".to_owned()], (false, false)));
    assert!(!rig.answered(small));
    rig.ok("W disk 5");
    assert!(rig.answered(small));
    let counters = rig.model.counters();
    assert_eq!((counters.write_invalidates, counters.uncached_writes, counters.cleanings), (1, 1, 1));
}

#[test]
fn a_small_read_drops_a_clean_block() {
    let mut rig = Rig::new(config(), 1);
    rig.read(5);
    rig.finish();
    rig.submit(CommandKind::Read, 5 * BLOCK, 512);
    assert_eq!((rig.seen(), rig.model.state_of(5)), (vec!["R disk 5".to_owned()], (false, false)));
    assert_eq!(rig.model.counters().read_invalidates, 1);
}

#[test]
fn fifo_pointer_chooses_clean_victims() {
    let mut rig = Rig::new(Config { dirty_thresh_pct: 95, ..config() }, 1);
    for block in 0..ASSOC {
        if block == 0 || block == 2 {
            rig.dirty(block);
        } else {
            rig.read(block);
            rig.finish();
        }
    }
    rig.read(1); // FIFO: a use does not matter
    rig.finish();
    for (new, gone) in [(1000, 1), (1001, 3), (1002, 4)] {
        rig.read(new);
        rig.finish();
        assert_eq!(rig.model.state_of(gone), (false, false), "{gone} gives way to {new}");
    }
    assert_eq!([0, 2].map(|block| rig.model.state_of(block)), [(true, true); 2], "dirty ones do not");
    assert_eq!(rig.model.counters().replacement, 3);
    rig.write(1003);
    rig.finish();
    assert_eq!(rig.model.counters().write_replacement, 1);
}

#[test]
fn lru_evicts_the_least_recently_used() {
    let mut rig = Rig::new(Config { reclaim: Reclaim::Lru, ..config() }, 1);
    for block in 0..ASSOC {
        rig.read(block);
        rig.finish();
    }
    let order = |rig: &mut Rig, new: u64| {
        let before: Vec<u64> = (0..ASSOC).filter(|block| rig.model.state_of(*block).0).collect();
        rig.read(new);
        rig.finish();
        before.into_iter().find(|block| !rig.model.state_of(*block).0).unwrap()
    };
    let first = order(&mut rig, 1000);
    let second = order(&mut rig, 1001);
    let third = second + (second - first);
    rig.read(third);
    rig.finish();
    assert_ne!(order(&mut rig, 1002), third, "it was used just now");
}

#[test]
fn set_without_clean_idle_block_is_bypassed() {
    let mut rig = Rig::new(config(), 1);
    // All blocks of the set are busy: no operation completes.
    for block in 0..ASSOC {
        rig.write(block);
    }
    let (write, read) = (rig.write(1000), rig.read(1001));
    assert_eq!(rig.seen()[ASSOC as usize..], ["W disk 1000", "R disk 1001"]);
    rig.ok("W disk 1000");
    rig.ok("R disk 1001");
    assert!(rig.answered(write) && rig.answered(read));
    let counters = rig.model.counters();
    assert_eq!((counters.no_room, counters.uncached_writes, counters.uncached_reads), (2, 1, 1));
    assert_eq!([1000, 1001].map(|block| rig.model.state_of(block).0), [false; 2]);
}

#[test]
fn request_on_a_busy_block_bypasses_cache() {
    let mut rig = Rig::new(config(), 1);
    let first = rig.write(4);
    let (second, third) = (rig.read(4), rig.read(4));
    assert_eq!((rig.seen(), rig.model.counters().pending_enqueues), (vec!["W flash 0".to_owned()], 2));
    rig.ok("W flash 0");
    rig.ok("M 0");
    assert!(rig.answered(first));
    assert_eq!(rig.seen(), ["R flash 0"], "it is cleaned first");
    rig.ok("R flash 0");
    rig.ok("W disk 4");
    rig.ok("M 0");
    assert_eq!(rig.seen(), ["R disk 4", "R disk 4"], "reads past the cache run side by side");
    rig.finish();
    assert!(rig.answered(second) && rig.answered(third));
    let counters = rig.model.counters();
    assert_eq!((counters.pending_inval, rig.model.cached_blocks()), (1, 0));
}

#[test]
fn read_waits_for_a_bypass_write_and_fills() {
    let mut rig = Rig::new(config(), 1);
    rig.submit(CommandKind::Write { fua: false }, 4 * BLOCK, 512);
    let read = rig.read(4);
    assert_eq!((rig.seen(), rig.model.counters().uncached_waits), (vec!["W disk 4".to_owned()], 1));
    rig.ok("W disk 4");
    rig.ok("R disk 4");
    rig.ok("W flash 0");
    assert!(rig.answered(read) && rig.model.state_of(4).0);
}

#[test]
fn idle_blocks_are_cleaned_after_two_sweeps() {
    let delay = 900 * SECOND;
    let mut rig = Rig::new(Config { fallow_delay: delay, ..config() }, 1);
    for block in [10, 20, 30] {
        rig.dirty(block);
    }
    rig.wait(10 * delay);
    assert_eq!(rig.model.counters().cleanings, 0, "nobody visits the set: an idle device does not drain");
    rig.write(40); // first sweep
    rig.finish();
    rig.wait(delay);
    rig.read(10); // no longer idle
    rig.write(50); // second sweep: 20 and 30 are due for cleaning
    assert_eq!(rig.seen(), ["R flash 0", "W flash 4", "R flash 1", "R flash 2"]);
    rig.finish();
    assert_eq!([10, 20, 30, 40].map(|block| rig.model.state_of(block).1), [true, false, false, true]);
    assert_eq!(rig.model.counters().fallow_cleanings, 2);
}

#[test]
fn write_through_waits_for_both_devices() {
    let mut rig = Rig::new(Config { mode: Mode::Through, ..config() }, 1);
    let write = rig.write(6);
    assert_eq!(rig.seen(), ["W flash 0", "W disk 6"]);
    rig.ok("W flash 0");
    assert!(!rig.answered(write));
    rig.ok("W disk 6");
    assert!(rig.answered(write));
    assert_eq!((rig.model.state_of(6), rig.model.counters().metadata_ssd_writes), ((true, false), 0));
}

#[test]
fn write_around_drops_the_cached_block() {
    let mut rig = Rig::new(Config { mode: Mode::Around, ..config() }, 1);
    rig.read(6);
    rig.finish();
    rig.write(6);
    assert_eq!((rig.seen(), rig.model.state_of(6).0), (vec!["W disk 6".to_owned()], false));
    rig.finish();
    rig.read(6);
    rig.finish();
    assert!(rig.model.state_of(6).0);
}

#[test]
fn failed_flash_is_bypassed_unless_dirty() {
    let mut rig = Rig::new(Config { mode: Mode::Through, ..config() }, 1);
    rig.read(6);
    rig.finish();
    let read = rig.read(6);
    rig.end("R flash 0", Err(Failed));
    rig.ok("R disk 6");
    assert!(rig.answered(read));
    rig.write(6);
    assert_eq!(rig.seen(), ["W disk 6"], "from now on");

    let mut rig = Rig::new(config(), 1);
    rig.dirty(6);
    let read = rig.read(6);
    rig.end("R flash 0", Err(Failed));
    assert!(rig.replies.contains(&(read, false)) && rig.model.state_of(6) == (true, true));
}

#[test]
fn flush_is_ignored_or_reaches_the_devices() {
    let mut rig = Rig::new(config(), 1);
    rig.dirty(1);
    let flush = rig.submit(CommandKind::Flush, 0, 0);
    assert!(rig.answered(flush) && rig.seen().is_empty(), "as FlashCache, which sends none");

    let mut rig = Rig::new(Config { flush: Flush::Device, ..config() }, 1);
    rig.dirty(1);
    let flush = rig.submit(CommandKind::Flush, 0, 0);
    assert_eq!((rig.answered(flush), rig.seen()), (false, vec!["F Cache".to_owned()]));
    rig.ok("F Cache");
    assert!(rig.answered(flush));
    let fua = rig.submit(CommandKind::Write { fua: true }, 0, 512);
    rig.ok("W disk 0");
    assert_eq!((rig.answered(fua), rig.seen()), (false, vec!["F Cache".to_owned(), "F Disk".to_owned()]));
    rig.finish();
    assert!(rig.answered(fua));
}

#[test]
fn zeroes_drop_covered_and_clean_cut_blocks() {
    let mut rig = Rig::new(config(), 1);
    for block in 4..8 {
        rig.dirty(block);
    }
    let zero = rig.submit(CommandKind::Zero { fua: false, may_unmap: true }, 4 * BLOCK + 512, 3 * BLOCK);
    let read = rig.read(5);
    assert_eq!(rig.seen(), ["R flash 0", "R flash 3", "Z 5 +2"], "5 and 6 at once; 4 and 7 are cleaned");
    assert_eq!([4, 5, 6, 7].map(|block| rig.model.state_of(block).0), [true, false, false, true]);
    rig.ok("Z 5 +2");
    assert_eq!(rig.seen().last().unwrap(), "R disk 5", "what came meanwhile");
    rig.finish();
    assert!(rig.answered(zero) && rig.answered(read));
    assert_eq!(rig.model.dirty_blocks(), 0);
}

#[test]
fn stop_cleans_all_twenty_at_a_time() {
    let mut rig = Rig::new(Config { dirty_thresh_pct: 95, ..config() }, 2);
    for at in 0..60 {
        rig.dirty(2 * at);
        rig.dirty(ASSOC + 2 * at);
    }
    rig.model.stop(rig.now);
    rig.pump();
    assert_eq!((rig.cleaning(), rig.model.stopped()), (20, None));
    rig.finish();
    assert_eq!(rig.model.stopped().map(|stopped| stopped.dirty_blocks), Some(0));
    assert_eq!((rig.model.dirty_blocks(), rig.model.counters().cleanings), (0, 120));
    let late = rig.write(1);
    assert!(rig.replies.contains(&(late, false)));
}

#[test]
fn stop_gives_up_on_uncleanable_blocks() {
    let mut rig = Rig::new(config(), 1);
    rig.dirty(1);
    rig.dirty(3);
    rig.model.stop(rig.now);
    rig.pump();
    rig.ok("R flash 0");
    rig.end("W disk 1", Err(Failed));
    rig.ok("R flash 1");
    rig.ok("W disk 3");
    rig.ok("M 0");
    assert_eq!(rig.seen(), ["R flash 0"], "something could be cleaned: once more");
    rig.ok("R flash 0");
    rig.end("W disk 1", Err(Failed));
    assert_eq!(rig.model.stopped().map(|stopped| stopped.dirty_blocks), Some(1));
}

#[test]
fn sync_cleans_all_within_the_total_limit() {
    let mut rig = Rig::new(Config { dirty_thresh_pct: 95, ..config() }, 1);
    for at in 0..30 {
        rig.dirty(2 * at);
    }
    rig.model.sync(rig.now);
    rig.pump();
    assert_eq!(rig.cleaning(), 4);
    let hit = rig.read(58);
    rig.finish();
    assert!(rig.answered(hit) && rig.model.dirty_blocks() == 0);
}
