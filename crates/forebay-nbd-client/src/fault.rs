//! Planted bugs: defects that the simulation of the lane must find (`tests/it/simulation.rs`), as
//! `fault.rs` of forebay-core has them for the engine. Without the feature `planted-bugs`
//! [`planted`] is a constant `false`.

/// A bug that can be planted in sessions and lanes, to show that the simulation finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedBug {
    /// A cookie is used again while its request is in flight.
    ReuseCookie,
    /// A change whose connection broke is sent again at once.
    ReplayAtOnce,
    /// A FLUSH is sent before the replies of all changes that it must cover.
    FlushBeforeReplies,
    /// A repeated change completes before a FLUSH that follows it.
    CompleteBeforeFlush,
    /// A FLUSH counts although the changes that it must cover went to an earlier session.
    TrustOldSession,
    /// Changes that have completed are not repeated after a reconnect.
    ForgetUnflushed,
    /// An export of another size is accepted after a reconnect.
    AcceptOtherSize,
    /// A change is sent although an older one of the same bytes is incomplete.
    OvertakeChange,
    /// Time in which the server did not answer counts for the quarantine.
    CountPauses,
    /// A read is sent although its bytes have to be repeated first.
    ReadBeforeReplay,
}

impl PlantedBug {
    /// Every planted bug.
    pub const ALL: &'static [PlantedBug] = &[
        PlantedBug::ReuseCookie,
        PlantedBug::ReplayAtOnce,
        PlantedBug::FlushBeforeReplies,
        PlantedBug::CompleteBeforeFlush,
        PlantedBug::TrustOldSession,
        PlantedBug::ForgetUnflushed,
        PlantedBug::AcceptOtherSize,
        PlantedBug::OvertakeChange,
        PlantedBug::CountPauses,
        PlantedBug::ReadBeforeReplay,
    ];
}

/// Returns true if this bug is planted in this thread.
#[cfg(not(feature = "planted-bugs"))]
#[must_use]
#[inline(always)]
pub const fn planted(_: PlantedBug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub use thread::{plant, planted};

/// The planted bug of each thread.
#[cfg(feature = "planted-bugs")]
mod thread {
    use super::PlantedBug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    }

    /// Returns true if this bug is planted in this thread.
    #[must_use]
    pub fn planted(bug: PlantedBug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants a bug, or none, in this thread.
    pub fn plant(bug: Option<PlantedBug>) {
        PLANTED.set(bug);
    }
}
