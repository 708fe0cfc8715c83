//! `fifo`: the oldest segment; no block is kept for its hits.

use super::rules::Policy;

pub(super) struct Fifo;

impl Policy for Fifo {
    const KEEPS_HITS: bool = false;
}
