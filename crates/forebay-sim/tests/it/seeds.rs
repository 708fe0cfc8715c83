//! Seeds that once found a bug of the engine stay clean.
//!
//! A seed shows its bug only while engine and simulator behave the same up to there: after a change
//! of either it is one clean seed among many. So bugs are planted as well
//! ([`forebay_sim::PlantedBug`]), and the tests must find each of them.

use crate::workers;
use forebay_sim::{SimOptions, run};

/// Seed, crash points until it failed, and the violation.
const SEEDS: &[(u64, u64, &str)] = &[
    (40_100_001, 791, "destage that reclaim asked for was not started, and nothing came after"),
    (52_000_040, 463, "a volume that was leaving waited for a fill that had been given up"),
    (
        4_016_104,
        204,
        "the last part of the index was ready, and nothing woke the destage that had waited for it",
    ),
    (92_000_079, 345, "a summary was written for a segment whose flush epochs were forgotten"),
    (600_000_006, 1_576, "the record called a block safe of which an older version was written back"),
    (7_100_255, 35, "a scrub and a reader each wrote a bad copy of one block again, at once"),
    (620_000_107, 2, "a request of which a part was in the failed cache only was acknowledged"),
    (7_300_116, 151, "a pair was given up although only one of its copies was wrong"),
    (
        930_000_083,
        23,
        "the judge held it against destage that it waited for the owner's note of a failed member",
    ),
    (1_020_000_008, 327, "what a failed flush had dropped was read at the next start, and called durable"),
    (2_200_000_029, 333, "what was written again at a start went to a member that had failed meanwhile"),
    (2_000_000_024, 146, "requests waited for the locks of a resize whose checkpoint could never come"),
    (
        52_316_860,
        9,
        "during a stop a checkpoint was due that could not begin, and the owner was woken all the time",
    ),
    (
        108_158_480,
        22,
        "what a write had applied when a FLUSH was taken in, and was acknowledged later, counted as promised by it",
    ),
    (
        113_071_371,
        5,
        "a FUA was answered while a later write of its blocks was in the failed cache alone, and not answered yet",
    ),
    (
        537_578_298,
        2,
        "a detach that failed gave its locks back, and nothing woke the destage that had met them",
    ),
    (
        407_174_318,
        8,
        "a batch counted after the fence, because it had completed before and waited for a summary, which failed",
    ),
    (36_166_399, 3, "a FLUSH that was refused had told of what was lost, and the next one failed too"),
    (117_134_724, 5, "a part of a block was lost while a read waited for it, and the backing store answered"),
    (
        119_087_210,
        7,
        "an order began before a write past the cache, which had ended shadows, had reached the backing store",
    ),
    (
        742_771_183,
        27,
        "a shrink had ended while a read of the block at its end was on its way, with the old length",
    ),
    (
        9_173_630,
        7,
        "the judge changed a block that a shrink had cut off from the samples, and wanted it to be noticed",
    ),
    (100_917_575, 10, "a shrink waited for a write that waited for the lock that the shrink had been given"),
    (1_140_752, 4, "a segment of the window was closed before it was written, and added to the window again"),
    (
        46_041_755,
        38,
        "a write past the cache was merged as far as the old end of a volume, and written as far as the new one",
    ),
    (
        224_316_074,
        35,
        "the simulator forgot that a failed flush had dropped a fill that is not written again",
    ),
    (
        397_560_875,
        9,
        "the simulator waited for the drain of a cache that had failed and whose owner records nothing",
    ),
    (
        5_860_061,
        24,
        "the judge wanted a block from a member whose copy had rotted, on a host without the device that has the other",
    ),
    (
        700_075,
        466,
        "the judge named the new device before its first flush, and a power cut left it without a cache",
    ),
    (
        162543,
        60,
        "zeroes past the cache were on their way when a flush of the backing store failed and dropped them",
    ),
    (
        20_371_995,
        1,
        "the judge of a rescue subtracted the start of a second device that a copied one does not have",
    ),
    (
        30_712_710,
        4,
        "the judge wanted a change found in a sample, of a store that had kept no samples after a failed flush",
    ),
    (
        43_400_000,
        410,
        "the judge forgot at a second crash that an extension was lost at the first, and the second tore its segments",
    ),
    (
        44_700_001,
        54,
        "a failed flush dropped a write of an ordered volume that bypassed the cache during a detach",
    ),
];

#[test]
fn seeds_that_found_bugs_stay_clean() {
    workers::each(SEEDS.len(), |index| {
        let (seed, crashes, what) = SEEDS[index];
        let report = run(&SimOptions { seed, crashes, ..SimOptions::default() }, &mut |_| {});
        assert!(report.violations.is_empty(), "again ({what}): {:?}", report.violations);
    });
}
