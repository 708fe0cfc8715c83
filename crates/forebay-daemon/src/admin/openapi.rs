//! The OpenAPI document of the admin API, made from the same list as the answers.

use serde_json::{Map, Value, json};

use super::Snapshot;
use super::fields::{DERIVED, FIELDS, Kind, surroundings};

/// The document.
pub(super) fn document() -> Value {
    let answer = |what: &str, kind: &str, schema: Value| {
        let content = json!({ kind: { "schema": schema } });
        json!({ "responses": {
            "200": { "description": what, "content": content },
            "503": { "description": "the volume is being stopped, or the engine does not answer" },
        } })
    };
    let stats = answer(
        "statistics of the volume",
        "application/json",
        json!({ "$ref": "#/components/schemas/Stats" }),
    );
    let metrics =
        answer("the same for Prometheus", "application/openmetrics-text", json!({ "type": "string" }));
    let itself = answer("this document", "application/json", json!({ "type": "object" }));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Forebay admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP/JSON over the unix socket given by `forebay run --admin SOCKET`.",
        },
        "paths": {
            "/v1/stats": { "get": stats },
            "/metrics": { "get": metrics },
            "/v1/openapi.json": { "get": itself },
        },
        "components": { "schemas": { "Stats": { "type": "object", "properties": properties() } } },
    })
}

fn properties() -> Map<String, Value> {
    let empty = Snapshot {
        volume: String::new(),
        mode: "",
        size_bytes: 0,
        uptime_ns: 0,
        stats: forebay_core::Stats::default(),
        connections: 0,
        io_engine: "",
        rss_bytes: 0,
    };
    let mut properties = Map::new();
    let mut put = |name: &str, kind: Value, help: String| {
        properties.insert(name.into(), json!({ "type": kind, "description": help }));
    };
    for (name, help, value) in surroundings(&empty) {
        put(name, if value.is_string() { "string" } else { "integer" }.into(), help.into());
    }
    for field in FIELDS {
        let since = if field.kind == Kind::Counter { ", since the start" } else { ", now" };
        put(field.name, "integer".into(), format!("{}{since}", field.help));
    }
    for derived in DERIVED {
        put(derived.name, json!(["number", "null"]), derived.help.into());
    }
    properties
}
