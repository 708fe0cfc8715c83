//! Plans `forebay uncache`, before anything is changed.

use forebay_admin::events::EventKind;
use std::path::{Path, PathBuf};

use forebay_admin::{MessageId, PoolInfo, VolumeInfo, VolumeState};
use forebay_export::uri::{BackingUri, ExportUri};
use forebay_pool::ublk_found;

use super::attach_plan::mounted;
use super::fstab::{self, Change, DEVICES, Entry, FSTAB, is_volume};
use super::journal::{Begun, Direction};
use super::mounts::{Mount, Mounts};
use super::steps::{Mounted, Step};
use super::{disk, users};
use crate::client::{self, Client, escaped};
use crate::failure::{Failure, system};
use crate::screen::{bytes, harmless};

/// Returns all steps, in order.
///
/// # Errors
/// There is an obstacle. Nothing was changed.
pub(super) fn plan(client: &Client, point: &Path, keep_pool: bool, asked: String) -> Result<Begun, Failure> {
    let mounts = Mounts::read().map_err(system("cannot read the list of mounts"))?;
    let mount = mounts.at(point).last().cloned();
    let table = fstab::read(Path::new(FSTAB)).map_err(system(FSTAB))?;
    let entries = fstab::entries(&table);
    let is_at =
        |entry: &Entry<'_>| entry.point() == point || is_volume(&entry.source()) && entry.leads_to(point);
    let at_point = entries.iter().rfind(|entry| is_at(entry));
    let volumes: Vec<VolumeInfo> = client::list(&client.get("/v1/volumes")?, "volumes")?;
    let Some((volume, device)) = find(&volumes, mount.as_ref(), at_point) else {
        return Err(not_found(point, &mounts, mount.as_ref(), at_point));
    };
    let of_pool: PoolInfo = client::read(&client.get(&format!("/v1/pools/{}", escaped(&volume.pool)))?)?;
    refuse_without_cache(&of_pool)?;
    let disk = disk_of(volume)?;
    // The disk is mounted already: a run was interrupted by a loss of power.
    let on_volume = mount.as_ref().filter(|mount| disk::is_mounted_from(mount, &device));
    if let Some(mount) = on_volume {
        users::refuse_if_used(&mounts, mount)?;
    }
    let names_volume = |entry: &&Entry<'_>| {
        Path::new(&entry.source()) == device || disk::is_named(&entry.source(), &device) == Some(true)
    };
    let line = at_point.filter(names_volume);
    if line.is_some() {
        fstab::check_replaceable(&mounts, Path::new(FSTAB))?;
    }
    let of = |source: &Path| match &mount {
        Some(mount) => mounted(mount, source, at_point),
        None => {
            Mounted { source: source.to_owned(), point: point.to_owned(), kind: None, options: Vec::new() }
        }
    };
    let name = volume.name.clone();
    let mut steps = Vec::new();
    if volume.state != VolumeState::Absent && ["writeback", "writeonly"].contains(&volume.mode.as_str()) {
        steps.push(Step::Drain { volume: name.clone(), mode: volume.mode.clone() });
    }
    steps.extend(on_volume.map(|_| Step::Unmount(of(&device))));
    steps.push(Step::Flush { volume: name.clone() });
    steps.extend(line.map(|line| Step::Edit(Change::to_disk(&table, line, &disk))));
    steps.extend([Step::Detach { volume: name.clone() }, Step::Mount(of(&disk))]);
    let pool = if keep_pool { None } else { removable(of_pool, volume) };
    let wiped = pool.as_ref().map_or_else(
        || format!("pool {} stays\n", volume.pool),
        |pool| format!("pool {pool} is gone, and its flash is free\n"),
    );
    steps.extend(pool.map(|name| Step::RemovePool { name }));
    let ending = format!(
        "{} is on {} now, without a cache; {wiped}",
        harmless(&point.display().to_string()),
        disk.display()
    );
    Ok(Begun { direction: Direction::Detach, asked, plan: steps, begun: Vec::new(), ending })
}

/// Returns the volume that is mounted there, or that the line of fstab mounts, or whose disk is
/// mounted there already; and its block device.
fn find<'a>(
    volumes: &'a [VolumeInfo],
    mount: Option<&Mount>,
    entry: Option<&Entry<'_>>,
) -> Option<(&'a VolumeInfo, PathBuf)> {
    let by_device = |device: &str| {
        let volume = volumes.iter().find(|volume| devices(volume).any(|name| name == device))?;
        Some((volume, Path::new(DEVICES).join(device)))
    };
    match mount {
        Some(mount) => match ublk_found::name_at(&mount.source) {
            Some(device) => by_device(&device),
            None => {
                let is_disk = |volume: &&VolumeInfo| {
                    disk_of(volume).is_ok_and(|disk| disk::is_mounted_from(mount, &disk))
                };
                let volume = volumes.iter().find(is_disk)?;
                let device = devices(volume).next()?;
                Some((volume, Path::new(DEVICES).join(device)))
            }
        },
        None => by_device(Path::new(&entry?.source()).strip_prefix(DEVICES).ok()?.to_str()?),
    }
}

/// Returns the names of a volume's block devices, below [`DEVICES`].
fn devices(volume: &VolumeInfo) -> impl Iterator<Item = String> {
    volume.exports.iter().filter_map(|export| match export.parse() {
        Ok(ExportUri::Ublk { name }) => Some(name.unwrap_or_else(|| volume.name.clone())),
        Ok(_) => None,
        Err(_) => Path::new(export).strip_prefix(DEVICES).ok()?.to_str().map(str::to_owned),
    })
}

/// Returns the disk behind a volume, which is mounted afterwards.
fn disk_of(volume: &VolumeInfo) -> Result<PathBuf, Failure> {
    let by_hand = "forebay help take-away has the steps by hand";
    let backing: BackingUri = volume.backing.parse().map_err(|error| {
        Failure::new(
            MessageId::BackingSyntax,
            format!("the backing store of volume {} cannot be parsed: {error}", harmless(&volume.name)),
        )
    })?;
    let path = backing.path().to_owned();
    if volume.state == VolumeState::Absent && volume.dirty_bytes != Some(0) {
        let dirty = match volume.dirty_bytes {
            Some(dirty) => format!("the cache has {} of its dirty data", bytes(dirty)),
            None => {
                format!("pool {} is not open: the cache may have dirty data of it", harmless(&volume.pool))
            }
        };
        return Err(Failure::new(
            MessageId::Event(EventKind::VolumeAbsent),
            format!("volume {} is not attached, and {dirty}", harmless(&volume.name)),
        )
        .hint(format!(
            "`forebay volume show {0}` shows why; attach it: forebay volume attach {0}",
            harmless(&volume.name)
        )));
    }
    if disk::number_of(&path).is_none() {
        let shown = harmless(&path.display().to_string());
        return Err(Failure::new(
            MessageId::AttachDisk,
            format!("the backing store of volume {}, {shown}, is not a block device", harmless(&volume.name)),
        )
        .hint(by_hand));
    }
    Ok(path)
}

fn not_found(point: &Path, mounts: &Mounts, mount: Option<&Mount>, entry: Option<&Entry<'_>>) -> Failure {
    let shown = harmless(&point.display().to_string());
    let failure = match (mount, entry.filter(|entry| is_volume(&entry.source()))) {
        (Some(mount), _) => Failure::new(
            MessageId::AttachNotAMount,
            format!(
                "{shown} is on {}, which is not a block device of a volume of this daemon",
                harmless(&mount.source.display().to_string())
            ),
        ),
        (None, Some(entry)) => {
            let (line, source) = (entry.number, harmless(&entry.source().to_string_lossy()));
            return Failure::new(MessageId::AttachNotAMount, format!(
                "line {line} of {FSTAB} mounts {source} at {shown}, and this daemon has no such volume"
            ))
            .hint("`forebay volume list` lists the volumes: attach it (forebay volume attach), or remove the line");
        }
        (None, None) => {
            let above =
                mounts.covering(point).map(|mount| mount.point.display().to_string()).unwrap_or_default();
            Failure::new(
                MessageId::AttachNotAMount,
                format!(
                    "{shown} is not a mount point (it lies on {}), and {FSTAB} mounts no volume there",
                    harmless(&above)
                ),
            )
        }
    };
    failure.hint("`findmnt` lists mounts, `forebay volume list` volumes; those over NBD or FUSE: forebay help take-away")
}

/// A volume cannot be detached from a pool whose cache has failed: the daemon has nowhere to record
/// it.
fn refuse_without_cache(pool: &PoolInfo) -> Result<(), Failure> {
    if !pool.cache_failed {
        return Ok(());
    }
    let name = harmless(&pool.name);
    Err(Failure::new(MessageId::Event(EventKind::CacheFailed), format!("the cache of pool {name} has failed, so its volumes cannot be detached"))
        .hint(format!(
            "forebay pool replace {name} --device PATH replaces it; forebay help flash-died has the steps without one"
        )))
}

/// Returns the pool of a volume, if nothing else uses it.
fn removable(pool: PoolInfo, volume: &VolumeInfo) -> Option<String> {
    let is_alone = pool.volumes.iter().chain(pool.absent.keys()).all(|name| *name == volume.name);
    (is_alone && !pool.not_open).then_some(pool.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn volume(name: &str, exports: &[&str]) -> VolumeInfo {
        serde_json::from_value(json!({
            "name": name, "pool": "fast", "state": "serving", "backing": "file:///no/such/disk", "exports": exports,
            "size_bytes": 1, "mode": "writeback", "cached_bytes": 0, "dirty_bytes": 0,
            "oldest_dirty_age_ns": 0, "destage_limited_by": "", "ordered": false,
            "connections": 0, "job": null,
        }))
        .unwrap()
    }

    #[test]
    fn a_volume_is_found_by_its_block_device() {
        let volumes = [
            volume("a", &["nbd+unix:///b?socket=/s"]),
            volume("b", &["ublk:"]),
            volume("c", &["ublk:x", "/dev/forebay/y"]),
        ];
        let line = |source: &str| format!("{source} /srv/db ext4\n").into_bytes();
        let found = |source: &str| {
            let table = line(source);
            let entries = fstab::entries(&table);
            find(&volumes, None, entries.first()).map(|(volume, device)| (volume.name.clone(), device))
        };
        let is = |name: &str, device: &str| Some((name.to_owned(), PathBuf::from(device)));
        assert_eq!(found("/dev/forebay/b"), is("b", "/dev/forebay/b"));
        assert_eq!(found("/dev/forebay/x"), is("c", "/dev/forebay/x"));
        assert_eq!(found("/dev/forebay/y"), is("c", "/dev/forebay/y"));
        assert_eq!([found("/dev/forebay/a"), found("/dev/sdb"), found("UUID=1")], [None, None, None]);
        assert!(find(&volumes, None, None).is_none());
    }

    #[test]
    fn a_failed_cache_is_not_removed() {
        let pool = PoolInfo::closed("fast".into(), Vec::new(), None);
        assert!(refuse_without_cache(&pool).is_ok());
        let said = format!("{:?}", refuse_without_cache(&PoolInfo { cache_failed: true, ..pool }));
        assert!(said.contains("pool replace fast") && said.contains("forebay help flash-died"), "{said}");
    }

    #[test]
    fn unmountable_disks_are_refused() {
        let why = disk_of(&volume("b", &[])).unwrap_err().to_string();
        assert!(why.contains("is not a block device"), "{why}");
        let absent = VolumeInfo { state: VolumeState::Absent, dirty_bytes: Some(4096), ..volume("b", &[]) };
        let why = disk_of(&absent).unwrap_err().to_string();
        assert!(why.contains("the cache has 4.0 KiB"), "{why}");
    }
}
