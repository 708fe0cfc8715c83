//! Failure of a command: its cause and place, a hint at the next step, and the exit code.

use std::fmt;
use std::process::ExitCode;

use crate::log;
use crate::paint::Paint;
use forebay_admin::events::Severity;
use forebay_offline::Refusal;
use forebay_pool::RunError;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    hint: Option<String>,
    code: u8,
    of: Of,
}

/// What callers tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    NotFound,
    Unavailable,
    Other,
}

impl Failure {
    /// It did not work: exit code 1.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, code: 1, of: Of::Other }
    }

    /// The answer is no, and there is nothing to say about it: exit code 1.
    pub(crate) fn silent() -> Self {
        Self::new("")
    }

    /// It was asked for in a wrong way: exit code 2.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self { code: 2, ..Self::new(what) }
    }

    /// The daemon knows no such thing: exit code 1.
    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self { of: Of::NotFound, ..Self::new(what) }
    }

    /// Whether it failed because there is no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        self.of == Of::NotFound
    }

    /// The daemon cannot answer just now: exit code 1.
    pub(crate) fn unavailable(what: impl Into<String>) -> Self {
        Self { of: Of::Unavailable, ..Self::new(what) }
    }

    /// Whether it may answer a little later.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.of == Of::Unavailable
    }

    /// Says what to do next.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Says how things are now, behind what went wrong.
    pub(crate) fn but(self, how: &str) -> Self {
        Self { what: format!("{}; {how}", self.what), ..self }
    }

    /// The exit code.
    #[cfg(test)]
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Prints it and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if self.what.is_empty() {
            return ExitCode::from(self.code);
        }
        if log::is_journal() {
            let hint = self.hint.as_ref().map_or(String::new(), |hint| format!("\nhint: {hint}"));
            log::write(Severity::Error, &format!("{}{hint}", self.what));
            return ExitCode::from(self.code);
        }
        let paint = Paint::for_stderr();
        eprintln!("{} {}", paint.red("forebay:"), self.what);
        if let Some(hint) = &self.hint {
            eprintln!("  {} {hint}", paint.bold("hint:"));
        }
        ExitCode::from(self.code)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let failure = if refusal.is_usage { Self::usage(refusal.what) } else { Self::new(refusal.what) };
        if refusal.hint.is_empty() { failure } else { failure.hint(refusal.hint) }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Refusal::from(error).into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Prints what the parser has to say: help and version as they are, errors in our form.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let text = error.render().to_string();
    let Some(text) = text.strip_prefix("error: ") else {
        eprint!("{text}");
        return ExitCode::from(2);
    };
    let text = text.trim_end().trim_end_matches("For more information, try '--help'.").trim_end();
    Failure::usage(text).hint("`--help` behind a command shows its options and examples").report()
}

/// Everything that goes wrong with a file, a socket or a child, in one sentence.
pub(crate) fn system(what: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| Failure::new(format!("{what}: {error}"))
}
