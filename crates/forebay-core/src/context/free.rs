//! Segments that hold nothing.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Segments that hold nothing: those that may be written now, and those that wait for a checkpoint
/// that says so (I7).
#[derive(Debug, Default)]
pub(crate) struct FreeSegments {
    /// Segments that may be written now.
    pub(crate) window: VecDeque<u32>,
    /// Segments that hold nothing but are not in the window.
    pub(crate) pool: VecDeque<u32>,
    /// Segments that a window should have.
    pub(crate) window_size: u32,
    /// While the pool shrinks: segments from this one on are retired.
    pub(crate) retired_from: Option<u32>,
    /// Retired segments that hold nothing.
    pub(crate) retired: Vec<u32>,
}

impl FreeSegments {
    /// Nothing is retired any more. Returns the retired segments that hold nothing.
    pub(crate) fn end_retiring(&mut self) -> Vec<u32> {
        self.retired_from = None;
        core::mem::take(&mut self.retired)
    }
}
