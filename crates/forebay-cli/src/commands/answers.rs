//! Responses of the daemon, as JSON or text.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{self, Admin};
use crate::failure::Failure;
use crate::screen::{self, Table, harmless};

/// Prints one item.
pub(super) fn print<T: DeserializeOwned>(
    admin: &Admin,
    answer: &Value,
    words: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    if admin.json { screen::print_json(answer) } else { screen::print(&words(&client::read(answer)?)) }
}

/// Returns a line for each device that is recorded under another name than the given one.
pub(super) fn kept_as<'a>(
    asked: impl Iterator<Item = &'a Path>,
    kept: impl Iterator<Item = &'a Path>,
) -> String {
    let (asked, kept): (Vec<_>, Vec<_>) = (asked.collect(), kept.collect());
    let renamed = asked.iter().filter(|path| path.starts_with("/dev") && !kept.contains(path));
    let names = kept.iter().filter(|path| path.starts_with("/dev/disk/by-id") && !asked.contains(path));
    let line = |(asked, kept): (&&Path, &&Path)| {
        format!(
            "{} is kept as {}\n",
            harmless(&asked.display().to_string()),
            harmless(&kept.display().to_string())
        )
    };
    renamed.zip(names).map(line).collect()
}

/// Prints a response whose text depends on all of it.
pub(super) fn print_with(
    admin: &Admin,
    answer: &Value,
    words: impl FnOnce(&Value) -> Result<String, Failure>,
) -> Result<(), Failure> {
    if admin.json { screen::print_json(answer) } else { screen::print(&words(answer)?) }
}

/// Prints all items, `kind` as the API names it, or advice if there are `none`.
pub(super) fn list<T: DeserializeOwned>(
    admin: &Admin,
    kind: &str,
    none: &str,
    table: impl Fn(&[T]) -> Table,
) -> Result<(), Failure> {
    list_at(admin, (&format!("/v1/{kind}"), kind), &format!("; {none}"), table)
}

/// Prints all items at a path of the API.
pub(super) fn list_at<T: DeserializeOwned>(
    admin: &Admin,
    (path, kind): (&str, &str),
    none: &str,
    table: impl Fn(&[T]) -> Table,
) -> Result<(), Failure> {
    print_with(admin, &admin.client().get(path)?, |answer| {
        Ok(match client::list::<T>(answer, kind)?.as_slice() {
            [] => format!("there are no {kind}{none}\n"),
            all => format!("{}\n", table(all)),
        })
    })
}
