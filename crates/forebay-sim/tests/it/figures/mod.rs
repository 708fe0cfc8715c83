//! Models for figures, without faults, shared by the examples and tests of this crate.
//!
//! [`machine`] runs the engine with modelled devices in virtual time. [`arm`] is a disk. [`cards`]
//! compares two measured flash devices with their model. [`layout`] feeds that model with the
//! writes of caches.
#![allow(dead_code, unreachable_pub, reason = "each program uses a part of this")]

pub mod machine;
pub mod zipf;

pub mod arm;

pub mod cards;
pub mod layout;
