//! Access levels: a client with read access changes nothing, by any interface, and the refusal
//! names the level required.

use super::*;
use client::{Answer, exchange, request};
use forebay_config::{AdminUsers, UserList};
use std::net::TcpStream;
use std::time::Duration;

const OPERATE: &str = "operate-0123456789abcdef0123456789";
const READ: &str = "read-0123456789abcdef0123456789abc";

fn stage() -> Stage {
    Stage::with(|options| {
        let folder = options.socket.parent().unwrap();
        let mut tcp = tcp_options(folder, OPERATE, 0o600);
        let read = folder.join("read-token");
        std::fs::write(&read, READ).unwrap();
        set_mode(&read, 0o600);
        tcp.read_token_file = Some(read);
        options.tcp = Some(tcp);
    })
}

fn call(stage: &Stage, token: &str, method: &str, path: &str, body: &str) -> Answer {
    let headers = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n");
    let text = request(method, path, body).replace("Host: localhost\r\n", &headers);
    let mut stream = TcpStream::connect(stage.server.tcp_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    exchange(&mut stream, text.as_bytes())
}

/// Returns every operation of the API that changes something, from the API's own description: none
/// can be forgotten.
fn changes() -> Vec<(String, String)> {
    let document = forebay_daemon::api::document();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|method| *method != "get") {
            found.push((method.to_uppercase(), path.replace(['{', '}'], "")));
        }
    }
    assert!(found.len() > 10, "the document was not understood");
    found
}

#[test]
fn reader_cannot_change_anything() {
    let stage = stage();
    let before = call(&stage, OPERATE, "GET", "/v1/volumes", "").json();
    for (method, path) in changes() {
        let what = call(&stage, READ, &method, &path, "{}").problem(403, "denied");
        assert_eq!(what, "this needs the level \"operate\", and you have \"read\"", "{method} {path}");
    }
    for method in ["PUT", "TRACE", "CONNECT", "FOO", "get"] {
        let status = call(&stage, READ, method, "/v1/volumes/db", "").status;
        assert!([400, 403].contains(&status), "{method}: {status}");
    }
    assert_eq!(call(&stage, READ, "GET", "/v1/overview", "").json()["may_operate"], false);
    for path in ["/v1/daemon", "/v1/volumes/db", "/v1/stats", "/metrics", "/v1/alarms"] {
        assert_eq!(call(&stage, READ, "GET", path, "").status, 200, "{path}");
    }
    assert_eq!(call(&stage, OPERATE, "GET", "/v1/volumes", "").json(), before);
    let flushed = call(&stage, OPERATE, "POST", "/v1/volumes/db/flush", "");
    assert_eq!(flushed.status, 202, "{flushed:?}");
    call(&stage, &READ[1..], "GET", "/v1/daemon", "").problem(401, "denied");
}

#[test]
fn equal_tokens_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder);
    let mut tcp = tcp_options(folder.path(), OPERATE, 0o600);
    tcp.read_token_file = Some(tcp.token_file.clone());
    options.tcp = Some(tcp);
    let error = serve(&options, fake::Fake::new().services()).unwrap_err();
    let text = format!("{error} {error:?} {options:?}");
    assert!(text.contains("the same token"), "{text}");
    assert!(!text.contains(OPERATE), "{text}");
}

/// Calls as another user: these tests may run as root, which has full access.
fn call_as(stage: &Stage, uid: &str, gid: &str, groups: &str, method: &str, path: &str) -> Option<String> {
    let output = std::process::Command::new("setpriv")
        .args(["--reuid", uid, "--regid", gid, "--groups", groups])
        .args(["curl", "-sS", "-i", "-X", method, "--unix-socket"])
        .arg(&stage.socket)
        .arg(format!("http://localhost{path}"))
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).ok()
}

#[test]
fn socket_users_have_their_level() {
    if !rustix_is_root() {
        return eprintln!("not root: other users cannot be tried");
    }
    let stage = Stage::with(|options| {
        options.socket_permissions.mode = 0o666;
        options.users = Some(AdminUsers {
            operate: UserList { uids: vec![4001], gids: vec![5001] },
            read: UserList { uids: vec![4002], gids: vec![5002] },
        });
        set_mode(options.socket.parent().unwrap(), 0o755);
    });
    assert_eq!(stage.call("POST", "/v1/volumes/db/flush", "").status, 202, "the daemon's own user");
    let status = |uid, gid, groups, method| {
        let answer = call_as(&stage, uid, gid, groups, method, "/v1/volumes/db/flush")?;
        answer.split(' ').nth(1).map(str::to_owned)
    };
    let Some(first) = status("4001", "9", "9", "POST") else {
        return eprintln!("no setpriv: other users cannot be tried");
    };
    assert_eq!(first, "202");
    for (uid, gid, groups, expected) in [
        ("4003", "5001", "9", "202"),
        ("4003", "9", "5003,5001", "202"),
        ("4002", "9", "9", "403"),
        ("4003", "5002", "9", "403"),
        ("4003", "9", "5002", "403"),
        ("4003", "9", "9", "403"),
    ] {
        assert_eq!(status(uid, gid, groups, "POST").unwrap(), expected, "{uid} {gid} {groups}");
    }
    let look = |uid| call_as(&stage, uid, "9", "9", "GET", "/v1/daemon").unwrap();
    assert!(look("4002").contains(" 200 "));
    let refused = look("4003");
    assert!(refused.contains(" 403 ") && refused.contains("you have \\\"none\\\""), "{refused}");
}

fn rustix_is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}
