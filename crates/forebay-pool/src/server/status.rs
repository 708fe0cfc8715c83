//! BLOCK_STATUS: which parts of a volume are holes, and which are cached or dirty.
//!
//! The engine knows the cached blocks. Other blocks can be holes of the backing store, which only
//! its file system knows, and the query can take long. So the owner of the server looks at the
//! store ([`Server::take_hole_looks`]), and the reply waits for that. If that fails, everything is
//! reported as data.
//!
//! Invariants
//! - Only blocks that were not cached when the request was taken can be reported as holes. A write
//!   that was acknowledged before the request was sent is in the cache then, or in the store when
//!   the owner looks at it.
//! - A lost block is dirty: it is never reported as a hole.

use super::{BLOCK, Pending, STATUS_BLOCKS_MAX, Server};
use crate::client_request::ClientEngine;
use forebay_core::RequestId;
use forebay_export::nbd::reply::Extent;
use forebay_export::nbd::session::NbdRequest;
use forebay_format::VolumeId;
use forebay_io::Reactor;
use std::ops::Range;

/// Parts of a backing store in which the owner looks for holes.
#[derive(Debug)]
pub struct HoleLook {
    /// The request that waits for it: answer with [`Server::holes_found`].
    pub request: RequestId,
    /// The volume of the store.
    pub volume: VolumeId,
    /// Byte ranges, in ascending order.
    pub parts: Vec<Range<u64>>,
}

/// A request that waits for a look at its backing store.
#[derive(Debug)]
pub(super) struct StatusWaiting {
    request: u32,
    extents: Vec<Extent>,
}

impl Server {
    pub(super) fn block_status(
        &mut self,
        engine: &impl ClientEngine,
        reactor: &mut Reactor,
        index: u32,
        request: NbdRequest,
    ) {
        let connection = self.connections[index as usize].as_ref().expect("it is stepped");
        let volume = connection.volume.expect("requests follow the handshake");
        let replier = connection.session.replier();
        let extents = what_is_cached(engine, volume, &request);
        let parts = uncached(request.request.offset_bytes, &extents);
        if !self.looks_for_holes || parts.is_empty() || !replier.tells_allocation() {
            self.scratch.clear();
            replier.block_status(&mut self.scratch, request.cookie, &request.request, &extents);
            let bytes = std::mem::take(&mut self.scratch);
            self.queue_reply(reactor, index, &bytes, None);
            self.scratch = bytes;
            return;
        }
        let id = self.pend(Pending { connection: index, request, buffer: None, replier });
        self.connections[index as usize].as_mut().expect("it is stepped").requests += 1;
        self.waiting_for_holes.push(StatusWaiting { request: id, extents });
        self.hole_looks.push(HoleLook { request: RequestId(id.into()), volume, parts });
    }

    /// Makes the owner look for holes from now on.
    pub fn look_for_holes(&mut self) {
        self.looks_for_holes = true;
    }

    /// Takes the looks that were added since the last call.
    pub fn take_hole_looks(&mut self) -> Vec<HoleLook> {
        std::mem::take(&mut self.hole_looks)
    }

    /// Takes the holes of a backing store, in ascending order; none if nothing is known.
    pub fn holes_found(&mut self, reactor: &mut Reactor, id: RequestId, holes: &[Range<u64>]) {
        let waits = |waiting: &StatusWaiting| u64::from(waiting.request) == id.0;
        let Some(at) = self.waiting_for_holes.iter().position(waits) else { return };
        let StatusWaiting { extents, .. } = self.waiting_for_holes.swap_remove(at);
        let pending = self.pending[id.0 as usize].take().expect("it is answered once");
        self.free_pending.push(id.0 as u32);
        let Pending { connection: index, request: NbdRequest { cookie, request }, replier, .. } = pending;
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        connection.requests -= 1;
        let extents = with_holes(request.offset_bytes, &extents, holes);
        self.scratch.clear();
        replier.block_status(&mut self.scratch, cookie, &request, &extents);
        let bytes = std::mem::take(&mut self.scratch);
        self.queue_reply(reactor, index, &bytes, None);
        self.scratch = bytes;
    }
}

/// Runs of equal blocks from the beginning of a request on.
fn what_is_cached(engine: &impl ClientEngine, volume: VolumeId, request: &NbdRequest) -> Vec<Extent> {
    let what = request.request;
    let (first, end) = (what.offset_bytes / BLOCK, what.end_bytes().div_ceil(BLOCK));
    let (mut at, mut block, mut extents) = (what.offset_bytes, first, Vec::new());
    let blocks = (end - first).min(STATUS_BLOCKS_MAX);
    engine.block_status(volume, first, blocks, &mut |blocks, cached, dirty| {
        block += blocks;
        let next = (block * BLOCK).min(what.end_bytes());
        extents.push(Extent { length_bytes: next - at, cached, dirty, ..Extent::default() });
        at = next;
        extents.len() < forebay_export::nbd::reply::EXTENTS_MAX
    });
    extents
}

/// Ranges without cached blocks.
fn uncached(offset: u64, extents: &[Extent]) -> Vec<Range<u64>> {
    let mut at = offset;
    let mut parts = Vec::new();
    for extent in extents {
        let end = at + extent.length_bytes;
        if !extent.cached && !extent.dirty && extent.length_bytes > 0 {
            parts.push(at..end);
        }
        at = end;
    }
    parts
}

/// The extents, divided where they lie in holes only in part.
fn with_holes(offset: u64, extents: &[Extent], holes: &[Range<u64>]) -> Vec<Extent> {
    let mut at = offset;
    let mut divided = Vec::new();
    let mut holes = holes.iter().peekable();
    for extent in extents {
        let end = at + extent.length_bytes;
        if extent.cached || extent.dirty {
            divided.push(*extent);
            at = end;
            continue;
        }
        while at < end {
            while holes.peek().is_some_and(|hole| hole.end <= at) {
                holes.next();
            }
            let hole = holes.peek().filter(|hole| hole.start < end);
            let (next, is_hole) = match hole {
                Some(hole) if hole.start <= at => (hole.end.min(end), true),
                Some(hole) => (hole.start, false),
                None => (end, false),
            };
            divided.push(Extent {
                length_bytes: next - at,
                hole: is_hole,
                zero: is_hole,
                ..Extent::default()
            });
            at = next;
        }
    }
    divided
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(length_bytes: u64, cached: bool, dirty: bool) -> Extent {
        Extent { length_bytes, cached, dirty, ..Extent::default() }
    }

    #[test]
    fn only_what_is_not_cached_becomes_a_hole() {
        let extents = [
            extent(100, false, false),
            extent(50, true, false),
            extent(50, false, true),
            extent(100, false, false),
        ];
        assert_eq!(uncached(1000, &extents), [1000..1100, 1200..1300]);
        let told = |holes: &[Range<u64>]| {
            let all = with_holes(1000, &extents, holes);
            assert_eq!(all.iter().map(|extent| extent.length_bytes).sum::<u64>(), 300);
            assert!(all.iter().all(|extent| extent.hole == extent.zero));
            all.iter().map(|extent| (extent.length_bytes, extent.hole)).collect::<Vec<_>>()
        };
        assert_eq!(told(&[]), [(100, false), (50, false), (50, false), (100, false)]);
        assert_eq!(told(&[1000..1200, 1200..1300]), [(100, true), (50, false), (50, false), (100, true)]);
        let parts = [(20, false), (30, true), (50, false), (50, false), (50, false), (70, false), (30, true)];
        assert_eq!(told(&[500..600, 1020..1050, 1110..1120, 1270..1400]), parts);
    }
}
