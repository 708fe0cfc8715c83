//! Requests that a browser sends for pages of other origins. The Unix socket requires no token, and
//! `ssh -L` forwards it to a port of the operator's own machine, where every open page could reach
//! it.
//!
//! Invariants
//! - All requests by a page of another origin are refused (`Origin`, `Sec-Fetch-Site`), except for
//!   the dashboard itself, to which a link may lead.
//! - Where no token is required, over the Unix socket and on the port of the metrics, every host
//!   name except those of loopback is refused (`Host`). An attacker may have assigned the name to
//!   this machine, also one without a dot (a search domain, mDNS), and a page of that name would
//!   not look like another origin. Browsers do not send the tokens for TCP by themselves, so names
//!   are not restricted there.

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;

use super::problem::Problem;
use super::ui;
use forebay_admin::{AdminError, MessageId};

/// Refuses requests by pages of other origins.
pub(super) async fn refuse_other_pages(request: Request, next: Next) -> Response {
    let is_page = ui::is_asked_for(request.method(), request.uri().path());
    if !is_page && is_of_another_page(request.headers()) {
        let hint = "open the dashboard of the daemon itself, or use a client that is not a browser";
        return refusal("the request comes from a page of another site", hint);
    }
    next.run(request).await
}

/// Refuses host names that are not of loopback.
pub(super) async fn refuse_other_names(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or("."));
    let all = host.into_iter().chain(request.uri().authority().map(|authority| authority.as_str()));
    for name in all {
        if !is_local(name) {
            let hint = "use localhost, or a loopback address (`curl --unix-socket PATH \
                        http://localhost/v1/...`)";
            return refusal("the header Host is not a local name", hint);
        }
    }
    next.run(request).await
}

fn refusal(what: &str, hint: &str) -> Response {
    Problem::new(StatusCode::FORBIDDEN, AdminError::new(MessageId::ApiOrigin, what, hint)).into_response()
}

fn is_of_another_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_from_elsewhere = |site: &str| site != "same-origin" && site != "none";
    let is_other = |origin: &str| {
        let host = origin.split_once("://").map(|(_, host)| host);
        host.is_none_or(|host| !text("host").is_some_and(|own| own.eq_ignore_ascii_case(host)))
    };
    text("sec-fetch-site").is_some_and(is_from_elsewhere) || text("origin").is_some_and(is_other)
}

/// Returns true for loopback addresses and `localhost`, which no resolver looks up (RFC 6761), and
/// without a host name.
fn is_local(authority: &str) -> bool {
    let name = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.rsplit_once(':').map_or(authority, |(name, _)| name),
    };
    match name.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => {
            let name = name.to_ascii_lowercase();
            name.is_empty() || name == "localhost" || name.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn foreign_pages_are_found_by_headers() {
        let host = ("host", "localhost:8660");
        for ours in [
            headers(&[host]),
            headers(&[host, ("sec-fetch-site", "same-origin"), ("origin", "http://localhost:8660")]),
            headers(&[host, ("sec-fetch-site", "none")]),
        ] {
            assert!(!is_of_another_page(&ours), "{ours:?}");
        }
        for other in [
            headers(&[host, ("sec-fetch-site", "cross-site")]),
            headers(&[host, ("sec-fetch-site", "same-site")]),
            headers(&[host, ("origin", "http://localhost:1")]),
            headers(&[host, ("origin", "null")]),
            headers(&[("origin", "http://localhost:8660")]),
        ] {
            assert!(is_of_another_page(&other), "{other:?}");
        }
    }

    #[test]
    fn only_local_host_names_are_accepted() {
        for local in ["localhost", "Localhost:8660", "127.0.0.1:80", "[::1]:8660", "a.localhost", ""] {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "evil.example",
            "evil.example:8660",
            "10.0.0.1",
            "[2001:db8::1]:80",
            ".",
            "x",
            "forebay:80",
            "localhost.evil.example",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }
}
