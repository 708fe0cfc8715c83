//! Every command that calls the daemon, as a process, against a fake daemon: its requests, its
//! output (golden files; `UPDATE_GOLDEN=1` rewrites them), exit codes, Ctrl-C.

use crate::fake::Fake;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn forebay(fake: &Fake, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).env("FOREBAY_ADMIN", fake.socket()).env("USER", "alice").env_remove("SUDO_USER");
    command.stdin(Stdio::null());
    command
}

/// Returns standard output, standard error and exit code.
fn run(fake: &Fake, arguments: &[&str]) -> (String, String, i32) {
    taken(&forebay(fake, arguments).output().unwrap())
}

fn taken(output: &Output) -> (String, String, i32) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!err.contains("panicked"), "{err}");
    (out, err, output.status.code().expect("ended by a signal"))
}

fn done(fake: &Fake, arguments: &[&str]) -> String {
    let (out, err, code) = run(fake, arguments);
    assert_eq!(code, 0, "{arguments:?}: {err}");
    out
}

fn asked(method: &str, path: &str, body: Value) -> (String, String, Value) {
    (method.into(), path.into(), body)
}

#[test]
fn printed_output_matches_the_record() {
    let fake = Fake::start();
    let mut all = String::new();
    for line in [
        "pool list",
        "pool show fast",
        "volume list",
        "volume show db",
        "get db",
        "get db dirty_high_pct",
        "get --pool fast",
        "jobs",
        "jobs j1",
        "alarms",
        "rules list db",
        "reload",
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        all += &format!("$ forebay {line}\n{}\n", done(&fake, &arguments));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/daemon-commands.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &all).unwrap();
    }
    assert_eq!(
        all,
        std::fs::read_to_string(path).unwrap_or_default(),
        "UPDATE_GOLDEN=1 writes the file anew"
    );
    let status = done(&fake, &["status"]);
    for part in ["forebay 0.1.0, process 4711", "1 alarm", "fast", "60.0 %", "flush of volume db"] {
        assert!(status.contains(part), "{part} is not in\n{status}");
    }
}

#[test]
fn requests_match_the_record() {
    let fake = Fake::start();
    let ask = |line: &str| {
        done(&fake, &line.split(' ').collect::<Vec<_>>());
        fake.last()
    };
    assert_eq!(
        ask("pool create fast --device /dev/x --device /f.img:10GiB --set k=v"),
        asked(
            "POST",
            "/v1/pools",
            json!({ "name": "fast", "settings": { "k": "v" },
            "devices": [{ "path": "/dev/x", "size": null }, { "path": "/f.img", "size": "10GiB" }] })
        )
    );
    assert_eq!(
        ask("pool grow fast --size max"),
        asked("POST", "/v1/pools/fast/grow", json!({ "device": null, "size": "max" }))
    );
    assert_eq!(
        ask("pool shrink fast --device /dev/x --background"),
        asked("POST", "/v1/pools/fast/shrink", json!({ "device": "/dev/x", "size": null }))
    );
    assert_eq!(
        ask("pool remove fast --erase --background"),
        asked("DELETE", "/v1/pools/fast?erase=true", Value::Null)
    );
    assert_eq!(
        ask("pool export fast --drain --background"),
        asked("POST", "/v1/pools/fast/export", json!({ "drain": true, "force": false }))
    );
    assert_eq!(
        ask("pool import --device /dev/y --device /dev/x --pool quick --backing db=/dev/sdb --dry-run"),
        asked(
            "POST",
            "/v1/import",
            json!({ "devices": ["/dev/y", "/dev/x"], "pool": "quick", "backing": { "db": "/dev/sdb" }, "dry_run": true })
        )
    );
    assert_eq!(
        ask("volume attach db --backing /dev/sdb --export nbd://h/db --set mode=writeback"),
        asked(
            "POST",
            "/v1/volumes",
            json!({ "name": "db", "pool": null, "backing": "/dev/sdb",
            "exports": ["nbd://h/db"], "settings": { "mode": "writeback" } })
        )
    );
    for (option, how) in [("", "drain"), (" --keep", "keep"), (" --discard", "discard")] {
        let expected = asked("DELETE", &format!("/v1/volumes/db?how={how}"), Value::Null);
        assert_eq!(ask(&format!("volume detach db --background{option}")), expected);
    }
    assert_eq!(ask("volume resize db max"), asked("POST", "/v1/volumes/db/resize", json!({ "size": "max" })));
    assert_eq!(
        ask("set db mode=writethrough dirty_high_pct= --temporary --drain"),
        asked(
            "PATCH",
            "/v1/volumes/db/settings",
            json!({ "set": { "mode": "writethrough", "dirty_high_pct": null },
            "temporary": true, "leaving": "drain" })
        )
    );
    assert_eq!(ask("set --pool fast k=v").1, "/v1/pools/fast/settings");
    assert_eq!(
        ask("flush db --deadline 10min --background"),
        asked("POST", "/v1/volumes/db/flush?deadline=600000ms", Value::Null)
    );
    assert_eq!(ask("jobs j1 --cancel"), asked("DELETE", "/v1/jobs/j1", Value::Null));
    assert_eq!(ask("alarms --acknowledge a1").1, "/v1/alarms/a1/acknowledge?by=alice");
    assert_eq!(
        ask("rule add db bypass exe=rsync --position 0"),
        asked("POST", "/v1/volumes/db/rules", json!({ "rule": "bypass exe=rsync", "position": 0 }))
    );
    assert_eq!(ask("rules delete db 3"), asked("DELETE", "/v1/volumes/db/rules/3", Value::Null));
    assert_eq!(ask("reload").1, "/v1/reload");
}

#[test]
fn json_output_is_the_api_response() {
    let fake = Fake::start();
    for (line, place, expected) in [
        ("pool list", "/0/name", "fast"),
        ("volume show db", "/name", "db"),
        ("get db dirty_high_pct", "/value", "30"),
        ("jobs", "/0/id", "j1"),
        ("alarms", "/0/id", "a1"),
        ("status", "/daemon/version", "0.1.0"),
        ("flush db", "/state", "completed"),
        ("flush db --background", "/id", "j1"),
    ] {
        let arguments: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let value: Value = serde_json::from_str(&done(&fake, &arguments)).unwrap();
        assert_eq!(value.pointer(place), Some(&json!(expected)), "{line}: {value:#}");
    }
}

#[test]
fn a_flush_waits_and_exits_with_its_result() {
    let fake = Fake::start();
    let (out, err, code) = run(&fake, &["flush", "db"]);
    assert_eq!((out.as_str(), code), ("flush of volume db: completed after 5s, 3.0 GiB written back\n", 0));
    assert!(
        err.contains("flush of volume db: 50.0 %, 1.5 GiB of 3.0 GiB left, 12.0 MiB/s, ETA 1m 01s"),
        "{err}"
    );
    assert_eq!(done(&fake, &["flush", "db", "--background"]), "j1\n");
    for ending in ["failed", "cancelled"] {
        fake.memory.lock().unwrap().ending = ending;
        let (out, err, code) = run(&fake, &["flush", "db"]);
        assert_eq!((out.as_str(), code), ("", 1));
        assert!(err.contains(ending), "{err}");
        assert_eq!(err.contains("the deadline was missed"), ending == "failed", "{err}");
    }
}

fn interrupt(child: Child) -> (String, String, i32) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let begin = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60), "it took {:?}", begin.elapsed());
    taken(&output)
}

#[test]
fn ctrl_c_ends_the_waiting_and_not_the_job() {
    let fake = Fake::start();
    fake.memory.lock().unwrap().step = 0.0;
    let mut child = forebay(&fake, &["volume", "detach", "db"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("0.0 %"));
    let (out, _, code) = interrupt(child);
    let said: String = lines.map(|line| line.unwrap() + "\n").collect();
    assert_eq!((out.as_str(), code), ("", 1));
    assert!(
        said.contains("job j1 continues") && said.contains("jobs j1 --follow") && said.contains("--cancel"),
        "{said}"
    );
    assert_eq!(fake.last().0, "DELETE", "nothing was asked after the detach itself");
    assert!(fake.last().1.contains("volumes/db"));
}

#[test]
fn events_resume_and_report_losses() {
    let fake = Fake::start();
    let mut child = forebay(&fake, &["events", "--follow", "--kind", "job,alarm"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let kinds: Vec<String> =
        lines.by_ref().take(3).map(|line| line.unwrap().split_whitespace().nth(2).unwrap().into()).collect();
    assert_eq!(kinds, ["volume.attached", "alarm.raised", "job.completed"]);
    let (_, err, code) = interrupt(child);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("up to 3 events were lost here: the daemon was started again since"), "{err}");
    assert!(err.contains("connected again, after a-2"), "{err}");
    let resumed = fake.memory.lock().unwrap().resumed.clone();
    assert_eq!(resumed[..2], [None, Some("a-2".into())]);
}

#[test]
fn errors_have_cause_place_and_hint() {
    let fake = Fake::start();
    let (_, err, code) = run(&fake, &["volume", "show", "x y"]);
    assert_eq!(
        (code, err.contains("nothing at /v1/volumes/x%20y"), err.contains("hint: there are: db")),
        (1, true, true),
        "{err}"
    );
    let (_, err, code) = run(&fake, &["status", "--admin", "/nowhere/s"]);
    assert!(
        code == 1 && err.contains("/nowhere/s: no daemon answers") && err.contains("forebay serve"),
        "{err}"
    );
    for wrong in [
        &["pool", "grow", "fast"][..],
        &["pool", "grow", "fast", "--size", "1G", "--device", "/d"],
        &["set", "db"],
        &["set", "db", "x"],
        &["set", "db", "x=1", "x=2"],
        &["get", "db", "nonsense"],
        &["volume", "detach", "db", "--keep", "--discard"],
        &["jobs", "--follow"],
        &["flush", "db", "--deadline", "soon"],
        &["top"],
    ] {
        let (_, err, code) = run(&fake, wrong);
        assert!(code == 2 && !err.is_empty(), "{wrong:?}: {code} {err}");
    }
    assert!(fake.memory.lock().unwrap().asked.is_empty(), "nothing was asked for");
}

#[test]
fn config_check_needs_no_daemon() {
    let fake = Fake::start();
    let file = fake.folder.path().join("forebay.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, done(&fake, &["config", "example"])).unwrap();
    assert!(
        run(&fake, &["config", "check", path]).2 == 0
            && run(&fake, &["serve", "--check", "--config", path]).2 == 0
    );
    std::fs::write(&file, "[volume.db]\nbakcing = \"/dev/sdb\"\n").unwrap();
    let (_, err, code) = run(&fake, &["config", "check", path]);
    assert!(code == 1 && err.contains("bakcing") && !err.contains('\u{1b}'), "{err}");
    let (out, _, code) = run(&fake, &["config", "check", path, "--json"]);
    assert!(code == 1 && serde_json::from_str::<Value>(&out).unwrap()["errors"].as_u64() > Some(0), "{out}");
    let (_, err, code) = run(&fake, &["config", "socket", path]);
    assert!(code == 1 && err.contains("cannot be used") && err.contains("config check"), "{err}");
    std::fs::write(&file, "[daemon]\nadmin_socket = \"/run/other.sock\"\n").unwrap();
    assert_eq!(done(&fake, &["config", "socket", path]), "/run/other.sock\n");
    serde_json::from_str::<Value>(&done(&fake, &["config", "schema"])).unwrap();
    assert_eq!(run(&fake, &["config", "check", "/nowhere"]).2, 1);
}

#[test]
fn every_command_has_a_manual_page() {
    let fake = Fake::start();
    let folder = fake.folder.path().join("man");
    done(&fake, &["man", "--dir", folder.to_str().unwrap()]);
    let commands = ["forebay", "forebay-volume-attach", "forebay-flush", "forebay-rules-add", "forebay-top"];
    let commands = commands.map(|command| format!("man1/{command}.1"));
    for page in commands.iter().map(String::as_str).chain(["man5/forebay.toml.5"]) {
        let text = std::fs::read_to_string(folder.join(page)).unwrap();
        assert!(
            text.contains(".TH") && text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"),
            "{page}: {text}"
        );
    }
    let attach = std::fs::read_to_string(folder.join("man1/forebay-volume-attach.1")).unwrap();
    assert!(attach.contains("backing") && attach.contains("Example"), "{attach}");
}

#[test]
fn the_shell_is_offered_names_of_tunables() {
    let fake = Fake::start();
    let output = forebay(&fake, &["--", "forebay", "set", "db", "dirty_h"])
        .env("COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "3")
        .env("_CLAP_COMPLETE_COMP_TYPE", "9")
        .env("_CLAP_COMPLETE_SPACE", "false")
        .env("_CLAP_IFS", "\n")
        .output()
        .unwrap();
    assert!(taken(&output).0.contains("dirty_high_pct="), "{output:?}");
}
