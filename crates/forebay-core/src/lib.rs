//! The Forebay cache engine.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod api;
pub mod config;

pub use api::*;
pub use config::*;
use alloc::string::String;
use alloc::vec::Vec;
use forebay_format::checkpoint::BackingRecord;
use forebay_format::{FormatError, VolumeId};

/// Why a cache could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// placeholder
    #[error("{0}")]
    Other(String),
}

/// Where an engine stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// Reading the cache device; requests are refused.
    Opening,
    /// Serving.
    Ready,
    /// The cache could not be opened; nothing was changed on it.
    Failed(OpenError),
    /// Shutting down or shut down.
    Stopping,
}

/// Counters and gauges. Every counter starts at zero when the engine is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Blocks that only the cache has.
    pub dirty_blocks: u64,
    /// Blocks in the cache.
    pub cached_blocks: u64,
}

/// Writes that make a device an empty cache: in this order, with a device flush after each.
pub fn format_cache(params: &FormatParams) -> Result<Vec<(u64, Vec<u8>)>, FormatError> { let _ = params; Ok(Vec::new()) }

/// The engine of one cache: `(now, event) -> actions`.
pub struct Engine {}
impl Engine {
    /// Starts opening the cache device of `device_bytes`. Drive it by its actions until `status` is not `Opening`.
    pub fn open(config: EngineConfig, device_bytes: u64, attachments: Vec<Attachment>, now: Nanos) -> Self { let _ = (config, device_bytes, attachments, now); Self {} }
    /// Where it stands.
    pub fn status(&self) -> Status { Status::Opening }
    /// Takes a request. The reply comes as an action, possibly at once.
    pub fn submit(&mut self, now: Nanos, request: Request<'_>) { let _ = (now, request); }
    /// A device operation, or `Crc`, has completed.
    pub fn complete(&mut self, now: Nanos, op: OpId, result: Result<(), DeviceFailure>, crcs: &[u32]) { let _ = (now, op, result, crcs); }
    /// A `ReadMeta` has completed.
    pub fn complete_meta(&mut self, now: Nanos, op: OpId, result: Result<&[u8], DeviceFailure>) { let _ = (now, op, result); }
    /// Lets time pass; call at or after `next_deadline`.
    pub fn tick(&mut self, now: Nanos) { let _ = now; }
    /// When `tick` must be called next.
    pub fn next_deadline(&self) -> Option<Nanos> { None }
    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> { None }
    /// Spans of a `Read` or `Write`.
    pub fn spans(&self, op: OpId) -> &[Span] { let _ = op; &[] }
    /// Header block of a cache `Write`.
    pub fn header(&self, op: OpId) -> Option<&[u8]> { let _ = op; None }
    /// Bytes of a `WriteMeta`.
    pub fn meta(&self, op: OpId) -> &[u8] { let _ = op; &[] }
    /// Starts or stops a drain: everything dirty is written back as fast as the backing store allows.
    pub fn set_drain(&mut self, now: Nanos, volume: VolumeId, drain: bool) { let _ = (now, volume, drain); }
    /// Live change of mode.
    pub fn set_mode(&mut self, now: Nanos, volume: VolumeId, mode: forebay_format::checkpoint::Mode) { let _ = (now, volume, mode); }
    /// Dirty blocks of a volume that the backing store does not have durably.
    pub fn dirty_blocks(&self, volume: VolumeId) -> u64 { let _ = volume; 0 }
    /// Refuses new requests, lets the ones in flight end; `Quiesced` follows.
    pub fn begin_shutdown(&mut self, now: Nanos) { let _ = now; }
    /// After `Quiesced`: final checkpoint with what the backing stores look like now; `Closed` follows.
    pub fn finish_shutdown(&mut self, now: Nanos, backings: &[(VolumeId, BackingRecord)]) { let _ = (now, backings); }
    /// Counters.
    pub fn stats(&self) -> Stats { Stats::default() }
    /// Cached/dirty runs of a byte range, block granular: calls `f(len_blocks, cached, dirty)` in order.
    pub fn block_status(&self, volume: VolumeId, first_block: u64, blocks: u64, f: &mut dyn FnMut(u64, bool, bool) -> bool) { let _ = (volume, first_block, blocks, f); }
}
