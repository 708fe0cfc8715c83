//! Devices, sockets, FUSE connections, ublk block devices and memory: all parts of Forebay that
//! call the kernel on the I/O path.
//!
//! One thread owns one [`Reactor`]. It queues operations ([`Op`]) on devices and sockets, then
//! calls [`Reactor::wait`], which submits all of them to the kernel in one system call and returns
//! completions. The cache logic lives elsewhere and is sans-IO; the caller translates its actions
//! into operations.
//!
//! ```text
//!   Reactor ── Op ──▶ slots (one per operation: spans, iovecs, progress)
//!      │                 │ one step at a time (a read, a write, a sync, a recv, ...)
//!      │                 ▼
//!      │              Engine = io_uring | psync (threads + ppoll)
//!      ├── BufPool: 4096-aligned memory; buffers in use by the kernel are counted and cannot be freed
//!      ├── Device: a file or block device, direct and buffered descriptor, lock, identity
//!      ├── Channel: the requests of a ublk block device; Control: creating and removing one
//!      └── Emulation: an optional model of a slower device that holds completions back
//! ```
//!
//! Not known here: cache policy, on-disk formats, protocols, configuration.
//!
//! Reading order: [`buffer`], [`device`], [`reactor`], then `engine`.

#![allow(
    unsafe_code,
    reason = "system calls, the kernel ring and memory shared with the kernel live here, and nowhere else"
)]

pub mod buffer;
mod buffer_transform;
pub mod device;
mod emulate;
mod engine;
pub mod error;
pub mod fuse;
mod peer_memory;
#[cfg(test)]
mod random;
pub mod reactor;
pub mod shared;
mod slots;
pub mod socket;
mod spin;
mod sys;
pub mod ublk;
mod users;
mod waker;

pub use buffer::{BUFFER_ALIGN, BufId, BufPool, PoolStats, Span};
pub use buffer_transform::PlaceCipher;
pub use device::{
    Device, DeviceIdentity, DeviceKind, DeviceOptions, Displacement, RemoteDone, RemoteOp, RemoteStore,
    RemoteTrouble, UnnamedCopy, announce_change, create_cache_file,
};
pub use emulate::DeviceModel;
pub use error::{DeviceError, IoFailure, IoFailureKind, IoSetupError, SocketError};
pub use peer_memory::PeerMemory;
pub use reactor::{
    Completion, DeviceId, DeviceInUse, EngineKind, EnginePreference, EventCounter, EventId, FuseId, Limits,
    ListenerId, Op, Reactor, ReactorStats, SocketId, UblkId, Waited,
};
pub use shared::SharedPage;
pub use socket::{
    PeerCred, SocketFile, SocketPermissions, check_unix, is_listening, listen_tcp, listen_unix,
    passed_listeners, peer_address, peer_cred, peer_groups, set_permissions,
};
pub use users::{group_id, user_id};
pub use waker::Waker;
