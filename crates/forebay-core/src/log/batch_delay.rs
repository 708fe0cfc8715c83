//! Batch delay: batches of fills and survivors wait until one header serves more blocks.
//!
//! A batch costs a header block. Clients wait for batches of writes, so those are written as soon
//! as the device takes them. No client waits for a read fill or a survivor; if each had its own
//! batch, half of the cache would be headers. So they wait until [`WORTH_BLOCKS`] are together, and
//!
//! - **survivors** only while others are still being read (which arrive soon, or never);
//! - **fills** at most [`DELAY_NS`], and not while pages for fills are short. A waiting block is
//!   served from its page. (If there is no segment for the batch, see `append`.)
//!
//! Items that a client waits for (the clean copies of write-through) take along everything in their
//! queue. Waiting items are not acknowledged to any client, so a crash loses nothing.

use crate::api::Nanos;
use crate::context::Context;
use crate::context::pages::PageUse;
use crate::context::streams::{ItemOwner, Log};
use crate::log::append::FILLS_WAIT_NS;
use forebay_format::StreamKind;

/// Blocks of payload that are worth a header.
const WORTH_BLOCKS: usize = 63;
/// Longest time that a fill waits for others.
const DELAY_NS: Nanos = 250_000_000;

impl Log {
    /// Time at which a delayed batch is written without another event, or fills stop waiting for
    /// room.
    pub(crate) fn batch_delay_deadline(&self, now: Nanos) -> Option<Nanos> {
        let due = |kind: &StreamKind| {
            let stream = &self.streams[kind.index()];
            let room = stream.without_room_since.map(|since| since + FILLS_WAIT_NS);
            let times = [Some(stream.queued_since + DELAY_NS), room].into_iter().flatten();
            times.filter(|at| !stream.is_idle() && *at > now).min()
        };
        [StreamKind::Fill, StreamKind::Survivor].iter().filter_map(due).min()
    }
}

impl Context {
    /// True if the queue of a stream should wait for more items.
    pub(crate) fn delays_batch(&self, kind: StreamKind) -> bool {
        let stream = &self.log.streams[kind.index()];
        if kind == StreamKind::Write || stream.queue.len() >= WORTH_BLOCKS || self.stopping {
            return false;
        }
        let late = self.now >= stream.queued_since + DELAY_NS;
        let fills_may = !late && self.pages.available(PageUse::Fill) > self.fills.len() as u32;
        let delays = stream.queue.others() == 0
            && (stream.queue.survivors() == 0 || self.log.survivor_reads > 0)
            && (stream.queue.fills() == 0 || fills_may);
        // The oldest item represents all: each one's conditions were checked above.
        let may_wait = |owner| match owner {
            ItemOwner::Survivor(_) | ItemOwner::Kept(_) => true,
            ItemOwner::Fill(..) => self.now < stream.queued_since + DELAY_NS,
            _ => false,
        };
        let sound = !delays || stream.queue.front().is_none_or(|item| may_wait(item.done));
        assert!(sound, "I41: fills are delayed for a moment, survivors for reads, and nothing else");
        delays
    }
}
