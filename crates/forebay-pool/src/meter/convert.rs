//! Conversion of the engine's statistics to [`Counters`], and of its paths to [`TimedPath`]: the
//! only place that knows both.
//!
//! Invariant: every field of [`Stats`] is converted, and there are no other counters (a test
//! compares): a number without a source is not shown.

use super::{Counters, TimedPath};
use forebay_core::{Stats, VolumeStats};
use forebay_io::ReactorStats;

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
    reads writes flushes zeroes read_bytes written_bytes failed_requests read_hit_blocks read_miss_blocks
    read_bypass_blocks read_sequential_blocks write_bypass_blocks write_sequential_blocks sequential_bypassed_reads
    sequential_bypassed_writes filled_blocks read_time_ns write_time_ns flush_time_ns cache_reads cache_read_bytes
    cache_writes cache_written_bytes cache_written_client_bytes cache_written_copy_bytes cache_written_fill_bytes
    cache_written_kept_bytes cache_written_moved_bytes cache_written_header_bytes cache_written_checkpoint_bytes
    cache_written_rebuild_bytes cache_written_restart_bytes cache_written_device_copy_bytes endurance_unfilled_blocks endurance_unkept_blocks
    endurance_missed_blocks cache_flushes backing_reads backing_read_bytes backing_writes
    backing_written_bytes backing_flushes destaged_blocks destage_writes destage_failures front_merged_blocks
    back_merged_blocks evicted_blocks trimmed_blocks relocated_blocks gap_filled_blocks survivor_hit_blocks survivor_pinned_blocks
    survivor_share_blocks survivor_unclean_blocks survivor_compacted_blocks readmitted_blocks batches checkpoints window_extensions throttled_writes
    read_invalidated_blocks fill_cancelled_blocks fill_no_room_blocks lock_waits direct_waits dirtied_blocks cache_metadata_writes cache_write_errors
    cache_discards cache_discarded_bytes cache_discard_errors
    damaged_blocks dirty_blocks lost_blocks lost_bytes pinned_blocks cached_blocks capacity_blocks probation_limit_blocks
    free_segments segments
    index_memory_bytes requests_in_flight
}

/// Numbers that the engine keeps by volume, under their names here.
macro_rules! of_volume {
    ($($name:ident = $from:ident;)*) => {
        /// The numbers of a volume: the name here, and the engine's.
        const TAKEN_OF_VOLUMES: &[(&str, &str)] = &[$((stringify!($name), stringify!($from)),)*];

        impl Counters {
            /// The numbers of a volume. Those of devices, space and memory are the pool's, which
            /// all its volumes share.
            pub fn of_volume(volume: &VolumeStats, pool: &Stats) -> Self {
                let backing_write_errors = volume.backing_write_errors + volume.backing_flush_errors;
                Self { backing_write_errors, $($name: volume.$from,)* ..Self::from(pool) }
            }

            /// The numbers of a pool: the engine's own, and the sums over its volumes of those that
            /// only volumes have.
            pub fn of_pool(pool: &Stats, volumes: impl IntoIterator<Item = VolumeStats>) -> Self {
                let mut all = Self::from(pool);
                for volume in volumes {
                    all.add_volume(&volume);
                }
                all
            }
        }
    };
}

of_volume! {
    reads = reads; writes = writes; flushes = flushes; zeroes = zeroes; read_bytes = read_bytes;
    written_bytes = written_bytes; failed_requests = failed_requests; read_time_ns = read_time_ns;
    write_time_ns = write_time_ns; flush_time_ns = flush_time_ns; read_hit_blocks = read_hit_blocks;
    read_miss_blocks = read_miss_blocks; filled_blocks = filled_blocks; evicted_blocks = evicted_blocks;
    destaged_blocks = destaged_blocks; throttled_writes = throttled_writes; damaged_blocks = damaged_blocks;
    cached_blocks = cached_blocks; dirty_blocks = dirty_blocks; lost_blocks = lost_blocks;
    lost_bytes = lost_bytes; read_invalidated_blocks = read_invalidated_blocks;
    fill_cancelled_blocks = fill_cancelled_blocks; fill_no_room_blocks = fill_no_room_blocks; lock_waits = lock_waits;
    direct_waits = direct_waits; dirtied_blocks = dirtied_blocks;
    written_blocks = logged_blocks; write_hit_blocks = write_hit_blocks;
    dirty_write_hit_blocks = dirty_write_hit_blocks; write_invalidated_blocks = invalidated_blocks;
    cache_read_errors = cache_read_errors; backing_read_errors = backing_read_errors;
    read_bypass_blocks = read_bypass_blocks; read_sequential_blocks = read_sequential_blocks;
    write_bypass_blocks = write_bypass_blocks; write_sequential_blocks = write_sequential_blocks;
    sequential_bypassed_reads = sequential_bypassed_reads; sequential_bypassed_writes = sequential_bypassed_writes;
    prefetches = prefetches; uncached_reads = uncached_reads; uncached_writes = uncached_writes;
    through_writes = through_writes; pinned_blocks = pinned_blocks;
}

impl Counters {
    /// Adds the counts that only volumes have.
    fn add_volume(&mut self, volume: &VolumeStats) {
        self.written_blocks += volume.logged_blocks;
        self.write_hit_blocks += volume.write_hit_blocks;
        self.dirty_write_hit_blocks += volume.dirty_write_hit_blocks;
        self.write_invalidated_blocks += volume.invalidated_blocks;
        self.cache_read_errors += volume.cache_read_errors;
        self.backing_read_errors += volume.backing_read_errors;
        self.backing_write_errors += volume.backing_write_errors + volume.backing_flush_errors;
        self.prefetches += volume.prefetches;
        self.uncached_reads += volume.uncached_reads;
        self.uncached_writes += volume.uncached_writes;
        self.through_writes += volume.through_writes;
    }
}

/// True for numbers counted by volume; the others are the pool's.
pub(super) fn is_of_volumes(name: &str) -> bool {
    name == "backing_write_errors" || TAKEN_OF_VOLUMES.iter().any(|(ours, _)| *ours == name)
}

impl TimedPath {
    /// The path that a request took; `None` if its duration is meaningless: it was refused, or was
    /// a prefetch, for which no client waits.
    pub fn of_request(path: forebay_core::RequestOutcome) -> Option<Self> {
        Some(match path {
            forebay_core::RequestOutcome::ReadHit => Self::ReadHit,
            forebay_core::RequestOutcome::ReadMiss => Self::ReadMiss,
            forebay_core::RequestOutcome::ReadBypass => Self::ReadBypass,
            forebay_core::RequestOutcome::Write => Self::Write,
            forebay_core::RequestOutcome::WriteThrough => Self::WriteThrough,
            forebay_core::RequestOutcome::WritePast => Self::WritePast,
            forebay_core::RequestOutcome::Flush => Self::Flush,
            forebay_core::RequestOutcome::Zero => Self::Zero,
            forebay_core::RequestOutcome::Prefetch | forebay_core::RequestOutcome::Refused => return None,
        })
    }
}

impl Counters {
    /// Adds the reactor's counters of the pool.
    pub(crate) fn with_io(self, io: ReactorStats) -> Self {
        Self { io_steps: io.steps, io_thread_steps: io.steps_given, ..self }
    }
}

/// Counters of the reactor.
#[cfg(test)]
const OF_REACTOR: [&str; 2] = ["io_steps", "io_thread_steps"];

/// Counters that the engine keeps by volume only.
#[cfg(test)]
const OF_VOLUMES: [&str; 11] = [
    "written_blocks",
    "write_hit_blocks",
    "dirty_write_hit_blocks",
    "write_invalidated_blocks",
    "cache_read_errors",
    "backing_read_errors",
    "backing_write_errors",
    "prefetches",
    "uncached_reads",
    "uncached_writes",
    "through_writes",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::FIELDS;

    /// Names of the fields of a structure, from its debug output.
    fn names_of(debug: &str) -> Vec<&str> {
        let fields = debug.split_once('{').unwrap().1.trim_end_matches('}').split(',');
        let names: Vec<&str> = fields.map(|field| field.split(':').next().unwrap().trim()).collect();
        assert!(names.len() > 30, "the debug output was not understood: {debug}");
        names
    }

    #[test]
    fn engine_and_meter_have_the_same_counters() {
        let debug = format!("{:?}", Stats::default());
        let mut names = names_of(&debug);
        names.extend(OF_VOLUMES);
        names.extend(OF_REACTOR);
        names.sort_unstable();
        let mut ours: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
        ours.sort_unstable();
        assert_eq!(ours, names, "left: what is shown; right: the engine's numbers");
        let mut stats = Stats::default();
        (stats.reads, stats.requests_in_flight) = (3, 4);
        let counters = Counters::from(&stats);
        assert_eq!((counters.reads, counters.requests_in_flight), (3, 4));
    }

    #[test]
    fn volume_counters_are_all_taken_over() {
        let debug = format!("{:?}", VolumeStats::default());
        let mut names = names_of(&debug);
        // Its errors are shown with those of writes.
        names.push("backing_write_errors");
        names.retain(|name| *name != "backing_flush_errors");
        names.sort_unstable();
        names.dedup();
        let mut taken: Vec<&str> = TAKEN_OF_VOLUMES.iter().map(|(_, from)| *from).collect();
        taken.push("backing_write_errors");
        taken.sort_unstable();
        assert_eq!(taken, names, "left: what is taken over; right: what the engine has");
        assert!(OF_VOLUMES.iter().all(|name| {
            *name == "backing_write_errors" || TAKEN_OF_VOLUMES.iter().any(|(ours, _)| ours == name)
        }));
    }
}
