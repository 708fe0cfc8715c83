//! All targets, one file each.

pub mod api;
pub mod config;
pub mod format;
pub mod fuse;
pub mod guest;
pub mod image;
pub mod nbd;
pub mod records;
pub mod traces;
pub mod words;

use crate::Target;

/// All targets.
pub const ALL: &[Target] = &[
    nbd::SERVER,
    nbd::CLIENT,
    format::TARGET,
    image::TARGET,
    fuse::TARGET,
    guest::RING,
    guest::MESSAGES,
    config::TARGET,
    words::TARGET,
    records::LOSS,
    traces::READ,
    api::CONTROL_FILES,
    api::HTTP,
];
