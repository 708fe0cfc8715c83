//! Starts: formats devices, and creates engines that open them, as the owner does.

use crate::at_rest::superblock_in;
use crate::cipher::encrypted;
use crate::content::Content;
use crate::counter_check::PARTS;
use crate::device::SimDevice;
use crate::disks::{AttachState, CACHE, Disks, MemberNotes, Risk, Snapshot, VolumeStatus, device_of};
use crate::log_account::LogAccount;
use crate::oracle::Oracle;
use crate::plan::{Plan, VolumePlan};
use crate::rng::{Rng, mix};
use forebay_core::{
    Attachment, CacheMark, DestageOrder, Engine, EngineConfig, FormatParams, Loss, MirrorDevices,
    OnBackingChange, PlantedBug, Suspicion, VolumeSettings, fault, format_cache, format_mirrored,
};
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry, Members, SECTORS_PER_BLOCK, VolumeId};

/// Creates new devices: a formatted cache and backing stores with data.
pub(crate) fn first_state(plan: &Plan) -> Result<Snapshot, String> {
    let mut rng = Rng::new(mix(plan.seed ^ 0x46_4f52_4542_4159));
    let volumes = first_volumes(plan);
    let (cache, second) = if plan.mirror.is_some() {
        let [cache, second] = format_members(plan, &format_params(plan, &volumes))?;
        (cache, Some(second))
    } else {
        (new_cache(plan, &volumes)?, None)
    };
    let sectors: Vec<u64> = plan.volumes.iter().map(|volume| volume.bytes_max / 512).collect();
    let mut devices = vec![cache];
    let latency = plan.backing_latency;
    devices.extend(plan.volumes.iter().map(|volume| SimDevice::new(volume.bytes_max, latency)));
    devices.extend(second);
    let oracle = Oracle::new(&sectors, plan.faults.damages(), plan.may_order(), |volume, sector| {
        if plan.volumes[volume].is_blank(sector / SECTORS_PER_BLOCK as u64) {
            return None;
        }
        if rng.chance(1, 4) {
            return Some(Content::Zero);
        }
        let content = Content::Tag(rng.word() | 1);
        let mut bytes = [0; 512];
        content.fill(&mut bytes);
        devices[1 + volume].preset(sector * 512, &bytes);
        Some(content)
    });
    let disks = Disks {
        devices,
        spare: None,
        outdated: None,
        is_elsewhere: false,
        // Caches of different machines must not record the same stamps.
        stamps: vec![1_000_000 * (plan.identity as i64 - 6); plan.volumes.len()],
        sampled: vec![Vec::new(); plan.volumes.len()],
        flush_failed: vec![false; 2 + plan.volumes.len()],
        suspicions: vec![Suspicion::None; plan.volumes.len()],
        settings: plan
            .volumes
            .iter()
            .map(|volume| VolumeSettings { mode: volume.mode, ..plan.settings })
            .collect(),
        log: empty_log(plan),
        damaged: false,
        untold: false,
        extension_lost: false,
        volumes,
        cache_bytes: plan.cache_bytes,
        cache_pending: None,
        joined: [Vec::new(), Vec::new()],
        record: None,
        member_notes: plan.mirror.is_some().then(|| MemberNotes { next_tag: 2, ..MemberNotes::default() }),
        known: CacheMark::default(),
    };
    let ordered = vec![false; plan.volumes.len()];
    Ok(Snapshot { disks, oracle, now: 1_000_000, rng, power: true, ordered })
}

/// Returns the account of a cache that was just formatted.
fn empty_log(plan: &Plan) -> LogAccount {
    let blocks = plan.volumes.iter().map(|volume| volume.bytes_max.div_ceil(BLOCK_BYTES as u64));
    let blocks = plan.faults.damages().then(|| blocks.collect());
    LogAccount::new(&plan.geometry, plan.cache_bytes_max(), blocks)
}

pub(crate) fn first_volumes(plan: &Plan) -> Vec<VolumeStatus> {
    let status = |volume: &VolumePlan| VolumeStatus {
        state: AttachState::Attached,
        bytes: volume.bytes,
        resizing: None,
        ending: false,
        incarnation: 0,
    };
    plan.volumes.iter().map(status).collect()
}

pub(crate) fn format_params(plan: &Plan, volumes: &[VolumeStatus]) -> FormatParams {
    let is_ordered = plan.settings.destage_order == DestageOrder::Ordered;
    let flush_epoch = if is_ordered { plan.first_flush_epoch } else { 0 };
    let entry =
        |(index, status): (usize, &VolumeStatus)| VolumeEntry { flush_epoch, ..entry(plan, status, index) };
    FormatParams {
        geometry: plan.geometry,
        members: Members::default(),
        uuid: plan.uuid,
        encryption: plan.cipher.as_ref().map(|cipher| cipher.mark()),
        volumes: volumes.iter().enumerate().map(entry).collect(),
        created_unix_s: 1_700_000_000,
        written_by: "forebay-sim".into(),
    }
}

/// Returns the entry of a volume in the table.
pub(crate) fn entry(plan: &Plan, status: &VolumeStatus, volume: usize) -> VolumeEntry {
    VolumeEntry {
        id: VolumeId(volume as u16),
        mode: plan.volumes[volume].mode,
        name: format!("volume-{volume}"),
        size_bytes: status.bytes,
        flush_epoch: 0,
        uuid: [status.incarnation.wrapping_mul(16).wrapping_add(volume as u8 + 1); 16],
        backing: BackingRecord { stamp_ns: None, ..backing_record(plan, status.bytes, 0, volume) },
    }
}

pub(crate) fn backing_record(plan: &Plan, bytes: u64, stamp: i64, volume: usize) -> BackingRecord {
    BackingRecord {
        kind: 1,
        size_bytes: bytes,
        unique: [plan.identity, volume as u64 + 1],
        stamp_ns: Some(stamp),
        samples: Vec::new(),
    }
}

pub(crate) fn attachment(plan: &Plan, disks: &Disks, volume: usize, bytes: u64) -> Attachment {
    Attachment {
        volume: VolumeId(volume as u16),
        settings: disks.settings[volume],
        size_bytes: bytes,
        backing: backing_record(plan, bytes, disks.stamps[volume], volume),
        backing_sector_bytes: plan.volumes[volume].sector_bytes,
        on_change: OnBackingChange::Refuse,
        suspicion: disks.suspicions[volume],
    }
}

/// Creates an engine that begins to open the cache, with the volumes that had no change in
/// progress, except those that are attached late: the operator does not know whether the others are
/// there.
pub(crate) fn open_engine(
    plan: &Plan,
    disks: &Disks,
    late: &[bool],
    policy: OnBackingChange,
    rng: &mut Rng,
    now: u64,
) -> Engine {
    let sure = disks.volumes.iter().enumerate();
    let sure = sure.filter(|(volume, status)| status.is_attached() && !late[*volume]);
    let attachments = sure.map(|(volume, status)| {
        let attachment = attachment(plan, disks, volume, status.bytes);
        Attachment { on_change: policy, ..attachment }
    });
    let bytes = disks.cache_bytes.max(disks.cache_pending.unwrap_or(0));
    let attachments = attachments.collect();
    let config = EngineConfig { known: disks.known, ..plan.engine.clone() };
    let mut engine = if plan.mirror.is_some() {
        let members = find_members(plan, disks, rng);
        Engine::open_mirrored(config, members, attachments, now)
    } else {
        Engine::open(config, bytes, attachments, now)
    };
    engine.set_devices(&[(PARTS[0], 0), (PARTS[1], second_part(plan))]);
    engine
}

/// Returns the start of the second part of the cache, for [`Engine::set_devices`].
pub(crate) fn second_part(plan: &Plan) -> u64 {
    if plan.mirror.is_some() { 0 } else { second_half(&plan.geometry) }
}

/// Returns the start of the second half of the segments.
pub(crate) fn second_half(geometry: &Geometry) -> u64 {
    geometry.segment_offset(geometry.segment_count / 2, 0)
}

/// Creates an engine without a cache, for the attached volumes.
pub(crate) fn open_without_cache(plan: &Plan, disks: &Disks, risk: &Risk, late: &[bool], now: u64) -> Engine {
    let here = |volume: &usize| disks.volumes[*volume].state == AttachState::Attached;
    let volumes: Vec<usize> = (0..disks.volumes.len()).filter(here).collect();
    let entries: Vec<VolumeEntry> =
        volumes.iter().map(|volume| entry(plan, &disks.volumes[*volume], *volume)).collect();
    let attachments = volumes.iter().filter(|volume| !late[**volume]);
    let attachments =
        attachments.map(|volume| attachment(plan, disks, *volume, disks.volumes[*volume].bytes)).collect();
    let losses: Vec<(VolumeId, Loss)> = risk
        .iter()
        .filter(|(volume, _)| volumes.contains(volume))
        .map(|(volume, sector)| (VolumeId(*volume as u16), Loss { offset: sector * 512, bytes: 512, age: 0 }))
        .collect();
    Engine::open_without_cache(plan.engine.clone(), entries, attachments, &losses, now)
}

/// Inserts a new, empty cache as the operator, if nothing is lost.
pub(crate) fn replace_cache(plan: &Plan, disks: &mut Disks, rng: &mut Rng) -> Result<(), String> {
    let lossless = disks.record.as_ref().is_some_and(|record| record.risk.is_empty());
    let settled = disks.volumes.iter().all(|status| status.is_attached());
    if plan.mirror.is_some() || !lossless || !settled || disks.cache_pending.is_some() || !rng.chance(1, 2) {
        return Ok(());
    }
    disks.devices[CACHE] = new_cache(plan, &disks.volumes)?;
    disks.log = empty_log(plan);
    (disks.cache_bytes, disks.record) = (plan.cache_bytes, None);
    disks.joined = [Vec::new(), Vec::new()];
    disks.known = CacheMark::default(); // A new cache has no record.
    Ok(())
}

/// Returns the members that the owner hands over at a start. One may be missing for a while.
fn find_members(plan: &Plan, disks: &Disks, rng: &mut Rng) -> MirrorDevices {
    let found = [0, 1].map(|member| superblock_in(disks.devices[device_of(plan, member)].visible()));
    let member_notes = disks.member_notes.clone().unwrap_or_default();
    let tag = |member: usize| found[member].as_ref()?.mirror.map(|mark| mark.tags[member]);
    let mut there = [0, 1].map(|member| tag(member).is_some_and(|tag| !member_notes.noted.contains(&tag)));
    let believed = there;
    let misses = plan.mirror.as_ref().map_or(0, |mirror| mirror.misses_of);
    let trusts = fault::planted(PlantedBug::TrustStaleMember);
    for member in [0, 1] {
        let other = 1 - member;
        let listed_out = found[other].as_ref().and_then(|found| found.mirror?.out) == Some(member as u8);
        let newer = |a: &Option<Superblock>, b: &Option<Superblock>| {
            a.as_ref().map(|found| found.generation) > b.as_ref().map(|found| found.generation)
        };
        let says_so = there[other] && listed_out && newer(&found[other], &found[member]);
        if !there[member] && tag(member).is_some() && (trusts || says_so && rng.chance(1, 2)) {
            there[member] = true;
        }
    }
    if misses > 0 && believed == [true, true] && !disks.is_elsewhere && rng.chance(1, misses) {
        there[rng.below(2) as usize] = false;
    }
    MirrorDevices { geometry: plan.geometry, there }
}

/// Creates a formatted cache device.
fn new_cache(plan: &Plan, volumes: &[VolumeStatus]) -> Result<SimDevice, String> {
    let mut cache = SimDevice::new(plan.cache_bytes_max(), plan.cache_latency);
    cache.misdirect_from = plan.geometry.segments_start_block * BLOCK_BYTES as u64;
    cache.second_at = second_half(&plan.geometry);
    let writes = format_cache(&format_params(plan, volumes)).map_err(|why| format!("format_cache: {why}"))?;
    for (offset, bytes) in writes {
        cache.preset(offset, &encrypted(plan, offset, &bytes));
    }
    Ok(cache)
}

/// Creates new, formatted members.
fn format_members(plan: &Plan, params: &FormatParams) -> Result<[SimDevice; 2], String> {
    let mut members = [blank_member(plan), blank_member(plan)];
    let writes = format_mirrored(params, [1, 2]).map_err(|why| format!("format_mirrored: {why}"))?;
    for (offset, bytes) in writes {
        let (member, offset) = plan.geometry.mirror_place(offset);
        members[member].preset(offset, &bytes);
    }
    Ok(members)
}

/// Creates an empty device.
pub(crate) fn blank_member(plan: &Plan) -> SimDevice {
    let mut device = SimDevice::new(plan.geometry.member_bytes(), plan.cache_latency);
    device.misdirect_from = plan.geometry.segments_start_block * BLOCK_BYTES as u64;
    device
}
