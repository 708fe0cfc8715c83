//! Outputs of smartctl for disks of several kinds, and stand-ins for the program that misbehave.

use super::*;

fn read(text: &str, code: i32) -> Result<WearInfo, String> {
    parse(Path::new("/dev/nvme0n1"), text, Some(code))
}

#[test]
fn nvme_wear_is_read_from_the_log() {
    let wear = read(include_str!("recorded/nvme.json"), 0).unwrap();
    assert_eq!(wear.model, "Samsung SSD 980 PRO 1TB");
    assert_eq!((wear.used_pct, wear.spare_pct, wear.spare_least_pct), (Some(3), Some(100), Some(10)));
    assert_eq!((wear.written_bytes, wear.media_errors), (Some(51_234_567 * 512_000), Some(0)));
    assert!(!wear.failing && wear.warnings.is_empty() && wear.concerns().is_empty(), "{wear:?}");
}

#[test]
fn worn_nvme_disk_raises_a_concern() {
    let wear = read(include_str!("recorded/nvme-worn.json"), 8).unwrap();
    assert_eq!(wear.used_pct, Some(107), "it may be more than 100");
    assert!(wear.failing);
    let concerns = wear.concerns().join("; ");
    for word in [
        "107 %",
        "spare blocks are short",
        "reliability is degraded",
        "4 % of its spare",
        "reports that it is failing",
    ] {
        assert!(concerns.contains(word), "{word}: {concerns}");
    }
}

#[test]
fn sata_wear_is_in_statistics_or_attributes() {
    let wear = read(include_str!("recorded/sata-devstat.json"), 0).unwrap();
    assert_eq!((wear.used_pct, wear.written_bytes), (Some(12), Some(98_765_432_100 * 512)));
    // Old errors in its log do not make it unreadable.
    let wear = read(include_str!("recorded/sata-attributes.json"), 64).unwrap();
    assert_eq!((wear.used_pct, wear.written_bytes), (Some(5), Some(1234 * (32 << 20))));
    assert_eq!(wear.media_errors, Some(2));
}

#[test]
fn sas_wear_is_read_from_the_indicator() {
    let wear = read(include_str!("recorded/sas.json"), 0).unwrap();
    assert_eq!((wear.used_pct, wear.written_bytes), (Some(1), Some(45_678_900_000_000)));
    assert_eq!(wear.model, "HPE EO001600JWTBU");
}

#[test]
fn unreadable_answer_is_reported() {
    let denied = read(include_str!("recorded/denied.json"), 2).unwrap_err();
    assert!(denied.contains("Permission denied") && denied.contains("CAP_SYS_RAWIO"), "{denied}");
    let virtual_disk = read(include_str!("recorded/virtio.json"), 2).unwrap_err();
    assert!(virtual_disk.contains("Unable to detect device type"), "{virtual_disk}");
    let disk = read(include_str!("recorded/rotating.json"), 0).unwrap_err();
    assert!(disk.contains("does not report its wear"), "{disk}");
    for garbage in ["", "smartctl 7.3", "[1,2", "\u{0}"] {
        assert!(read(garbage, 0).unwrap_err().contains("JSON"), "{garbage}");
    }
    for other in ["null", "[]", "3", "{\"nvme_smart_health_information_log\": 7}", "{\"smartctl\": []}"] {
        assert!(read(other, 0).is_err(), "{other}");
    }
    let huge = "{\"nvme_smart_health_information_log\": {\"data_units_written\": 18446744073709551615}}";
    assert_eq!(read(huge, 0).unwrap().written_bytes, Some(u64::MAX));
}

/// Returns a program with this behaviour instead. A separate process writes it: a child forked by
/// another test at that moment would otherwise have it open for writing, and running it would fail
/// with "Text file busy".
fn stand_in(script: &str) -> (tempfile::TempDir, Smartctl) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("smartctl");
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(&program).arg(script).status().unwrap();
    assert!(written.success());
    (folder, Smartctl { program, limit: Duration::from_secs(60) })
}

#[test]
fn misbehaving_smartctl_is_bounded() {
    let disk = Path::new("/dev/nvme0n1");
    let (folder, smartctl) =
        stand_in("echo \"$@\" >\"$(dirname \"$0\")/asked\"; cat \"$(dirname \"$0\")/json\"; exit 64");
    std::fs::write(folder.path().join("json"), include_str!("recorded/nvme.json")).unwrap();
    assert_eq!(smartctl.ask(disk).unwrap().used_pct, Some(3));
    assert_eq!(
        std::fs::read_to_string(folder.path().join("asked")).unwrap(),
        "--json=c --xall /dev/nvme0n1\n"
    );
    let (_folder, garbage) = stand_in("head -c 8388608 /dev/zero");
    assert!(garbage.ask(disk).unwrap_err().contains("JSON"));
    let (_folder, silent) = stand_in("exit 1");
    assert!(silent.ask(disk).is_err());
    let (_folder, hanging) = stand_in("exec sleep 600");
    let hanging = Smartctl { limit: Duration::from_millis(300), ..hanging };
    assert!(hanging.ask(disk).unwrap_err().contains("did not answer within"));
    let absent = Smartctl { program: "/no/such/smartctl".into(), ..hanging };
    assert!(absent.ask(disk).unwrap_err().contains("not installed"));
}
