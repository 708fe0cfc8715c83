//! Violations: their messages and replay commands.

use forebay_core::PlantedBug;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the violation of a run: its error, or the message of a panic.
pub(crate) fn caught(run: impl FnOnce() -> Result<(), String>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Some(format!("panic: {}", text.unwrap_or("without a message")))
        }
    }
}

/// Returns the option of a replay command that plants a bug.
pub(crate) fn planted_option(bug: Option<PlantedBug>) -> String {
    bug.map(|bug| format!(" --break {}", bug.name())).unwrap_or_default()
}
