//! Answers of the daemon about pools and volumes, as JSON or in words.

use comfy_table::Table;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{self, Admin};
use crate::failure::Failure;
use crate::screen;

/// Prints one of them.
pub(super) fn print<T: DeserializeOwned>(
    admin: &Admin,
    answer: &Value,
    words: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    if admin.json { screen::print_json(answer) } else { screen::print(&words(&client::read(answer)?)) }
}

/// Prints all of them, `kind` as the API names it, or what to do if there are `none`.
pub(super) fn list<T: DeserializeOwned>(
    admin: &Admin,
    kind: &str,
    none: &str,
    table: impl Fn(&[T]) -> Table,
) -> Result<(), Failure> {
    let answer = admin.client().get(&format!("/v1/{kind}"))?;
    if admin.json {
        return screen::print_json(&answer);
    }
    let all: Vec<T> = client::list(&answer, kind)?;
    if all.is_empty() {
        return screen::print(&format!("there are no {kind}; {none}\n"));
    }
    screen::print(&format!("{}\n", table(&all)))
}
