//! The scratch buffer, divided into blocks. Each kind of use has a limit, so that none can starve
//! another.

use crate::api::{SCRATCH, Span};
use alloc::vec::Vec;
use forebay_format::BLOCK_BYTES;

/// A block of the scratch buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page(u32);

/// Use of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageUse {
    /// Merging partial writes and partial cached blocks; always two at a time.
    Merge,
    /// Destage.
    Destage,
    /// Fills on their way to the cache.
    Fill,
    /// Relocation.
    Survivor,
    /// Scrub.
    Scrub,
}

#[derive(Debug)]
pub(crate) struct Pages {
    free: Vec<u32>,
    used: [u32; 5],
    limit: [u32; 5],
}

/// A block of zeroes, never written to.
pub(crate) const ZERO_PAGE: Page = Page(1);
/// Pages that are never taken: [`crate::api::WASTE`], which adjoins no page in use, so that its
/// spans are not merged with others, and the zero page.
const KEPT: u32 = 2;

impl Pages {
    /// Divides `blocks` pages; the first two are never taken.
    pub(crate) fn new(blocks: u32) -> Self {
        let blocks = blocks.max(32);
        let share = |percent: u32| (blocks - KEPT) * percent / 100;
        Self {
            free: (KEPT..blocks).rev().collect(),
            used: [0; 5],
            limit: [share(25).max(4) & !1, share(38), share(20), share(15), share(2).max(1)],
        }
    }

    pub(crate) fn available(&self, purpose: PageUse) -> u32 {
        let purpose = purpose as usize;
        (self.limit[purpose] - self.used[purpose]).min(self.free.len() as u32)
    }

    /// Returns the pages that may still be promised to fills, with `under_way` fills in flight:
    /// each of those has its page, or will need one.
    pub(crate) fn room_for_fills(&self, under_way: usize) -> u32 {
        let used = self.used[PageUse::Fill as usize];
        let waiting = (under_way as u32).saturating_sub(used);
        self.available(PageUse::Fill).saturating_sub(waiting)
    }

    /// Returns the maximum of pages of a use.
    pub(crate) fn limit(&self, purpose: PageUse) -> u32 {
        self.limit[purpose as usize]
    }

    pub(crate) fn take(&mut self, purpose: PageUse) -> Option<Page> {
        if self.available(purpose) == 0 {
            return None;
        }
        self.used[purpose as usize] += 1;
        self.free.pop().map(Page)
    }

    pub(crate) fn give(&mut self, purpose: PageUse, page: Page) {
        debug_assert!(page.0 >= KEPT && !self.free.contains(&page.0), "a page is given back once");
        self.used[purpose as usize] -= 1;
        self.free.push(page.0);
    }

    pub(crate) fn all_free(&self) -> bool {
        self.used == [0; 5]
    }
}

impl Page {
    pub(crate) fn span(self) -> Span {
        self.part(0, BLOCK_BYTES as u32)
    }

    pub(crate) fn part(self, from: u32, to: u32) -> Span {
        Span { buf: SCRATCH, offset: self.0 * BLOCK_BYTES as u32 + from, len: to - from }
    }
}
