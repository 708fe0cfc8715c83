//! Segments that hold nothing.

use alloc::collections::VecDeque;

/// Segments that hold nothing: those that may be written now, and those that wait for a checkpoint that says so (I7).
#[derive(Debug, Default)]
pub(crate) struct FreeSegments {
    /// Segments that may be written now.
    pub(crate) window: VecDeque<u32>,
    /// Segments that hold nothing but are not in the window.
    pub(crate) pool: VecDeque<u32>,
    /// Segments that a window should have.
    pub(crate) window_size: u32,
}
