//! Models for figures, without faults: what the examples and tests of this crate share.
//!
//! [`machine`] runs the engine with modelled devices in virtual time. [`arm`] is a disk. [`cards`]
//! are two flash devices that were measured, beside the model of them. [`layout`] feeds that model
//! with what caches write.
#![allow(dead_code, unreachable_pub, reason = "each program uses a part of this")]

pub mod machine;
pub mod zipf;

pub mod arm;

pub mod cards;
pub mod layout;
