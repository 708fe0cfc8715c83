//! The dashboard: the files of `crates/forebay-daemon/ui`, which are part of the program. They get
//! all displayed data from the API.
//!
//! Invariants
//! - Only these files are served: a request is looked up by name, not as a path.
//! - They are the same for all clients and contain no data of the daemon, so requests for them need
//!   no token.
//! - A page sends requests only to the daemon that it came from: the policy of each response tells
//!   the browser so, and that no other page may show it in a frame.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use super::access::Level;
use super::problem::Problem;
use forebay_admin::{AdminError, MessageId};

/// Its path.
const PLACE: &str = "/ui/";
const INDEX: &str = "index.html";
const POLICY: &str =
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file.
struct File {
    name: &'static str,
    kind: &'static str,
    content: &'static [u8],
}

macro_rules! files {
    ($($name:literal = $kind:expr;)*) => {
        /// All of them.
        const FILES: &[File] = &[$(File {
            name: $name,
            kind: $kind,
            content: include_bytes!(concat!("../../ui/", $name)),
        },)*];
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

files! {
    "index.html" = HTML;
    "style.css" = CSS;
    "icon.svg" = "image/svg+xml";
    "icon-alarm.svg" = "image/svg+xml";
    "main.js" = SCRIPT;
    "alarms.js" = SCRIPT;
    "api.js" = SCRIPT;
    "charts.js" = SCRIPT;
    "detail.js" = SCRIPT;
    "dom.js" = SCRIPT;
    "events.js" = SCRIPT;
    "format.js" = SCRIPT;
    "history.js" = SCRIPT;
    "jobs.js" = SCRIPT;
    "pools.js" = SCRIPT;
    "rank.js" = SCRIPT;
    "still.js" = SCRIPT;
    "tiles.js" = SCRIPT;
    "volumes.js" = SCRIPT;
    "uplot.js" = SCRIPT;
    "uplot.css" = CSS;
    "uplot.LICENSE" = TEXT;
}

/// The routes.
pub(super) fn router() -> Router {
    Router::new()
        .route("/", get(async || Redirect::temporary(PLACE)))
        .route("/ui", get(async || Redirect::temporary(PLACE)))
        .route(PLACE, get(async |headers: HeaderMap| answer(INDEX, &headers)))
        .route(
            "/ui/{name}",
            get(async |Path(name): Path<String>, headers: HeaderMap| answer(&name, &headers)),
        )
}

/// Returns true for requests of a part of the dashboard, or of a redirect to it.
pub(super) fn is_asked_for(method: &Method, path: &str) -> bool {
    let name = path.strip_prefix(PLACE);
    let is_part = ["/", "/ui", PLACE].contains(&path) || name.is_some_and(|name| file(name).is_some());
    Level::needed(method) == Level::Read && is_part
}

fn file(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

fn answer(name: &str, headers: &HeaderMap) -> Response {
    let Some(file) = file(name) else {
        return Problem::from(AdminError::not_found(MessageId::ApiPath, "file of the dashboard", name, &[]))
            .into_response();
    };
    let tag = format!("\"{:016x}\"", digest(file.content));
    let common: [(HeaderName, &str); 6] = [
        (header::ETAG, &tag),
        (header::CACHE_CONTROL, "no-cache"), // revalidated each time: another version has other files
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let has = headers.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    if has.is_some_and(|tags| tags.split(',').any(|has| has.trim().trim_start_matches("W/") == tag)) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    (common, [(header::CONTENT_TYPE, file.kind)], file.content).into_response()
}

/// FNV-1a with 64 bits: distinguishes versions of a file, without protection against manipulation.
fn digest(content: &[u8]) -> u64 {
    content
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_served_and_name_no_host() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "README.md")
            .collect();
        there.sort_unstable();
        let mut served: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        served.sort_unstable();
        assert_eq!(served, there);
        for file in FILES.iter().filter(|file| !file.name.starts_with("uplot")) {
            let text = std::str::from_utf8(file.content).unwrap();
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.contains("://"), "{}", file.name);
            assert!(
                !["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
                    .iter()
                    .any(|way| text.contains(way)),
                "{}: foreign text must not become markup",
                file.name
            );
        }
    }

    #[test]
    fn other_files_are_not_served() {
        for path in ["/", "/ui", "/ui/", "/ui/main.js"] {
            assert!(is_asked_for(&Method::GET, path) && is_asked_for(&Method::HEAD, path), "{path}");
            assert!(!is_asked_for(&Method::POST, path), "{path}");
        }
        for path in
            ["//", "/ui/../v1/daemon", "/ui/nothing", "/ui//main.js", "/ui/%2e%2e/v1/daemon", "/v1/daemon"]
        {
            assert!(!is_asked_for(&Method::GET, path), "{path}");
        }
    }
}
