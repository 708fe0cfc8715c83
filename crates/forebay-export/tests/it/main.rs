//! All integration tests of this crate, in one executable: linking takes longer than running most.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

mod docs;
mod fuse;
mod golden;
mod handshake;
mod hostile;
mod model;
mod split;
mod starttls;
mod tools;
mod transmission;
