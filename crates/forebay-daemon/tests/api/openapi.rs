//! The OpenAPI document is identical to the one in `docs/`, complete, and matches the served
//! routes.

use super::*;
use std::path::Path;

#[test]
fn served_openapi_equals_the_one_in_docs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/openapi.json");
    let document = serde_json::to_string_pretty(&forebay_daemon::api::document()).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == document,
        "docs/operate/openapi.json is not of this code: run this test with UPDATE_GOLDEN=1"
    );

    let answer = Stage::new().call("GET", "/v1/openapi.json", "");
    assert_eq!(answer.json(), forebay_daemon::api::document());
}

#[test]
fn every_openapi_reference_resolves() {
    let document = forebay_daemon::api::document();
    let text = document.to_string();
    let references = text.split("\"$ref\":\"#").skip(1).map(|rest| rest.split('"').next().unwrap());
    let mut count = 0;
    for reference in references {
        assert!(document.pointer(reference).is_some(), "{reference} leads nowhere");
        count += 1;
    }
    assert!(count > 50, "only {count} references: the document was not understood");
}

/// As JSON Schema 2020-12 requires: utoipa writes a list for tuples.
#[test]
fn items_of_arrays_are_schemas() {
    fn check(value: &serde_json::Value, at: &str) {
        let parts: Vec<(String, &serde_json::Value)> = match value {
            serde_json::Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), value)).collect(),
            serde_json::Value::Array(list) => {
                list.iter().enumerate().map(|(n, v)| (n.to_string(), v)).collect()
            }
            _ => return,
        };
        for (key, part) in parts {
            let at = format!("{at}/{key}");
            assert!(key != "items" || !part.is_array(), "{at} is a list");
            check(part, &at);
        }
    }
    check(&forebay_daemon::api::document(), "");
}
