//! The scratch buffer, divided into blocks. Each kind of use has a limit, so that none can starve
//! another.
//!
//! Fills may borrow: a miss that finds no page is not filled, and will be a miss again. In a load
//! of reads nothing else needs pages. So the limit of fills is higher than their share, and they
//! leave at least half of its limit to each use whose pages they borrow (merges and destage). They
//! leave relocation its whole limit: fills that wait for a segment may depend on it.

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
    /// Pages of each other use that fills leave alone.
    spared: [u32; 5],
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
        let [merges, destage, moves, scrub] = [share(25).max(4) & !1, share(38), share(15), share(2).max(1)];
        let spared = [(merges / 2).max(2), destage.div_ceil(2), 0, moves, scrub];
        let fills = share(20).max((blocks - KEPT).saturating_sub(spared.iter().sum()));
        Self {
            free: (KEPT..blocks).rev().collect(),
            used: [0; 5],
            limit: [merges, destage, fills, moves, scrub],
            spared,
        }
    }

    pub(crate) fn available(&self, purpose: PageUse) -> u32 {
        let free = self.free.len() as u32;
        let free = if purpose == PageUse::Fill { free.saturating_sub(self.held_back()) } else { free };
        let purpose = purpose as usize;
        (self.limit[purpose] - self.used[purpose]).min(free)
    }

    /// Returns the free pages that fills leave to other uses.
    fn held_back(&self) -> u32 {
        self.spared.iter().zip(&self.used).map(|(spared, used)| spared.saturating_sub(*used)).sum()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all available pages of a use; returns their number.
    fn take_all(pages: &mut Pages, purpose: PageUse) -> u32 {
        core::iter::from_fn(|| pages.take(purpose)).count() as u32
    }

    #[test]
    fn fills_borrow_idle_pages() {
        let mut pages = Pages::new(4096);
        assert!(take_all(&mut pages, PageUse::Fill) > 4096 / 2, "nothing else needs pages");
    }

    #[test]
    fn fills_leave_pages_to_every_other_use() {
        for blocks in [0, 32, 64, 256, 4096, 8192] {
            let mut pages = Pages::new(blocks);
            assert!(take_all(&mut pages, PageUse::Fill) > 0, "{blocks}: fills have pages");
            assert_eq!(pages.available(PageUse::Fill), 0);
            let left = |pages: &mut Pages, purpose| (take_all(pages, purpose), pages.limit(purpose));
            let (moves, most) = left(&mut pages, PageUse::Survivor);
            assert_eq!(moves, most, "{blocks}: relocation has all its pages");
            let (scrub, most) = left(&mut pages, PageUse::Scrub);
            assert_eq!(scrub, most, "{blocks}: so has scrub");
            assert!(pages.available(PageUse::Merge) >= 2, "{blocks}: a merge takes two at a time");
            assert!(pages.available(PageUse::Destage) >= pages.limit(PageUse::Destage) / 2, "{blocks}");
        }
    }

    #[test]
    fn fills_do_not_take_what_others_use() {
        let mut pages = Pages::new(4096);
        let taken = take_all(&mut pages, PageUse::Destage) + take_all(&mut pages, PageUse::Merge);
        assert_eq!(taken, pages.limit(PageUse::Destage) + pages.limit(PageUse::Merge));
        let fills = take_all(&mut pages, PageUse::Fill);
        assert!((700..900).contains(&fills), "{fills}: a fifth is left to fills");
    }
}
