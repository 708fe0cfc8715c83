//! The OpenAPI document: the routes describe themselves, and this module adds the parts that they
//! share.

use serde_json::{Value, json};

use super::problem::CONTENT_TYPE;
use super::routes;

/// Returns the document.
#[must_use]
pub fn document() -> Value {
    // Structures of strings and numbers: serializing them as JSON cannot fail.
    let mut document = serde_json::to_value(routes::described()).unwrap_or_default();
    join_lines(&mut document);
    document["info"] = json!({
        "title": "Forebay admin API",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "HTTP/JSON over the unix socket of the daemon, and over TCP with a bearer token.",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    document["security"] = json!([{ "token": [] }]);
    document["components"]["securitySchemes"] = json!({ "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "Over TCP only; the unix socket needs no token. There may be a second token, which \
                        permits only reads. /metrics may be open, if so configured.",
    } });
    let paths = document["paths"].as_object_mut();
    for (path, item) in paths.into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            add_problems(path, method, operation);
        }
    }
    document
}

/// Joins lines: texts are comments of the code, whose line breaks have no meaning.
fn join_lines(value: &mut Value) {
    match value {
        Value::String(text) => {
            *text = text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
        }
        Value::Array(parts) => parts.iter_mut().for_each(join_lines),
        Value::Object(parts) => parts.values_mut().for_each(join_lines),
        _ => {}
    }
}

/// Adds the errors that an operation can return.
fn add_problems(path: &str, method: &str, operation: &mut Value) {
    let has_body = operation.get("requestBody").is_some();
    let has_query = operation["parameters"]
        .as_array()
        .is_some_and(|parameters| parameters.iter().any(|parameter| parameter["in"] == "query"));
    let (has_names, changes) = (path.contains('{'), method != "get");
    let problems = [
        (true, "400", "The request cannot be understood"),
        (true, "401", "Over TCP: no token, or a wrong one"),
        (true, "403", "The client lacks the level that this needs: read (to look) or operate (to change)"),
        (has_names || has_body, "404", "No object has that name"),
        (path == "/v1/events/history", "404", "The daemon stores no events: `forebay run`"),
        (has_body, "408", "The body was not received in time"),
        (changes, "409", "Not possible in this state"),
        (true, "413", "The body is too large"),
        (has_body, "415", "The body is not JSON"),
        (has_body || has_query || has_names, "422", "The request is invalid in every state"),
        (true, "500", "A defect of the daemon"),
        (true, "502", "An operation on a device, file or socket failed"),
        (true, "503", "The daemon is stopping, or too busy to answer in time"),
    ];
    for (_, status, description) in problems.into_iter().filter(|(applies, ..)| *applies) {
        operation["responses"][status] = json!({
            "description": description,
            "content": { CONTENT_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } },
        });
    }
}
