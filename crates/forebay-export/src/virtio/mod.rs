//! virtio block devices: rings in the memory of a virtual machine, and the requests in them.
//!
//! - [`memory`]: guest memory, as a list of segments and as bytes.
//! - [`inflight`]: which requests were taken and not completed, in memory that outlives a process.
//! - [`ring`]: a split ring: what is available, chains of descriptors, what was used.
//! - [`block`]: the block device: features, configuration, requests.
//!
//! Everything that is read here belongs to a guest, which may change it at any time and mean harm.
//! So each value is read once, checked, and used as it was read.
//!
//! Numbers in rings are little-endian, and read as those of the host are.
//!
//! Source: Virtual I/O Device (VIRTIO) Version 1.2, sections 2.7 (split rings) and 5.2 (block
//! device).

pub mod block;
pub mod inflight;
pub mod memory;
pub mod ring;

pub use memory::GuestMemory;

const _: () = assert!(cfg!(target_endian = "little"), "rings are read as numbers of the host");
