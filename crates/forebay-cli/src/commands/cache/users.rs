//! Users that keep a file system from being unmounted: processes, mounts, loop devices and swap
//! files.
//!
//! The check reads links in `/proc` as text and accesses no files, so it cannot hang on a server. A
//! process that sees the files by another path is found by its mount, or not at all: then `umount`
//! reports it.

use forebay_admin::MessageId;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::mounts::{Mount, Mounts, is_below};
use super::shell;
use crate::failure::Failure;
use crate::screen::harmless;

/// Users listed by name in a message; further ones are only counted.
const NAMED_MAX: usize = 5;

/// Refuses if the mount is in use.
///
/// # Errors
/// The users, and a way to resolve it.
pub(super) fn refuse_if_used(mounts: &Mounts, mount: &Mount) -> Result<(), Failure> {
    let root = Path::new("/");
    let users = users_in(root, mounts, mount);
    if users.is_empty() {
        return Ok(());
    }
    Err(refusal(&mount.point, &users))
}

fn refusal(point: &Path, users: &[String]) -> Failure {
    let look = shell::line(["fuser", "-vm", &point.display().to_string()]);
    let point = harmless(&point.display().to_string());
    let mut named = users.iter().take(NAMED_MAX).map(|user| harmless(user)).collect::<Vec<_>>().join(", ");
    if users.len() > NAMED_MAX {
        named += &format!(" and {} more", users.len() - NAMED_MAX);
    }
    Failure::new(MessageId::VolumeInUse, format!("{point} is in use: {named}")).hint(format!(
        "end these, or stop their services; {look} lists processes; then the same command again"
    ))
}

/// Returns all its users; `root` is the parent of `/proc` and `/sys`.
fn users_in(root: &Path, mounts: &Mounts, mount: &Mount) -> Vec<String> {
    let point = &mount.point;
    let above = mounts.0.iter().filter(|other| other.point != *point && is_below(&other.point, point));
    let mut users: Vec<String> =
        above.map(|other| format!("{} is mounted below it", other.point.display())).collect();
    let twice = |other: &&Mount| other.device == mount.device && !is_below(&other.point, point);
    let again = mounts.0.iter().filter(twice);
    users.extend(again.map(|other| format!("it is mounted at {} as well", other.point.display())));
    users.extend(loops(root, point));
    users.extend(swap_files(root, point));
    users.extend(processes(root, mount));
    users
}

fn loops(root: &Path, point: &Path) -> Vec<String> {
    let devices = std::fs::read_dir(root.join("sys/block")).into_iter().flatten().flatten();
    let lies_there = |device: std::fs::DirEntry| {
        let file = std::fs::read(device.path().join("loop/backing_file")).ok()?;
        let file = PathBuf::from(OsStr::from_bytes(file.trim_ascii_end()));
        is_below(&file, point)
            .then(|| format!("/dev/{} is made of {}", device.file_name().display(), file.display()))
    };
    devices.filter_map(lies_there).collect()
}

fn swap_files(root: &Path, point: &Path) -> Vec<String> {
    let table = std::fs::read(root.join("proc/swaps")).unwrap_or_default();
    let files =
        table.split(|byte| *byte == b'\n').skip(1).filter_map(|line| line.split(|byte| *byte == b' ').next());
    let files = files.map(|file| PathBuf::from(forebay_io::fuse::unescape(file)));
    files
        .filter(|file| is_below(file, point))
        .map(|file| format!("{} is swap space", file.display()))
        .collect()
}

/// Returns processes that have a file of it open or their working directory in it, and those that
/// have it mounted in a private namespace.
fn processes(root: &Path, mount: &Mount) -> Vec<String> {
    let own = std::process::id();
    let mut spaces = vec![std::fs::read_link(root.join("proc/self/ns/mnt")).unwrap_or_default()];
    let mut users = Vec::new();
    for process in std::fs::read_dir(root.join("proc")).into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == own {
            continue;
        }
        let folder = process.path();
        let name = || std::fs::read_to_string(folder.join("comm")).unwrap_or_default().trim_end().to_owned();
        if uses(&folder, &mount.point) {
            users.push(format!("process {pid} ({})", name()));
        }
        let space = std::fs::read_link(folder.join("ns/mnt")).unwrap_or_default();
        if space.as_os_str().is_empty() || spaces.contains(&space) {
            continue;
        }
        spaces.push(space);
        let table = Mounts::of(&folder.join("mountinfo")).unwrap_or_default();
        if let Some(copy) = table.independent_of(mount).next() {
            let place = copy.point.display();
            users.push(format!(
                "process {pid} ({}) has it mounted at {place}, in a container or a name space of its own",
                name()
            ));
        }
    }
    users
}

fn uses(process: &Path, point: &Path) -> bool {
    let leads_there = |link: &Path| std::fs::read_link(link).is_ok_and(|target| is_below(&target, point));
    if ["cwd", "root", "exe"].iter().any(|name| leads_there(&process.join(name))) {
        return true;
    }
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    files.map(|file| file.path()).any(|file| leads_there(&file)) || maps(process, point)
}

/// Returns true if a process has a file of the mount mapped: the path is the sixth field of a line.
fn maps(process: &Path, point: &Path) -> bool {
    let table = std::fs::read(process.join("maps")).unwrap_or_default();
    table.split(|byte| *byte == b'\n').any(|line| {
        let path = line.iter().position(|byte| *byte == b'/').map(|at| line[at..].to_owned());
        path.is_some_and(|path| is_below(&PathBuf::from(std::ffi::OsString::from_vec(path)), point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    /// Creates a root with processes: 7 is in the directory, 8 has a deleted file open, 9 has one
    /// mapped, 10 uses nothing of it, 11 is in a container.
    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for pid in ["7", "8", "9", "10", "11", "self"] {
            create_dir_all(at(&format!("proc/{pid}/fd"))).unwrap();
            create_dir_all(at(&format!("proc/{pid}/ns"))).unwrap();
            write(at(&format!("proc/{pid}/comm")), format!("name-{pid}\n")).unwrap();
            let space = if pid == "11" { "mnt:[2]" } else { "mnt:[1]" };
            symlink(space, at(&format!("proc/{pid}/ns/mnt"))).unwrap();
        }
        symlink("/srv/db", at("proc/7/cwd")).unwrap();
        symlink("/srv/db/x (deleted)", at("proc/8/fd/3")).unwrap();
        write(at("proc/9/maps"), "7f00-7f01 r--p 00000000 08:10 12   /srv/db/lib a.so\n").unwrap();
        symlink("/srv/dbx", at("proc/10/cwd")).unwrap();
        write(at("proc/10/maps"), "7f00-7f01 r--p 00000000 00:00 0   [heap]\n").unwrap();
        write(at("proc/11/mountinfo"), "9 0 8:16 / /data rw - ext4 /dev/sdb rw\n").unwrap();
        write(at("proc/swaps"), "Filename Type\n/srv/db/swap\\040file file 1 0 -2\n/dev/sda2 partition 1\n")
            .unwrap();
        create_dir_all(at("sys/block/loop0/loop")).unwrap();
        create_dir_all(at("sys/block/sdb")).unwrap();
        write(at("sys/block/loop0/loop/backing_file"), "/srv/db/disk.img\n").unwrap();
        write(
            at("proc/self/mountinfo"),
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:16 / /srv/db rw shared:3 - ext4 /dev/sdb rw\n\
             3 2 8:32 / /srv/db/below rw - ext4 /dev/sdc rw\n4 1 8:16 /x /mnt/x rw - ext4 /dev/sdb rw\n",
        )
        .unwrap();
        root
    }

    #[test]
    fn every_kind_of_user_is_named() {
        let root = root();
        let mounts = Mounts::of(&root.path().join("proc/self/mountinfo")).unwrap();
        let mut users = users_in(root.path(), &mounts, &mounts.0[1]);
        users.sort();
        assert_eq!(
            users,
            [
                "/dev/loop0 is made of /srv/db/disk.img",
                "/srv/db/below is mounted below it",
                "/srv/db/swap file is swap space",
                "it is mounted at /mnt/x as well",
                "process 11 (name-11) has it mounted at /data, in a container or a name space of its own",
                "process 7 (name-7)",
                "process 8 (name-8)",
                "process 9 (name-9)",
            ]
        );
        let said = format!("{:?}", refusal(Path::new("/srv/db"), &users));
        assert!(said.contains("process 7 (name-7) and 3 more") || said.contains(" and 3 more"), "{said}");
        assert!(said.contains("fuser -vm /srv/db"), "{said}");
    }

    #[test]
    fn an_idle_mount_has_no_users() {
        let root = root();
        let mounts = Mounts::of(&root.path().join("proc/self/mountinfo")).unwrap();
        assert_eq!(users_in(root.path(), &mounts, &mounts.0[2]), Vec::<String>::new());
    }
}
