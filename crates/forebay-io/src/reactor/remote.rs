//! Operations on remote stores: their data is copied, and other threads report their ends.

use std::sync::{Arc, Mutex, PoisonError};

use super::Reactor;
use crate::device::{RemoteOp, RemoteStore};
use crate::error::IoFailure;
use crate::slots::{OpKind, ZeroPhase};
use crate::waker::Waker;

/// The end of an operation, by the key of its slot.
type Ended = (u64, Result<Vec<u8>, IoFailure>);

/// Operations that have ended and are not settled.
#[derive(Clone, Debug)]
pub(super) struct RemoteEnds {
    ended: Arc<Mutex<Vec<Ended>>>,
    waker: Waker,
}

impl RemoteEnds {
    pub(super) fn new(waker: Waker) -> RemoteEnds {
        RemoteEnds { ended: Arc::default(), waker }
    }

    fn push(&self, end: Ended) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(end);
        self.waker.wake();
    }

    fn take(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Reactor {
    /// Submits a filled slot to its store.
    pub(super) fn start_remote(&mut self, index: u32, store: &dyn RemoteStore) {
        let memory = &mut *self.memory;
        let slot = memory.slots.get_mut(index);
        slot.started = true;
        let (offset, len) = (slot.offset, slot.len);
        let op = match slot.kind {
            OpKind::Write { .. } => {
                let mut data = vec![0; len as usize];
                let mut at = 0;
                for span in &slot.spans {
                    let end = at + span.len as usize;
                    memory.pool.copy_out(*span, &mut data[at..end]);
                    at = end;
                }
                RemoteOp::Write { offset, data }
            }
            OpKind::Zero { phase, .. } => {
                RemoteOp::Zero { offset, len, may_unmap: phase == ZeroPhase::Punch }
            }
            // A discard is advice; caches, which need more, are no remote stores.
            OpKind::Discard { .. } => return self.finish(index, Err(IoFailure::UNSUPPORTED)),
            OpKind::Flush { .. } => RemoteOp::Flush { reports: true },
            OpKind::Read { .. } => RemoteOp::Read { offset, len: len as u32 },
            // Operations on sockets and FUSE have no device.
            _ => return self.finish(index, Err(IoFailure::INVALID)),
        };
        let (key, ends) = (self.memory.slots.key(index), self.remote_ends.clone());
        self.stats.steps += 1;
        store.submit(op, Box::new(move |result| ends.push((key, result))));
    }

    /// Ends the operations that remote stores have ended.
    pub(super) fn settle_remote(&mut self) {
        for (key, result) in self.remote_ends.take() {
            let Some(index) = self.memory.slots.find(key) else {
                debug_assert!(false, "a remote store ended no operation");
                continue;
            };
            let slot = self.memory.slots.get(index);
            let (is_read, len) = (matches!(slot.kind, OpKind::Read { .. }), slot.len as u32);
            let transfers = is_read || matches!(slot.kind, OpKind::Write { .. });
            let result = match result {
                Ok(bytes) if is_read && bytes.len() != len as usize => Err(IoFailure::INVALID),
                Ok(bytes) => {
                    if is_read {
                        self.copy_read(index, &bytes);
                    }
                    Ok(if transfers { len } else { 0 })
                }
                Err(failure) => Err(failure),
            };
            self.finish(index, result);
        }
    }

    fn copy_read(&mut self, index: u32, mut bytes: &[u8]) {
        let memory = &*self.memory;
        for span in &memory.slots.get(index).spans {
            let (now, later) = bytes.split_at(span.len as usize);
            bytes = later;
            let address = memory.pool.address_of_pinned(*span);
            // SAFETY: the span is pinned, hence inside live memory of its length; the kernel does
            // not use it, and no slice to a buffer of an operation in flight exists.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), address, now.len()) };
        }
    }
}
