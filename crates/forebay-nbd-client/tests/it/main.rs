//! Tests that use only the public items of the crate. The server's half of the protocol is that of
//! forebay-export.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../../../forebay-export/tests/it/common/mod.rs"]
mod common;
mod driver;
mod session;
mod simulation;
