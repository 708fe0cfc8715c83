//! Failure of a command: its cause and place, advice, and the exit code.

use std::borrow::Cow;
use std::fmt;
use std::process::ExitCode;

use crate::log;
use crate::message::Message;
use crate::paint::Paint;
use crate::screen;
use clap::error::ErrorKind;
use forebay_admin::MessageId;
use forebay_admin::events::Severity;
use forebay_offline::Refusal;
use forebay_pool::RunError;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Name of the ID: that of the daemon if the daemon has refused.
    id: Cow<'static, str>,
    what: String,
    hint: Option<String>,
    code: u8,
    of: Of,
}

/// Kinds of failures that callers distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    NotFound,
    Unavailable,
    Other,
}

impl Failure {
    /// Returns a failure of an operation: exit code 1.
    pub(crate) fn new(id: MessageId, what: impl Into<String>) -> Self {
        Self { id: id.name().into(), what: what.into(), hint: None, code: 1, of: Of::Other }
    }

    /// Returns a negative result without a message: exit code 1.
    pub(crate) fn silent() -> Self {
        Self::new(MessageId::CliNote, "")
    }

    /// Returns a usage error: exit code 2.
    pub(crate) fn usage(id: MessageId, what: impl Into<String>) -> Self {
        Self { code: 2, ..Self::new(id, what) }
    }

    /// Returns the failure for an object that the daemon does not have: exit code 1.
    pub(crate) fn not_found(id: MessageId, what: impl Into<String>) -> Self {
        Self { of: Of::NotFound, ..Self::new(id, what) }
    }

    /// Returns true if the object does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        self.of == Of::NotFound
    }

    /// Returns the failure for a daemon that cannot answer now: exit code 1.
    pub(crate) fn unavailable(id: MessageId, what: impl Into<String>) -> Self {
        Self { of: Of::Unavailable, ..Self::new(id, what) }
    }

    /// Returns true if a retry may succeed.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.of == Of::Unavailable
    }

    /// Sets the ID returned by a daemon.
    pub(crate) fn with_id(self, id: impl Into<String>) -> Self {
        Self { id: Cow::Owned(id.into()), ..self }
    }

    /// Replaces the text with a more detailed one about the same failure.
    pub(crate) fn reworded(self, what: String) -> Self {
        Self { what, hint: None, code: 1, of: Of::Other, ..self }
    }

    /// Returns the name of the ID.
    #[cfg(test)]
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Sets the advice.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Appends the present state to the text.
    pub(crate) fn but(self, how: &str) -> Self {
        Self { what: format!("{}; {how}", self.what), ..self }
    }

    /// Returns the exit code.
    #[cfg(test)]
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Prints the failure and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if self.what.is_empty() {
            return ExitCode::from(self.code);
        }
        let hint = self.hint.as_deref().unwrap_or_default();
        Message::new(Severity::Error, &self.id, &self.what).hint(hint).write(|| self.text());
        ExitCode::from(self.code)
    }

    fn text(&self) -> String {
        if log::is_journal() {
            let hint = self.hint.as_ref().map_or(String::new(), |hint| format!("\nhint: {hint}"));
            return log::lines(Severity::Error, &format!("{}{hint}", self.what), true);
        }
        let paint = Paint::for_stderr();
        let hint = self.hint.as_ref();
        let hint = hint.map_or(String::new(), |hint| format!("  {} {hint}\n", paint.bold("hint:")));
        format!("{} {}\n{hint}", paint.red("forebay:"), self.what)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let failure = match refusal.is_usage {
            true => Self::usage(refusal.id, refusal.what),
            false => Self::new(refusal.id, refusal.what),
        };
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

/// Prints the parser's output: help and version unchanged, errors in the form of this program.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match screen::printed(error.print()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(),
        };
    }
    let text = error.render().to_string();
    let Some(problem) = text.strip_prefix("error: ") else {
        let message = Message::new(Severity::Error, MessageId::CliUsage.name(), text.trim_end());
        message.write(|| text.clone());
        return ExitCode::from(2);
    };
    let problem = problem.trim_end().trim_end_matches("For more information, try '--help'.").trim_end();
    let id = match error.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => MessageId::CliArgument,
        _ => MessageId::CliUsage,
    };
    Failure::usage(id, problem).hint("`--help` behind a command shows its options and examples").report()
}

/// Converts an error with a file, a socket or a child process into one sentence.
pub(crate) fn system(what: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| Failure::new(MessageId::CliSystem, format!("{what}: {error}"))
}
