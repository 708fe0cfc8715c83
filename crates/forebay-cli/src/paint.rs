//! Colours, only on a terminal.

use std::io::{self, IsTerminal};

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// For stdout.
    pub(crate) fn for_stdout() -> Self {
        Self::for_terminal(io::stdout().is_terminal())
    }

    /// For stderr.
    pub(crate) fn for_stderr() -> Self {
        Self::for_terminal(io::stderr().is_terminal())
    }

    /// `NO_COLOR` and a dumb terminal mean no colours.
    fn for_terminal(terminal: bool) -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        Self { on: terminal && set("NO_COLOR").is_none() && !dumb }
    }

    /// Whether there are any.
    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    /// None, whatever the terminal is.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { on: false }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Bold.
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// Bold red: something is wrong.
    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    /// Bold green: all is well.
    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("1;32", text)
    }

    /// Yellow: worth a look.
    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Dim: of lesser interest.
    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }
}
