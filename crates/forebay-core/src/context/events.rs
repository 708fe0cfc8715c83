//! Events: one part of the engine tells another what happened.
//!
//! A part calls the parts below it. What it tells those above it is queued here, and handed to them
//! by the engine in the order in which it was told, before the engine takes the next call and
//! between two steps of settling.

use crate::api::Device;
use crate::api::open_error::OpenError;
use crate::context::ledger::Waiter;
use crate::context::locks::LockOwner;
use crate::context::mirror::Outcome;
use crate::context::pages::Page;
use crate::context::streams::ItemOwner;
use crate::map::segment::Key;
use alloc::boxed::Box;
use forebay_format::VolumeId;

/// See the top of the file.
#[derive(Debug)]
pub(crate) enum Event {
    /// What this one has queued for the log was appended to the slot (any number, if it has no
    /// payload), or (`None`) will not be.
    Appended(ItemOwner, Key, Option<u32>),
    /// A flush that somebody waits for has ended.
    Flushed { waiter: Waiter, device: Device, ok: bool },
    /// A flush of a backing store has ended; before those who wait for it are told.
    StoreFlushed { volume: VolumeId, ok: bool },
    /// The next flush of a device can be started; after a flush of it has ended.
    FlushDue(Device),
    /// A lock of blocks was granted to whoever waited for it.
    BlockLock(LockOwner),
    /// A lock of blocks of a backing store was granted.
    BackingLock(LockOwner),
    /// The flush epoch of a write past the cache is active.
    OrderReached(u32),
    /// The clean marks that a write past the cache waited for are durable.
    MarksDurable(u32),
    /// A write, zero or discard that waited for the owner's answer is done over.
    Redo(u32),
    /// One that waited for the owner's answer has failed.
    Refused(u32),
    /// So many blocks of a volume were destaged; `saturated`: it could not have gone faster since
    /// the last time.
    Destaged { volume: VolumeId, blocks: u64, saturated: bool },
    /// The engine goes on without its cache.
    WithoutCache,
    /// A member of a mirrored cache was put out.
    MemberOut,
    /// What became of a copy that a scrub asked about.
    Repaired(u32, Outcome),
    /// A block that was damaged has been read again from its backing store, to a page; it may be
    /// appended as a fill.
    Fetched { key: Key, crc: u32, page: Page, token: u64 },
    /// A volume was detached; `goes`: nothing of it stays in the cache.
    VolumeLeft { volume: VolumeId, goes: bool },
    /// The cache cannot be opened.
    OpeningFailed(Box<OpenError>),
    /// The checkpoint that ends the opening is in effect.
    Opened,
    /// The final checkpoint is in effect.
    Closing,
    /// Recovery has done what comes before its checkpoint.
    Recovered,
}
