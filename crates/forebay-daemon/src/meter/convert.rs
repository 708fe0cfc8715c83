//! From the engine's statistics to [`Counters`], and from its paths to ours: the one place that knows both.
//!
//! Invariant: every field of [`Stats`] is taken over, and [`UNCOUNTED`] names exactly those counters that it does not have
//! (a test compares). A number that nobody counts is shown as unknown, not as zero, wherever the format allows it.

use super::{Counters, Path};
use forebay_core::Stats;

macro_rules! convert {
    ($($name:ident)*) => {
        impl From<&Stats> for Counters {
            fn from(stats: &Stats) -> Self {
                Self { $($name: stats.$name,)* ..Self::default() }
            }
        }
    };
}

convert! {
    reads writes flushes zeroes read_bytes written_bytes failed_requests read_hit_blocks read_miss_blocks filled_blocks
    read_time_ns write_time_ns flush_time_ns cache_reads cache_read_bytes cache_writes cache_written_bytes cache_flushes
    backing_reads backing_read_bytes backing_writes backing_written_bytes backing_flushes destaged_blocks evicted_blocks
    relocated_blocks batches checkpoints throttled_writes damaged_blocks dirty_blocks lost_blocks cached_blocks
    capacity_blocks free_segments segments index_memory_bytes requests_in_flight
}

impl Path {
    /// The path that a request went; `None` if its duration says nothing: it was refused, or nobody waited for it.
    pub fn of_request(path: forebay_core::Path) -> Option<Self> {
        Some(match path {
            forebay_core::Path::ReadHit => Self::ReadHit,
            forebay_core::Path::ReadMiss => Self::ReadMiss,
            forebay_core::Path::ReadBypass => Self::ReadBypass,
            forebay_core::Path::Write => Self::Write,
            forebay_core::Path::WriteThrough => Self::WriteThrough,
            forebay_core::Path::WritePast => Self::WritePast,
            forebay_core::Path::Flush => Self::Flush,
            forebay_core::Path::Zero => Self::Zero,
            forebay_core::Path::Prefetch | forebay_core::Path::Refused => return None,
        })
    }
}

/// Counters that neither the engine nor the daemon counts yet.
pub const UNCOUNTED: &[&str] = &[
    "read_bypass_blocks",
    "read_sequential_blocks",
    "written_blocks",
    "write_hit_blocks",
    "dirty_write_hit_blocks",
    "write_bypass_blocks",
    "write_sequential_blocks",
    "write_invalidated_blocks",
    "read_invalidated_blocks",
    "fill_cancelled_blocks",
    "fill_no_room_blocks",
    "lock_waits",
    "direct_waits",
    "cache_metadata_writes",
    "cache_read_errors",
    "cache_write_errors",
    "backing_read_errors",
    "backing_write_errors",
    "buffer_waits",
    "dirtied_blocks",
    "idle_destaged_blocks",
    "front_merged_blocks",
    "back_merged_blocks",
    "rules_added",
    "rules_removed",
    "rules_refused",
    "rules_expired",
];

/// Whether somebody counts it.
pub(super) fn is_counted(name: &str) -> bool {
    !UNCOUNTED.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::FIELDS;

    #[test]
    fn every_number_of_the_engine_is_taken_over_and_every_other_one_is_called_uncounted() {
        let debug = format!("{:?}", Stats::default());
        let fields = debug.split_once('{').unwrap().1.trim_end_matches('}').split(',');
        let mut names: Vec<&str> = fields.map(|field| field.split(':').next().unwrap().trim()).collect();
        assert!(names.len() > 30, "the debug output was not understood: {debug}");
        names.extend(UNCOUNTED);
        names.sort_unstable();
        let mut ours: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
        ours.sort_unstable();
        assert_eq!(ours, names, "left: what is shown; right: the engine's numbers and UNCOUNTED");
        let mut stats = Stats::default();
        (stats.reads, stats.requests_in_flight) = (3, 4);
        let counters = Counters::from(&stats);
        assert_eq!((counters.reads, counters.requests_in_flight), (3, 4));
    }
}
