//! The disks below a cache device: partitions, device-mapper, md, loop devices and files, as listed
//! in sysfs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Maximum depth of stacked devices.
const DEPTH_MAX: usize = 16;

/// Returns the disks below a file or block device, as paths below `/dev`. `sys` is the mount point
/// of sysfs.
///
/// # Errors
/// No disk is known: the reason as text.
pub(super) fn below(path: &Path, sys: &Path) -> Result<Vec<PathBuf>, String> {
    let meta = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let mut disks = BTreeSet::new();
    collect(&sys.join("dev/block").join(&number), sys, DEPTH_MAX, &mut disks)?;
    if disks.is_empty() {
        return Err(format!("{} is not on any disk that the kernel lists", path.display()));
    }
    Ok(disks.into_iter().collect())
}

fn collect(node: &Path, sys: &Path, depth: usize, disks: &mut BTreeSet<PathBuf>) -> Result<(), String> {
    let Ok(node) = fs::canonicalize(node) else {
        return Err("its file system is not on a block device".into());
    };
    if depth == 0 {
        return Err(format!("{} is stacked on too many other devices", node.display()));
    }
    if node.join("partition").exists() {
        return collect(node.parent().unwrap_or(&node), sys, depth - 1, disks);
    }
    let slaves: Vec<PathBuf> =
        fs::read_dir(node.join("slaves")).into_iter().flatten().flatten().map(|slave| slave.path()).collect();
    if !slaves.is_empty() {
        return slaves.iter().try_for_each(|slave| collect(slave, sys, depth - 1, disks));
    }
    if let Ok(file) = fs::read_to_string(node.join("loop/backing_file")) {
        disks.extend(below(Path::new(file.trim_end()), sys)?);
        return Ok(());
    }
    disks.extend(node.file_name().map(|name| Path::new("/dev").join(name)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Creates a sysfs with `vda` and its partition, `dm-0` on it and on `sdb`, and the device
    /// below `path`.
    fn sysfs(of: &Path, lies_on: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for folder in ["vda/vda1", "sdb/slaves", "dm-0/slaves", "dev/block"] {
            fs::create_dir_all(sys.path().join(folder)).unwrap();
        }
        fs::write(sys.path().join("vda/vda1/partition"), "1\n").unwrap();
        symlink("../../vda/vda1", sys.path().join("dm-0/slaves/vda1")).unwrap();
        symlink("../../sdb", sys.path().join("dm-0/slaves/sdb")).unwrap();
        let device = fs::metadata(of).unwrap().dev();
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        symlink(sys.path().join(lies_on), sys.path().join("dev/block").join(number)).unwrap();
        sys
    }

    #[test]
    fn partitions_and_stacks_lead_to_disks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (lies_on, disks) in
            [("vda", &["/dev/vda"][..]), ("vda/vda1", &["/dev/vda"]), ("dm-0", &["/dev/sdb", "/dev/vda"])]
        {
            let sys = sysfs(file.path(), lies_on);
            let found = below(file.path(), sys.path()).unwrap();
            assert_eq!(found, disks.iter().map(PathBuf::from).collect::<Vec<_>>(), "{lies_on}");
        }
    }

    #[test]
    fn missing_disk_is_reported() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let sys = tempfile::tempdir().unwrap();
        assert!(below(file.path(), sys.path()).unwrap_err().contains("not on a block device"));
        assert!(below(Path::new("/no/such/file"), sys.path()).unwrap_err().contains("/no/such/file"));
        let circle = sysfs(file.path(), "dm-0");
        fs::remove_file(circle.path().join("dm-0/slaves/vda1")).unwrap();
        symlink("../../dm-0", circle.path().join("dm-0/slaves/dm-0")).unwrap();
        assert!(below(file.path(), circle.path()).unwrap_err().contains("too many"));
    }
}
