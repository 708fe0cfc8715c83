//! The OpenAPI document of the admin API, made from the same list as the answers.

use serde_json::{Value, json};

use crate::meter::format;

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
    let flashcache = answer("counters under FlashCache's names", "text/plain", json!({ "type": "string" }));
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
            "/v1/stats/flashcache": { "get": flashcache },
            "/metrics": { "get": metrics },
            "/v1/openapi.json": { "get": itself },
        },
        "components": { "schemas": { "Stats": { "type": "object", "properties": format::schema() } } },
    })
}
