//! Devices, and all else that survives a crash: what the oracle, the operator and the owner know.

use crate::device::SimDevice;
use crate::dirty_slots::DirtySlots;
use crate::oracle::Oracle;
use crate::plan::Plan;
use crate::rng::Rng;
use forebay_core::{CacheMark, DetachHow, Suspicion, VolumeSettings};
use std::collections::{BTreeMap, BTreeSet};

/// Number of the cache device, or of the first member of a mirrored one.
pub(crate) const CACHE: usize = 0;

/// Index of the device of a member.
pub(crate) fn device_of(plan: &Plan, member: usize) -> usize {
    if member == 0 { CACHE } else { 1 + plan.volumes.len() }
}

/// Where a volume is, as the operator was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachState {
    /// Served.
    Attached,
    /// Not known to the cache.
    Gone,
    /// In the cache, and not attached.
    Kept,
    /// On its way in: new, or kept before.
    Coming {
        /// The cache did not know it.
        new: bool,
    },
    /// On its way out.
    Leaving(DetachHow),
}

/// A volume as its operator sees it.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Where it is.
    pub state: AttachState,
    /// Its size.
    pub bytes: u64,
    /// The size that it is to get.
    pub resizing: Option<u64>,
    /// It is being drained to its end.
    pub ending: bool,
    /// How often its number was used.
    pub incarnation: u8,
}

impl VolumeStatus {
    /// Nothing is under way.
    pub(crate) fn is_settled(&self) -> bool {
        self.resizing.is_none()
            && matches!(self.state, AttachState::Attached | AttachState::Gone | AttachState::Kept)
    }

    /// Bytes that are surely served.
    #[must_use]
    pub fn served_bytes(&self) -> u64 {
        self.bytes.min(self.resizing.unwrap_or(u64::MAX))
    }

    /// Served, for sure.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.state == AttachState::Attached && self.resizing.is_none()
    }
}

/// What the record lists: sectors by volume.
pub type Risk = BTreeSet<(usize, u64)>;

/// What the owner makes durable.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// What only the cache has, or had.
    pub risk: Risk,
    /// Size of each volume, 0 if the table does not have it.
    pub sizes: Vec<u64>,
}

/// What survives a crash of what the owner and the operator know of the members.
#[derive(Clone, Debug, Default)]
pub struct MemberNotes {
    /// Tags that do not count any more.
    pub noted: BTreeSet<u64>,
    /// Tag of the device that is being filled, or was filled last.
    pub next_tag: u64,
    /// Failures of the plan that have happened.
    pub failed: usize,
    /// By member: something of it was lost or has rotten.
    pub harmed: [bool; 2],
    /// Which blocks of members have rotten, and on which of them.
    pub rotten: BTreeMap<u64, usize>,
}

impl MemberNotes {
    /// Something of either member was lost or has rotten.
    pub(crate) fn is_harmed(&self) -> bool {
        self.harmed.contains(&true)
    }
}

/// Whether the configuration names a device in place of the one that is copied onto it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// It names the old one.
    No,
    /// It is being changed: a crash may find either.
    UnderWay,
}

/// A device that one of the cache's is copied onto.
#[derive(Clone)]
pub struct Spare {
    /// Index of the old one.
    pub of: usize,
    /// The new one.
    pub device: SimDevice,
    /// What the configuration says.
    pub naming: Naming,
    /// Nothing has failed on it.
    pub is_sound: bool,
}

/// A member of a mirrored cache that was replaced and not erased: it vanished just then.
#[derive(Clone)]
pub struct Outdated {
    /// Index of the device that took its place.
    pub of: usize,
    /// What it holds.
    pub device: SimDevice,
    /// Generation of the superblock when it was replaced.
    pub generation: u64,
    /// The change has ended: nobody may believe it any more.
    pub has_ended: bool,
}

/// Everything that survives a crash.
#[derive(Clone)]
pub struct Disks {
    /// The cache device, then the backing stores, then the second member of a mirrored cache.
    pub devices: Vec<SimDevice>,
    /// What the cache device, or a member, is copied onto. None after a crash: it is in the place
    /// of the old one then, or of no use.
    pub spare: Option<Spare>,
    /// The member that was replaced last.
    pub outdated: Option<Outdated>,
    /// Another host opens them: it finds all of them, and has neither notes nor record.
    pub is_elsewhere: bool,
    /// Modification stamps of the backing stores.
    pub stamps: Vec<i64>,
    /// Blocks of the backing stores whose checksums were recorded at the last orderly stop.
    pub sampled: Vec<Vec<u64>>,
    /// By device: its last flush failed.
    pub flush_failed: Vec<bool>,
    /// What the owner says of the backing stores since the last crash.
    pub suspicions: Vec<Suspicion>,
    /// Settings that the operator last gave the volumes.
    pub settings: Vec<VolumeSettings>,
    /// What was written where on the cache device.
    pub dirty_slots: DirtySlots,
    /// The cache device has lost or changed something.
    pub damaged: bool,
    /// An extension was lost, and a segment that it had added cannot tell: blocks that the
    /// checkpoint calls clean there may have been written over.
    pub untold: bool,
    /// The volumes as their operator sees them.
    pub volumes: Vec<VolumeStatus>,
    /// Bytes of the cache device that the pool has.
    pub cache_bytes: u64,
    /// Bytes that it is to have.
    pub cache_pending: Option<u64>,
    /// The owner's record: the cache must not be opened any more, and these sectors are lost.
    pub record: Option<Record>,
    /// What is known of the members of a mirrored cache.
    pub member_notes: Option<MemberNotes>,
    /// The owner's record of how far the cache has come: always up to date, so that a cache that is
    /// refused wrongly is noticed.
    pub known: CacheMark,
}

/// A state after a crash.
#[derive(Clone)]
pub struct Snapshot {
    /// Devices after the crash.
    pub disks: Disks,
    /// Oracle that has seen the crash.
    pub oracle: Oracle,
    /// When.
    pub now: u64,
    /// A generator for what follows.
    pub rng: Rng,
    /// Power cut, or only the daemon killed.
    pub power: bool,
    /// Volumes whose backing store alone was promised to be a crash-consistent image.
    pub ordered: Vec<bool>,
}

/// Everything that a crash at one instant could take from: the devices as they were, with what was
/// volatile and under way.
#[derive(Clone)]
pub struct Moment {
    /// Devices, not crashed.
    pub disks: Disks,
    /// Oracle that has not seen a crash.
    pub oracle: Oracle,
    /// When.
    pub now: u64,
    /// Volumes whose backing store alone was promised to be a crash-consistent image.
    pub ordered: Vec<bool>,
}

impl Moment {
    /// The state after a crash that left the devices like this.
    #[must_use]
    pub fn after(&self, devices: Vec<SimDevice>, power: bool, rng: Rng) -> Snapshot {
        let disks = Disks { devices, ..self.disks.clone() };
        let mut oracle = self.oracle.clone();
        if power {
            for (volume, backing) in disks.devices[1..=disks.volumes.len()].iter().enumerate() {
                oracle.no_resurrection(volume, backing.visible());
            }
            oracle.power_cut();
        } else {
            oracle.kill();
        }
        oracle.relaxed |= disks.damaged;
        Snapshot { disks, oracle, now: self.now + 1_000_000, rng, power, ordered: self.ordered.clone() }
    }
}
