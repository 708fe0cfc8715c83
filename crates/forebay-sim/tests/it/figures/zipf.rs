//! Zipf's law, as in fio: few items are drawn often, at scattered places.

use forebay_sim::rng::Rng;

/// Ranks by Zipf's law, drawn as by Gray and others, "Quickly generating billion-record synthetic
/// databases" (1994), and scattered over the volume by a hash, as in fio.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    theta: f64,
    zetan: f64,
    eta: f64,
}

impl Zipf {
    /// Creates a generator for this many items (at least 2), with a skew `theta` other than 1.
    #[must_use]
    pub fn new(items: u64, theta: f64) -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-theta)).sum::<f64>();
        let zetan = zeta(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta(2) / zetan);
        Self { items, theta, zetan, eta }
    }

    /// Draws one of the items.
    pub fn block(&self, rng: &mut Rng) -> u64 {
        let uniform = (rng.word() >> 11) as f64 / (1_u64 << 53) as f64;
        let scaled = uniform * self.zetan;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5_f64.powf(self.theta) {
            1
        } else {
            let base = (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
            (self.items as f64 * base) as u64
        };
        scatter(rank) % self.items
    }
}

/// Multiplicative hashing by the golden ratio, an odd number: where the number of blocks is a power
/// of two, ranks do not collide.
fn scatter(rank: u64) -> u64 {
    rank.wrapping_mul(0x61c8_8646_80b5_83eb)
}
