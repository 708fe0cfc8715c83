//! virtio block devices: rings in the memory of a virtual machine, and the requests in them.
//!
//! - [`memory`]: guest memory, as a list of segments and as bytes.
//! - [`inflight`]: requests in flight, recorded in memory that outlives a process.
//! - [`ring`]: a split ring: available requests, chains of descriptors, used requests.
//! - [`block`]: the block device: features, configuration, requests.
//!
//! All data read here belongs to a guest, which may be hostile and change it at any time. So each
//! value is read once, checked, and used as read.
//!
//! Integers in rings are little-endian, and read in the host's byte order.
//!
//! Source: Virtual I/O Device (VIRTIO) Version 1.2, sections 2.7 (split rings) and 5.2 (block
//! device).

pub mod block;
pub mod inflight;
pub mod memory;
pub mod ring;

pub use memory::GuestMemory;

const _: () = assert!(cfg!(target_endian = "little"), "rings are read as numbers of the host");
