//! Published measurements of two flash cards of 2010, of random writes by fill level, and how well
//! a model fits them.
//!
//! A model is an [`Ftl`] of the same proportions with the page times of the card's chips
//! (`forebay_models::flash::cards`). Only proportions matter, so it has few pages, and a page is
//! one request of the measurement (16 KiB): data that is written and overwritten together behaves
//! as a unit. `docs/results/flash-model.md` describes the fitted parameters and the residual
//! errors.
//!
//! Invariant: a sweep is deterministic, on every machine.

pub use forebay_models::flash::cards::{CARDS, Card, times};
use forebay_models::flash::ftl::{Collection, Ftl, FtlConfig, FtlStats};
use forebay_sim::rng::Rng;

/// Fill levels of the cards, in percent.
pub const FILLS: [u32; 9] = [20, 30, 40, 50, 60, 70, 80, 90, 100];

/// Bytes of a random write of the measurement.
const WRITE_BYTES: f64 = 16384.0;
/// Throughput of random writes of 16 KiB in MiB/s, for each of [`FILLS`], of each of [`CARDS`].
pub const PUBLISHED_MIB_S: [[f64; FILLS.len()]; CARDS.len()] = [
    [1095.0, 1006.0, 825.0, 613.0, 397.0, 308.0, 237.0, 117.0, 99.0],
    [990.0, 980.0, 964.0, 872.0, 783.0, 669.0, 611.0, 502.0, 417.0],
];

/// The content of the unused part of a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Nothing: never written, or trimmed.
    Nothing,
    /// Data that was written once, and is never overwritten.
    Stale,
}

/// The input of a sweep: cards of one spare area, by fill level.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// The device; its pages have 16 KiB.
    pub device: FtlConfig,
    /// The content of the unused part.
    pub rest: Rest,
    /// Overwrites of the used part: half of them before the counted ones.
    pub rounds: u32,
    /// Seed of the random writes.
    pub seed: u64,
}

impl Sweep {
    /// Creates a sweep of a modelled card: this many pages, in blocks of 64.
    #[must_use]
    pub fn new(spare_permille: u32, collection: Collection, logical_pages: u32) -> Self {
        let device = FtlConfig { logical_pages, block_pages: 64, spare_permille, collection };
        Self { device, rest: Rest::Nothing, rounds: 8, seed: 1 }
    }

    /// Returns the device's counters while this part of it, in percent, is overwritten at random.
    ///
    /// # Panics
    /// Panics like [`Ftl::new`].
    #[must_use]
    pub fn at(&self, used_pct: u32) -> FtlStats {
        let pages = self.device.logical_pages;
        let used = (u64::from(pages) * u64::from(used_pct) / 100).max(1) as u32;
        let mut ftl = Ftl::new(self.device);
        (0..if self.rest == Rest::Stale { pages } else { used }).for_each(|page| ftl.write(page));
        let mut rng = Rng::new(self.seed);
        let mut half = || {
            for _ in 0..u64::from(used) * u64::from(self.rounds) / 2 {
                ftl.write(rng.below(u64::from(used)) as u32);
            }
            ftl.stats()
        };
        let before = half();
        half().since(&before)
    }

    /// Returns the device's counters at each of [`FILLS`].
    #[must_use]
    pub fn all(&self) -> [FtlStats; FILLS.len()] {
        FILLS.map(|used_pct| self.at(used_pct))
    }
}

/// The fit of a sweep to published figures.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// See [`Card::speed_mib_s`].
    pub speed_mib_s: f64,
    /// See [`Card::move_factor`].
    pub move_factor: f64,
    /// Root of the mean square of (model / published - 1).
    pub error: f64,
}

impl Fit {
    /// Returns the best fit with this `move_factor`: the speed for which the mean of log(model /
    /// published) is 0.
    #[must_use]
    pub fn with(
        sweep: &Sweep,
        did: &[FtlStats; FILLS.len()],
        published: &[f64; FILLS.len()],
        move_factor: f64,
    ) -> Self {
        let relative = did.map(|stats| times(1.0, sweep.device.block_pages, move_factor).pages_per_s(&stats));
        let logs = relative.iter().zip(published).map(|(model, was)| (was / model).ln());
        let speed_mib_s = (logs.sum::<f64>() / FILLS.len() as f64).exp();
        let error = error(&relative.map(|model| model * speed_mib_s), published);
        Self { speed_mib_s, move_factor, error }
    }

    /// Returns the best fit with a `move_factor` from 1 to 16.
    #[must_use]
    pub fn best(sweep: &Sweep, did: &[FtlStats; FILLS.len()], published: &[f64; FILLS.len()]) -> Self {
        let all = (10..=160).map(|tenths| Self::with(sweep, did, published, f64::from(tenths) / 10.0));
        all.min_by(|a, b| a.error.total_cmp(&b.error)).expect("there are some")
    }
}

/// See [`Fit::error`].
#[must_use]
pub fn error(model: &[f64; FILLS.len()], published: &[f64; FILLS.len()]) -> f64 {
    let squares = model.iter().zip(published).map(|(model, was)| (model / was - 1.0).powi(2));
    (squares.sum::<f64>() / FILLS.len() as f64).sqrt()
}

/// Returns the throughput of a modelled card, in MiB/s, with the counters `stats`.
#[must_use]
pub fn mib_per_s(card: &Card, sweep: &Sweep, stats: &FtlStats) -> f64 {
    let times = card.times(WRITE_BYTES as u32, sweep.device.block_pages);
    times.pages_per_s(stats) * WRITE_BYTES / f64::from(1 << 20)
}
