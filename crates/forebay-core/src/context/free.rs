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
    /// A segment is being emptied, and nothing but the length of a call keeps it from being empty.
    pub(crate) more_comes: bool,
    /// Segments that a window should have.
    pub(crate) window_size: u32,
    /// While the pool shrinks: segments from this one on are retired.
    pub(crate) retired_from: Option<u32>,
    /// Retired segments that hold nothing.
    pub(crate) retired: Vec<u32>,
}

impl FreeSegments {
    /// Segments that the window should have now: more while there is much that holds nothing.
    #[inline]
    fn target(&self) -> usize {
        (self.window_size as usize).max((self.pool.len() / 2).min(self.window_size as usize * 4))
    }

    /// Segments that may join the window at once.
    pub(crate) fn may_join(&self) -> usize {
        self.target().saturating_sub(self.window.len())
    }

    /// Fewer are not worth the trouble, unless the window is nearly empty.
    pub(crate) fn worth_joining(&self) -> usize {
        if self.window.len() <= 2 { 1 } else { (self.window_size as usize / 4).max(1) }
    }

    /// The window should be extended, and there is something to extend it by.
    #[inline]
    pub(crate) fn wants_to_join(&self) -> bool {
        !self.pool.is_empty()
            && self.window.len() <= (self.target() / 2).max(2)
            && self.pool.len() >= self.worth_joining()
    }

    /// Nothing is retired any more. Returns the retired segments that hold nothing.
    pub(crate) fn end_retiring(&mut self) -> Vec<u32> {
        self.retired_from = None;
        core::mem::take(&mut self.retired)
    }
}
