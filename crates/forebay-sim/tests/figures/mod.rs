//! Models for figures, without faults: what the examples and tests of this crate share.
//!
//! [`machine`] runs the engine with modelled devices in virtual time. [`arm`] is a disk, [`ftl`]
//! the inside of a flash device. [`cards`] are two flash devices that were measured. [`layout`]
//! feeds flash devices with what caches write.
#![allow(dead_code, unreachable_pub, reason = "each program uses a part of this")]

pub mod machine;
pub mod zipf;

pub mod arm;
pub mod ftl;

pub mod cards;
pub mod layout;
