//! A store that another process or machine serves, behind the interface of a device.
//!
//! Invariants
//! - [`RemoteStore::submit`] never blocks, so a pool's thread may call it. The store calls `done`
//!   exactly once, on any thread, possibly after hours.
//! - A remote device has no file of its own: no lock, no place in a file system, no holes, no
//!   times, and its size is fixed. The store itself refuses an export whose size has changed.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::{Device, DeviceKind, DeviceOptions};
use crate::error::{DeviceError, IoFailure};

/// Most bytes of one blocking read.
const PIECE_BYTES: usize = 1 << 20;

/// An operation on a remote store.
#[derive(Debug)]
pub enum RemoteOp {
    /// Reads a range.
    Read {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Writes bytes.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Makes a range read as zeroes.
    Zero {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The space may be freed.
        may_unmap: bool,
    },
    /// Makes all changes durable that were reported before its submission.
    Flush {
        /// It is the flush of a pool, which handles failures: each failure reaches one of these.
        /// Others, of observers of the store, leave it to them.
        reports: bool,
    },
}

/// Receives the end of an operation: the bytes of a read, nothing for others.
pub type RemoteDone = Box<dyn FnOnce(Result<Vec<u8>, IoFailure>) + Send>;

/// Why a remote store does not answer now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteTrouble {
    /// How long it has been away.
    pub away: Duration,
    /// The cause, as a sentence without a period.
    pub why: String,
    /// Operations fail instead of waiting.
    pub fails: bool,
    /// Operations that wait.
    pub waiting: usize,
}

/// A store that another process or machine serves.
pub trait RemoteStore: fmt::Debug + Send + Sync {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Smallest unit of a write, in bytes.
    fn sector_bytes(&self) -> u32;

    /// Begins an operation. Never blocks.
    fn submit(&self, op: RemoteOp, done: RemoteDone);

    /// Why it does not answer now; `None` while it is connected. Never blocks.
    fn trouble(&self) -> Option<RemoteTrouble>;

    /// No earlier process has left a change in flight: changes need not wait for the quarantine.
    fn trust_earlier(&self);

    /// Fails all operations, and those submitted later.
    fn close(&self);
}

impl Device {
    /// Creates a device of a remote store; `path` is its address, for messages.
    ///
    /// # Errors
    /// [`DeviceError::Io`] if no descriptor is available.
    pub fn remote(store: Arc<dyn RemoteStore>, path: PathBuf) -> Result<Device, DeviceError> {
        // Operations never use this descriptor: they go to the store.
        let opened = File::open("/dev/null");
        let buffered = opened.map_err(|source| DeviceError::Open { path: path.clone(), source })?;
        Ok(Device {
            path,
            place: None,
            node: None,
            buffered,
            direct: None,
            kind: DeviceKind::Remote,
            size_bytes: store.size_bytes(),
            end_bytes: store.size_bytes(),
            is_remote: true,
            logical_block_bytes: store.sector_bytes(),
            options: DeviceOptions { direct: false, lock: false, ..DeviceOptions::default() },
            notes: Vec::new(),
            store: Some(store),
        })
    }

    /// The remote store behind it, if it has one.
    pub fn remote_store(&self) -> Option<&Arc<dyn RemoteStore>> {
        self.store.as_ref()
    }

    /// Reads from the remote store, and waits; bytes past its end are zeroes.
    pub(super) fn read_store(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let there = self.size_bytes.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let (inside, outside) = bytes.split_at_mut(there);
        outside.fill(0);
        for (piece, at) in inside.chunks_mut(PIECE_BYTES).zip((offset..).step_by(PIECE_BYTES)) {
            let op = RemoteOp::Read { offset: at, len: piece.len() as u32 };
            if let Some(read) = self.ask_store("read", op) {
                piece.copy_from_slice(&read?);
            }
        }
        Ok(())
    }

    /// Runs an operation on the remote store and waits for its end, if there is such a store.
    pub(super) fn ask_store(&self, what: &'static str, op: RemoteOp) -> Option<Result<Vec<u8>, DeviceError>> {
        let store = self.store.as_ref()?;
        let offset = match op {
            RemoteOp::Read { offset, .. }
            | RemoteOp::Write { offset, .. }
            | RemoteOp::Zero { offset, .. } => offset,
            RemoteOp::Flush { .. } => 0,
        };
        let (sender, receiver) = mpsc::sync_channel(1);
        store.submit(op, Box::new(move |result| drop(sender.try_send(result)))); // the receiver waits for it
        let failure = match receiver.recv() {
            Ok(Ok(bytes)) => return Some(Ok(bytes)),
            Ok(Err(failure)) => failure,
            Err(_) => IoFailure::CANCELLED,
        };
        let source = std::io::Error::from_raw_os_error(failure.errno);
        Some(Err(self.io_error(what, offset, source)))
    }
}
