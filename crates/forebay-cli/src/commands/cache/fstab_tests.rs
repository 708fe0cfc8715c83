//! Hostile files: a change is made and undone byte for byte.

use super::super::shell;
use super::*;

const DEVICE: &str = "/dev/forebay/db";
const ADDED: &str = "_netdev,nofail,x-systemd.after=forebay.service,x-systemd.device-timeout=60s,\
    x-systemd.wanted-by=remote-fs.target,x-systemd.wanted-by=dev-forebay-db.device";

fn at<'a>(table: &'a [u8], point: &str) -> Entry<'a> {
    entries(table).into_iter().find(|entry| entry.point() == Path::new(point)).unwrap()
}

fn changed(table: &[u8], point: &str) -> (Change, Vec<u8>) {
    let change = Change::to_volume(table, &at(table, point), Path::new(DEVICE));
    let new = change.applied(table).unwrap();
    (change, new)
}

#[test]
fn entries_are_those_that_mount_reads() {
    let table = b"# a comment\n\n   \t\n  # another one\nUUID=\"1-2\"\t/srv/a\\040b/ ext4\n/dev/sdb /x auto ro,noatime 0 2 rest\n\
        one-field\n/dev/sdc /\\134y xfs defaults 0\r\n/dev/sdd\t\t/last  ext4 rw";
    let all = entries(table);
    let seen: Vec<_> =
        all.iter().map(|entry| (entry.number, entry.source(), entry.point(), entry.options())).collect();
    let row = |number, source: &str, point: &str, options: &[&str]| {
        let options = options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
        (number, OsString::from(source), PathBuf::from(point), options)
    };
    assert_eq!(
        seen,
        [
            row(5, "UUID=1-2", "/srv/a b", &[]),
            row(6, "/dev/sdb", "/x", &["ro", "noatime"]),
            row(8, "/dev/sdc", "/\\y", &["defaults"]),
            row(9, "/dev/sdd", "/last", &["rw"]),
        ]
    );
    assert!(entries(b"").is_empty() && entries(b"\n\n#/dev/sdb / ext4\n\0\xff").is_empty());
}

#[test]
fn the_volume_line_keeps_mount_options() {
    let line = |table: &str| {
        let (_, new) = changed(table.as_bytes(), "/srv/db");
        String::from_utf8(new).unwrap()
    };
    assert_eq!(
        line("UUID=1  /srv/db\text4  defaults 0 2\n"),
        format!(
            "# before forebay: UUID=1  /srv/db\text4  defaults 0 2\n/dev/forebay/db  /srv/db\text4  {ADDED} 0 2\n"
        )
    );
    assert!(line("/dev/sdb /srv/db ext4").ends_with(&format!("\n/dev/forebay/db /srv/db ext4 {ADDED}")));
    assert!(line("/dev/sdb /srv/db").ends_with(&format!("\n/dev/forebay/db /srv/db auto {ADDED}")));
    let own =
        line("/dev/sdb /srv/db xfs noatime,nofail,x-systemd.device-timeout=5s,x-systemd.before=a.service");
    assert!(own.contains(
        "xfs noatime,nofail,x-systemd.device-timeout=5s,x-systemd.before=a.service,_netdev,x-systemd.after="
    ));
    assert_eq!(own.matches("nofail").count(), 2, "{own}");
    assert!(!line("/dev/sdb /srv/db ext4 noauto").contains("wanted-by"));
}

#[test]
fn names_of_units_are_those_of_systemd() {
    for path in ["/dev/forebay/db", "/dev/forebay/a-b.c_1", "/srv/ü b", "/.hidden", "/"] {
        let Ok(printed) = shell::output(&["systemd-escape", "--path", path]) else { return };
        assert_eq!(escaped_path(Path::new(path)), printed.trim_end(), "{path}");
    }
    assert_eq!(unit_name(Path::new("/dev/forebay/a-b")), "dev-forebay-a\\x2db.device");
}

/// Returns files of all kinds: text before and after the line, and line endings.
fn hostile() -> Vec<Vec<u8>> {
    let around: [&[u8]; 5] =
        [b"", b"# c\n\n", b"\xff\xfe nothing\n/dev/sda1 / ext4\n", b"UUID=9 /srv/dbx ext4\r\n", b"\n\n\t \n"];
    let lines: [&[u8]; 4] = [
        b"UUID=\"1\"\t/srv/db ext4 defaults 0 2",
        b"  LABEL=a\\040b   /srv/db/\txfs\trw,context=\"a:b\"  ",
        b"/dev/disk/by-id/x\\134y /srv/db auto",
        b"/dev/sdb /srv/db btrfs subvol=/,\xc3\xbc=\xff 0 0 trailing words",
    ];
    let ends: [&[u8]; 4] = [b"", b"\n", b"\r\n", b"\n/dev/sdc /srv/db2 ext4 x 0 0\n# end"];
    let mut files = Vec::new();
    for before in around {
        for line in lines {
            files.extend(ends.map(|end| [before, line, end].concat()));
        }
    }
    files
}

#[test]
fn a_changed_line_is_restored_exactly() {
    for table in hostile() {
        let shown = String::from_utf8_lossy(&table).into_owned();
        let (change, new) = changed(&table, "/srv/db");
        assert!(change.is_made(&new) && !change.is_made(&table), "{shown}");
        let entry = at(&table, "/srv/db");
        let (before, behind) = (&table[..entry.start], &table[entry.start + entry.text.len()..]);
        assert!(new.starts_with(before) && new.ends_with(behind), "{shown}");
        let volume = at(&new, "/srv/db");
        assert_eq!(volume.source(), DEVICE, "{shown}");
        assert_eq!(entries(&new).len(), entries(&table).len(), "{shown}");
        // The inverse, from memory and from the file alone.
        assert_eq!(change.reversed().applied(&new).unwrap(), table, "{shown}");
        assert!(change.reversed().is_made(&table) && !change.reversed().is_made(&new), "{shown}");
        let back = Change::to_disk(&new, &volume, Path::new("/dev/other"));
        assert_eq!(back.applied(&new).unwrap(), table, "{shown}");
        assert!(back.is_made(&table) && !back.is_made(&new), "{shown}");
        // Another line was edited meanwhile.
        let edited = [b"# new\n", &new[..]].concat();
        let back = Change::to_disk(&edited, &at(&edited, "/srv/db"), Path::new("/dev/other"));
        assert_eq!(back.applied(&edited).unwrap(), [b"# new\n", &table[..]].concat(), "{shown}");
    }
}

#[test]
fn a_manual_line_becomes_a_disk_line() {
    let by_hand = format!("/dev/forebay/db /srv/db ext4 {ADDED} 0 2\n");
    let back = |table: &str| {
        let change =
            Change::to_disk(table.as_bytes(), &at(table.as_bytes(), "/srv/db"), Path::new("/dev/a b"));
        String::from_utf8(change.applied(table.as_bytes()).unwrap()).unwrap()
    };
    assert_eq!(back(&by_hand), "/dev/a\\040b /srv/db ext4 nofail 0 2\n");
    let other = format!("# before forebay: UUID=1 /srv/other ext4\n{by_hand}");
    assert_eq!(
        back(&other),
        "# before forebay: UUID=1 /srv/other ext4\n/dev/a\\040b /srv/db ext4 nofail 0 2\n",
        "the comment of another mount stays"
    );
    let plain = "/dev/forebay/db /srv/db ext4 _netdev";
    assert_eq!(back(plain), "/dev/a\\040b /srv/db ext4 defaults");
}

#[test]
fn a_line_edited_in_between_is_kept() {
    let table = b"UUID=1 /srv/db ext4 defaults 0 2\n";
    let (change, _) = changed(table, "/srv/db");
    assert_eq!(change.applied(b"UUID=1 /srv/db ext4 noatime 0 2\n"), None);
    assert_eq!(change.applied(b"xUUID=1 /srv/db ext4 defaults 0 2\n"), None, "no whole line");
    assert_eq!(change.applied(b"UUID=1 /srv/db ext4 defaults 0 25\n"), None, "no whole line");
}

#[test]
fn an_unmade_change_is_not_undone() {
    let table = b"UUID=1 /srv/db ext4 defaults 0 2\n";
    let (change, made) = changed(table, "/srv/db");
    let back = change.reversed();
    assert!(!back.has_nothing_to_change(&made) && back.has_nothing_to_change(table));
    let edited = b"UUID=1 /srv/db ext4 noatime 0 2\n";
    assert!(back.has_nothing_to_change(edited), "somebody was faster");
    let made =
        [b"# mine\n", &String::from_utf8(made).unwrap().replace("nofail", "nofail,ro").into_bytes()[..]]
            .concat();
    assert!(!back.has_nothing_to_change(&made), "of the volume's line somebody has made another");
    // The operator has since edited the disk's line, after the volume was gone.
    assert!(back.is_made(edited) && !back.is_made(&made) && !change.is_made(edited));
    assert!(back.line().starts_with("/dev/forebay/db /srv/db ext4"), "{}", back.line());
}

#[test]
fn a_line_for_a_link_to_the_mount_matches() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    std::fs::create_dir(folder.join("real")).unwrap();
    std::os::unix::fs::symlink("real", folder.join("link")).unwrap();
    let line = |name: &str| format!("/dev/sdb {} ext4", folder.join(name).display()).into_bytes();
    let leads = |name: &str| entries(&line(name))[0].leads_to(&folder.join("real"));
    assert_eq!(["real", "link", "none"].map(leads), [true, true, false]);
}

#[test]
fn the_command_that_is_shown_does_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fstab");
    let sed = |change: &Change, table: &[u8]| {
        std::fs::write(&file, table).unwrap();
        let command = change.command().replace(FSTAB, file.to_str().unwrap());
        shell::run(&["env", "LC_ALL=C", "sh", "-c", &command]).unwrap();
        std::fs::read(&file).unwrap()
    };
    for table in hostile() {
        // Text of other encodings is shown as well as possible. sed uses its own line endings.
        if std::str::from_utf8(&table).is_err() || table.windows(2).any(|pair| pair == b"\r\n") {
            continue;
        }
        let table = if table.ends_with(b"\n") { table } else { [&table[..], b"\n"].concat() };
        let (change, new) = changed(&table, "/srv/db");
        assert_eq!(String::from_utf8(sed(&change, &table)).unwrap(), String::from_utf8(new.clone()).unwrap());
        assert_eq!(sed(&change.reversed(), &new), table);
    }
}

#[test]
fn the_file_is_replaced_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("real"), folder.path().join("fstab"));
    std::fs::write(&file, "old").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("real", &link).unwrap();
    replace(&link, b"old", b"new").unwrap();
    assert_eq!(read(&link).unwrap(), b"new");
    assert!(link.is_symlink() && file.metadata().unwrap().mode() & 0o777 == 0o640);
    let why = replace(&link, b"old", b"newer").unwrap_err().to_string();
    assert!(why.contains("another program"), "{why}");
    assert_eq!(read(&link).unwrap(), b"new");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
    check_replaceable(&Mounts::default(), &link).unwrap();
    let table = folder.path().join("mountinfo");
    std::fs::write(
        &table,
        format!("1 0 8:1 /f {} rw - ext4 /dev/x rw\n", file.canonicalize().unwrap().display()),
    )
    .unwrap();
    let why = check_replaceable(&Mounts::of(&table).unwrap(), &link).unwrap_err().to_string();
    assert!(why.contains("mount of its own"), "{why}");
    assert_eq!(read(&folder.path().join("none")).unwrap(), b"");
    // If run as root, and the file system supports such attributes.
    let word = file.canonicalize().unwrap().display().to_string();
    if shell::succeeds(&["chattr", "+i", &word]) {
        let why = check_replaceable(&Mounts::default(), &link);
        shell::run(&["chattr", "-i", &word]).unwrap();
        let why = format!("{:?}", why.unwrap_err());
        assert!(why.contains("protected") && why.contains(&format!("chattr -ia {word}")), "{why}");
    }
}
