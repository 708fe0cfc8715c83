//! Colours, only on a terminal.

use std::io::{self, IsTerminal};

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Returns the colours for stdout.
    pub(crate) fn for_stdout() -> Self {
        Self::for_terminal(io::stdout().is_terminal())
    }

    /// Returns the colours for stderr.
    pub(crate) fn for_stderr() -> Self {
        Self::for_terminal(io::stderr().is_terminal())
    }

    /// Returns no colours with `NO_COLOR` or on a dumb terminal.
    fn for_terminal(terminal: bool) -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        Self { on: terminal && set("NO_COLOR").is_none() && !dumb }
    }

    /// Returns true if there are colours.
    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    /// Returns no colours, even on a terminal.
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

    /// Bold red: an error.
    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    /// Bold green: healthy.
    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("1;32", text)
    }

    /// Yellow: needs attention.
    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Dim: less important.
    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }
}
