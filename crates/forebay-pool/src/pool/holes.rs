//! Holes of backing stores, for clients that ask which parts of a volume hold data.
//!
//! The file system of a store may answer slowly, so each look has its own thread. Their number is
//! limited: without a thread, or if the store is not a file, all blocks count as data, which is
//! correct for every client.

use super::Pool;
use crate::may_wait::MayWait;
use crate::server::HoleLook;
use std::thread::JoinHandle;

/// Most looks at once.
const LOOKS_MAX: usize = 8;

impl Pool {
    /// Begins the looks that the server requests.
    pub(super) fn begin_hole_looks(&mut self) {
        for look in self.frontends.nbd.take_hole_looks() {
            self.hole_looks.retain(|thread| !thread.is_finished());
            match self.begin_hole_look(&look) {
                Some(thread) => self.hole_looks.push(thread),
                None => self.frontends.nbd.holes_found(&mut self.reactor, look.request, &[]),
            }
        }
    }

    fn begin_hole_look(&mut self, look: &HoleLook) -> Option<JoinHandle<()>> {
        // Lost data is not a hole, and without the cache the map does not show it.
        if self.hole_looks.len() >= LOOKS_MAX || self.engine.is_fenced() || self.engine.runs_without_cache() {
            return None;
        }
        let device = self.reactor.device(self.served(look.volume)?.device)?.for_thread().ok()?;
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let (request, parts) = (look.request, look.parts.clone());
        let work = move |_: &MayWait| {
            let holes: Vec<_> = parts.into_iter().flat_map(|part| device.holes(part)).collect();
            // The pool may have ended.
            let _ = tasks.send(Box::new(move |pool: &mut Self| {
                pool.frontends.nbd.holes_found(&mut pool.reactor, request, &holes);
            }));
            waker.wake();
        };
        MayWait::spawn(format!("holes-{}", self.name), work).ok()
    }
}
