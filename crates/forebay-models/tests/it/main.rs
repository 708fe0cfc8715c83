//! The models against published measurements of such devices.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod flash_model;
mod hdd_model;
