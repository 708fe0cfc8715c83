//! Read fills under way.

use crate::context::locks::BlockRange;
use crate::map::segment::Key;
use alloc::collections::BTreeMap;

/// Fills under way, by block. Only the read that registered a block may fill it: another one may
/// have been started before the block changed.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    pub(crate) blocks: BTreeMap<Key, Registration>,
    pub(crate) last_token: u64,
}

#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) token: u64,
    pub(crate) valid: bool,
    /// The reader wants it to stay.
    pub(crate) pinned: bool,
}

impl Fills {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// True if a fill of a block in this range is under way.
    pub(crate) fn any_in(&self, range: BlockRange) -> bool {
        self.blocks.range(range.first..=range.last).next().is_some()
    }

    /// Registers a block under a token of its own.
    pub(crate) fn register(&mut self, key: Key, pinned: bool) -> u64 {
        self.last_token += 1;
        self.blocks.entry(key).or_insert(Registration { token: self.last_token, valid: true, pinned });
        self.last_token
    }

    pub(crate) fn is_valid(&self, key: Key, token: u64) -> bool {
        self.state_of(key, token) == Some(true)
    }

    /// Whether a fill is still valid; `None` if it is not registered under this token.
    pub(crate) fn state_of(&self, key: Key, token: u64) -> Option<bool> {
        let registered = self.blocks.get(&key).filter(|registered| registered.token == token);
        registered.map(|registered| registered.valid)
    }

    pub(crate) fn end(&mut self, key: Key, token: u64) {
        if self.blocks.get(&key).is_some_and(|registered| registered.token == token) {
            self.blocks.remove(&key);
        }
    }
}
