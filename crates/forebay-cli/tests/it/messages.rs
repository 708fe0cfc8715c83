//! The messages of the real program on stderr for scripts: `FOREBAY_MESSAGES=json`.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn command(form: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command
        .args(arguments)
        .env("FOREBAY_MESSAGES", form)
        .env_remove("FOREBAY_ADMIN")
        .env_remove("JOURNAL_STREAM");
    command
}

fn run(form: &str, arguments: &[&str]) -> Output {
    command(form, arguments).output().unwrap()
}

/// Parses the messages; each line must be one.
fn messages(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}"))).collect()
}

#[test]
fn failures_have_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (none, file, wrong) = (at("none"), at("file"), at("wrong.toml"));
    std::fs::write(&file, [7_u8; 65536]).unwrap();
    let cases: [(&[&str], &str, i32); 9] = [
        (&[], "cli.usage", 2),
        (&["no-such-command"], "cli.usage", 2),
        (
            &["run", "--mode", "fast", "--backing", &file, "--cache", &file, "--export", "ublk:a"],
            "cli.argument",
            2,
        ),
        (&["status", "--admin", &none], "daemon.not-running", 1),
        (&["check", &none], "device.missing", 1),
        (&["check", &file], "cache.truncated", 1),
        (&["config", "check", &wrong], "cli.system", 1),
        (&["set", "db", "--admin", &none], "setting.missing", 2),
        (
            &["run", "--backing", &file, "--cache", &file, "--export", "ublk:a", "--set", "x=1"],
            "setting.unknown",
            2,
        ),
    ];
    for (arguments, id, code) in cases {
        let output = run("json", arguments);
        let said = messages(&output);
        assert_eq!(said.len(), 1, "{arguments:?}: {said:?}");
        assert_eq!((said[0]["id"].as_str(), output.status.code()), (Some(id), Some(code)), "{said:?}");
        assert_eq!(said[0]["severity"], "error");
        assert!(said[0]["what"].is_string() && said[0]["hint"].is_string(), "{said:?}");
    }
}

#[test]
fn each_configuration_error_is_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forebay.toml");
    std::fs::write(&file, "[daemon]\nno_such = 1\n[pool.a]\ndevices = []\n").unwrap();
    let output = run("json", &["config", "check", &file.display().to_string()]);
    let said = messages(&output);
    let ids: Vec<&str> = said.iter().map(|message| message["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["config.unknown-key", "config.missing", "config.wrong"]);
    assert!(said[0]["what"].as_str().unwrap().contains(":2:1: "), "{said:?}");
}

#[test]
fn unknown_message_forms_are_refused() {
    let output = run("xml", &["--version"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("forebay: FOREBAY_MESSAGES=xml: "));
    for form in ["", "text"] {
        let output = run(form, &["check", "/no/such/cache"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            text.starts_with("forebay: cannot open /no/such/cache: ") && text.contains("\n  hint: "),
            "{text}"
        );
    }
}

#[test]
fn help_reports_a_full_stdout() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    for words in [["--help"], ["--version"], ["help"]] {
        let mut command = command("text", &words);
        let output = command.stdout(Stdio::from(full.try_clone().unwrap())).stderr(Stdio::piped());
        let output = output.spawn().unwrap().wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(text.starts_with("forebay: cannot write to stdout: "), "{words:?}: {text}");
    }
}

#[test]
fn a_full_stderr_is_no_failure() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    for form in ["json", "text"] {
        let mut command = command(form, &["check", "/no/such/cache"]);
        let status = command.stderr(Stdio::from(full.try_clone().unwrap())).status().unwrap();
        assert_eq!(status.code(), Some(1), "101 would be a panic");
    }
}
