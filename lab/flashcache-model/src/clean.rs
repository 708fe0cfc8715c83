//! Cleaning: writes dirty blocks to the disk, set by set.
//!
//! - A write to a set, a read miss in it, and the end of the cleaning of one of its blocks each
//!   trigger a check of the set.
//! - Once in `fallow_delay` such a check sweeps the set: dirty blocks that two sweeps have found
//!   unused are cleaned first, in batches at intervals of 1 / `fallow_clean_speed` s per set.
//! - Then, if more than `dirty_thresh_pct` of the set is dirty, it selects the surplus as victims,
//!   from a rotating pointer (FIFO), or the coldest first (LRU).
//! - It selects victims only while fewer than `max_clean_ios_set` blocks of the set, and
//!   `max_clean_ios_total` of all sets, are under cleaning. Dirty neighbours of a victim on the
//!   disk, if they are in the same set, are cleaned with it *regardless of the limits*, and count
//!   against them meanwhile; all are written in the order of the disk.
//! - If a set has a surplus and cleaning cannot begin, all sets are checked again a second later.
//! - `do_sync` cleans everything, slot by slot, within `max_clean_ios_total`.

use crate::api::{Action, Device, Failed, Memory, Nanos, OpId, SECOND, Span};
use crate::config::Mode;
use crate::metadata::{Mark, Update};
use crate::model::{Active, Model, Op, Stopped, Walk};

/// `max_clean_ios_total` during the removal of the device.
pub(crate) const REMOVAL_CLEAN_IOS_TOTAL: u32 = 20;
/// Time until the next check of all sets if a check could begin no cleaning.
const DELAYED: Nanos = SECOND;

impl Model {
    /// Checks a set, and begins to clean as many blocks as needed and permitted.
    pub(crate) fn clean_set(&mut self, now: Nanos, set: u32) {
        if self.config.mode != Mode::Back || self.stopping {
            return;
        }
        let mut victims = Vec::new();
        let all = self.choose_fallow(now, set, &mut victims);
        if all {
            self.choose_beyond_threshold(set, &mut victims);
        }
        if victims.is_empty() {
            let too_many = self.table.set(set).dirty > self.config.dirty_thresh_set();
            if too_many || !all {
                self.clean_later(now);
            }
            return;
        }
        self.add_neighbours(set, &mut victims);
        self.clean_all(victims);
    }

    /// Schedules a check of all sets in a second.
    fn clean_later(&mut self, now: Nanos) {
        self.delayed_clean.get_or_insert(now + DELAYED);
    }

    /// Returns true if the limits permit another victim in a set, in addition to `chosen` ones.
    fn can_clean(&self, set: u32, chosen: usize) -> bool {
        let chosen = chosen as u32;
        self.table.set(set).cleaning + chosen < self.config.max_clean_ios_set
            && self.table.cleaning + chosen < self.config.max_clean_ios_total
    }

    /// Chooses blocks that were idle for long; false if there are more than the limits permit.
    fn choose_fallow(&mut self, now: Nanos, set: u32, victims: &mut Vec<u32>) -> bool {
        let delay = self.config.fallow_delay;
        if delay == 0 {
            return true;
        }
        if now >= self.table.set(set).swept_until {
            self.table.sweep(set);
            self.table.set_mut(set).swept_until = now + delay;
        }
        if self.table.set(set).fallow == 0 || now < self.table.set(set).fallow_until {
            return true;
        }
        for slot in self.table.slots_of(set) {
            if !self.table.is_fallow(slot) {
                continue;
            }
            if !self.can_clean(set, victims.len()) {
                self.pause_fallow(now, set, victims);
                return false;
            }
            self.counters.fallow_cleanings += 1;
            self.choose(slot, victims);
        }
        self.pause_fallow(now, set, victims);
        true
    }

    fn pause_fallow(&mut self, now: Nanos, set: u32, victims: &[u32]) {
        if !victims.is_empty() {
            let pause = SECOND / u64::from(self.config.fallow_clean_speed);
            self.table.set_mut(set).fallow_until = now + pause;
        }
    }

    fn choose_beyond_threshold(&mut self, set: u32, victims: &mut Vec<u32>) {
        let (dirty, threshold) = (self.table.set(set).dirty, self.config.dirty_thresh_set());
        if dirty <= threshold || !self.can_clean(set, victims.len()) {
            return;
        }
        let wanted = (dirty - threshold) as usize;
        let mut chosen = Vec::new();
        let mut last = None;
        for slot in self.table.victims(set) {
            let so_far = victims.len() + chosen.len();
            if so_far >= wanted || !self.can_clean(set, so_far) {
                break;
            }
            last = Some(slot);
            if self.may_be_cleaned(slot) {
                chosen.push(slot);
            }
        }
        if let Some(last) = last {
            let assoc = self.layout.assoc;
            self.table.set_mut(set).clean_next = (last + 1) % assoc;
        }
        chosen.into_iter().for_each(|slot| self.choose(slot, victims));
    }

    fn may_be_cleaned(&self, slot: u32) -> bool {
        let slot = self.table.slot(slot);
        slot.dirty && !slot.busy
    }

    /// Chooses a slot for cleaning, and marks it busy so that it is chosen once.
    fn choose(&mut self, slot: u32, victims: &mut Vec<u32>) {
        self.table.set_busy(slot, true);
        self.table.clear_fallow(slot);
        victims.push(slot);
    }

    /// Adds the dirty neighbours on the disk that are in the same set, and sorts by place on the
    /// disk.
    fn add_neighbours(&mut self, set: u32, victims: &mut Vec<u32>) {
        for at in 0..victims.len() {
            let block = self.table.slot(victims[at]).block;
            let mut before = block;
            while let Some(slot) = before.checked_sub(1).and_then(|block| self.neighbour(set, block)) {
                self.choose(slot, victims);
                self.counters.back_merge += 1;
                before -= 1;
            }
            let mut after = block;
            while let Some(slot) = after.checked_add(1).and_then(|block| self.neighbour(set, block)) {
                self.choose(slot, victims);
                self.counters.front_merge += 1;
                after += 1;
            }
        }
        victims.sort_by_key(|slot| self.table.slot(*slot).block);
    }

    fn neighbour(&self, set: u32, block: u64) -> Option<u32> {
        let slot = self.table.find(block)?;
        (self.table.set_of_slot(slot) == set && self.may_be_cleaned(slot)).then_some(slot)
    }

    fn clean_all(&mut self, victims: Vec<u32>) {
        victims.into_iter().for_each(|slot| self.start_clean(slot));
    }

    /// Begins to copy a dirty block to the disk.
    pub(crate) fn start_clean(&mut self, slot: u32) {
        let set = self.table.set_of_slot(slot);
        self.table.set_busy(slot, true);
        self.table.clear_fallow(slot);
        self.table.set_mut(set).cleaning += 1;
        self.table.cleaning += 1;
        let block = self.table.slot(slot).block;
        self.lane(block).active = Active::Cached;
        self.counters.ssd_reads += 1;
        self.counters.disk_writes += 1;
        let op = self.op(Op::CleanRead { slot });
        let (device, offset) = (Device::Cache, self.layout.slot_offset(slot));
        self.actions.push_back(Action::Read { op, device, offset, span: copy_span(slot) });
    }

    /// Continues after the read from the flash: writes the block to the disk.
    pub(crate) fn clean_read(&mut self, now: Nanos, slot: u32, result: Result<(), Failed>) {
        if result.is_err() {
            self.counters.ssd_read_errors += 1;
            return self.cleaned(now, slot, result);
        }
        let op: OpId = self.op(Op::CleanWrite { slot });
        let offset = self.table.slot(slot).block * u64::from(crate::api::BLOCK_BYTES);
        self.actions.push_back(Action::Write { op, device: Device::Disk, offset, span: copy_span(slot) });
    }

    /// Continues after the write to the disk: queues the clean mark.
    pub(crate) fn clean_written(&mut self, now: Nanos, slot: u32, result: Result<(), Failed>) {
        if result.is_err() {
            self.counters.disk_write_errors += 1;
            return self.cleaned(now, slot, result);
        }
        self.metadata.add(Update { slot, mark: Mark::Clean });
    }

    /// Ends the cleaning of a block; if it failed, the block stays dirty.
    pub(crate) fn cleaned(&mut self, now: Nanos, slot: u32, result: Result<(), Failed>) {
        let set = self.table.set_of_slot(slot);
        self.table.set_mut(set).cleaning -= 1;
        self.table.cleaning -= 1;
        self.counters.cleanings += 1;
        if result.is_ok() {
            self.counters.metadata_cleans += 1;
            self.table.set_dirty(slot, false);
            if let Some(walk) = &mut self.walk {
                walk.cleaned += 1;
            }
        }
        self.settle(now, slot, result);
        match result {
            Ok(()) => self.clean_set(now, set),
            // FlashCache retries at once, forever; a pause makes no difference to a disk that
            // fails.
            Err(Failed) => self.clean_later(now),
        }
        self.walk_on(now);
    }

    /// `do_sync`: cleans all blocks that are dirty now.
    pub fn sync(&mut self, now: Nanos) {
        if self.config.mode == Mode::Back && !self.stopping {
            self.walk = Some(Walk::default());
            self.walk_on(now);
        }
    }

    /// Begins an orderly stop: operations in flight complete, then everything is cleaned. Requests
    /// are refused from now on.
    pub fn stop(&mut self, now: Nanos) {
        self.stopping = true;
        self.walk = None;
        self.delayed_clean = None;
        self.go_on_stopping(now);
    }

    /// Returns the result of the stop, once it has ended.
    #[must_use]
    pub fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    /// Begins the last walk once nothing else is in flight.
    pub(crate) fn go_on_stopping(&mut self, now: Nanos) {
        if self.stopping && self.stopped.is_none() && self.walk.is_none() && self.is_idle() {
            self.walk = Some(Walk::default());
            self.walk_on(now);
        }
    }

    /// Chooses the next dirty slots of a walk, as many as the limits permit.
    fn walk_on(&mut self, now: Nanos) {
        let Some(mut walk) = self.walk else { return };
        let total = if self.stopping { REMOVAL_CLEAN_IOS_TOTAL } else { self.config.max_clean_ios_total };
        let mut victims = Vec::new();
        while walk.next < self.layout.slots() && self.table.cleaning + (victims.len() as u32) < total {
            if walk.next.is_multiple_of(self.layout.assoc) {
                // Another set: neighbours count only within a set.
                self.clean_walked(walk.next.saturating_sub(1), std::mem::take(&mut victims));
            }
            if self.may_be_cleaned(walk.next) {
                self.choose(walk.next, &mut victims);
            }
            walk.next += 1;
        }
        self.walk = Some(walk);
        self.clean_walked(walk.next.saturating_sub(1), victims);
        if walk.next >= self.layout.slots() && self.table.cleaning == 0 {
            self.walk_ended(now, walk);
        }
    }

    fn clean_walked(&mut self, slot: u32, mut victims: Vec<u32>) {
        self.add_neighbours(self.table.set_of_slot(slot), &mut victims);
        self.clean_all(victims);
    }

    fn walk_ended(&mut self, now: Nanos, walk: Walk) {
        self.walk = None;
        if !self.stopping {
            return;
        }
        if self.table.dirty() > 0 && walk.cleaned > 0 {
            return self.go_on_stopping(now);
        }
        self.stopped = Some(Stopped { dirty_blocks: self.table.dirty() });
    }

    /// Returns the latest time for the next call of [`Model::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.delayed_clean
    }

    /// Informs the model of the time: checks all sets if that is due.
    pub fn tick(&mut self, now: Nanos) {
        if self.delayed_clean.is_some_and(|due| due <= now) {
            self.delayed_clean = None;
            for set in 0..self.layout.sets {
                self.clean_set(now, set);
            }
        }
    }
}

fn copy_span(slot: u32) -> Span {
    Span { memory: Memory::Copy(slot), offset: 0, len: crate::api::BLOCK_BYTES }
}
