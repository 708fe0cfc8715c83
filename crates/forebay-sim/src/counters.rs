//! Counters of runs: what was done, and which rare paths of the engine were taken.

use forebay_core::{CoverageMark, Engine};

const MARKS: usize = CoverageMark::ALL.len();

/// How many engines have reached each [`CoverageMark`], by its number.
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

    /// Every coverage mark with its name, its meaning, and how many engines have reached it.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        CoverageMark::ALL.iter().map(|(mark, name, what)| (*name, *what, self.0[*mark as usize]))
    }
}

/// Declares [`Counters`] and how they are added up.
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
    /// Requests made.
    requests,
    /// Device operations completed.
    device_ops,
    /// Crash points that passed by, taken or not.
    crash_points_seen,
    /// Faults injected.
    faults,
    /// Requests that ended with an I/O error.
    io_errors,
    /// Checkpoints.
    checkpoints,
    /// Damaged blocks that the engine noticed.
    damaged_blocks,
    /// Engines opened.
    opens,
    /// Caches that failed and were recorded as such.
    without_cache,
    /// Of those, caches of which everything was rescued that could be read.
    rescues,
    /// Scrubs that went through everything.
    scrubs,
    /// Members of mirrored caches put out.
    members_out,
    /// Members filled anew.
    rebuilds,
    /// Copies of cache devices begun.
    copies_begun,
    /// Of those, copies that have taken the place of the old device.
    copies_ended,
    /// Starts elsewhere with a member that was replaced in place of the new one.
    opened_elsewhere,
    /// Of those, starts that believed it.
    believed_elsewhere,
    /// Virtual nanoseconds.
    virtual_ns,
}
