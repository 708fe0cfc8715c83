//! The backing stores of an imported pool: finds them on this host.
//!
//! A store is expected at the path in the other host's configuration. If that path does not exist
//! or leads to another disk, the search covers the block devices of the same size, and files of the
//! same name in the directory of the cache. A candidate must match the cache's record of the store,
//! and be the only match. A missing store may be attached later.

use super::Service;
use super::errors::invalid;
use forebay_admin::{AdminError, MessageId};
use forebay_config::device_name::{node_of, stable_name};
use forebay_config::{PoolSection, VolumeConfig};
use forebay_export::uri::BackingUri;
use forebay_format::checkpoint::VolumeEntry;
use forebay_pool::MayWait;
use forebay_pool::open::{Likeness, likeness};
use forebay_pool::shell_word::quoted;
use forebay_pool::time_limit::within;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for comparing the stores of a volume.
const WITHIN: Duration = Duration::from_secs(15);
const BLOCK_DEVICES: &str = "/sys/class/block";
/// Devices served by another program or by this process, and RAM disks.
const NO_DISKS: [&str; 4] = ["ublkb", "nbd", "ram", "zram"];

const NOTHING_TELLS: &str = "its modification time differs, and nothing on it identifies it";

/// The pool to import.
pub(super) struct Wanted<'a> {
    pub(super) section: &'a PoolSection,
    /// The cache's entries of its volumes.
    pub(super) entries: &'a [VolumeEntry],
    /// Backing stores that the operator named.
    pub(super) given: &'a BTreeMap<String, BackingUri>,
    /// The devices of the cache.
    pub(super) devices: &'a [PathBuf],
}

/// Location of a volume's store.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) backing: BackingUri,
    /// Reason why it is missing, if it is.
    pub(super) why: Option<String>,
}

impl Service {
    /// Returns the stores of the volumes, in their order.
    pub(super) fn find_stores(&self, wanted: &Wanted<'_>) -> Result<Vec<Store>, AdminError> {
        let mut stores: Vec<Store> = Vec::new();
        for (name, volume) in &wanted.section.volumes {
            let entry = wanted.entries.iter().find(|entry| entry.name == *name);
            let store = match wanted.given.get(name) {
                Some(backing) if is_awaited(backing, volume) => not_there(backing),
                Some(backing) => Self::check_given(name, backing, entry)?,
                None => self.find_store((name, volume), entry, wanted, &stores)?,
            };
            // Nothing else can use a missing store.
            if store.why.is_none() {
                self.check_unused(store.backing.path())?;
            }
            stores.push(store);
        }
        Ok(stores)
    }

    fn check_given(
        name: &str,
        backing: &BackingUri,
        entry: Option<&VolumeEntry>,
    ) -> Result<Store, AdminError> {
        let backing = match backing {
            BackingUri::Device(path) => BackingUri::Device(stable_name(path)),
            BackingUri::File(_) | BackingUri::Nbd(_) => backing.clone(),
        };
        let path = backing.path();
        match entry.map(|entry| compare(path, entry)) {
            None if path.exists() => {}
            None => {
                return Err(invalid(MessageId::DeviceMissing, format!("{} is missing", path.display()), ""));
            }
            Some(Likeness::Same { .. } | Likeness::Unsure) => {}
            Some(Likeness::Unreadable(why)) => {
                return Err(invalid(
                    MessageId::BackingUnreadable,
                    why,
                    "give the path of the backing store on this host",
                ));
            }
            Some(Likeness::Other(why) | Likeness::Smaller(why)) => return Err(is_other(name, path, &why)),
        }
        Ok(Store { backing, why: None })
    }

    fn find_store(
        &self,
        (name, volume): (&str, &VolumeConfig),
        entry: Option<&VolumeEntry>,
        wanted: &Wanted<'_>,
        taken: &[Store],
    ) -> Result<Store, AdminError> {
        let noted = volume.backing.path();
        let is_taken = |path: &Path| taken.iter().any(|store| node_of(store.backing.path()) == node_of(path));
        let Some(entry) = entry else {
            let why = (!noted.exists()).then(|| format!("{} is missing", noted.display()));
            return Ok(Store { backing: volume.backing.clone(), why });
        };
        let unlike = match compare(noted, entry) {
            Likeness::Same { .. } => return Ok(Store { backing: volume.backing.clone(), why: None }),
            unlike => unlike,
        };
        let mut found: Vec<BackingUri> = Vec::new();
        for candidate in candidates(noted, entry, wanted.devices) {
            let path = candidate.path();
            let is_free = !is_taken(path) && self.check_unused(path).is_ok();
            if is_free && compare(path, entry) == (Likeness::Same { proven: true }) {
                found.push(candidate);
            }
        }
        match (&found[..], unlike) {
            ([only], _) => Ok(Store { backing: only.clone(), why: None }),
            ([], Likeness::Other(why) | Likeness::Smaller(why)) => Err(is_other(name, noted, &why)),
            ([], Likeness::Same { .. } | Likeness::Unsure) => Err(is_other(name, noted, NOTHING_TELLS)),
            ([], Likeness::Unreadable(why)) => Ok(Store { backing: volume.backing.clone(), why: Some(why) }),
            (several, _) => {
                let several: Vec<String> = several.iter().map(ToString::to_string).collect();
                Err(invalid(
                    MessageId::BackingNotTheOne,
                    format!("the backing store of volume {name} could be any of {}", several.join(", ")),
                    format!("choose one: --backing {name}=PATH"),
                ))
            }
        }
    }
}

/// Returns true for the recorded path if it does not exist yet.
fn is_awaited(given: &BackingUri, noted: &VolumeConfig) -> bool {
    given.path() == noted.backing.path() && !given.path().exists()
}

fn not_there(backing: &BackingUri) -> Store {
    Store { backing: backing.clone(), why: Some(format!("{} is missing", backing.path().display())) }
}

fn is_other(name: &str, path: &Path, why: &str) -> AdminError {
    invalid(
        MessageId::BackingNotTheOne,
        format!("{} is not accepted as the backing store of volume {name}: {why}", path.display()),
        format!(
            "name the right one: --backing {name}=PATH. If it is this one, and others wrote to it since: \
             open the cache with `forebay pool create`, and choose the data to keep with `forebay volume \
             attach {name} --pool POOL --backing {} --set on_backing_change=keep-dirty` (or discard-dirty)",
            quoted(path)
        ),
    )
}

/// As [`likeness`], on a thread, with a time limit.
pub(super) fn compare(path: &Path, entry: &VolumeEntry) -> Likeness {
    let (place, entry) = (path.to_owned(), entry.clone());
    let compared = within(WITHIN, "compare", move |may_wait: &MayWait| likeness(may_wait, &place, &entry));
    compared.unwrap_or_else(|undone| Likeness::Unreadable(format!("{}: {undone}", path.display())))
}

/// Returns other candidates for a store.
fn candidates(noted: &Path, entry: &VolumeEntry, devices: &[PathBuf]) -> Vec<BackingUri> {
    let beside =
        devices.iter().filter(|device| !device.starts_with("/dev")).filter_map(|device| device.parent());
    let name = noted.file_name().unwrap_or_default();
    let mut files: Vec<PathBuf> =
        beside.map(|folder| folder.join(name)).filter(|file| file.is_file()).collect();
    files.dedup();
    let disks = disks_of(Path::new(BLOCK_DEVICES), entry.backing.size_bytes);
    let disks = disks.into_iter().filter(|disk| !devices.iter().any(|device| node_of(device) == *disk));
    let disks = disks.map(|disk| BackingUri::Device(stable_name(&disk)));
    files.into_iter().map(BackingUri::File).chain(disks).collect()
}

/// Returns the nodes of block devices that have `bytes` bytes and no other device on top. `folder`
/// is where the kernel lists them.
fn disks_of(folder: &Path, bytes: u64) -> Vec<PathBuf> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_wanted = |name: &String| {
        let sectors = std::fs::read_to_string(folder.join(name).join("size"));
        let has = sectors.ok().and_then(|text| text.trim().parse::<u64>().ok());
        let holders = std::fs::read_dir(folder.join(name).join("holders"));
        let is_held = holders.is_ok_and(|mut holders| holders.next().is_some());
        has == Some(bytes / 512) && !is_held && !NO_DISKS.iter().any(|start| name.starts_with(start))
    };
    // sysfs replaces a `/` in a node's name with `!`.
    let mut nodes: Vec<PathBuf> =
        names.filter(is_wanted).map(|name| Path::new("/dev").join(name.replace('!', "/"))).collect();
    nodes.sort();
    nodes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn candidates_have_the_size_and_are_unused() {
        let folder = tempfile::tempdir().unwrap();
        for (name, sectors, holder) in [
            ("sdb", "2048", None),
            ("sdc", "4096", None),
            ("sdd", "2048", Some("dm-0")),
            ("dm-0", "2048", None),
            ("ublkb0", "2048", None),
            ("cciss!c0d0", "2048", None),
            ("broken", "many", None),
        ] {
            let disk = folder.path().join(name);
            std::fs::create_dir_all(disk.join("holders")).unwrap();
            std::fs::write(disk.join("size"), format!("{sectors}\n")).unwrap();
            if let Some(holder) = holder {
                std::fs::write(disk.join("holders").join(holder), "").unwrap();
            }
        }
        let found = disks_of(folder.path(), 1 << 20);
        assert_eq!(found, ["/dev/cciss/c0d0", "/dev/dm-0", "/dev/sdb"].map(PathBuf::from));
        assert!(disks_of(Path::new("/no-such-folder"), 1 << 20).is_empty());
    }
}
