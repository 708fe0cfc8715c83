//! States after crashes: devices as bytes, for readers other than the engine, and the engine's
//! recovery from bytes that somebody else has changed.
//!
//! The workload is that of [`hostile`]: no faults but the crash. Devices are taken after a kill, a
//! power cut or an orderly stop with dirty data, each with an oracle that knows what every sector
//! may hold.
//!
//! Invariant: same seed, same bytes.

use crate::device::SimDevice;
use crate::disks::{CACHE, Snapshot};
use crate::ensure::ensure;
use crate::hostile;
use crate::image::Image;
use crate::plan::Plan;
use crate::rng::{Rng, mix};
use crate::workload::read_everything;
use crate::world::World;
use forebay_core::{OnBackingChange, Status};
use std::rc::Rc;

/// Devices after a crash, and what may be on them.
pub struct CrashedState {
    plan: Rc<Plan>,
    snapshot: Snapshot,
}

/// What recovery makes of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovered {
    /// It was refused.
    Refused,
    /// It was opened, and everything was read.
    Served,
}

impl CrashedState {
    /// What is left by the crashes of a seed. With `history` the oracles know every version that
    /// there ever was.
    ///
    /// # Errors
    /// The engine does not do in this run what it should.
    pub fn after_crashes(seed: u64, history: bool) -> Result<Vec<Self>, String> {
        let plan = Rc::new(hostile::plan_of(seed));
        let states = hostile::run_with(&plan, false, history)?;
        let mut rng = Rng::new(mix(seed ^ 0x6c65_6674));
        let mut left = Vec::new();
        for moment in states.moments.iter().step_by(states.moments.len().div_ceil(6).max(1)) {
            left.push(Self { plan: Rc::clone(&plan), snapshot: hostile::crash(moment, &mut rng) });
        }
        Ok(left)
    }

    /// Bytes of the cache device.
    #[must_use]
    pub fn cache(&self) -> Vec<u8> {
        bytes_of(self.snapshot.disks.devices[CACHE].visible())
    }

    /// Bytes of every volume's backing store, by number of the volume.
    #[must_use]
    pub fn backings(&self) -> Vec<Vec<u8>> {
        self.snapshot.disks.devices[1..].iter().map(|device| bytes_of(device.visible())).collect()
    }

    /// Judges the contents of a volume, all of it.
    ///
    /// # Errors
    /// Says which sector holds what it must not hold.
    pub fn check(&self, volume: usize, contents: &[u8]) -> Result<(), String> {
        for (sector, found) in (0..).zip(contents.chunks_exact(512)) {
            self.snapshot.oracle.check_at_rest(volume, sector, found)?;
        }
        Ok(())
    }

    /// Lets the engine recover from these bytes in place of the cache, and read everything. With
    /// `honest` every content must be one that was written there some time, or an I/O error: no
    /// checksum was made to fit.
    ///
    /// # Errors
    /// Wrong contents, or a broken rule of the engine's owner.
    ///
    /// # Panics
    /// As the engine does: that is what a caller looks for.
    pub fn recover(&self, cache: &[u8], honest: bool) -> Result<Recovered, String> {
        let mut disks = self.snapshot.disks.clone();
        let mut device = SimDevice::new(self.plan.cache_bytes_max(), self.plan.cache_latency);
        device.preset(0, &cache[..cache.len().min(device.bytes() as usize)]);
        (disks.devices[CACHE], disks.damaged) = (device, true);
        disks.known = forebay_core::CacheMark::default(); // What is left is looked at, however old.
        let mut oracle = self.snapshot.oracle.clone();
        oracle.relaxed = true;
        let ordered = vec![false; self.snapshot.ordered.len()];
        let (now, rng) = (self.snapshot.now, Rng::new(self.plan.seed));
        let snapshot = Snapshot { disks, oracle, now, rng, power: true, ordered };
        let mut world = World::open(&self.plan, snapshot, OnBackingChange::Refuse);
        world.changed = true;
        match world.wait_open() {
            Err(_) if !honest => return Ok(Recovered::Served),
            opened => {
                if !opened? {
                    ensure!(!matches!(world.engine.status(), Status::Opening), "opening does not end");
                    return Ok(Recovered::Refused);
                }
            }
        }
        // Where the end of the log is damaged an older version counts, as after a torn write: the
        // oracle knows all versions for reads, not for what is written back.
        match read_everything(&mut world) {
            Err(_) if !honest => Ok(Recovered::Served),
            Err(what) if what.contains("an I/O error without a cause") => Ok(Recovered::Served),
            other => other.map(|()| Recovered::Served),
        }
    }
}

fn bytes_of(image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; image.bytes() as usize];
    image.read(0, &mut bytes);
    bytes
}
