//! A pool: one thread that owns a cache's engine, its devices, sockets and mounts.
//!
//! - [`pool`]: the thread, and its interface to others.
//! - [`server`]: NBD connections; [`fuse_server`]: volumes as files; [`mounting`]: mounts and their
//!   memory; [`ublk_server`], [`ublk_device`], [`ublk_found`]: volumes as block devices;
//!   `vhost_user`: volumes as devices of virtual machines.
//! - `frontends`: what the protocols have in common; `background`: work that may block.
//! - [`engine_io`]: actions of the engine as operations; [`engine_memory`]: its buffers;
//!   [`cipher`]: encryption of device data.
//! - [`open`]: cache devices and backing stores; [`cache_device`]: one device; [`members`]:
//!   several; [`settings_copy`]: settings on an exported cache; [`encryption`]: keys.
//! - [`register`], [`replaced`], [`loss_record`], [`mirror_notes`], [`witness`], [`failed_mark`]:
//!   records of a cache outside of its log.
//! - [`client_request`]: requests on their way to the engine; [`guard`]: clients that may use an
//!   export;
//!   [`secret_file`]: files with secrets.
//! - [`handover`]: sockets that outlive a process.
//! - [`meter`]: counters and durations.
//! - [`may_wait`]: which threads may wait; the pool's may not.
//! - [`durable`], [`time_limit`], [`thread_priority`]: files replaced as a whole, work that can
//!   hang, priorities.
//! - [`token`]: owners of operations and of requests.
//! - `message`: message ids of the engine's errors, for scripts.
//! - [`error`]: errors of a start.
#![forbid(unsafe_code)]

mod background;
pub mod cache_device;
pub mod cipher;
pub mod client_request;
pub mod durable;
pub mod encryption;
pub mod engine_io;
pub mod engine_memory;
pub mod error;
pub mod failed_mark;
mod frontends;
pub mod fuse_server;
pub mod guard;
pub mod handover;
pub mod loss_record;
pub mod may_wait;
pub mod members;
mod message;
pub mod meter;
pub mod mirror_notes;
pub mod mounting;
pub mod open;
pub mod pool;
mod recorder;
pub mod register;
pub mod replaced;
pub mod secret_file;
pub mod server;
pub mod settings_copy;
pub mod shell_word;
pub mod thread_priority;
pub mod time_limit;
pub mod token;
pub mod ublk_device;
pub mod ublk_found;
pub mod ublk_server;
mod vhost_user;
pub mod witness;

pub use error::RunError;
pub use frontends::{ExclusiveOpens, Users};
pub use loss_record::{only_copies, reads_as_loss_record};
pub use may_wait::MayWait;
pub use mirror_notes::is_noted_out;
pub use pool::{
    AbsentVolume, CopiedDevice, CopyProgress, Destaging, Gone, Look, Lost, Mirrored, Pool, PoolEvent,
    PoolGone, PoolHandle, PoolSnapshot, PoolStart, Promise, PromiseSender, Reach, Rebuilding, Saving,
    Scrubbed, VolumeSnapshot, VolumeSpec, ahead_in_all,
};
pub use recorder::Recorded;
pub use register::{CacheRecord, Objection, cache_record};
