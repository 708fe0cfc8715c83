//! The operator's interface: requests to the admin API over its socket, and writes to control
//! files, on a daemon without devices.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_admin::Admin;
use forebay_daemon::api::{ApiOptions, ApiServer, serve};
use forebay_daemon::control_files::write_text;

use crate::Target;

#[path = "../../../crates/forebay-daemon/tests/api/fake.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with tests, which use more of it")]
mod fake;

/// A path, a line feed, and the text to write to that file.
pub const CONTROL_FILES: Target = Target {
    name: "control-files",
    about: "writes to files of the control file system",
    run: control_files,
    seeds: control_file_seeds,
    words: &[
        "volumes/db/",
        "pools/fast/",
        "config/",
        "rules",
        "flush",
        "jobs/",
        "/cancel",
        "add ",
        "insert 0 ",
        "delete ",
        "\n",
    ],
    bytes_max: 1024,
    short_run: 15_000,
};

/// Method, space, path, a line feed, and the body. Every request gets a reply, and none is an
/// internal error.
pub const HTTP: Target = Target {
    name: "api",
    about: "paths, queries and bodies of the admin API, over its socket",
    run: http,
    seeds: http_seeds,
    words: &[
        "/v1/",
        "volumes",
        "pools",
        "jobs",
        "/settings",
        "/rules",
        "?",
        "%00",
        "\"set\":{",
        "null",
        "[[[[",
        "db",
        "fast",
        "GET ",
        "DELETE ",
    ],
    bytes_max: 4096,
    short_run: 1_500,
};

struct Stage {
    fake: Arc<fake::Fake>,
    socket: PathBuf,
    _server: ApiServer,
    _folder: tempfile::TempDir,
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let fake = fake::Fake::new();
        fake.furnish().expect("a pool and a volume");
        let socket = folder.path().join("admin.sock");
        let options = ApiOptions::at(socket.clone());
        let server = serve(&options, fake.services()).expect("the API on a socket");
        Stage { fake, socket, _server: server, _folder: folder }
    })
}

fn control_files(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let Ok(path) = std::str::from_utf8(&input[..end]) else { return };
    let stage = stage();
    let _ = stage.fake.furnish();
    let admin: Arc<dyn Admin> = stage.fake.services().admin;
    let _ = write_text(admin, path, input.get(end + 1..).unwrap_or_default());
}

fn control_file_seeds() -> Vec<Vec<u8>> {
    [
        "volumes/db/config/mode\nwritethrough",
        "volumes/db/flush\nbg",
        "volumes/db/rules\nadd skip comm=\"rsync\"",
        "volumes/db/rules\ninsert 0 never",
        "volumes/db/rules\ndelete 1",
        "pools/fast/config/reclaim_policy\nlru",
        "jobs/1/cancel\n1",
        "stats\n1",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

fn http(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let Ok(line) = std::str::from_utf8(&input[..end]) else { return };
    let (method, path) = line.split_once(' ').unwrap_or(("GET", line));
    // Violations of HTTP itself concern its library; and streams of events do not end.
    let plain = |c: char| c.is_ascii_graphic();
    if method.is_empty()
        || !method.chars().all(|c| c.is_ascii_uppercase())
        || !path.chars().all(plain)
        || path.contains("events")
    {
        return;
    }
    let body = input.get(end + 1..).unwrap_or_default();
    let stage = stage();
    let _ = stage.fake.furnish();
    let Ok(mut stream) = UnixStream::connect(&stage.socket) else {
        panic!("the API does not accept any more")
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}Content-Length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let status = std::str::from_utf8(answer.get(9..12).unwrap_or_default())
        .ok()
        .and_then(|code| code.parse::<u16>().ok());
    let shown = String::from_utf8_lossy(&answer[..answer.len().min(300)]).into_owned();
    assert!(status.is_some_and(|status| status != 500), "{method} {path}: {shown:?}");
}

fn http_seeds() -> Vec<Vec<u8>> {
    [
        "GET /v1/daemon", "GET /v1/volumes/db", "GET /v1/pools/fast", "GET /v1/jobs", "GET /metrics", "GET /v1/openapi.json",
        "GET /v1/volumes/db/settings", "GET /v1/volumes/db/stats?format=json", "GET /v1/volumes/db/losses",
        "PATCH /v1/volumes/db/settings\n{\"set\":{\"mode\":\"writeback\"}}",
        "POST /v1/volumes/db/flush\n{}", "POST /v1/volumes/db/rules\n{\"rule\":\"never comm=x\"}", "DELETE /v1/volumes/db/rules/1",
        "POST /v1/pools\n{\"name\":\"p\",\"devices\":[{\"path\":\"/x\",\"size\":\"1GiB\"}]}",
        "POST /v1/volumes\n{\"name\":\"v\",\"pool\":\"fast\",\"backing\":\"file:/b\",\"exports\":[\"nbd+unix:///v?socket=/s\"]}",
        "POST /v1/volumes/db/resize\n{\"size\":\"2GiB\"}", "POST /v1/jobs/1/cancel",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}
