//! All integration tests of this crate in one executable: linking takes longer than running most.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

mod conformance;
mod device;
mod events;
mod fuse;
