//! The load of clients: closed loops with the distributions of fio.

use crate::figures::zipf::Zipf;
use forebay_sim::rng::Rng;

/// A job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    /// Random reads, Zipf 1.1.
    Zread,
    /// 70 % reads, 30 % writes, Zipf 1.1.
    Zmix,
    /// Random writes, uniform.
    Rwrite,
}

impl Job {
    pub(crate) const ALL: [(Self, &'static str); 3] =
        [(Self::Zread, "zread"), (Self::Zmix, "zmix"), (Self::Rwrite, "rwrite")];

    /// Returns whether the next request is a read, and its block.
    pub(crate) fn next(self, zipf: &Zipf, blocks: u64, rng: &mut Rng) -> (bool, u64) {
        match self {
            Self::Zread => (true, zipf.block(rng)),
            Self::Zmix => (rng.below(100) < 70, zipf.block(rng)),
            Self::Rwrite => (false, rng.below(blocks)),
        }
    }
}
