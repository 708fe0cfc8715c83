//! States after crashes: devices as bytes, for readers other than the engine, and the engine's
//! recovery from modified bytes.
//!
//! The workload is that of [`hostile`]: no faults but the crash. Devices are taken after a kill, a
//! power cut or an orderly stop with dirty data, each with an oracle for the legal contents of
//! every sector.
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

/// Devices after a crash, with their legal contents.
pub struct CrashedState {
    plan: Rc<Plan>,
    snapshot: Snapshot,
}

/// The result of recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovered {
    /// The engine refused the cache.
    Refused,
    /// The engine opened the cache, and everything was read.
    Served,
}

impl CrashedState {
    /// Returns the states after the crashes of a seed. With `history` the oracles keep every
    /// version.
    ///
    /// # Errors
    /// The engine violates a rule in this run.
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

    /// Returns the bytes of the cache device.
    #[must_use]
    pub fn cache(&self) -> Vec<u8> {
        bytes_of(self.snapshot.disks.devices[CACHE].visible())
    }

    /// Returns the bytes of every volume's backing store, by volume number.
    #[must_use]
    pub fn backings(&self) -> Vec<Vec<u8>> {
        self.snapshot.disks.devices[1..].iter().map(|device| bytes_of(device.visible())).collect()
    }

    /// Judges all contents of a volume.
    ///
    /// # Errors
    /// Names the sector and its illegal content.
    pub fn check(&self, volume: usize, contents: &[u8]) -> Result<(), String> {
        for (sector, found) in (0..).zip(contents.chunks_exact(512)) {
            self.snapshot.oracle.check_at_rest(volume, sector, found)?;
        }
        Ok(())
    }

    /// Lets the engine recover from these bytes in place of the cache, and reads everything. With
    /// `honest` every content must be one that was once written there, or an I/O error: no checksum
    /// was forged.
    ///
    /// # Errors
    /// Wrong contents, or a violation of a rule of the engine's owner.
    ///
    /// # Panics
    /// Panics if the engine does: callers look for that.
    pub fn recover(&self, cache: &[u8], honest: bool) -> Result<Recovered, String> {
        let mut disks = self.snapshot.disks.clone();
        let mut device = SimDevice::new(self.plan.cache_bytes_max(), self.plan.cache_latency);
        device.preset(0, &cache[..cache.len().min(device.bytes() as usize)]);
        (disks.devices[CACHE], disks.damaged) = (device, true);
        disks.known = forebay_core::CacheMark::default(); // Ignore the age of the remains.
        let mut oracle = self.snapshot.oracle.clone();
        oracle.doubt_everything();
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
        // Where the end of the log is damaged an older version is in effect, as after a torn write:
        // the oracle knows all versions for reads, but not for destage.
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
