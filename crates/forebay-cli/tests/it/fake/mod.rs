//! A fake daemon: the routes of the admin API over a Unix socket, with one pool, two volumes, and
//! jobs that advance with every query until they are done or cancelled. It records every request
//! that changes something.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The recorded state.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Method, path with query, and body of requests other than GET.
    pub(crate) asked: Vec<(String, String, Value)>,
    /// Operation of job j1: the last one requested; `None`: a flush.
    pub(crate) kind: Option<&'static str>,
    /// Progress of job j1 in percent; advances by `step` with every query.
    pub(crate) percent: f64,
    pub(crate) step: f64,
    /// Final state of job j1.
    pub(crate) ending: &'static str,
    /// `Last-Event-ID` of every connection for events.
    pub(crate) resumed: Vec<Option<String>>,
}

/// A running fake daemon. It ends with the test.
pub(crate) struct Fake {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) memory: Arc<Mutex<Memory>>,
}

impl Fake {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory { step: 50.0, ending: "completed", ..Memory::default() };
        let memory = Arc::new(Mutex::new(memory));
        serve(&folder.path().join("admin.sock"), memory.clone());
        Self { folder, memory }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    /// Returns the last request that changed something.
    pub(crate) fn last(&self) -> (String, String, Value) {
        self.memory.lock().unwrap().asked.last().cloned().expect("nothing was asked")
    }
}

/// Serves on its own thread.
pub(crate) fn serve(socket: &Path, memory: Arc<Mutex<Memory>>) {
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            axum::serve(listener, Router::new().fallback(answer).with_state(memory)).await.unwrap();
        });
    });
}

async fn answer(State(memory): State<Arc<Mutex<Memory>>>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
    let last_id = parts.headers.get("last-event-id").map(|id| id.to_str().unwrap().to_owned());
    if method != "GET" {
        memory.lock().unwrap().asked.push((method.clone(), parts.uri.to_string(), body));
    }
    match (method.as_str(), path.as_str()) {
        ("GET", "/v1/events") => events(&memory, last_id),
        ("GET" | "DELETE", "/v1/jobs/j1") => {
            if parts.uri.query().is_some() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Json(look_at_job(&memory, method == "DELETE")).into_response()
        }
        (method, path) => match begun(method, path) {
            Some(kind) => {
                memory.lock().unwrap().kind = Some(kind);
                (StatusCode::ACCEPTED, Json(job(kind, 0.0, "running"))).into_response()
            }
            None => rest(method, path),
        },
    }
}

/// Returns the job that a request starts.
fn begun(method: &str, path: &str) -> Option<&'static str> {
    Some(match (method, path) {
        ("POST", "/v1/pools/fast/shrink") => "shrink",
        ("POST", "/v1/pools/fast/export") => "export",
        ("DELETE", "/v1/pools/fast") => "remove",
        ("DELETE", "/v1/volumes/db") => "detach",
        ("POST", "/v1/volumes/db/resize") => "resize",
        ("POST", "/v1/volumes/db/flush") => "flush",
        _ => return None,
    })
}

fn rest(method: &str, path: &str) -> Response {
    let setting = json!({ "value": "30", "default": "60", "takes": "1 to 100", "live": true, "help": "x" });
    let rule = json!({ "id": 3, "rule": { "action": "bypass", "exe": "rsync" }, "requests": 1234, "bytes": 1 << 20,
        "last_match_ago_ms": 1500, "expires_in_ms": null });
    let (status, value) = match (method, path) {
        ("GET", "/v1/daemon") => (200, daemon()),
        ("GET", "/v1/pools") => (200, json!([pool()])),
        ("POST", "/v1/pools") => (201, pool()),
        ("GET", "/v1/pools/fast") | ("POST", "/v1/pools/fast/grow") => (200, pool()),
        ("POST", "/v1/import") => (
            200,
            json!({ "pool": "quick", "cache": "febf777042d94be4a87dc48ece121186", "exported_by": "old",
                "exported_unix_s": 1_700_000_000, "devices": ["/dev/x", "/dev/y"], "dry_run": true,
                "volumes": [{ "name": "db", "backing": "/dev/sdb", "was": "/dev/sdc", "attached": true, "why": null }] }),
        ),
        ("GET", "/v1/volumes") => (200, json!([volume("db", 1 << 30), volume("vm", 0)])),
        ("POST", "/v1/volumes") => (201, volume("db", 0)),
        ("GET", "/v1/volumes/db") => (200, volume("db", 1 << 30)),
        ("GET", "/v1/volumes/db/settings" | "/v1/pools/fast/settings") => {
            (200, json!({ "dirty_high_pct": setting }))
        }
        ("PATCH", "/v1/volumes/db/settings") => {
            (200, json!({ "changed": [["mode", "writeback", "writethrough"]], "written": [], "job": "j1" }))
        }
        ("PATCH", "/v1/pools/fast/settings") => (200, json!({ "changed": [], "written": [], "job": null })),
        ("GET", "/v1/volumes/db/rules") => (200, json!([rule])),
        ("POST", "/v1/volumes/db/rules") => (201, json!({ "id": 4, "warnings": [] })),
        ("DELETE", "/v1/volumes/db/rules/3") => return StatusCode::NO_CONTENT.into_response(),
        ("GET", "/v1/volumes/db/stats" | "/v1/volumes/vm/stats") => (200, stats()),
        ("GET", "/v1/jobs") => (200, json!([job("flush", 42.0, "running")])),
        ("GET", "/v1/alarms") => (200, json!([alarm(Value::Null)])),
        ("POST", "/v1/alarms/a1/acknowledge") => {
            (200, alarm(json!({ "by": "alice", "time": "2023-11-14T22:20:00Z" })))
        }
        ("POST", "/v1/reload") => {
            (200, json!({ "changed": ["volume db: dirty_high_pct 60 -> 30"], "refused": [] }))
        }
        _ => (
            404,
            json!({ "title": "Not Found", "status": 404, "kind": "not-found",
            "what": format!("there is nothing at {path}"), "hint": "there are: db, vm" }),
        ),
    };
    let kind = if status < 400 { "application/json" } else { "application/problem+json" };
    (StatusCode::from_u16(status).unwrap(), [(header::CONTENT_TYPE, kind)], value.to_string()).into_response()
}

/// Sends two events; then the stream ends, as if the daemon had been restarted. The next stream
/// continues with a gap.
fn events(memory: &Mutex<Memory>, last_id: Option<String>) -> Response {
    let mut memory = memory.lock().unwrap();
    memory.resumed.push(last_id);
    let event = |id: u64, kind: &str, severity: &str, message: &str| {
        let data = json!({ "id": format!("a-{id}"), "time": "2023-11-14T22:13:20.000000001Z", "kind": kind,
            "severity": severity, "pool": "fast", "volume": "db", "job": null, "message": message });
        format!("id: a-{id}\nevent: {kind}\ndata: {data}\n\n")
    };
    let gap =
        json!({ "reason": "other-run", "lost_max": 3, "message": "the daemon was started again since" });
    let text = match memory.resumed.len() {
        1 => {
            "id: a-0\n\n".to_owned()
                + &event(1, "volume.attached", "info", "db")
                + &event(2, "alarm.raised", "warning", "uh")
        }
        2 => format!("event: gap\ndata: {gap}\nid: b-0\n\n") + &event(9, "job.completed", "info", "done"),
        _ => return (StatusCode::SERVICE_UNAVAILABLE, "{}").into_response(),
    };
    ([(header::CONTENT_TYPE, "text/event-stream")], text).into_response()
}

fn look_at_job(memory: &Mutex<Memory>, cancel: bool) -> Value {
    let mut memory = memory.lock().unwrap();
    if cancel {
        memory.ending = "cancelled";
        memory.percent = 100.0;
    }
    memory.percent = (memory.percent + memory.step).min(100.0);
    let state = if memory.percent < 100.0 { "running" } else { memory.ending };
    job(memory.kind.unwrap_or("flush"), memory.percent, state)
}

fn job(kind: &str, percent: f64, state: &str) -> Value {
    let total = 3_u64 << 30;
    json!({ "id": "j1", "kind": kind, "parameters": null, "pool": "fast", "volume": "db", "state": state,
        "error": (state == "failed").then_some("the deadline was missed"), "phase": "draining", "follows": null,
        "bytes_total": total, "bytes_left": total - (total as f64 * percent / 100.0) as u64, "percent": percent,
        "rate_bytes_per_s": 12_582_912, "eta_s": 61.0, "deadline_s": null, "deadline_at_risk": false,
        "elapsed_s": 5.0, "limited_by": "foreground reads", "errors": 0, "stopping": false,
        "requested": "2023-11-14T22:13:20Z", "finished": null })
}

fn daemon() -> Value {
    json!({ "version": "0.1.0", "pid": 4711, "started_unix_s": 0, "config": "/etc/forebay/forebay.toml",
        "resident_bytes": 200 << 20, "pools": ["fast"], "volumes": ["db", "vm"] })
}

fn pool() -> Value {
    json!({ "name": "fast", "devices": [{ "path": "/dev/nvme0n1p4", "size_bytes": 10_u64 << 30 }],
        "capacity_bytes": 10_u64 << 30, "cached_bytes": 6_u64 << 30, "dirty_bytes": 1 << 30,
        "growable_to_bytes": 64_u64 << 30, "fenced": false, "io_engine": "io_uring", "volumes": ["db", "vm"],
        "absent": { "old": 4096 } })
}

fn volume(name: &str, dirty: u64) -> Value {
    json!({ "name": name, "pool": "fast", "state": "serving", "backing": "/dev/sdb",
        "exports": [format!("nbd+unix:///{name}?socket=/run/forebay/{name}.nbd")], "size_bytes": 1_u64 << 40,
        "mode": "writeback", "cached_bytes": 3_u64 << 30, "dirty_bytes": dirty,
        "oldest_dirty_age_ns": 62_000_000_000_u64, "destage_limited_by": "foreground reads", "ordered": false,
        "connections": 1, "job": null })
}

fn alarm(acknowledged: Value) -> Value {
    json!({ "id": "a1", "condition": "destage.failed", "pool": null, "volume": "db", "severity": "warning",
        "message": "destage of db failed: no space", "raised": "2023-11-14T22:13:20.5Z",
        "seen": "2023-11-14T22:13:20Z", "repeats": 0, "acknowledged": acknowledged })
}

/// Returns numbers that vary a little, for `forebay top`.
fn stats() -> Value {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let wave = 5000 + (now / 100 % 40) * 250;
    let window = json!({ "reads_per_s": wave, "writes_per_s": wave / 3, "read_hit_ratio": 0.982, "destaged_bytes_per_s": 12_582_912 });
    let latency =
        |p50: u64| json!({ "10s": { "count": 9, "per_s": wave, "p50_us": p50, "p99_us": p50 * 9 } });
    json!({ "volume": "db", "windows": { "1s": window }, "dirty_ratio": 0.113, "dirty_age": { "oldest_s": 62.0 },
        "latency": { "read_hit": latency(80), "read_miss": latency(5100), "write": latency(120), "flush": latency(900) } })
}
