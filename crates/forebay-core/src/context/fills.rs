//! Read fills under way.
//!
//! A block that was missed is *registered* when its read of the backing store starts. When the data
//! is there it is copied to a page, and waits there until its batch has been written. Whoever
//! changes the block meanwhile cancels the fill (I9). What waits in a page answers reads, as long
//! as it is valid.

use crate::context::locks::BlockRange;
use crate::context::pages::Page;
use crate::fault::{self, PlantedBug};
use crate::map::segment::Key;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

/// Fills under way, by block. Only the read that registered a block may fill it: another one may
/// have been started before the block changed.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    blocks: BTreeMap<Key, Registration>,
    last_token: u64,
}

#[derive(Debug)]
struct Registration {
    token: u64,
    valid: bool,
    /// The reader wants it to stay.
    pinned: bool,
    /// Where the data is, once it is there.
    page: Option<Page>,
    /// It has answered a read.
    hit: bool,
}

/// What a fill that has ended was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedFill {
    /// Nobody changed the block since its read began.
    pub(crate) valid: bool,
    /// It is to be pinned.
    pub(crate) pinned: bool,
    /// It has answered a read.
    pub(crate) hit: bool,
}

impl Fills {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// True if a fill of a block in this range is under way.
    pub(crate) fn any_in(&self, range: BlockRange) -> bool {
        self.blocks.range(range.first..=range.last).next().is_some()
    }

    /// A token for the blocks that one read registers.
    pub(crate) fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Registers a block, unless a fill of it is under way.
    pub(crate) fn register(&mut self, key: Key, token: u64, pinned: bool) {
        let registration = Registration { token, valid: true, pinned, page: None, hit: false };
        self.blocks.entry(key).or_insert(registration);
    }

    /// Somebody is about to change these blocks.
    pub(crate) fn cancel(&mut self, range: BlockRange) {
        for (_, registered) in self.blocks.range_mut(range.first..=range.last) {
            registered.valid = false;
        }
    }

    pub(crate) fn is_valid(&self, key: Key, token: u64) -> bool {
        self.state_of(key, token) == Some(true)
    }

    /// Whether a fill is still valid; `None` if it is not registered under this token.
    pub(crate) fn state_of(&self, key: Key, token: u64) -> Option<bool> {
        let registered = self.blocks.get(&key).filter(|registered| registered.token == token);
        registered.map(|registered| registered.valid)
    }

    /// The data of a registered block is in a page.
    pub(crate) fn arrived(&mut self, key: Key, token: u64, page: Page) {
        if let Some(registered) = self.blocks.get_mut(&key).filter(|registered| registered.token == token) {
            registered.page = Some(page);
        }
    }

    /// Where the content of a block is that waits for its batch, unless it was changed since.
    pub(crate) fn page_of(&self, key: Key) -> Option<Page> {
        let registered = self.blocks.get(&key)?;
        registered.page.filter(|_| registered.valid || fault::planted(PlantedBug::AnswerOvertakenFill))
    }

    /// A block that waits for its batch has answered a read, whose client may want it to stay.
    pub(crate) fn note_hit(&mut self, key: Key, pins: bool) {
        if let Some(registered) = self.blocks.get_mut(&key) {
            registered.hit = true;
            registered.pinned |= pins;
        }
    }

    /// A fill has ended, whatever came of it; `None` if it was not registered under this token.
    pub(crate) fn end(&mut self, key: Key, token: u64) -> Option<EndedFill> {
        let Entry::Occupied(entry) = self.blocks.entry(key) else { return None };
        if entry.get().token != token {
            return None;
        }
        let Registration { valid, pinned, hit, .. } = entry.remove();
        Some(EndedFill { valid, pinned, hit })
    }
}
