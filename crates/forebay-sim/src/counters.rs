//! Counters of runs: events, and rare paths of the engine.

use forebay_core::{CoverageMark, Engine};

const MARKS: usize = CoverageMark::ALL.len();

/// Number of engines that have reached each [`CoverageMark`], by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoverageCounts([u64; MARKS]);

impl Default for CoverageCounts {
    fn default() -> Self {
        Self([0; MARKS])
    }
}

impl CoverageCounts {
    pub(crate) fn add_engine(&mut self, engine: &Engine) {
        let reached = engine.coverage();
        for (mark, ..) in CoverageMark::ALL {
            self.0[*mark as usize] += u64::from(reached.contains(*mark));
        }
    }

    /// Returns every coverage mark with its name, its meaning, and the number of engines that have
    /// reached it.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        CoverageMark::ALL.iter().map(|(mark, name, what)| (*name, *what, self.0[*mark as usize]))
    }
}

/// Declares [`Counters`] and their addition.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one or many worlds.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Rare paths.
            pub coverage: CoverageCounts,
        }

        impl Counters {
            /// Adds other counters.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                self.coverage.0.iter_mut().zip(other.coverage.0).for_each(|(all, other)| *all += other);
            }
        }
    };
}

counters! {
    /// Requests submitted.
    requests,
    /// Device operations completed.
    device_ops,
    /// Crash points, taken or not.
    crash_points_seen,
    /// Faults injected.
    faults,
    /// Requests that ended with an I/O error.
    io_errors,
    /// Checkpoints.
    checkpoints,
    /// Damaged blocks noticed by the engine.
    damaged_blocks,
    /// Engines opened.
    opens,
    /// Failed caches with a record.
    without_cache,
    /// Of those, caches with all readable data rescued.
    rescues,
    /// Complete scrubs.
    scrubs,
    /// Members of mirrored caches failed out.
    members_out,
    /// Members rebuilt.
    rebuilds,
    /// Copies of cache devices begun.
    copies_begun,
    /// Of those, copies that have taken the place of the old device.
    copies_ended,
    /// Starts on another host with a replaced member in place of the new one.
    opened_elsewhere,
    /// Of those, starts that trusted it.
    believed_elsewhere,
    /// Virtual nanoseconds.
    virtual_ns,
}
