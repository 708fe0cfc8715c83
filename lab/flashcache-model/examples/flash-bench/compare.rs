//! Compares the layouts: the writes of each to its device, and their effect there.

use crate::figures::cards::{CARDS, Card};
use crate::figures::layout::{
    ArrivalRate, ForebayLog, Layout, Load, Outcome, PAGE, Sizes, WORKLOADS, Workload, measure,
};
use crate::flashcache::FlashCacheSets;
use crate::lines::{Cell, Table};
use crate::number;
use forebay_format::Geometry;
use forebay_models::flash::ftl::{Collection, Ftl, FtlConfig, FtlStats};

const COLLECTIONS: [(Collection, &str); 2] =
    [(Collection::Greedy, "greedy"), (Collection::CostBenefit, "cost-benefit")];
const MIB: u64 = 1 << 20;
const GIB: f64 = (1u64 << 30) as f64;
/// Size of the volume, in caches.
const VOLUME_PER_CACHE: u64 = 4;

/// Minimum of erase blocks of a device.
const BLOCKS_MIN: u64 = 64;

/// A layout by its name.
type Make = fn(&Sizes) -> Box<dyn Layout>;
const LAYOUTS: [(&str, Make); 3] = [
    ("forebay", |sizes| Box::new(ForebayLog::new(sizes))),
    ("forebay-discards", |sizes| Box::new(ForebayLog::discarding(sizes))),
    ("flashcache", |sizes| Box::new(FlashCacheSets::new(sizes))),
];

/// The parameters of the comparison.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    sizes: Sizes,
    /// Bytes of an erase block.
    block_bytes: u64,
    rounds: u64,
    arrivals: ArrivalRate,
    pub(crate) seed: u64,
    workload: Option<String>,
    layout: Option<String>,
    /// The card for the figures of life: its capacity in 10^9 bytes, and the erase cycles of a
    /// block.
    capacity_gb: f64,
    cycles: f64,
}

impl Default for Comparison {
    fn default() -> Self {
        Self {
            sizes: Sizes { cache_bytes: 1 << 30, volume_bytes: VOLUME_PER_CACHE << 30, segment_blocks: None },
            block_bytes: MIB,
            rounds: 4,
            arrivals: ArrivalRate::default(),
            seed: 1,
            workload: None,
            layout: None,
            capacity_gb: 400.0,
            cycles: 3000.0,
        }
    }
}

impl Comparison {
    /// Sets an option of the command line.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "--cache-mib" => {
                self.sizes.cache_bytes = number(value, 64, 1 << 16)? * MIB;
                self.sizes.volume_bytes = VOLUME_PER_CACHE * self.sizes.cache_bytes;
            }
            "--segment-blocks" => {
                let legal = number(value, 16, 4096).filter(|blocks| blocks.is_power_of_two())?;
                self.sizes.segment_blocks = Some(legal as u32);
            }
            "--block-kib" => {
                self.block_bytes = number(value, 64, 1 << 14).filter(|kib| kib.is_power_of_two())? << 10
            }
            "--rounds" => self.rounds = number(value, 1, 1000)?,
            "--burst" => self.arrivals.burst = number(value, 1, 128)? as u32,
            "--blocks-per-s" => self.arrivals.blocks_per_s = number(value, 1, 1 << 24)? as u32,
            "--seed" => self.seed = number(value, 0, u64::MAX)?,
            "--capacity-gb" => self.capacity_gb = number(value, 1, 1 << 30)? as f64,
            "--cycles" => self.cycles = number(value, 1, 1 << 30)? as f64,
            "--workload" => {
                self.workload = Some(WORKLOADS.iter().find(|one| one.name == value)?.name.to_owned());
            }
            "--layout" => self.layout = Some(LAYOUTS.iter().find(|one| one.0 == value)?.0.to_owned()),
            _ => return None,
        }
        Some(())
    }

    /// Returns true if devices and caches of these sizes are possible: some erase blocks are kept
    /// free, and a log needs some segments.
    pub(crate) fn is_possible(&self) -> bool {
        let blocks = self.sizes.cache_bytes / self.block_bytes;
        blocks >= BLOCKS_MIN
            && Geometry::for_device(self.sizes.cache_bytes, self.sizes.segment_blocks).is_ok()
    }

    pub(crate) fn run(&self) -> Table {
        let mut table = Table::new("layout");
        let wanted = |asked: &Option<String>, name: &str| asked.as_deref().is_none_or(|asked| asked == name);
        for workload in WORKLOADS.iter().filter(|one| wanted(&self.workload, one.name)) {
            for (name, make) in LAYOUTS.iter().filter(|one| wanted(&self.layout, one.0)) {
                let mut load = Load::new(*workload, self.sizes.volume_bytes, self.arrivals, self.seed);
                let mut devices: Vec<Ftl> =
                    self.devices().map(|(card, how)| self.device(card, how.0)).collect();
                let cache_bytes = self.sizes.cache_bytes;
                let out =
                    measure(make(&self.sizes).as_mut(), &mut load, cache_bytes, self.rounds, &mut devices);
                for ((card, how), did) in self.devices().zip(&out.devices) {
                    table.add(&self.line(workload, name, card, how.1, &out, did));
                }
            }
        }
        table
    }

    /// Returns every device that gets the stream of a layout.
    fn devices(&self) -> impl Iterator<Item = (&'static Card, &'static (Collection, &'static str))> {
        CARDS.iter().flat_map(|card| COLLECTIONS.iter().map(move |how| (card, how)))
    }

    fn device(&self, card: &Card, collection: Collection) -> Ftl {
        Ftl::new(FtlConfig {
            logical_pages: (self.sizes.cache_bytes / PAGE) as u32,
            block_pages: (self.block_bytes / PAGE) as u32,
            spare_permille: card.spare_permille,
            collection,
        })
    }

    /// Returns a line of the table. It counts only client bytes that did not bypass the cache, and
    /// assumes even wear.
    fn line(
        &self,
        workload: &Workload,
        layout: &str,
        card: &Card,
        collection: &str,
        out: &Outcome,
        did: &FtlStats,
    ) -> [(&'static str, Cell); 12] {
        let block_pages = (self.block_bytes / PAGE) as u32;
        let times = card.times(PAGE as u32, block_pages);
        let empty = FtlStats { host_pages: u64::from(block_pages), moved_pages: 0, erasures: 1 };
        let slower = times.pages_per_s(did) / times.pages_per_s(&empty);
        let total = out.cache_amplification() * did.write_amplification();
        let erased_mib = did.erasures as f64 * self.block_bytes as f64 / MIB as f64;
        let past_pct = 100.0 * out.past_cache_bytes as f64 / (out.user_bytes as f64).max(1.0);
        let physical_gb = self.capacity_gb * (1.0 + f64::from(card.spare_permille) / 1000.0);
        [
            ("workload", Cell::Text(workload.name.into())),
            ("layout", Cell::Text(layout.into())),
            ("card", Cell::Text(card.name.into())),
            ("collection", Cell::Text(collection.into())),
            ("past_cache_pct", Cell::Number(past_pct, 1)),
            ("cache_wa", Cell::Number(out.cache_amplification(), 3)),
            ("flash_wa", Cell::Number(did.write_amplification(), 3)),
            ("total_wa", Cell::Number(total, 3)),
            (
                "erased_mib_per_user_gib",
                Cell::Number(erased_mib * GIB / (out.cached_bytes() as f64).max(1.0), 0),
            ),
            ("life_user_tb", Cell::Number(physical_gb * self.cycles / total / 1000.0, 0)),
            ("speed_of_empty", Cell::Number(slower / out.cache_amplification(), 3)),
            ("device_of_empty", Cell::Number(slower, 3)),
        ]
    }
}
