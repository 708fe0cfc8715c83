//! Events: notifications from one part of the engine to another.
//!
//! A part calls the parts below it. Its notifications to parts above it are queued here. The engine
//! delivers them in order, before it takes the next call and between two steps of settling.

use crate::api::Device;
use crate::api::open_error::OpenError;
use crate::context::flush_ledger::Waiter;
use crate::context::locks::LockOwner;
use crate::context::mirror::Outcome;
use crate::context::pages::Page;
use crate::context::streams::ItemOwner;
use crate::map::segment::Key;
use alloc::boxed::Box;
use forebay_format::VolumeId;

/// A notification.
#[derive(Debug)]
pub(crate) enum Event {
    /// The item of this owner was appended to the slot (any number, if it has no payload), or
    /// (`None`) will not be.
    Appended(ItemOwner, Key, Option<u32>),
    /// A flush with a waiter has ended.
    Flushed { waiter: Waiter, device: Device, ok: bool },
    /// A flush of a backing store has ended; sent before its waiters are notified.
    StoreFlushed { volume: VolumeId, ok: bool },
    /// The next flush of a device can be started; after a flush of it has ended.
    FlushDue(Device),
    /// A waiter was granted its lock of blocks.
    BlockLock(LockOwner),
    /// A lock of blocks of a backing store was granted.
    BackingLock(LockOwner),
    /// The flush epoch of a bypass write is active.
    OrderReached(u32),
    /// The clean marks for which a bypass write waited are durable.
    MarksDurable(u32),
    /// A write, zero or discard that waited for the owner's answer is repeated.
    Redo(u32),
    /// A write, zero or discard that waited for the owner's answer has failed.
    Refused(u32),
    /// `blocks` blocks of a volume were destaged; `saturated`: destage could not have been faster
    /// since the last event.
    Destaged { volume: VolumeId, blocks: u64, saturated: bool },
    /// The engine continues without its cache.
    WithoutCache,
    /// A member of a mirrored cache was failed out.
    MemberOut,
    /// The outcome of a repair that a scrub asked for.
    Repaired(u32, Outcome),
    /// A damaged block has been read from its backing store to a page; it may be appended as a
    /// fill.
    Fetched { key: Key, crc: u32, page: Page, token: u64 },
    /// A volume was detached; `goes`: none of its blocks stays in the cache.
    VolumeLeft { volume: VolumeId, goes: bool },
    /// The cache cannot be opened.
    OpeningFailed(Box<OpenError>),
    /// The checkpoint that ends the opening is in effect.
    Opened,
    /// The final checkpoint is in effect.
    Closing,
    /// Recovery has finished all steps before its checkpoint.
    Recovered,
}
