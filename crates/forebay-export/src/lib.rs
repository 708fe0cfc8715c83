//! The ways into a Forebay volume: protocols that turn bytes from a client into requests, and
//! results into bytes.
//!
//! Purpose
//! - [`request`]: the one request type all protocols share, and [`request::validate`], the one gate
//!   that every request passes before anybody else sees it.
//! - [`directory`]: what a protocol needs to know about the volumes it may serve.
//! - [`fuse`]: the FUSE protocol: a volume as a file of the kernel's file system.
//! - [`nbd`]: the NBD protocol, server side as a state machine and client side over any `Read +
//!   Write`.
//! - [`ublk`]: requests of a block device.
//! - [`uri`], [`size`]: how people write exports, backing stores, sizes and durations.
//!
//! Invariants
//! - The server side does no I/O: no socket, thread, clock or file. Whoever runs it owns those.
//! - A request that leaves this crate is within the volume, within the length limit and permitted.
//! - Nothing a peer sends can panic, or take memory beyond [`nbd::Limits`].
//!
//! This crate does not know that there is a cache.
#![forbid(unsafe_code)]

pub mod directory;
pub mod fuse;
pub mod nbd;
pub mod request;
pub mod size;
pub mod ublk;
pub mod uri;
pub mod vhost_user;
pub mod virtio;
