//! The two lists of a set under `reclaim_policy` LRU: warm and hot.
//!
//! Every slot is in one of them, and half of the slots in the hot one (`lru_hot_pct` is 50 when the
//! lists are made). A used slot moves to the most recently used end of its list; after
//! `PROMOTE_THRESH` uses a warm one changes places with the least recently used hot one.

/// Uses after which a warm slot becomes hot (`lru_promote_thresh`).
const PROMOTE_THRESH: u8 = 2;
/// Percent of a set's slots that are hot.
const HOT_PCT: u32 = 50;
/// No slot. Numbers within a set are below 8192.
const NONE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u16,
    next: u16,
    hot: bool,
    uses: u8,
}

/// Ends of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    least: u16,
    most: u16,
}

const EMPTY: Ends = Ends { least: NONE, most: NONE };

/// The lists of one set; slots are numbered within the set.
#[derive(Clone, Debug)]
pub(crate) struct Lru {
    links: Vec<Link>,
    /// Warm and hot.
    ends: [Ends; 2],
}

impl Lru {
    pub(crate) fn new(assoc: u32) -> Self {
        let link = Link { prev: NONE, next: NONE, hot: false, uses: 0 };
        let mut lists = Self { links: vec![link; assoc as usize], ends: [EMPTY; 2] };
        for at in 0..assoc {
            lists.links[at as usize].hot = at < assoc * HOT_PCT / 100;
            lists.append(at as u16);
        }
        lists
    }

    /// Notes a use of a slot.
    pub(crate) fn used(&mut self, at: u16) {
        self.take(at);
        self.append(at);
        let link = &mut self.links[usize::from(at)];
        link.uses = link.uses.saturating_add(1);
        if !link.hot && link.uses >= PROMOTE_THRESH {
            self.promote(at);
        }
    }

    /// Reuses a slot for another block, which begins at the most recently used end of the warm
    /// list.
    pub(crate) fn touch(&mut self, at: u16) {
        if self.links[usize::from(at)].hot && self.ends[0].least != NONE {
            let warm = self.ends[0].least;
            self.swap(at, warm);
        } else {
            self.take(at);
            self.append(at);
        }
        self.links[usize::from(at)].uses = 0;
    }

    /// Returns the slots from the least recently used one on: warm ones, then hot ones.
    pub(crate) fn coldest_first(&self) -> impl Iterator<Item = u16> {
        let walk = |ends: Ends| {
            let first = Some(ends.least).filter(|at| *at != NONE);
            let next = |at: &u16| Some(self.links[usize::from(*at)].next).filter(|at| *at != NONE);
            std::iter::successors(first, next)
        };
        walk(self.ends[0]).chain(walk(self.ends[1]))
    }

    fn promote(&mut self, at: u16) {
        let hot = self.ends[1].least;
        if hot != NONE {
            self.swap(hot, at);
        }
    }

    /// Swaps a hot and a warm slot: the hot one becomes the most recently used warm one, the warm
    /// one the least recently used hot one.
    fn swap(&mut self, hot: u16, warm: u16) {
        self.take(hot);
        self.take(warm);
        for (at, is_hot) in [(hot, false), (warm, true)] {
            let link = &mut self.links[usize::from(at)];
            (link.hot, link.uses) = (is_hot, 0);
        }
        self.append(hot);
        self.prepend(warm);
    }

    fn take(&mut self, at: u16) {
        let Link { prev, next, hot, .. } = self.links[usize::from(at)];
        let ends = &mut self.ends[usize::from(hot)];
        match prev {
            NONE => ends.least = next,
            prev => self.links[usize::from(prev)].next = next,
        }
        match next {
            NONE => ends.most = prev,
            next => self.links[usize::from(next)].prev = prev,
        }
    }

    /// Adds a slot at the most recently used end of its list.
    fn append(&mut self, at: u16) {
        let ends = &mut self.ends[usize::from(self.links[usize::from(at)].hot)];
        let last = std::mem::replace(&mut ends.most, at);
        match last {
            NONE => ends.least = at,
            last => self.links[usize::from(last)].next = at,
        }
        let link = &mut self.links[usize::from(at)];
        (link.prev, link.next) = (last, NONE);
    }

    /// Adds a slot at the least recently used end of its list.
    fn prepend(&mut self, at: u16) {
        let ends = &mut self.ends[usize::from(self.links[usize::from(at)].hot)];
        let first = std::mem::replace(&mut ends.least, at);
        match first {
            NONE => ends.most = at,
            first => self.links[usize::from(first)].prev = at,
        }
        let link = &mut self.links[usize::from(at)];
        (link.prev, link.next) = (NONE, first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(lists: &Lru) -> Vec<u16> {
        lists.coldest_first().collect()
    }

    #[test]
    fn warm_slot_used_twice_becomes_hot() {
        let mut lists = Lru::new(6);
        assert_eq!(order(&lists), [3, 4, 5, 0, 1, 2], "warm, then hot");
        lists.used(3);
        assert_eq!(order(&lists), [4, 5, 3, 0, 1, 2]);
        lists.used(3);
        assert_eq!(order(&lists), [4, 5, 0, 3, 1, 2], "0 is the most recently used warm one now");
        lists.used(1);
        assert_eq!(order(&lists), [4, 5, 0, 3, 2, 1], "a hot one stays hot");
    }

    #[test]
    fn slot_with_another_block_begins_warm() {
        let mut lists = Lru::new(6);
        lists.touch(4);
        assert_eq!(order(&lists), [3, 5, 4, 0, 1, 2]);
        lists.touch(1);
        assert_eq!(order(&lists), [5, 4, 1, 3, 0, 2], "a hot one goes down, and the coldest warm one up");
        lists.used(1);
        assert_eq!(order(&lists), [5, 4, 1, 3, 0, 2], "it was not used before");
    }
}
