//! Obstacles, and names.

use super::*;

fn table(text: &str) -> Mounts {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mountinfo");
    std::fs::write(&file, text).unwrap();
    Mounts::of(&file).unwrap()
}

const SAMPLE: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
    23 22 8:16 / /srv/db rw,noatime - ext4 /dev/sdb rw\n\
    24 22 8:32 / /srv/mail rw - ext4 /dev/sdc rw\n\
    25 22 8:32 / /mnt rw - ext4 /dev/sdc rw\n\
    26 22 8:48 /folder /srv/part rw - ext4 /dev/sdd rw\n\
    27 22 0:9 / /auto rw - autofs systemd-1 rw\n\
    28 22 8:64 / /var/lib rw - ext4 /dev/sde rw\n\
    29 22 8:80 / /twice rw - ext4 /dev/sdf rw\n\
    30 29 8:81 / /twice rw - ext4 /dev/sdg rw\n";

#[test]
fn partial_mounts_are_refused() {
    let mounts = table(SAMPLE);
    let said = |point: &str| {
        let mount = mount_at(&mounts, Path::new(point));
        let checked = mount.and_then(|mount| check_mount(&mounts, &mount));
        checked.map_or_else(|failure| format!("{failure:?}"), |()| "fine".into())
    };
    assert_eq!(said("/srv/db"), "fine");
    for (point, parts) in [
        ("/srv/db/table", &["not a mount point: it lies on /srv/db"][..]),
        ("/opt", &["not a mount point: it lies on /"]),
        ("/", &["needed before the daemon runs"]),
        ("/var/lib", &["needed before the daemon runs"]),
        ("/srv/mail", &["mounted at /mnt as well"]),
        ("/mnt", &["mounted at /srv/mail as well"]),
        ("/srv/part", &["bind mount or a subvolume (/folder)"]),
        ("/auto", &["automount", "systemctl stop auto.automount"]),
        ("/twice", &["2 file systems are mounted over each other"]),
    ] {
        let said = said(point);
        assert!(parts.iter().all(|part| said.contains(part)), "{point}: {said}");
    }
}

#[test]
fn a_line_of_another_device_is_not_taken() {
    let mounts = table(SAMPLE);
    let mount = mount_at(&mounts, Path::new("/srv/db")).unwrap();
    let said = |text: &str| {
        let entries = fstab::entries(text.as_bytes());
        match line_of(&entries, &mount, Path::new("/dev/no-such-disk")) {
            Ok(entry) => entry.map_or("none".into(), |entry| format!("line {}", entry.number)),
            Err(failure) => failure.to_string(),
        }
    };
    assert_eq!(said("UUID=none-of-these /srv/other ext4\n"), "none");
    assert_eq!(said("# c\nUUID=cannot-be-found /srv/db/ ext4\n"), "line 2");
    assert!(said("tmpfs /srv/db tmpfs\n").contains("line 1 of /etc/fstab mounts tmpfs there"));
    assert!(said("UUID=a /srv/db ext4\nUUID=b /srv/db ext4\n").contains("the second is line 2"));
    assert!(said("UUID=a /srv/db ext4 x-initrd.mount\n").contains("x-initrd.mount"));
}

#[test]
fn a_mount_keeps_its_options() {
    let mounts = table(SAMPLE);
    let mount = mount_at(&mounts, Path::new("/srv/db")).unwrap();
    let with = |text: &str| {
        let entries = fstab::entries(text.as_bytes());
        mounted(&mount, Path::new("/dev/x"), entries.first())
    };
    assert_eq!(with("UUID=a /srv/db ext4 noatime\n").options, Vec::<String>::new());
    let other = with("UUID=a /srv/db ext4 defaults\n");
    assert_eq!((other.kind, other.options), (None, vec!["noatime".to_owned()]));
    // Remounted: its options differ from fstab.
    assert_eq!(with("UUID=a /srv/db ext4 ro,noatime,nosuid\n").options, ["rw", "suid"]);
    let alone = with("");
    assert_eq!((alone.kind.as_deref(), alone.options), (Some("ext4"), vec!["noatime".to_owned()]));
}

fn wanted(devices: &[&str], pool: Option<&str>) -> Wanted {
    let device = |path: &&str| DeviceRequest { path: (*path).to_owned(), size: None };
    Wanted {
        devices: devices.iter().map(device).collect(),
        pool: pool.map(str::to_owned),
        name: None,
        settings: Vec::new(),
        taking: Taking::default(),
        new_cache: false,
    }
}

#[test]
fn a_pool_is_made_or_used() {
    let known = |pools: &[(&str, &str)]| Known {
        pools: pools.iter().map(|(name, device)| ((*name).to_owned(), vec![(*device).to_owned()])).collect(),
        ..Known::default()
    };
    let said = |pools: &[(&str, &str)], wanted: Wanted| match known(pools).pool(&wanted, Texts::new()) {
        Ok((name, create)) => format!("{name} {}", if create.is_some() { "made" } else { "used" }),
        Err(failure) => format!("{failure:?}"),
    };
    assert_eq!(said(&[], wanted(&["/a"], None)), "fast made");
    assert_eq!(said(&[("fast", "/b")], wanted(&["/a"], Some("more"))), "more made");
    assert_eq!(said(&[("slow", "/b")], wanted(&[], None)), "slow used");
    assert_eq!(said(&[("slow", "/b"), ("fast", "/c")], wanted(&[], Some("fast"))), "fast used");
    assert_eq!(said(&[("fast", "/a")], wanted(&["/a"], None)), "fast used", "it was made before");
    for (pools, wanted, part) in [
        (&[][..], wanted(&[], None), "which flash device?"),
        (&[], wanted(&[], Some("x")), "no pool x"),
        (&[("a", "/1"), ("b", "/2")], wanted(&[], None), "which pool? There are: a, b"),
        (&[("fast", "/1")], wanted(&["/2"], None), "a pool fast already, on /1"),
        (&[], wanted(&["/2"], Some("-x")), "a name starts with"),
    ] {
        let said = said(pools, wanted);
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let settings = Texts::from([("segment_size".to_owned(), "1MiB".to_owned())]);
    for wanted in [wanted(&[], None), wanted(&["/b"], Some("slow"))] {
        let refused = known(&[("slow", "/b")]).pool(&wanted, settings.clone()).unwrap_err();
        assert!(refused.to_string().contains("has its settings"));
    }
}

#[test]
fn names_and_settings_go_where_they_belong() {
    let names =
        ["/srv/db", "/srv/My Data (2)", "/srv/.hidden", "/srv/ü"].map(|point| name_for(Path::new(point)));
    assert_eq!(names, ["db", "My-Data--2-", "hidden", ""]);
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let (of_pool, of_volume) =
        settings::split(&[pair("segment_size", "4MiB"), pair("flush_period", "5s")]).unwrap();
    assert_eq!(of_pool.keys().collect::<Vec<_>>(), ["segment_size"]);
    assert_eq!(of_volume.keys().collect::<Vec<_>>(), ["flush_period"]);
    let refused = |key: &str, value: &str| format!("{:?}", settings::split(&[pair(key, value)]).unwrap_err());
    assert!(refused("flush_perod", "5s").contains("flush_period"));
    assert!(refused("mode", "nonsense").contains("nonsense"));
}

#[test]
fn contradicting_settings_are_refused() {
    let texts = |all: &[(&str, &str)]| {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Texts>()
    };
    let check = |pool: &[(&str, &str)], volume: &[(&str, &str)], devices| {
        settings::check(&settings::read(Scope::Pool, &texts(pool)).unwrap(), &texts(volume), devices)
    };
    assert!(check(&[("dirty_limit_pct", "30")], &[("dirty_high_pct", "20")], Some(1)).is_ok());
    for (pool, volume, devices) in [
        (&[][..], &[("dirty_low_pct", "60"), ("dirty_high_pct", "50")][..], None),
        (&[("dirty_limit_pct", "30")], &[("dirty_high_pct", "40")], None),
        (&[("mirror", "on")], &[], Some(1)),
    ] {
        assert!(check(pool, volume, devices).is_err(), "{pool:?} {volume:?}");
    }
}
