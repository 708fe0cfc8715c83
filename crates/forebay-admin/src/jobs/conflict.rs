//! Conflicts between jobs.
//!
//! A recording runs concurrently with every other job; it ends with its volume.
//!
//! | new, while | flush of the volume | detach (drain) | detach (else) | mode, resize | remove, export | shrink, replace | scrub, rebuild |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | flush | queued: rides on it; running: after it | rides on it | refused | concurrent | refused | concurrent | concurrent |
//! | detach, mode change, resize | after it | refused | refused | refused | refused | concurrent | concurrent |
//! | shrink, replace | concurrent | concurrent | concurrent | concurrent | refused | refused | concurrent |
//! | scrub, rebuild | concurrent | concurrent | concurrent | concurrent | refused | concurrent | concurrent; with one of its kind: refused |
//! | remove, export | after it | refused | refused | refused | refused | refused | refused |
//!
//! A flush promises that all data that was dirty when it was requested reaches the backing store. A
//! draining detach writes that data too, and a flush that has not begun will cover it, so the new
//! flush rides on those. A running flush began too early. A detach that keeps or discards dirty
//! data never fulfils the promise, and a pool that is removed or exported has no volumes in the
//! end.

use super::job::{JobKind, JobSpec};
use crate::DetachHow;

/// Relation of a new job to an existing one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Relation {
    /// Both may run concurrently.
    Beside,
    /// The new job runs after the other.
    After,
    /// The new job rides on the other, whose work covers it.
    Rides,
    /// The new job is refused.
    Refused,
}

/// Returns the relation of `new` to `other`, which has begun or not.
pub(super) fn relation(new: &JobSpec, other: &JobSpec, other_has_begun: bool) -> Relation {
    use JobKind::{
        Detach, Export, Flush, GiveUp, ModeChange, Rebuild, Record, Remove, Replace, Resize, Scrub, Shrink,
    };
    let both_of_volumes = new.volume.is_some() && other.volume.is_some();
    if new.pool != other.pool || (both_of_volumes && new.volume != other.volume) {
        return Relation::Beside;
    }
    match (new.kind, other.kind) {
        (Record(_), _) | (_, Record(_)) => Relation::Beside,
        (Flush, Flush) if other_has_begun => Relation::After,
        (Flush, Flush | Detach(DetachHow::Drain)) => Relation::Rides,
        (Flush, Detach(_) | Remove { .. } | Export { .. }) => Relation::Refused,
        (Flush, _) => Relation::Beside,
        (Detach(_) | ModeChange(_) | Resize(_) | Remove { .. } | Export { .. }, Flush) => Relation::After,
        (Remove { .. } | Export { .. }, _) | (_, Remove { .. } | Export { .. }) => Relation::Refused,
        (Detach(_) | ModeChange(_) | Resize(_), Detach(_) | ModeChange(_) | Resize(_)) => Relation::Refused,
        // The devices of a pool change in one way at a time.
        (Shrink(_) | GiveUp(_) | Replace, Shrink(_) | GiveUp(_) | Replace) => Relation::Refused,
        (Scrub(_), Scrub(_)) | (Rebuild, Rebuild) => Relation::Refused,
        _ => Relation::Beside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::checkpoint::Mode;

    const DRAIN: JobKind = JobKind::Detach(DetachHow::Drain);

    fn on(kind: JobKind) -> JobSpec {
        if kind.is_of_pool() { JobSpec::pool(kind, "p") } else { JobSpec::volume(kind, "p", "v") }
    }

    #[test]
    fn the_table_of_this_file_holds() {
        use JobKind::{Detach, Flush, GiveUp, ModeChange, Rebuild, Remove, Replace, Resize, Scrub, Shrink};
        let (mode, drain, keep) =
            (ModeChange(Mode::Writeback), Detach(DetachHow::Drain), Detach(DetachHow::Keep));
        let remove = Remove { erase: false };
        let export = JobKind::Export { drain: false };
        let others = [Flush, drain, keep, mode, remove, export, Shrink(1), Replace, Scrub(1), Rebuild];
        let table = [
            (Flush, "arxbxxbbbb"),
            (drain, "axxxxxbbbb"),
            (keep, "axxxxxbbbb"),
            (mode, "axxxxxbbbb"),
            (Resize(1), "axxxxxbbbb"),
            (Shrink(1), "bbbbxxxxbb"),
            (GiveUp(1), "bbbbxxxxbb"),
            (Replace, "bbbbxxxxbb"),
            (Scrub(1), "bbbbxxbbxb"),
            (Rebuild, "bbbbxxbbbx"),
            (remove, "axxxxxxxxx"),
            (export, "axxxxxxxxx"),
        ];
        for (new, row) in table {
            for (other, expected) in others.into_iter().zip(row.chars()) {
                let expected = match expected {
                    'a' => Relation::After,
                    'r' => Relation::Rides,
                    'b' => Relation::Beside,
                    _ => Relation::Refused,
                };
                assert_eq!(relation(&on(new), &on(other), true), expected, "{new:?} while {other:?}");
            }
        }
        assert_eq!(relation(&on(Flush), &on(Flush), false), Relation::Rides);
    }

    #[test]
    fn recordings_conflict_with_nothing() {
        let record = on(JobKind::Record(60));
        for other in
            [JobKind::Flush, DRAIN, JobKind::Shrink(1), JobKind::Remove { erase: true }, JobKind::Record(1)]
        {
            assert_eq!(relation(&record, &on(other), true), Relation::Beside);
            assert_eq!(relation(&on(other), &record, true), Relation::Beside);
        }
    }

    #[test]
    fn jobs_elsewhere_do_not_conflict() {
        let other_volume = JobSpec::volume(DRAIN, "p", "w");
        let other_pool = JobSpec::volume(DRAIN, "q", "v");
        for other in [other_volume, other_pool, JobSpec::pool(JobKind::Shrink(1), "q")] {
            assert_eq!(relation(&on(DRAIN), &other, true), Relation::Beside);
            assert_eq!(relation(&on(JobKind::Flush), &other, true), Relation::Beside);
        }
    }
}
