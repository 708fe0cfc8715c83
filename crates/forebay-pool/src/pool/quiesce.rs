//! Quiescing, so that a successor, or this daemon again, can take over the pool and its clients.

use super::{Pool, Promise};
use crate::frontends::DeviceDisposition;
use crate::handover::HandoverSockets;

impl Pool {
    /// Stops taking requests. The promise resolves when every connection is quiesced.
    pub fn quiesce(&mut self) -> Promise<()> {
        let (done, promise) = Promise::pair();
        self.quiescing = Some(done);
        self.frontends.nbd.quiesce(&mut self.reactor);
        promise
    }

    pub(super) fn answer_if_quiesced(&mut self) {
        if self.quiescing.is_some() && self.frontends.nbd.is_quiesced() {
            let _ = self.quiescing.take().map(|quiescing| quiescing.try_send(()));
        }
    }

    /// Disconnects clients that have not chosen an export yet.
    pub fn cut_greetings(&mut self) {
        self.frontends.nbd.cut_greetings(&mut self.reactor);
    }

    /// Disconnects clients that prevent their own quiescing.
    pub fn cut_busy(&mut self) {
        self.frontends.nbd.cut_busy(&mut self.reactor);
    }

    /// Takes requests and clients again.
    pub fn go_on(&mut self) {
        self.quiescing = None;
        self.frontends.nbd.go_on(&mut self.reactor);
    }

    /// Returns true if volumes are mounted as files; their open handles cannot be handed over.
    pub fn has_mounts(&self) -> bool {
        self.frontends.has_files()
    }

    /// Returns true if there are `vhost-user:` exports; their connections cannot be handed over.
    pub fn has_guests(&self) -> bool {
        self.frontends.has_vhost_user()
    }

    /// Hands over the sockets, and begins an orderly stop. Every connection must be quiesced.
    pub fn hand_over(&mut self) -> HandoverSockets {
        let sockets = {
            let engine = &self.engine;
            self.frontends.nbd.hand_over(&mut self.reactor, |volume| engine.is_loss_unreported(volume))
        };
        self.stop_without_limit(DeviceDisposition::Leave);
        sockets
    }
}
