//! Protocols for access to a Forebay volume: they decode requests from a client's bytes, and encode
//! results as bytes.
//!
//! Purpose
//! - [`request`]: the request type that all protocols share, and [`request::validate`], which
//!   checks every request before any other code sees it.
//! - [`directory`]: the properties of volumes that protocols need.
//! - [`fuse`]: the FUSE protocol: a volume as a file of the kernel's file system.
//! - [`nbd`]: the server side of the NBD protocol, as a state machine.
//! - [`ublk`]: requests of a block device.
//! - [`uri`]: text forms of exports and backing stores.
//!
//! Invariants
//! - The crate does no I/O: no socket, thread, clock or file. The caller owns those.
//! - A request that leaves this crate is within the volume, within the length limit, and permitted.
//! - No bytes from a peer can cause a panic, or use memory beyond [`nbd::Limits`].
//!
//! This crate does not know the cache.
#![forbid(unsafe_code)]

pub mod directory;
pub mod fuse;
pub mod nbd;
pub mod request;
pub mod ublk;
pub mod uri;
pub mod vhost_user;
pub mod virtio;
