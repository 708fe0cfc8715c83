//! Ages of dirty data: how old the backing store's data would be if the cache were lost.

use forebay_core::Nanos;

const SECOND: Nanos = 1_000_000_000;

/// Names of the age classes with their upper bounds, youngest first. A class begins where the
/// previous one ends.
pub const AGE_BOUNDS: [(&str, Nanos); 7] = [
    ("under_1s", SECOND),
    ("under_10s", 10 * SECOND),
    ("under_1min", 60 * SECOND),
    ("under_5min", 300 * SECOND),
    ("under_15min", 900 * SECOND),
    ("under_1h", 3600 * SECOND),
    ("more", Nanos::MAX),
];

/// Dirty blocks by age.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirtyAge {
    /// Blocks in each class of [`AGE_BOUNDS`].
    pub blocks: [u64; AGE_BOUNDS.len()],
    /// Age of the oldest dirty block; `None` if nothing is dirty.
    pub oldest_ns: Option<Nanos>,
}

impl DirtyAge {
    /// From the engine's count of blocks in each class of [`AGE_BOUNDS`].
    pub fn of_classes(blocks: [u64; AGE_BOUNDS.len()], oldest_ns: Option<Nanos>) -> Self {
        Self { blocks, oldest_ns }
    }

    /// From the engine's own classes, `(upper bound of the age, blocks)` in any order. A class that
    /// straddles a bound counts as older, so no age is understated.
    pub fn new(classes: impl IntoIterator<Item = (Nanos, u64)>, oldest_ns: Option<Nanos>) -> Self {
        let mut blocks = [0; AGE_BOUNDS.len()];
        for (age, count) in classes {
            let class = AGE_BOUNDS.partition_point(|(_, bound)| *bound < age);
            blocks[class.min(AGE_BOUNDS.len() - 1)] += count;
        }
        Self { blocks, oldest_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_classes_never_become_younger() {
        let age = DirtyAge::new(
            [
                (SECOND / 2, 1),
                (SECOND, 2),
                (SECOND + 1, 4),
                (300 * SECOND, 8),
                (3601 * SECOND, 16),
                (Nanos::MAX, 32),
            ],
            Some(5),
        );
        assert_eq!(age.blocks, [3, 4, 0, 8, 0, 0, 48]);
        assert_eq!(DirtyAge::new([], None), DirtyAge::default());
    }
}
