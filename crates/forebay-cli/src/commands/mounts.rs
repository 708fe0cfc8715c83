//! The kernel's mount table: `/proc/self/mountinfo` (proc(5)).

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_io::fuse::unescape;

/// Where the kernel lists the mounts of this process.
const TABLE: &str = "/proc/self/mountinfo";

/// Major and minor number of a block device.
pub(super) type DeviceNumber = (u32, u32);

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The device of the file system; for file systems on several devices, a number of no device.
    pub(super) device: DeviceNumber,
    /// The mounted directory of the file system; `/` unless it is a bind mount or a subvolume.
    pub(super) root: PathBuf,
    /// Mount point.
    pub(super) point: PathBuf,
    /// Options of the mount, then those of the file system.
    options: [String; 2],
    /// Its peer group, and its master group, if there are any.
    shared: Option<u32>,
    master: Option<u32>,
    /// Type of the file system.
    pub(super) kind: String,
    /// Mounted source.
    pub(super) source: PathBuf,
}

impl Mount {
    /// Returns the options that reproduce the mount. Leaves out those that mount(8) sets by itself,
    /// and those that are listed but not accepted.
    pub(super) fn options(&self) -> Vec<String> {
        let [of_mount, of_system] = self.options.each_ref().map(|options| options.split(','));
        let mut all: Vec<String> = Vec::new();
        let is_set_anyway = |option: &str| matches!(option, "" | "rw" | "relatime" | "seclabel");
        for option in of_mount.chain(of_system).filter(|option| !is_set_anyway(option)) {
            if !all.iter().any(|known| known == option) {
                all.push(option.to_owned());
            }
        }
        all
    }

    /// Returns options that override those of a line of fstab that the mount does not have: it was
    /// remounted.
    pub(super) fn options_against(&self, said: &[String]) -> Vec<String> {
        // mount(8): options with their inverses, which are not listed.
        const OPPOSITES: [(&str, &str); 7] = [
            ("ro", "rw"),
            ("noexec", "exec"),
            ("nosuid", "suid"),
            ("nodev", "dev"),
            ("noatime", "atime"),
            ("nodiratime", "diratime"),
            ("sync", "async"),
        ];
        let has = self.options();
        let was =
            |option: &str| said.iter().any(|said| said == option) && !has.iter().any(|has| has == option);
        OPPOSITES.iter().filter(|(option, _)| was(option)).map(|(_, undone)| (*undone).to_owned()).collect()
    }

    /// Returns true for an automount trigger, which is mounted over on access.
    pub(super) fn is_automount(&self) -> bool {
        self.kind == "autofs"
    }
}

/// All mounts, a later one above an earlier one at the same place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mounts(pub(super) Vec<Mount>);

impl Mounts {
    /// Reads the present mounts.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub(super) fn read() -> io::Result<Self> {
        Self::of(Path::new(TABLE))
    }

    /// Reads the table of another process.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(super) fn of(table: &Path) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read(table)?))
    }

    fn parse(table: &[u8]) -> Self {
        Self(table.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    /// Returns the mounts at exactly this path, the uppermost last.
    pub(super) fn at(&self, point: &Path) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |mount| mount.point == point)
    }

    /// Returns the mount that contains a path.
    pub(super) fn covering(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|above| self.at(above).last())
    }

    /// Returns mounts of this device in another process's table that remain when `mount` is
    /// unmounted: they are in no group to which the kernel propagates it.
    pub(super) fn independent_of(&self, mount: &Mount) -> impl Iterator<Item = &Mount> {
        let mut told: Vec<u32> = mount.shared.into_iter().collect();
        // A slave of a group propagates to its own peers.
        loop {
            let hears = |of: &&Mount| of.master.is_some_and(|master| told.contains(&master));
            let new = self.0.iter().filter(hears).filter_map(|of| of.shared).find(|of| !told.contains(of));
            match new {
                Some(group) => told.push(group),
                None => break,
            }
        }
        let device = mount.device;
        self.0.iter().filter(move |of| {
            let goes = |group: Option<u32>| group.is_some_and(|group| told.contains(&group));
            of.device == device && !goes(of.shared) && !goes(of.master)
        })
    }
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    // mount id, parent id, device, root, mount point, options, optional fields, "-", type, source,
    // options.
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let (root, point) = (unescape(fields.next()?).into(), unescape(fields.next()?).into());
    let text = |field: &[u8]| unescape(field).to_string_lossy().into_owned();
    let of_mount = text(fields.next()?);
    let (mut shared, mut master) = (None, None);
    for field in fields.by_ref().take_while(|field| *field != b"-") {
        let group = |name: &str| std::str::from_utf8(field).ok()?.strip_prefix(name)?.parse().ok();
        shared = shared.or_else(|| group("shared:"));
        master = master.or_else(|| group("master:"));
    }
    let (kind, source) = (text(fields.next()?), PathBuf::from(unescape(fields.next()?)));
    let of_system = fields.next().map(text).unwrap_or_default();
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some(Mount { device, root, point, options: [of_mount, of_system], shared, master, kind, source })
}

/// Returns true if a path is below another one, or equal to it, as text, without accessing the file
/// system.
pub(super) fn is_below(path: &Path, above: &Path) -> bool {
    let (path, above) = (path.as_os_str().as_bytes(), above.as_os_str().as_bytes());
    above == b"/" || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n\
        30 22 8:16 / /srv/d\\040b rw,nosuid,relatime shared:5 - xfs /dev/sdb rw,seclabel,attr2,noquota\n\
        31 22 8:16 /sub /mnt/bind rw shared:5 - xfs /dev/sdb rw\n\
        32 22 0:40 / /home ro,noatime - btrfs /dev/sdc ro,space_cache=v2,subvolid=5,subvol=/\n\
        33 22 0:41 / /auto rw - autofs systemd-1 rw,fd=5\n\
        34 33 8:32 / /auto rw - ext4 /dev/sdd rw,errors=remount-ro\n";

    #[test]
    fn mounts_are_read_from_the_kernel() {
        let mounts = Mounts::parse(SAMPLE);
        let one = |path: &str| mounts.at(Path::new(path)).last().unwrap();
        let db = one("/srv/d b");
        assert_eq!((db.device, db.root.as_path(), db.kind.as_str()), ((8, 16), Path::new("/"), "xfs"));
        assert_eq!((db.shared, db.master, db.source.as_path()), (Some(5), None, Path::new("/dev/sdb")));
        assert_eq!(db.options(), ["nosuid", "attr2", "noquota"]);
        assert_eq!(one("/home").options(), ["ro", "noatime", "space_cache=v2", "subvolid=5", "subvol=/"]);
        assert_eq!(one("/mnt/bind").root, Path::new("/sub"));
        assert_eq!(mounts.at(Path::new("/auto")).map(Mount::is_automount).collect::<Vec<_>>(), [true, false]);
        assert_eq!(mounts.covering(Path::new("/srv/d b/x/y")), Some(db));
        assert_eq!(mounts.covering(Path::new("/srv/db")).unwrap().point, Path::new("/"));
    }

    #[test]
    fn strange_lines_are_passed_over() {
        let lines: [&[u8]; 6] = [
            b"",
            b"\n\n",
            b"1 2 3",
            b"1 2 x:1 / /x rw - a b",
            b"1 2 1:1 / /x rw shared:1",
            b"1 2 1:1 / /x rw -",
        ];
        for line in lines {
            assert_eq!(Mounts::parse(line), Mounts::default());
        }
        let short = Mounts::parse(b"1 2 1:1 / /x rw shared:x - ext4 /dev/\\9");
        assert_eq!((short.0[0].shared, short.0[0].options()), (None, vec![]));
        assert_eq!(short.0[0].source, Path::new("/dev/\\9"));
    }

    #[test]
    fn propagated_mounts_are_not_independent() {
        let mount = Mounts::parse(SAMPLE).0[1].clone();
        let other = |optional: &str| {
            let table = format!(
                "1 0 8:16 / /a rw {optional}- xfs /dev/sdb rw\n2 0 8:17 / /b rw - xfs /dev/sde rw\n\
                 3 0 0:3 / /c rw shared:9 master:5 - tmpfs none rw\n"
            );
            Mounts::parse(table.as_bytes()).independent_of(&mount).count()
        };
        let seen =
            ["shared:5 ", "master:5 ", "shared:300 master:5 ", "master:9 ", "", "shared:6 ", "master:7 "];
        assert_eq!(seen.map(other), [0, 0, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn below_is_by_whole_names() {
        let is = |path: &str, above: &str| is_below(Path::new(path), Path::new(above));
        assert!(is("/srv/db", "/srv/db") && is("/srv/db/x", "/srv/db") && is("/x", "/"));
        assert!(!is("/srv/dbx", "/srv/db") && !is("/srv", "/srv/db"));
    }
}
