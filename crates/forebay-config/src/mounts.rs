//! FUSE files and block devices of a configuration: paths that the files hide, paths that would
//! deadlock the daemon because they are on one of them, and whether there is memory for all.
//!
//! Paths are compared as the kernel sees them: without symbolic links, through loop devices and
//! mounts. The comparison makes no call that can hang on a served file, so it can run while files
//! are served, even by this process.

use super::device_name::node_of;
use super::model::{Config, TlsFiles, VolumeConfig};
use super::mount_memory::{MOUNTS_MAX, memory_for, mounts_max};
use forebay_export::uri::{Endpoint, ExportUri};
use forebay_io::fuse::{foundations, volume_claim};
use std::path::{Path, PathBuf};

const FILE: &str = "this is the FUSE file";

/// A configuration that cannot work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The invalid setting, as in `volume.db.exports[0]`.
    pub(crate) key: String,
    /// The setting that it conflicts with.
    pub(crate) other: Option<String>,
    /// Role of that setting.
    pub(crate) is_the: &'static str,
    /// The problem.
    pub message: String,
    /// Suggested action.
    pub help: String,
}

impl Problem {
    /// Returns whether it concerns this volume.
    pub(crate) fn concerns(&self, volume: &str) -> bool {
        let section = format!("volume.{volume}.");
        self.key.starts_with(&section) || self.other.as_ref().is_some_and(|other| other.starts_with(&section))
    }

    /// Returns the first problem that a volume has, or would have together with the others.
    pub fn of_volume(config: &Config, name: &str, volume: &VolumeConfig) -> Option<Self> {
        let name = name.to_owned();
        let others = config.volumes.iter().filter(|(other, _)| **other != name);
        problems(config, others.chain([(&name, volume)])).into_iter().find(|problem| problem.concerns(&name))
    }
}

/// A FUSE file.
struct Place<'a> {
    key: String,
    volume: &'a str,
    path: &'a Path,
    /// The path that it hides: itself, or its folder.
    claim: PathBuf,
}

/// Checks all volumes; `volumes` are those of the configuration. Of two that conflict, the later
/// one is reported.
pub fn problems<'a>(
    config: &'a Config,
    volumes: impl Iterator<Item = (&'a String, &'a VolumeConfig)> + Clone,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut places: Vec<Place<'_>> = Vec::new();
    for (volume, section) in volumes.clone() {
        for (index, uri) in section.exports.iter().enumerate() {
            let ExportUri::Fuse { path } = uri else { continue };
            let key = format!("volume.{volume}.exports[{index}]");
            let place = Place { key, volume, path, claim: volume_claim(path) };
            problems.extend(places.iter().find_map(|earlier| beside(earlier, &place)));
            places.push(place);
        }
    }
    let devices = block_devices(volumes.clone());
    if !devices.is_empty() {
        for (key, what, path) in used(config, volumes.clone()) {
            problems.extend(
                devices
                    .iter()
                    .find(|device| device.carries(path))
                    .map(|device| device.blame(key, what, path)),
            );
        }
    }
    if places.is_empty() {
        return problems;
    }
    for (key, what, path) in used(config, volumes.clone()) {
        let paths = foundations(path);
        let lies_on = |place: &&Place<'_>| paths.iter().any(|path| path.starts_with(&place.claim));
        problems.extend(places.iter().find(lies_on).map(|place| hidden(key, what, path, place)));
    }
    problems.extend(config.pools.keys().filter_map(|pool| too_many(config, pool, volumes.clone())));
    problems
}

/// A volume as a block device.
struct BlockDevice<'a> {
    key: String,
    volume: &'a str,
    name: PathBuf,
    /// Target of the name, if there is such a device now.
    node: Option<PathBuf>,
}

fn block_devices<'a>(volumes: impl Iterator<Item = (&'a String, &'a VolumeConfig)>) -> Vec<BlockDevice<'a>> {
    let mut devices = Vec::new();
    for (volume, section) in volumes {
        for (index, uri) in section.exports.iter().enumerate() {
            let ExportUri::Ublk { name } = uri else { continue };
            let name = Path::new("/dev/forebay").join(name.as_deref().unwrap_or(volume));
            let node = Some(node_of(&name)).filter(|node| *node != name);
            devices.push(BlockDevice {
                key: format!("volume.{volume}.exports[{index}]"),
                volume,
                name,
                node,
            });
        }
    }
    devices
}

impl BlockDevice<'_> {
    /// Returns whether I/O at the path goes to the device. Ignores partitions and filesystems
    /// mounted from it.
    fn carries(&self, path: &Path) -> bool {
        let is_it = |path: &Path| path == self.name || self.node.as_deref() == Some(path);
        is_it(path) || is_it(&node_of(path))
    }

    fn blame(&self, key: String, what: String, path: &Path) -> Problem {
        Problem {
            key,
            other: Some(self.key.clone()),
            is_the: "this is the block device",
            message: format!(
                "{}, {what}, is the block device of volume `{}`: the daemon would wait for itself",
                path.display(),
                self.volume
            ),
            help: "give the backing store of that volume, or serve one of the two by another daemon".into(),
        }
    }
}

fn beside(earlier: &Place<'_>, place: &Place<'_>) -> Option<Problem> {
    let problem = |message, help: &str| {
        let (key, other) = (place.key.clone(), Some(earlier.key.clone()));
        Some(Problem { key, other, is_the: FILE, message, help: help.into() })
    };
    let path = place.path.display();
    if earlier.path == place.path {
        let message = format!("{path} is used by volume `{}` already", earlier.volume);
        return problem(message, "give one of them another path");
    }
    if !(earlier.claim.starts_with(&place.claim) || place.claim.starts_with(&earlier.claim)) {
        return None;
    }
    let (volume, other) = (earlier.volume, earlier.path.display());
    let message =
        format!("{path} cannot be next to {other}, the file of volume `{volume}`: a mount shows one volume");
    problem(
        message,
        "give each FUSE file a folder of its own, or make both as regular files before they are mounted on",
    )
}

fn hidden(key: String, what: String, path: &Path, place: &Place<'_>) -> Problem {
    let (path, file, claim) = (path.display(), place.path.display(), place.claim.display());
    Problem {
        key,
        other: Some(place.key.clone()),
        is_the: FILE,
        message: format!(
            "{path}, {what}, lies on {claim}, where {file} of volume `{}` is mounted: the daemon would wait for itself forever",
            place.volume
        ),
        help: "give the file or device itself, or give the FUSE file a folder of its own".into(),
    }
}

/// Returns every path that the daemon itself uses: its setting, and its role.
fn used<'a>(
    config: &'a Config,
    volumes: impl Iterator<Item = (&'a String, &'a VolumeConfig)>,
) -> Vec<(String, String, &'a Path)> {
    let mut used: Vec<(String, String, &Path)> = Vec::new();
    let mut add = |key: String, what: &str, path: &'a Path| used.push((key, what.to_owned(), path));
    let daemon = &config.daemon;
    add("daemon.admin_socket".into(), "the admin socket", &daemon.admin_socket);
    add("daemon.state_dir".into(), "the folder for records of the daemon", &daemon.state_dir);
    if let Some(path) = &daemon.control_fs {
        add("daemon.control_fs".into(), "the mount of the control files", path);
    }
    let mut tls = |section: String, TlsFiles { cert_file, key_file }: &'a TlsFiles| {
        add(format!("{section}.cert_file"), "a certificate", cert_file);
        add(format!("{section}.key_file"), "a key", key_file);
    };
    for (name, section) in &config.tls {
        tls(format!("tls.{name}"), &section.files);
    }
    if let Some(tcp) = &daemon.admin_tcp {
        tcp.tls.iter().for_each(|files| tls("daemon.admin_tcp".into(), files));
        add("daemon.admin_tcp.token_file".into(), "the file of a token", &tcp.token_file);
    }
    for (pool, section) in &config.pools {
        for (index, device) in section.devices.iter().enumerate() {
            let what = format!("a cache device of pool `{pool}`");
            used.push((format!("pool.{pool}.devices[{index}]"), what, &device.path));
        }
    }
    for (volume, section) in volumes {
        let what = format!("the backing store of volume `{volume}`");
        used.push((format!("volume.{volume}.backing"), what, section.backing.path()));
        for (index, uri) in section.exports.iter().enumerate() {
            if let ExportUri::Nbd { endpoint: Endpoint::Unix(path), .. } | ExportUri::VhostUser { path, .. } =
                uri
            {
                let what = format!("a socket of volume `{volume}`");
                used.push((format!("volume.{volume}.exports[{index}]"), what, path));
            }
        }
    }
    used
}

/// Each FUSE file needs its own memory.
fn too_many<'a>(
    config: &Config,
    pool: &str,
    volumes: impl Iterator<Item = (&'a String, &'a VolumeConfig)>,
) -> Option<Problem> {
    let memory = config.pools.get(pool)?.tunables().buffer_memory;
    let fit = mounts_max(usize::try_from(memory.0).unwrap_or(usize::MAX));
    let of_pool = volumes.filter(|(_, section)| section.pool == pool);
    let files = of_pool.flat_map(|(volume, section)| {
        let fuse =
            section.exports.iter().enumerate().filter(|(_, uri)| matches!(uri, ExportUri::Fuse { .. }));
        fuse.map(move |(index, _)| format!("volume.{volume}.exports[{index}]"))
    });
    let files: Vec<String> = files.collect();
    let key = files.get(fit.min(usize::from(MOUNTS_MAX)))?.clone();
    let count = files.len();
    let (message, help) = if count > usize::from(MOUNTS_MAX) {
        let message = format!("pool `{pool}` has {count} FUSE files, and at most {MOUNTS_MAX} are possible");
        (message, "spread the volumes over several pools, or export some over NBD".into())
    } else {
        let message =
            format!("pool `{pool}` has {count} FUSE files, and buffer_memory ({memory}) is enough for {fit}");
        (message, format!("set buffer_memory of the pool to {}", memory_for(count)))
    };
    let other = None;
    Some(Problem { key, other, is_the: FILE, message, help })
}
