//! Fills in flight.
//!
//! A missed block is *registered* when its read of the backing store starts. When the data has
//! arrived it is copied to a page, and waits there for the write of its batch. Any change of the
//! block cancels the fill (I9). While the fill is valid, its page answers reads.
//!
//! A read that misses a block which another read is fetching *joins* that read. It gets the same
//! data, or restarts on its own if the read failed. A cancelled fill is not joined.

use crate::context::locks::BlockRange;
use crate::context::pages::Page;
use crate::fault::{self, PlantedBug};
use crate::map::segment::Key;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Fills in flight, by block. Only the read that registered a block may fill it: another one might
/// have been started before the block changed.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    blocks: BTreeMap<Key, Registration>,
    /// Reads that have joined, by block.
    joined: BTreeSet<(Key, u32)>,
    last_token: u64,
}

#[derive(Debug)]
struct Registration {
    token: u64,
    valid: bool,
    /// The reader wants it pinned.
    pinned: bool,
    /// A client's read fetches it, which others can join.
    by_read: bool,
    /// Page of the data, once it has arrived.
    page: Option<Page>,
    /// It has answered a read.
    hit: bool,
}

/// State of a fill that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedFill {
    /// The block was not changed since its read began.
    pub(crate) valid: bool,
    /// It will be pinned.
    pub(crate) pinned: bool,
    /// It has answered a read.
    pub(crate) hit: bool,
}

impl Fills {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns true if a fill of a block in this range is in flight.
    pub(crate) fn any_in(&self, range: BlockRange) -> bool {
        self.blocks.range(range.first..=range.last).next().is_some()
    }

    /// Returns a token for the blocks that one read registers.
    pub(crate) fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Registers a block that a read fetches, unless a fill of it is in flight.
    pub(crate) fn register(&mut self, key: Key, token: u64, pinned: bool) {
        self.register_for(key, token, pinned, true);
    }

    /// Registers a block that the engine fetches for itself, unless a fill of it is in flight.
    pub(crate) fn register_own(&mut self, key: Key, token: u64, pinned: bool) {
        self.register_for(key, token, pinned, false);
    }

    fn register_for(&mut self, key: Key, token: u64, pinned: bool, by_read: bool) {
        let registration = Registration { token, valid: true, pinned, by_read, page: None, hit: false };
        self.blocks.entry(key).or_insert(registration);
    }

    /// Returns true if a client's read of this block is in flight, and the block was not changed
    /// since that began.
    pub(crate) fn may_join(&self, key: Key) -> bool {
        let coming =
            self.blocks.get(&key).filter(|registered| registered.by_read && registered.page.is_none());
        coming.is_some_and(|registered| registered.valid || fault::planted(PlantedBug::JoinOvertakenRead))
    }

    /// Makes a request wait for the block that another one fetches.
    pub(crate) fn join(&mut self, key: Key, req: u32) {
        self.joined.insert((key, req));
    }

    /// Takes the requests that wait for blocks registered under this token, whose read has ended.
    pub(crate) fn take_joined(&mut self, range: BlockRange, token: u64) -> Vec<(Key, u32)> {
        if self.joined.is_empty() {
            return Vec::new();
        }
        let all = self.joined.range((range.first, 0)..=(range.last, u32::MAX)).copied();
        let of_token = |(key, _): &(Key, u32)| self.blocks.get(key).is_some_and(|block| block.token == token);
        let joined: Vec<_> = all.filter(of_token).collect();
        for waiting in &joined {
            self.joined.remove(waiting);
        }
        joined
    }

    /// Cancels the fills of blocks that are about to change.
    pub(crate) fn cancel(&mut self, range: BlockRange) {
        for (_, registered) in self.blocks.range_mut(range.first..=range.last) {
            registered.valid = false;
        }
    }

    /// Asserts that each joined request waits for a read in flight.
    pub(crate) fn check(&self) {
        let is_coming = |block: &Registration| block.by_read && block.page.is_none();
        let waits = |(key, _): &(Key, u32)| self.blocks.get(key).is_some_and(is_coming);
        assert!(self.joined.iter().all(waits), "a read waits for nothing");
    }

    pub(crate) fn is_valid(&self, key: Key, token: u64) -> bool {
        self.state_of(key, token) == Some(true)
    }

    /// Returns whether a fill is still valid; `None` if it is not registered under this token.
    pub(crate) fn state_of(&self, key: Key, token: u64) -> Option<bool> {
        let registered = self.blocks.get(&key).filter(|registered| registered.token == token);
        registered.map(|registered| registered.valid)
    }

    /// Records the page of a registered block whose data has arrived.
    pub(crate) fn arrived(&mut self, key: Key, token: u64, page: Page) {
        if let Some(registered) = self.blocks.get_mut(&key).filter(|registered| registered.token == token) {
            registered.page = Some(page);
        }
    }

    /// Returns the page of a block that waits for its batch, unless it was changed since.
    pub(crate) fn page_of(&self, key: Key) -> Option<Page> {
        let registered = self.blocks.get(&key)?;
        registered.page.filter(|_| registered.valid || fault::planted(PlantedBug::AnswerOvertakenFill))
    }

    /// Notes that a block that waits for its batch has answered a read, which can pin it.
    pub(crate) fn note_hit(&mut self, key: Key, pins: bool) {
        if let Some(registered) = self.blocks.get_mut(&key) {
            registered.hit = true;
            registered.pinned |= pins;
        }
    }

    /// Ends a fill, with any result; returns `None` if it was not registered under this token.
    pub(crate) fn end(&mut self, key: Key, token: u64) -> Option<EndedFill> {
        let Entry::Occupied(entry) = self.blocks.entry(key) else { return None };
        if entry.get().token != token {
            return None;
        }
        let Registration { valid, pinned, hit, .. } = entry.remove();
        Some(EndedFill { valid, pinned, hit })
    }
}
