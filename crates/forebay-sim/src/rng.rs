//! Randomness and digests that depend only on a seed.
//!
//! Every decision of the simulator comes from one [`Rng`] per world. Forked worlds get their own
//! generator, so that a fork never changes the main line.

/// xoshiro256** seeded by splitmix64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// Makes one step of splitmix64: a good hash of one word.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    /// Creates a generator for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut word = seed;
        let state = core::array::from_fn(|_| {
            word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(word)
        });
        Self { state }
    }

    /// Returns the next 64 bits.
    pub fn word(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number below `end`, which must not be zero.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "an empty range has no member");
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true in `numerator` of `denominator` cases.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        numerator != 0 && self.below(denominator) < numerator
    }

    /// Returns true in this many of a million cases.
    pub fn ppm(&mut self, parts: u32) -> bool {
        self.chance(u64::from(parts), 1_000_000)
    }

    /// Returns one of the items. There must be at least one.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// A running hash of all events, to show that two runs are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digest(pub u64);

impl Digest {
    /// Adds one word.
    pub fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
    }

    /// Adds several words.
    pub fn add_all(&mut self, words: &[u64]) {
        for word in words {
            self.add(*word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_numbers() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.word() == b.word()));
        assert_ne!(Rng::new(8).word(), Rng::new(7).word());
    }

    #[test]
    fn below_reaches_all_values_under_its_bound() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[rng.below(7) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
    }
}
