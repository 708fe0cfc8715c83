//! Dispatches completions, and events between parts, to the part that they concern.

use crate::api::Nanos;
use crate::context::events::Event;
use crate::context::flush_ledger::Waiter;
use crate::context::pages::PageUse;
use crate::context::streams::ItemOwner;
use crate::engine::Engine;
use crate::map::segment::{BlockState, Key};

impl Engine {
    /// Begins a call of the owner: dispatches the events of the last one first.
    pub(crate) fn begin(&mut self, now: Nanos) {
        self.dispatch();
        self.cx.advance(now);
    }

    /// Dispatches events between parts until none is left. They may cause work for any step of
    /// settling.
    #[inline(always)] // called often, and rarely has an event
    pub(crate) fn dispatch(&mut self) {
        if !self.cx.events.is_empty() {
            self.deliver_all();
        }
    }

    fn deliver_all(&mut self) {
        while let Some(event) = self.cx.events.pop_front() {
            self.cx.settle_again();
            self.deliver(event);
        }
    }

    fn deliver(&mut self, event: Event) {
        match event {
            Event::Appended(owner, key, slot) => self.appended(owner, key, slot),
            Event::StoreFlushed { volume, ok } => {
                self.destager.flushed(&mut self.cx, volume, ok);
                if !ok {
                    self.requests.store_flush_failed(&mut self.cx, volume);
                }
            }
            Event::FlushDue(device) => self.cx.flush_is_due(device),
            Event::Flushed { waiter: Waiter::Request(req), device, ok } => {
                self.cx.request_part_done(req, device, ok);
            }
            Event::Flushed { waiter: Waiter::Intent(direct), ok, .. } => {
                self.requests.intent_durable(&mut self.cx, direct, ok)
            }
            Event::Flushed { waiter: Waiter::Direct(direct), ok, .. } => {
                self.requests.direct_flushed(&mut self.cx, direct, ok)
            }
            Event::Flushed { waiter: Waiter::Checkpoint, ok, .. } => {
                self.checkpoint.flushed(&mut self.cx, ok)
            }
            Event::Flushed { waiter: Waiter::Lifecycle(volume), ok, .. } => {
                self.lifecycle.flush_ended(volume, ok);
            }
            Event::Flushed { waiter: Waiter::Recovery, ok, .. } => {
                self.recover(|recovery, cx| recovery.flushed(cx, ok));
            }
            Event::Flushed { waiter: Waiter::None, .. } => {
                unreachable!("no event is emitted without a waiter")
            }
            Event::BlockLock(owner) => {
                if !self.lifecycle.lock_granted(&mut self.cx, owner) {
                    self.requests.mutation_locked(&mut self.cx, owner.0);
                }
            }
            Event::BackingLock(owner) => {
                if !self.lifecycle.lock_granted(&mut self.cx, owner) {
                    self.requests.direct_locked(&mut self.cx, &mut self.destager, owner.0);
                }
            }
            Event::OrderReached(direct) => {
                self.requests.lock_backing(&mut self.cx, &mut self.destager, direct);
            }
            Event::MarksDurable(direct) => {
                self.requests.direct_settled(&mut self.cx, &mut self.destager, direct);
            }
            Event::Redo(req) => self.requests.mutation_locked(&mut self.cx, req),
            Event::Refused(req) => self.requests.mutation_part_done(&mut self.cx, req, false),
            Event::Destaged { volume, blocks, saturated } => {
                self.requests.note_destaged(self.cx.now, volume, blocks, saturated);
            }
            Event::WithoutCache => {
                self.reclaim.end();
                self.shares.forget_all_clean(&self.cx);
            }
            Event::MemberOut => self.requests.forget_lost_copies(&mut self.cx),
            Event::VolumeLeft { volume, goes } => {
                self.requests.forget_volume(volume);
                self.shares.forget_volume(&self.cx, volume, goes);
            }
            Event::Repaired(slot, outcome) => self.scrub.repaired(&mut self.cx, slot, outcome),
            Event::Fetched { key, crc, page, token } => self.cx.append_fill(key, crc, page, token),
            Event::Recovered => {
                let damaged =
                    self.recovery.as_ref().is_some_and(|recovery| recovery.found_damaged_extensions());
                self.checkpoint.begin_opening(&mut self.cx, damaged);
            }
            Event::Opened => self.opened(),
            Event::Closing => self.close(),
            Event::OpeningFailed(error) => self.opening_failed(*error),
        }
    }

    /// Notifies the item's owner that it was written to `slot`, or (`None`) will not be.
    fn appended(&mut self, owner: ItemOwner, key: Key, slot: Option<u32>) {
        let ok = slot.is_some();
        if let (ItemOwner::Request(_) | ItemOwner::Merge(..), Some(slot)) = (owner, slot) {
            assert!(self.cx.map.state(slot) == BlockState::Dirty, "I1: what was written is in the map");
        }
        match owner {
            ItemOwner::Request(req) => self.requests.logged(&mut self.cx, req, ok),
            ItemOwner::Merge(req, page) => {
                self.cx.pages.give(PageUse::Merge, page);
                self.requests.logged(&mut self.cx, req, ok);
            }
            ItemOwner::Copy(direct) => self.requests.copy_appended(&mut self.cx, direct, slot),
            ItemOwner::Fill(page, token) => self.cx.fill_done(key, page, token, slot),
            ItemOwner::Survivor(relocation) | ItemOwner::Kept(relocation) => {
                if let Some(moved) = self.relocations.relocated(&mut self.cx, relocation, slot) {
                    self.destager.follow(&mut self.cx, moved);
                }
            }
            ItemOwner::Intent(direct) => self.requests.intent_appended(&mut self.cx, direct, ok),
            ItemOwner::Drop(direct) => self.requests.direct_part_done(&mut self.cx, direct, ok),
        }
    }
}
