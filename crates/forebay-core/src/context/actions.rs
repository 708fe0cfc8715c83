//! The actions that the owner has not taken yet, in order.

use crate::api::{Action, IoAction, Notice, OwnerAction};
use alloc::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct ActionQueue(VecDeque<Action>);

impl ActionQueue {
    #[inline]
    pub(crate) fn push_io(&mut self, action: IoAction) {
        self.0.push_back(Action::Io(action));
    }

    #[inline]
    pub(crate) fn push_owner(&mut self, action: OwnerAction) {
        self.0.push_back(Action::Owner(action));
    }

    /// Reports a notice to the owner.
    pub(crate) fn notice(&mut self, notice: Notice) {
        self.push_owner(OwnerAction::Notice(notice));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Action> {
        self.0.pop_front()
    }
}
