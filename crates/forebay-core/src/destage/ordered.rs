//! Ordered destage: flush epoch by flush epoch, so that the backing store alone is at every instant
//! a crash-consistent, older image of the volume, even if the cache device is lost (decision 0011,
//! I23, I24).
//!
//! What is logged belongs to the open **flush epoch** of its volume. A FLUSH that is taken in ends
//! the epoch, and so does a FUA write once its data is logged, if anything was logged in it. So
//! whoever wrote after such a request was answered wrote in a later epoch. An epoch becomes
//! *active*, and may be destaged, in any order, when of all earlier ones
//!
//! - nothing waits, is being written, or waits for the flush of the backing store, and
//! - the clean marks are durable: else a crash would bring old blocks back, to be written over
//!   newer ones.
//!
//! A write past the cache belongs to the epoch that is open when it holds its block lock, and waits
//! until that epoch is active: a fixed goal, so it ends, whatever other clients write meanwhile.
//!
//! The guarantee begins and ends with a checkpoint ([`OrderPhase`]): recovery relies on what it
//! says. When it begins, what was dirty before has been drained as epoch 0; when it ends, nothing
//! is destaged until the checkpoint is in effect, and then shadows are void.
//!
//! A lost block breaks the order: the epoch cannot become complete. It is reported, the guarantee
//! ends, and begins again when what is dirty has been drained.

use crate::api::settings::DestageOrder;
use crate::api::{Device, Notice, RequestKind};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::ledger::Waiter;
use crate::context::streams::{Item, ItemKind};
use crate::context::volume::Volume;
use crate::fault::{self, PlantedBug};
use crate::map::segment::Key;
use crate::map::waiting::{Order, OrderPhase, OrderWaiter};
use alloc::boxed::Box;
use alloc::vec::Vec;
use forebay_format::checkpoint::VolumeEntry;
use forebay_format::{StreamKind, VolumeId};

impl Context {
    pub(crate) fn order(&self, volume: VolumeId) -> Option<&Order> {
        self.map.volumes.get(usize::from(volume.0))?.waiting.order.as_deref()
    }

    fn order_mut(&mut self, volume: VolumeId) -> Option<&mut Order> {
        self.map.volumes.get_mut(usize::from(volume.0))?.waiting.order.as_deref_mut()
    }

    /// What a batch says of the epoch of an item.
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

    /// What a checkpoint taken now says of a volume: its open epoch if the guarantee holds, else 0.
    pub(crate) fn order_claim(&self, volume: VolumeId) -> u64 {
        self.order(volume).filter(|order| order.is_promised()).map_or(0, |order| order.current)
    }

    /// A checkpoint is being taken.
    pub(crate) fn note_order_claims(&mut self) {
        for map in &mut self.map.volumes {
            if let Some(order) = &mut map.waiting.order {
                order.claimed = order.is_promised();
            }
        }
    }

    /// A checkpoint is in effect: guarantees begin and end.
    pub(crate) fn orders_checkpointed(&mut self) {
        for index in 0..self.map.volumes.len() {
            let Some(order) = &mut self.map.volumes[index].waiting.order else { continue };
            match order.phase {
                OrderPhase::Confirming if order.claimed => order.phase = OrderPhase::InForce,
                OrderPhase::Leaving if !order.claimed => self.map.dissolve_order(index),
                _ => {}
            }
        }
    }

    /// Recovery knows the volume table: guarantees that held go on.
    pub(crate) fn recover_orders(&mut self, table: &[VolumeEntry]) {
        for entry in table.iter().filter(|entry| entry.flush_epoch > 0) {
            let order = Order::new(OrderPhase::InForce, entry.flush_epoch);
            self.map.volumes[usize::from(entry.id.0)].waiting.order = Some(Box::new(order));
        }
    }

    /// Recovery found out the epoch of a slot that it has described. False if the volume has no
    /// order.
    pub(crate) fn recover_epoch(&mut self, slot: u32, low: u32) -> bool {
        let low = if fault::planted(PlantedBug::ForgetEpochs) { 1 } else { low };
        let Some(order) = self.order_mut(self.map.key(slot).volume()) else { return false };
        order.current = order.current.max(order.widen(low));
        self.map.set_epoch(slot, low);
        true
    }

    /// Replays a dirty block: without an epoch it was written after the guarantee had ended.
    pub(crate) fn replay_epoch(&mut self, slot: u32, low: u32) {
        if low == 0 {
            self.map.dissolve_order(usize::from(self.map.key(slot).volume().0));
        } else {
            self.recover_epoch(slot, low);
        }
    }

    /// The volume has left the table, a shadow cannot be found any more, or nobody knows what is on
    /// the backing store: no guarantee. If the checkpoint in effect says otherwise the next one
    /// must be in effect before anything of the volume is destaged or logged.
    pub(crate) fn forget_order(&mut self, volume: VolumeId) {
        self.map.dissolve_order(usize::from(volume.0));
    }

    /// Recovery has ended: what comes now is later than all that was found. Volumes that are to be
    /// destaged in another order from now on lose their guarantee; those that are not attached keep
    /// it.
    pub(crate) fn resume_orders(&mut self) {
        let leaving: Vec<VolumeId> = self
            .volumes
            .iter()
            .flatten()
            .filter(|volume| volume.settings.destage_order != DestageOrder::Ordered)
            .map(|volume| volume.id)
            .collect();
        let all = (0..self.map.volumes.len() as u16).map(VolumeId);
        let unsound: Vec<VolumeId> = all.filter(|volume| !self.map.shadows_are_sound(*volume)).collect();
        for volume in leaving.into_iter().chain(unsound) {
            self.forget_order(volume);
        }
        for volume in &mut self.map.volumes {
            if let Some(order) = &mut volume.waiting.order {
                order.advance();
                order.barrier = 0;
            }
        }
    }

    /// True if the guarantee of [`DestageOrder::Ordered`] is in force: the backing store alone,
    /// whatever happens to the cache device, is a crash-consistent, older image of the volume (but
    /// for blocks reported as lost). A volume that is kept in the cache without being attached
    /// keeps the guarantee that it had, see [`Notice::OrderYielded`].
    pub(crate) fn is_ordered(&self, volume: VolumeId) -> bool {
        let wanted = self.volume_settings(volume).map(|settings| settings.destage_order);
        let phase = self.order(volume).map(|order| order.phase);
        wanted.is_none_or(|wanted| wanted == DestageOrder::Ordered) && phase == Some(OrderPhase::InForce)
    }

    /// A FLUSH was taken in, or the data of a FUA write was logged: what comes from now on is
    /// later.
    pub(crate) fn end_flush_epoch(&mut self, volume: VolumeId, kind: RequestKind) {
        let barrier = self.log.streams[StreamKind::Write.index()].next_sequence;
        if kind != RequestKind::Flush && fault::planted(PlantedBug::FuaKeepsEpoch) {
            return;
        }
        if let Some(order) = self.order_mut(volume).filter(|order| order.used) {
            order.advance();
            order.barrier = barrier;
        }
    }

    /// The clean mark of a slot was appended.
    pub(crate) fn note_marked(&mut self, slot: u32) {
        let ticket = self.flushes.cache.ticket();
        if let Some(order) = self.order_mut(self.map.key(slot).volume()) {
            order.marks_ticket = ticket;
        }
    }

    /// Nobody writes back what a volume that is not attached has dirty, and its place in the order
    /// keeps it from being moved: its order gives way to whoever needs the room. True if it was
    /// attached, or has no order.
    fn yield_order(&mut self, volume: VolumeId) -> bool {
        if self.is_attached(volume) {
            return true;
        }
        let Some(order) = self.order_mut(volume) else { return true };
        match order.phase {
            OrderPhase::Entering => self.map.dissolve_order(usize::from(volume.0)),
            OrderPhase::Confirming | OrderPhase::InForce => {
                order.phase = OrderPhase::Leaving;
                self.want_checkpoint();
                self.cover(CoverageMark::OrderYielded);
                self.notice(Notice::OrderYielded { volume });
            }
            OrderPhase::Leaving => {}
        }
        false
    }

    /// This block is in the way.
    pub(crate) fn yield_order_of(&mut self, slot: u32) {
        if self.map.is_fixed(slot) {
            self.yield_order(self.map.key(slot).volume());
        }
    }

    /// The version of a block that must reach the backing store is lost.
    pub(crate) fn break_order(&mut self, key: Key) {
        let Some(order) = self.order_mut(key.volume()).filter(|order| order.is_promised()) else { return };
        order.phase = OrderPhase::Leaving;
        self.want_checkpoint();
        self.cover(CoverageMark::OrderBroken);
        self.notice(Notice::OrderBroken { volume: key.volume(), block: key.block() });
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
            return; // A crash may bring back blocks beyond the new end, and they belong to this epoch.
        }
        let stream = &self.log.streams[StreamKind::Write.index()];
        let all_applied = stream.nothing_in_flight() || stream.completed_sequence >= order.barrier;
        if order.first().is_none() && !all_applied {
            return; // Something of an earlier epoch is on its way to the log.
        }
        let urgent =
            order.first().is_some() || order.phase == OrderPhase::Entering || self.writes_wait_for_order(id);
        let marked = map.destaged == 0;
        let durable = self.flushes.cache.succeeded >= order.marks_ticket;
        if !fault::planted(PlantedBug::MixFlushEpochs) {
            if self.volume(id).destage.is_under_way() {
                return;
            }
            if !marked {
                self.cover(CoverageMark::EpochWaitsForMarks);
                self.log.order_waits_for_marks |= urgent;
                return;
            }
            if !durable && !fault::planted(PlantedBug::EpochBeforeMarks) {
                if urgent && !self.flushes.cache.waits(Waiter::Nobody) {
                    self.flush(Device::Cache, Waiter::Nobody);
                }
                return;
            }
        }
        if let Some(order) = self.order_mut(id) {
            order.active = next;
        }
    }

    /// Lets a write past the cache go on when its epoch is active.
    pub(crate) fn await_turn(&mut self, direct: u32, volume: VolumeId) {
        let overtakes = fault::planted(PlantedBug::OvertakeEpochs);
        let Some(order) = self.order_mut(volume).filter(|_| !overtakes) else {
            self.tell(Event::OrderReached(direct));
            return;
        };
        let epoch = order.current;
        if order.phase == OrderPhase::Entering && order.active == 0 {
            // What was dirty before may take hours. The guarantee begins only when it holds for
            // this write too.
            order.until = order.until.max(epoch);
            self.tell(Event::OrderReached(direct));
            return;
        }
        self.order_waiters.push(OrderWaiter { direct, volume, epoch });
        self.wake_order_waiters();
    }

    /// True if a write past the cache waits for destage of a volume.
    pub(crate) fn writes_wait_for_order(&self, volume: VolumeId) -> bool {
        self.order_waiters.iter().any(|waiter| waiter.volume == volume)
    }

    /// The writes past the cache of a volume that wait for their turn, which they do no longer.
    pub(crate) fn leave_order(&mut self, volume: VolumeId) -> Vec<u32> {
        let left = self.order_waiters.extract_if(.., |waiter| waiter.volume == volume);
        left.map(|waiter| waiter.direct).collect()
    }

    fn wake_order_waiters(&mut self) {
        let mut at = 0;
        while let Some(OrderWaiter { direct, volume, epoch }) = self.order_waiters.get(at).copied() {
            let passes = self
                .order(volume)
                .is_none_or(|order| order.phase != OrderPhase::Leaving && order.active >= epoch);
            if passes || self.fenced {
                self.order_waiters.remove(at);
                self.tell(Event::OrderReached(direct));
            } else {
                at += 1;
            }
        }
    }

    /// Begins and ends orders as the settings say, and lets epochs become active. `is_moving`: a
    /// block of the volume is being moved.
    pub(crate) fn step_ordered(&mut self, is_moving: impl Fn(VolumeId) -> bool) {
        self.log.order_waits_for_marks = false;
        for index in 0..self.volumes.len() {
            let Some(volume) = &self.volumes[index] else { continue };
            let (id, wanted) = (volume.id, volume.settings.destage_order == DestageOrder::Ordered);
            if self.order(id).is_none() {
                if !wanted {
                    continue;
                }
                let barrier = self.log.streams[StreamKind::Write.index()].next_sequence;
                self.map.volumes[index].waiting.begin(barrier);
            }
            self.advance_epoch(id);
            self.step_order_phase(id, wanted, &is_moving);
        }
        if !self.order_waiters.is_empty() {
            self.wake_order_waiters();
        }
    }

    fn step_order_phase(&mut self, id: VolumeId, wanted: bool, is_moving: impl Fn(VolumeId) -> bool) {
        let entering = self.order(id).is_some_and(|order| order.phase == OrderPhase::Entering);
        let moving = entering && is_moving(id);
        let Some(order) = self.order_mut(id) else { return };
        match order.phase {
            OrderPhase::Entering if !wanted => self.map.dissolve_order(usize::from(id.0)),
            // A move that began before may still leave a record without an epoch in the log.
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

    /// Reclaim has found no segment to empty. If somebody needs one and nothing else can make room,
    /// volumes that are not attached give up their order. (After a start nobody needs any: whoever
    /// is attached then finds its order as it was.) `checkpoint_idle`: none is being taken.
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
            || self.volumes.iter().flatten().any(unclean);
        if !needed || hope {
            return;
        }
        for index in 0..self.map.volumes.len() as u16 {
            if !self.yield_order(VolumeId(index)) {
                return; // One after the other: it may be enough.
            }
        }
    }
}
