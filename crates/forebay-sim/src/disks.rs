//! All state that survives a crash: devices, and the knowledge of the oracle, the operator and the
//! owner.

use crate::device::SimDevice;
use crate::log_account::LogAccount;
use crate::oracle::Oracle;
use crate::plan::Plan;
use crate::rng::Rng;
use forebay_core::{CacheMark, DetachHow, Suspicion, VolumeSettings};
use std::collections::{BTreeMap, BTreeSet};

/// Index of the cache device, or of the first member of a mirrored one.
pub(crate) const CACHE: usize = 0;

/// Returns the index of a member's device.
pub(crate) fn device_of(plan: &Plan, member: usize) -> usize {
    if member == 0 { CACHE } else { 1 + plan.volumes.len() }
}

/// The state of a volume, as reported to the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachState {
    /// In service.
    Attached,
    /// Unknown to the cache.
    Gone,
    /// In the cache, and not attached.
    Kept,
    /// Being attached: new, or kept before.
    Coming {
        /// The cache did not know it.
        new: bool,
    },
    /// Being detached.
    Leaving(DetachHow),
}

/// A volume as its operator sees it.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Its state.
    pub state: AttachState,
    /// Its size, in bytes.
    pub bytes: u64,
    /// The size after a resize in progress.
    pub resizing: Option<u64>,
    /// It is being drained to the end.
    pub ending: bool,
    /// Number of times its number was used.
    pub incarnation: u8,
}

impl VolumeStatus {
    /// Returns true if no change is in progress.
    pub(crate) fn is_settled(&self) -> bool {
        self.resizing.is_none()
            && matches!(self.state, AttachState::Attached | AttachState::Gone | AttachState::Kept)
    }

    /// Returns the number of bytes that are certainly served.
    #[must_use]
    pub fn served_bytes(&self) -> u64 {
        self.bytes.min(self.resizing.unwrap_or(u64::MAX))
    }

    /// Returns true if it is certainly in service.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.state == AttachState::Attached && self.resizing.is_none()
    }
}

/// The ranges in a record: sectors by volume.
pub type Risk = BTreeSet<(usize, u64)>;

/// The owner's durable record.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Sectors that are, or were, dirty in the cache.
    pub risk: Risk,
    /// Size of each volume, 0 if the table lacks it.
    pub sizes: Vec<u64>,
}

/// The knowledge of owner and operator about the members that survives a crash.
#[derive(Clone, Debug, Default)]
pub struct MemberNotes {
    /// Tags that no longer count.
    pub noted: BTreeSet<u64>,
    /// Tag of the device that is being rebuilt, or was rebuilt last.
    pub next_tag: u64,
    /// Failures of the plan that have happened.
    pub failed: usize,
    /// By member: it has lost or rotten data.
    pub harmed: [bool; 2],
    /// Blocks of members that have rotten, and the member.
    pub rotten: BTreeMap<u64, usize>,
}

impl MemberNotes {
    /// Returns true if either member has lost or rotten data.
    pub(crate) fn is_harmed(&self) -> bool {
        self.harmed.contains(&true)
    }
}

/// Whether the configuration names the copy in place of the copied device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// It names the old one.
    No,
    /// It is being changed: a start after a crash may find either.
    UnderWay,
}

/// A device that the pool was grown by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JoinedDevice {
    /// Where its bytes begin in the cache.
    pub start: u64,
    /// Its tag, which the superblock lists.
    pub tag: u64,
}

/// The target of a copy of a cache device.
#[derive(Clone)]
pub struct Spare {
    /// Index of the old device.
    pub of: usize,
    /// The new device.
    pub device: SimDevice,
    /// The state of the configuration.
    pub naming: Naming,
    /// No operation on it has failed.
    pub is_sound: bool,
}

/// A member of a mirrored cache that was replaced and not erased: it vanished at that time.
#[derive(Clone)]
pub struct Outdated {
    /// Index of the device that took its place.
    pub of: usize,
    /// The device, with its content.
    pub device: SimDevice,
    /// Generation of the superblock when it was replaced.
    pub generation: u64,
    /// The change has ended: no start may trust it.
    pub has_ended: bool,
}

/// Everything that survives a crash.
#[derive(Clone)]
pub struct Disks {
    /// The cache device, then the backing stores, then the second member of a mirrored cache.
    pub devices: Vec<SimDevice>,
    /// The target of a copy of the cache device, or of a member. `None` after a crash: it has then
    /// replaced the old device, or is dropped.
    pub spare: Option<Spare>,
    /// The member that was replaced last.
    pub outdated: Option<Outdated>,
    /// Another host opens them: it finds all of them, and has neither notes nor records.
    pub is_elsewhere: bool,
    /// Modification stamps of the backing stores.
    pub stamps: Vec<i64>,
    /// Blocks of the backing stores whose checksums were recorded at the last orderly stop.
    pub sampled: Vec<Vec<u64>>,
    /// By device: its last flush failed.
    pub flush_failed: Vec<bool>,
    /// The owner's reports about the backing stores since the last crash.
    pub suspicions: Vec<Suspicion>,
    /// Settings that the operator last gave the volumes.
    pub settings: Vec<VolumeSettings>,
    /// The blocks written to the cache device, by place and by batch.
    pub log: LogAccount,
    /// The cache device has lost or changed data.
    pub damaged: bool,
    /// An extension was lost, and one of its segments does not reveal its use: blocks that are
    /// clean there by the checkpoint may be overwritten.
    pub untold: bool,
    /// An extension was lost at a crash. A later crash, before the engine has written another one,
    /// can tear the segments that revealed their use until then.
    pub extension_lost: bool,
    /// The volumes as their operator sees them.
    pub volumes: Vec<VolumeStatus>,
    /// Bytes of the cache device that belong to the pool.
    pub cache_bytes: u64,
    /// Size of the pool after a resize in progress, in bytes.
    pub cache_pending: Option<u64>,
    /// Further devices of the pool, and of a change in progress.
    pub joined: [Vec<JoinedDevice>; 2],
    /// The owner's record: the cache must not be opened again, and these sectors are lost.
    pub record: Option<Record>,
    /// The state of the members of a mirrored cache.
    pub member_notes: Option<MemberNotes>,
    /// The owner's record of the progress of the cache.
    pub known: CacheMark,
}

/// A state after a crash.
#[derive(Clone)]
pub struct Snapshot {
    /// Devices after the crash.
    pub disks: Disks,
    /// Oracle that has noted the crash.
    pub oracle: Oracle,
    /// Time of the crash.
    pub now: u64,
    /// Generator for the next world.
    pub rng: Rng,
    /// Power cut, or only a kill of the daemon.
    pub power: bool,
    /// Volumes whose backing store alone was promised to be a crash-consistent image.
    pub ordered: Vec<bool>,
}

/// The input of any crash at one instant: the devices with their volatile data and operations in
/// flight.
#[derive(Clone)]
pub struct Moment {
    /// Devices, not crashed.
    pub disks: Disks,
    /// Oracle that has not noted a crash.
    pub oracle: Oracle,
    /// Time of the instant.
    pub now: u64,
    /// Volumes whose backing store alone was promised to be a crash-consistent image.
    pub ordered: Vec<bool>,
}

impl Moment {
    /// Returns the state after a crash that left these devices.
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
        if disks.damaged {
            oracle.doubt(disks.log.behind_damage());
        }
        Snapshot { disks, oracle, now: self.now + 1_000_000, rng, power, ordered: self.ordered.clone() }
    }
}
