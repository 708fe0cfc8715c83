//! A daemon with all kinds of objects: two open pools, a closed one, volumes with long names, an
//! absent one with dirty data, jobs, alarms with long messages, lost ranges.

use serde_json::{Value, json};

const GIB: u64 = 1 << 30;
/// The time of this state, in seconds since 1970.
pub(super) const NOW_UNIX_S: u64 = 1_700_000_000;

/// Returns the data that `forebay status` requests.
pub(super) fn rich() -> Value {
    json!({
        "daemon": { "version": "0.1.0", "pid": 4711, "started_unix_s": NOW_UNIX_S - 1_234_567,
            "config": "/etc/forebay/forebay.toml", "resident_bytes": 412 << 20, "pools": [], "volumes": [] },
        "pools": [pool("archive", &["home", "backup"]), fast(), closed()],
        "volumes": volumes(), "jobs": jobs(), "alarms": alarms(),
    })
}

/// As [`rich`], for a daemon without pools and volumes.
pub(super) fn empty() -> Value {
    json!({
        "daemon": { "version": "0.1.0", "pid": 1, "started_unix_s": NOW_UNIX_S, "config": null, "resident_bytes": 0,
            "pools": [], "volumes": [] },
        "pools": [], "volumes": [], "jobs": [], "alarms": [],
    })
}

fn pool(name: &str, volumes: &[&str]) -> Value {
    json!({ "name": name, "devices": [{ "path": "/dev/nvme0n1p4", "size_bytes": 100 * GIB }],
        "capacity_bytes": 99 * GIB, "cached_bytes": 60 * GIB, "dirty_bytes": 12 * GIB,
        "growable_to_bytes": 800 * GIB, "fenced": false, "io_engine": "io_uring", "volumes": volumes, "absent": {},
        "recorded": { "cache": "febf777042d94be4a87dc48ece121186", "generation": 17, "in_use": true,
            "path": "/var/lib/forebay/caches/febf777042d94be4a87dc48ece121186.json", "dirty_bytes": 12 * GIB,
            "recorded_unix_s": NOW_UNIX_S } })
}

/// Returns a mirrored pool with one device, and lost ranges.
pub(super) fn fast() -> Value {
    let mut pool = pool("fast", &["database-primary", "vm-images"]);
    pool["mirror"] = "degraded".into();
    pool["devices"] = json!([
        { "path": "/dev/disk/by-id/nvme-eui.0025385b21404b2f-part4", "size_bytes": 100 * GIB, "state": "ok" },
        { "path": "/dev/disk/by-id/nvme-eui.0025385b21404b30-part4", "size_bytes": 100 * GIB, "state": "out" },
    ]);
    pool["lost_bytes"] = json!(7680 * 4096);
    pool["lost_ranges"] = json!(3);
    pool["absent"] = json!({ "scratch": 3 * GIB });
    pool
}

/// Returns a pool whose device is missing.
pub(super) fn closed() -> Value {
    json!({ "name": "spare", "devices": [{ "path": "/dev/nvme7n1", "size_bytes": 0 }], "capacity_bytes": 0,
        "cached_bytes": 0, "dirty_bytes": 0, "growable_to_bytes": 0, "fenced": false, "io_engine": "",
        "volumes": ["mail"], "absent": {}, "not_open": true,
        "recorded": { "cache": "0123456789abcdef0123456789abcdef", "generation": 4, "in_use": false,
            "path": "/var/lib/forebay/caches/0123456789abcdef0123456789abcdef.json", "dirty_bytes": 5 * GIB,
            "recorded_unix_s": NOW_UNIX_S - 86_400 },
        "why": SPARE_FAILED })
}

const SPARE_FAILED: &str = "spare: /dev/nvme7n1: No such file or directory (os error 2); attach the device, then: \
    forebay pool open spare";

fn volume(name: &str, pool: &str, state: &str, mode: &str, dirty: u64) -> Value {
    json!({ "name": name, "pool": pool, "state": state, "backing": format!("/dev/disk/by-id/wwn-0x5000c500a1b2-{name}"),
        "exports": [format!("nbd+unix:///{name}?socket=/run/forebay/{name}.nbd")], "size_bytes": 4096 * GIB,
        "mode": mode, "cached_bytes": 30 * GIB, "dirty_bytes": dirty, "oldest_dirty_age_ns": 3_723_000_000_000_u64,
        "destage_limited_by": "latency_target", "ordered": false, "connections": 12, "job": null })
}

/// Returns a volume with lost ranges.
pub(in crate::commands) fn database() -> Value {
    let mut volume = volume("database-primary", "fast", "serving", "writeback", 9 * GIB);
    volume["lost_bytes"] = json!(7680 * 4096);
    volume["lost_ranges"] = json!(3);
    volume["job"] = "j17".into();
    volume
}

/// Returns the lost ranges.
pub(super) fn losses() -> Value {
    json!([
        { "offset_bytes": 1 << 30, "bytes": 5120 * 4096, "written_unix_s": NOW_UNIX_S - 7200 },
        { "offset_bytes": 3_u64 << 40, "bytes": 2048 * 4096, "written_unix_s": NOW_UNIX_S - 60 },
        { "offset_bytes": 1_234_567_168, "bytes": 512 * 4096, "written_unix_s": NOW_UNIX_S - 5 },
    ])
}

pub(super) fn volumes() -> Value {
    let mut away = volume("scratch", "fast", "absent", "", 3 * GIB);
    away["why"] =
        "it is not configured: it was detached, and its dirty data was kept; do not use its backing store"
            .into();
    let mut mail = volume("mail", "spare", "absent", "writeback", 0);
    (mail["size_bytes"], mail["cached_bytes"], mail["dirty_bytes"]) = (0.into(), Value::Null, Value::Null);
    mail["why"] = "pool spare is not open".into();
    json!([
        volume("backup", "archive", "serving", "writethrough", 0),
        database(),
        volume("home", "archive", "draining", "writeback", 123 << 20),
        mail,
        away,
        volume("vm-images", "fast", "serving", "writearound", 0),
    ])
}

/// Returns jobs. Another screen shows the first alone.
pub(super) fn jobs() -> Value {
    let job = |id: &str, kind: &str, volume: Value, state: &str| {
        json!({ "id": id, "kind": kind, "pool": "fast", "volume": volume, "state": state, "phase": "draining",
            "percent": 42.0, "bytes_total": 9 * GIB, "bytes_left": 5 * GIB, "rate_bytes_per_s": 12_582_912,
            "eta_s": 412.0, "elapsed_s": 312.0, "limited_by": "latency_target", "errors": 0, "error": null })
    };
    let mut failed = job("j16", "detach", "home".into(), "failed");
    failed["error"] = "the deadline was missed: 5.0 GiB are left; they stay dirty in the cache".into();
    json!([
        job("j17", "flush", "database-primary".into(), "running"),
        failed,
        job("j18", "scrub", Value::Null, "queued")
    ])
}

pub(super) fn alarms() -> Value {
    let alarm = |id: &str, condition: &str, severity: &str, (pool, volume): (Value, Value), message: &str| {
        json!({ "id": id, "condition": condition, "pool": pool, "volume": volume, "severity": severity,
            "message": message, "raised": "2023-11-14T22:13:20.5Z", "seen": "2023-11-14T22:13:20Z", "repeats": 0,
            "acknowledged": (id == "a3").then(|| json!({ "by": "alice", "time": "2023-11-14T22:14:00Z" })) })
    };
    let of_pool = |name: &str| (json!(name), Value::Null);
    let of_volume = |name: &str| (Value::Null, json!(name));
    json!([
        alarm("a1", "pool.failed", "error", of_pool("spare"), SPARE_FAILED),
        alarm(
            "a2",
            "volume.absent",
            "warning",
            of_volume("scratch"),
            "pool fast holds 3GiB of dirty data of scratch, \
            which is not attached: do not use its backing store; to bring it back: forebay volume attach scratch --pool \
            fast --backing URI; to discard its dirty data: forebay volume detach scratch --discard"
        ),
        alarm(
            "a3",
            "cache.degraded",
            "warning",
            of_pool("fast"),
            "the cache device /dev/disk/by-id/nvme-eui.0025385b21404b30-part4 failed: dirty data is now on \
            one device only. Nothing is lost; to replace it: forebay pool replace fast --device PATH[:SIZE]"
        ),
        alarm(
            "a4",
            "block.lost",
            "error",
            of_volume("database-primary"),
            "LOST: 30MiB in 3 ranges of database-primary, from byte 1073741824 on: dirty data that the cache \
            cannot return. Reads return errors until it is rewritten. To list the ranges: forebay volume \
            show database-primary"
        ),
    ])
}

/// Returns the data that `forebay status` requests if 64 volumes are absent, with `number` alarms,
/// a third of them errors.
pub(super) fn many_alarms(number: usize) -> Value {
    let alarm = |at: usize| {
        let severity = if at % 3 == 2 { "error" } else { "warning" };
        let message = if severity == "error" { "it fails" } else { "it warns" };
        json!({ "id": format!("a{at}"), "condition": "destage.failed", "pool": null, "volume": format!("v{}", at % 64),
            "severity": severity, "message": message, "raised": format!("2023-11-14T22:{:02}:{:02}.5Z", at / 60, at % 60),
            "seen": "2023-11-14T23:13:20Z", "repeats": 0, "acknowledged": null })
    };
    let mut all = empty();
    all["alarms"] = (1..=number).map(alarm).collect();
    all["volumes"] =
        (0..64).map(|at| volume(&format!("v{at}"), "fast", "absent", "writeback", GIB)).collect();
    all
}

/// Returns settings of a volume, of all kinds.
pub(super) fn settings() -> Value {
    let setting = |value: &str, default: &str, takes: &str, live: bool| json!({ "value": value, "default": default, "takes": takes, "live": live, "help": "" });
    json!({
        "connections_max": setting("1024", "1024", "1 to 60000 connections", false),
        "destage_gap_kb": setting("512", "512", "0 to 1073741824 KiB (0: off)", true),
        "flush_period": setting("10min", "off", "duration from 1s to 30d, or off", true),
        "mode": setting("writeback", "writeback", "writeback, writethrough, writearound, writeonly, passthrough", true),
    })
}
