//! Ordered destage: writes back flush epoch by flush epoch, so that at every instant the backing
//! store alone is a crash-consistent, older image of the volume, even if the cache device is lost
//! (decision 0011, I23, I24).
//!
//! Each logged write belongs to the open **flush epoch** of its volume. If anything was logged in
//! the epoch, a FLUSH ends it on arrival, and a FUA write once its data is logged. So writes
//! submitted after the reply to such a request belong to a later epoch. An epoch becomes *active*,
//! and destage may write it in any order, when of all earlier epochs
//!
//! - no block waits, is being written, or waits for the flush of the backing store, and
//! - the clean marks are durable: else recovery after a crash would find old blocks dirty, and
//!   destage would write them over newer ones.
//!
//! A bypass write belongs to the epoch that is open when it holds its block lock, and waits until
//! that epoch is active. That is a fixed goal, so the wait ends however much other clients write
//! meanwhile.
//!
//! The guarantee begins and ends with a checkpoint ([`OrderPhase`]), on which recovery relies.
//! Before it begins, destage drains the earlier dirty blocks as epoch 0. When it ends, destage
//! pauses until the checkpoint is in effect, and then shadows are void.
//!
//! A lost block breaks the order, because its epoch cannot become complete. The engine reports it
//! and ends the guarantee, which begins again once the dirty blocks have been drained.

use crate::api::settings::DestageOrder;
use crate::api::{Device, Notice, RequestKind};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::flush_ledger::Waiter;
use crate::context::streams::{Item, ItemKind};
use crate::context::volume::Volume;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::destage_queue::{Order, OrderPhase, OrderWaiter};
use crate::map::segment::Key;
use alloc::boxed::Box;
use alloc::vec::Vec;
use forebay_format::checkpoint::VolumeEntry;
use forebay_format::{StreamKind, VolumeId};

impl CacheMap {
    pub(crate) fn order(&self, volume: VolumeId) -> Option<&Order> {
        self.volumes.get(usize::from(volume.0))?.waiting.order.as_deref()
    }

    fn order_mut(&mut self, volume: VolumeId) -> Option<&mut Order> {
        self.volumes.get_mut(usize::from(volume.0))?.waiting.order.as_deref_mut()
    }

    /// Notes which guarantees the checkpoint that is being taken records.
    pub(crate) fn note_order_claims(&mut self) {
        for map in &mut self.volumes {
            if let Some(order) = &mut map.waiting.order {
                order.claimed = order.is_promised();
            }
        }
    }

    /// Begins and ends guarantees when a checkpoint takes effect.
    pub(crate) fn orders_checkpointed(&mut self) {
        for index in 0..self.volumes.len() {
            let Some(order) = &mut self.volumes[index].waiting.order else { continue };
            match order.phase {
                OrderPhase::Confirming if order.claimed => order.phase = OrderPhase::InForce,
                OrderPhase::Leaving if !order.claimed => self.dissolve_order(index),
                _ => {}
            }
        }
    }

    /// Continues the guarantees that the recovered volume table records.
    pub(crate) fn recover_orders(&mut self, table: &[VolumeEntry]) {
        for entry in table.iter().filter(|entry| entry.flush_epoch > 0) {
            let order = Order::new(OrderPhase::InForce, entry.flush_epoch);
            self.volumes[usize::from(entry.id.0)].waiting.order = Some(Box::new(order));
        }
    }

    /// Drops the guarantee: the volume has left the table, a shadow cannot be found, or the content
    /// of the backing store is unknown. If the checkpoint in effect records a guarantee, the next
    /// one must be in effect before the volume is destaged or logged.
    pub(crate) fn forget_order(&mut self, volume: VolumeId) {
        self.dissolve_order(usize::from(volume.0));
    }

    /// Returns the flush epoch that a batch records for an item; 0: none.
    pub(crate) fn flush_epoch(&mut self, stream: StreamKind, item: &Item) -> u32 {
        let counts = stream == StreamKind::Write && matches!(item.kind, ItemKind::Data { dirty: true, .. });
        match self.order_mut(item.key.volume()) {
            Some(order) if counts => {
                order.used = true;
                order.current as u32
            }
            _ => 0,
        }
    }

    /// Returns the epoch that a checkpoint taken now records for a volume: the open one if the
    /// guarantee holds, else 0.
    pub(crate) fn order_claim(&self, volume: VolumeId) -> u64 {
        self.order(volume).filter(|order| order.is_promised()).map_or(0, |order| order.current)
    }

    /// Sets the epoch of a recovered slot. Returns false if the volume has no order.
    pub(crate) fn recover_epoch(&mut self, slot: u32, low: u32) -> bool {
        let low = if fault::planted(PlantedBug::ForgetEpochs) { 1 } else { low };
        let Some(order) = self.order_mut(self.key(slot).volume()) else { return false };
        order.current = order.current.max(order.widen(low));
        self.set_epoch(slot, low);
        true
    }

    /// Replays the epoch of a dirty block: one without an epoch was written after the guarantee had
    /// ended.
    pub(crate) fn replay_epoch(&mut self, slot: u32, low: u32) {
        if low == 0 {
            self.dissolve_order(usize::from(self.key(slot).volume().0));
        } else {
            self.recover_epoch(slot, low);
        }
    }
}

impl Context {
    /// Resumes orders after recovery: new writes are later than all recovered ones. Attached
    /// volumes that now have another destage order lose their guarantee, as do volumes with
    /// inconsistent shadows; volumes that are not attached otherwise keep it.
    pub(crate) fn resume_orders(&mut self) {
        let leaving: Vec<VolumeId> = self
            .volumes
            .iter()
            .filter(|volume| volume.settings.destage_order != DestageOrder::Ordered)
            .map(|volume| volume.id)
            .collect();
        let all = (0..self.map.volumes.len() as u16).map(VolumeId);
        let unsound: Vec<VolumeId> = all.filter(|volume| !self.map.shadows_are_sound(*volume)).collect();
        for volume in leaving.into_iter().chain(unsound) {
            self.map.forget_order(volume);
        }
        for volume in &mut self.map.volumes {
            if let Some(order) = &mut volume.waiting.order {
                order.advance();
                order.barrier = 0;
            }
        }
    }

    /// Returns true if the guarantee of [`DestageOrder::Ordered`] is in force: even if the cache
    /// device is lost, the backing store alone is a crash-consistent, older image of the volume
    /// (except for blocks reported as lost). A kept volume retains its guarantee, see
    /// [`Notice::OrderYielded`].
    pub(crate) fn is_ordered(&self, volume: VolumeId) -> bool {
        let wanted = self.volumes.settings(volume).map(|settings| settings.destage_order);
        let phase = self.map.order(volume).map(|order| order.phase);
        wanted.is_none_or(|wanted| wanted == DestageOrder::Ordered) && phase == Some(OrderPhase::InForce)
    }

    /// Ends the open epoch: a FLUSH has arrived, or the data of a FUA write was logged.
    pub(crate) fn end_flush_epoch(&mut self, volume: VolumeId, kind: RequestKind) {
        let barrier = self.log.streams[StreamKind::Write.index()].next_sequence;
        if kind != RequestKind::Flush && fault::planted(PlantedBug::FuaKeepsEpoch) {
            return;
        }
        if let Some(order) = self.map.order_mut(volume).filter(|order| order.used) {
            order.advance();
            order.barrier = barrier;
        }
    }

    /// Notes that the clean mark of a slot was appended.
    pub(crate) fn note_marked(&mut self, slot: u32) {
        let ticket = self.flushes.cache.ticket();
        if let Some(order) = self.map.order_mut(self.map.key(slot).volume()) {
            order.marks_ticket = ticket;
        }
    }

    /// Ends the order of a volume that is not attached, to make room: destage does not write back
    /// its dirty blocks, and the order prevents their relocation. Returns true if the volume is
    /// attached or has no order.
    fn yield_order(&mut self, volume: VolumeId) -> bool {
        if self.volumes.is_attached(volume) {
            return true;
        }
        let Some(order) = self.map.order_mut(volume) else { return true };
        match order.phase {
            OrderPhase::Entering => self.map.dissolve_order(usize::from(volume.0)),
            OrderPhase::Confirming | OrderPhase::InForce => {
                order.phase = OrderPhase::Leaving;
                self.want_checkpoint();
                self.coverage.add(CoverageMark::OrderYielded);
                self.actions.notice(Notice::OrderYielded { volume });
            }
            OrderPhase::Leaving => {}
        }
        false
    }

    /// Ends the order of the volume that keeps this slot from being relocated.
    pub(crate) fn yield_order_of(&mut self, slot: u32) {
        if self.map.is_fixed(slot) {
            self.yield_order(self.map.key(slot).volume());
        }
    }

    /// Ends the guarantee: the version of a block that must reach the backing store is lost.
    pub(crate) fn break_order(&mut self, key: Key) {
        let Some(order) = self.map.order_mut(key.volume()).filter(|order| order.is_promised()) else {
            return;
        };
        order.phase = OrderPhase::Leaving;
        self.want_checkpoint();
        self.coverage.add(CoverageMark::OrderBroken);
        self.actions.notice(Notice::OrderBroken { volume: key.volume(), block: key.block() });
    }

    /// Makes the next epoch active once the earlier ones are complete.
    fn advance_epoch(&mut self, id: VolumeId) {
        let map = &self.map.volumes[usize::from(id.0)];
        let Some(order) = &map.waiting.order else { return };
        let next = order.first().unwrap_or(order.current);
        if order.phase == OrderPhase::Leaving || next <= order.active || map.waiting.next_from(0).is_some() {
            return;
        }
        if self.volume(id).shrinking && !fault::planted(PlantedBug::AdvanceInShrink) {
            return; // A crash may restore blocks beyond the new end, of this epoch.
        }
        let stream = &self.log.streams[StreamKind::Write.index()];
        let all_applied = stream.nothing_in_flight() || stream.completed_sequence >= order.barrier;
        if order.first().is_none() && !all_applied {
            return; // Appends of an earlier epoch are in flight.
        }
        let urgent =
            order.first().is_some() || order.phase == OrderPhase::Entering || self.writes_wait_for_order(id);
        let marked = map.destaged == 0;
        let durable = self.flushes.cache.has_covered(order.marks_ticket);
        if !fault::planted(PlantedBug::MixFlushEpochs) {
            if self.volume(id).destage.is_under_way() {
                return;
            }
            if !marked {
                self.coverage.add(CoverageMark::EpochWaitsForMarks);
                if urgent {
                    self.log.marks.set_order_waits(true);
                }
                return;
            }
            if !durable && !fault::planted(PlantedBug::EpochBeforeMarks) {
                if urgent && !self.flushes.cache.waits(Waiter::None) {
                    self.flush(Device::Cache, Waiter::None);
                }
                return;
            }
        }
        if let Some(order) = self.map.order_mut(id) {
            order.active = next;
        }
    }

    /// Lets a bypass write continue once its epoch is active.
    pub(crate) fn await_turn(&mut self, direct: u32, volume: VolumeId) {
        let overtakes = fault::planted(PlantedBug::OvertakeEpochs);
        let Some(order) = self.map.order_mut(volume).filter(|_| !overtakes) else {
            self.emit(Event::OrderReached(direct));
            return;
        };
        let epoch = order.current;
        if order.phase == OrderPhase::Entering && order.active == 0 {
            // Draining the earlier dirty blocks may take hours. The guarantee begins only when it
            // holds for this write too.
            order.until = order.until.max(epoch);
            self.emit(Event::OrderReached(direct));
            return;
        }
        self.order_waiters.push(OrderWaiter { direct, volume, epoch });
        self.wake_order_waiters();
    }

    /// Returns true if a bypass write waits for destage of a volume.
    pub(crate) fn writes_wait_for_order(&self, volume: VolumeId) -> bool {
        self.order_waiters.iter().any(|waiter| waiter.volume == volume)
    }

    /// Removes the waiting bypass writes of a volume from the wait list and returns them.
    pub(crate) fn leave_order(&mut self, volume: VolumeId) -> Vec<u32> {
        let left = self.order_waiters.extract_if(.., |waiter| waiter.volume == volume);
        left.map(|waiter| waiter.direct).collect()
    }

    fn wake_order_waiters(&mut self) {
        let mut at = 0;
        while let Some(OrderWaiter { direct, volume, epoch }) = self.order_waiters.get(at).copied() {
            let passes = self
                .map
                .order(volume)
                .is_none_or(|order| order.phase != OrderPhase::Leaving && order.active >= epoch);
            if passes || self.failure.is_fenced() {
                self.order_waiters.remove(at);
                self.emit(Event::OrderReached(direct));
            } else {
                at += 1;
            }
        }
    }

    /// Begins and ends orders as the settings require, and makes epochs active. `is_moving`:
    /// returns true if a block of the volume is being relocated.
    pub(crate) fn step_ordered(&mut self, is_moving: impl Fn(VolumeId) -> bool) {
        self.log.marks.set_order_waits(false);
        for id in self.volumes.ids() {
            let Some(volume) = self.volumes.get(id) else { continue };
            let wanted = volume.settings.destage_order == DestageOrder::Ordered;
            if self.map.order(id).is_none() {
                if !wanted {
                    continue;
                }
                let barrier = self.log.streams[StreamKind::Write.index()].next_sequence;
                self.map.volumes[usize::from(id.0)].waiting.begin(barrier);
            }
            self.advance_epoch(id);
            self.step_order_phase(id, wanted, &is_moving);
        }
        if !self.order_waiters.is_empty() {
            self.wake_order_waiters();
        }
    }

    fn step_order_phase(&mut self, id: VolumeId, wanted: bool, is_moving: impl Fn(VolumeId) -> bool) {
        let entering = self.map.order(id).is_some_and(|order| order.phase == OrderPhase::Entering);
        let moving = entering && is_moving(id);
        let Some(order) = self.map.order_mut(id) else { return };
        match order.phase {
            OrderPhase::Entering if !wanted => self.map.dissolve_order(usize::from(id.0)),
            // A relocation begun before may still leave a record without an epoch in the log.
            OrderPhase::Entering if order.active >= order.until.max(1) && !moving => {
                order.phase = OrderPhase::Confirming;
                self.want_checkpoint();
            }
            OrderPhase::Confirming | OrderPhase::InForce if !wanted => {
                order.phase = OrderPhase::Leaving;
                self.want_checkpoint();
            }
            _ => {}
        }
    }

    /// Ends the order of volumes that are not attached, one at a time, if reclaim has found no
    /// segment to empty, the write stream needs one and nothing else can make room. (After a start
    /// no stream needs any, so a volume attached then keeps its order.) `checkpoint_idle`: no
    /// checkpoint is in progress.
    pub(crate) fn yield_kept_orders(&mut self, checkpoint_idle: bool) {
        let stream = &self.log.streams[StreamKind::Write.index()];
        let needed = stream.room(self.batch_blocks()) == 0 && !stream.is_idle();
        let unclean = |volume: &Volume| {
            let map = &self.map.volumes[usize::from(volume.id.0)];
            map.dirty + map.destaged > 0
        };
        let hope = self.log.moves > 0
            || !checkpoint_idle
            || !self.free.pool.is_empty()
            || self.volumes.iter().any(unclean);
        if !needed || hope {
            return;
        }
        for index in 0..self.map.volumes.len() as u16 {
            if !self.yield_order(VolumeId(index)) {
                return; // One at a time: it may be enough.
            }
        }
    }
}
