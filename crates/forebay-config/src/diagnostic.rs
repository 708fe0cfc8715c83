//! Diagnostics of a configuration file: the place, the line with a mark under it, and a hint.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use forebay_admin::MessageId;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A range of bytes of the file.
pub type Span = Range<usize>;

/// Severity of a diagnostic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The daemon does not start.
    Error,
    /// A probable mistake.
    Warning,
}

/// One problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Id of the message, for scripts.
    pub id: MessageId,
    /// Its severity.
    pub severity: Severity,
    /// Its place.
    pub span: Span,
    /// The problem, in one line.
    pub message: String,
    /// Text next to the mark; may be empty.
    pub label: String,
    /// A related place, and the text at it.
    pub related: Option<(Span, String)>,
    /// Suggested action; may be empty.
    pub help: String,
}

impl Diagnostic {
    /// Creates an error at a place.
    #[must_use]
    pub fn error(id: MessageId, span: Span, message: impl Into<String>) -> Self {
        let (label, help) = (String::new(), String::new());
        Self { id, severity: Severity::Error, span, message: message.into(), label, related: None, help }
    }

    /// Creates a warning at a place.
    #[must_use]
    pub fn warning(id: MessageId, span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(id, span, message) }
    }

    /// Adds text next to the mark.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Adds a suggested action.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: help.into(), ..self }
    }

    /// Adds a related place.
    #[must_use]
    pub fn related(self, span: Span, label: impl Into<String>) -> Self {
        Self { related: Some((span, label.into())), ..self }
    }
}

/// All problems of one file, in the order of their places.
#[derive(Clone, PartialEq, Eq)]
pub struct Report {
    path: PathBuf,
    text: String,
    diagnostics: Vec<Diagnostic>,
}

impl Report {
    /// Creates a report for a text that came from `path`.
    #[must_use]
    pub fn new(path: &Path, text: &str, mut diagnostics: Vec<Diagnostic>) -> Self {
        for diagnostic in &mut diagnostics {
            diagnostic.span = fitting(text, &diagnostic.span);
            if let Some((span, _)) = &mut diagnostic.related {
                *span = fitting(text, span);
            }
        }
        diagnostics.sort_by_key(|diagnostic| (diagnostic.span.start, diagnostic.span.end));
        diagnostics.dedup();
        Self { path: path.to_owned(), text: text.to_owned(), diagnostics }
    }

    /// Returns the diagnostics.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// Returns whether there are no diagnostics.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// Returns the message id of the first error, for scripts; none if there are only warnings.
    #[must_use]
    pub fn id(&self) -> Option<MessageId> {
        let mut errors = self.diagnostics.iter().filter(|found| found.severity == Severity::Error);
        errors.next().map(|error| error.id)
    }

    /// Returns the number of errors, without warnings.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }

    /// Returns line and column of a place, both from 1; columns count characters.
    #[must_use]
    pub fn position(&self, span: &Span) -> (usize, usize) {
        let before = &self.text[..fitting(&self.text, span).start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// Returns `file:line:column: error: message`, one line per diagnostic, for editors and logs.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.diagnostics.iter().map(|diagnostic| {
            let (line, column) = self.position(&diagnostic.span);
            let severity = if diagnostic.severity == Severity::Error { "error" } else { "warning" };
            format!("{}:{line}:{column}: {severity}: {}", self.path.display(), diagnostic.message)
        })
    }

    /// Renders the whole report with the lines of the file, in colour on request.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let path = self.path.display().to_string();
        let mut all = String::new();
        for diagnostic in &self.diagnostics {
            all += &renderer.render(&[group(&path, &self.text, diagnostic)]);
            all += "\n\n";
        }
        all + &self.summary()
    }

    fn summary(&self) -> String {
        let errors = self.errors();
        let warnings = self.diagnostics.len() - errors;
        let count =
            |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
        let path = self.path.display();
        match (errors, warnings) {
            (0, 0) => format!("{path}: no errors\n"),
            (0, _) => format!("{path}: {}\n", count(warnings, "warning")),
            (_, 0) => format!("{path}: {}\n", count(errors, "error")),
            _ => format!("{path}: {}, {}\n", count(errors, "error"), count(warnings, "warning")),
        }
    }
}

/// Converts one diagnostic for the renderer.
fn group<'a>(path: &'a str, text: &'a str, diagnostic: &'a Diagnostic) -> Group<'a> {
    let level = if diagnostic.severity == Severity::Error { Level::ERROR } else { Level::WARNING };
    let label = |text: &'a str| (!text.is_empty()).then_some(text);
    let mark = AnnotationKind::Primary.span(diagnostic.span.clone()).label(label(&diagnostic.label));
    let mut snippet = Snippet::source(text).path(path).annotation(mark);
    if let Some((span, words)) = &diagnostic.related {
        snippet = snippet.annotation(AnnotationKind::Context.span(span.clone()).label(label(words)));
    }
    let group = level.primary_title(diagnostic.message.as_str()).element(snippet);
    if diagnostic.help.is_empty() {
        group
    } else {
        group.element(Level::HELP.message(diagnostic.help.as_str()))
    }
}

/// Limits the span to the text, on character boundaries.
fn fitting(text: &str, span: &Span) -> Span {
    let down = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = down(span.start);
    start..down(span.end).max(start)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Report {{\n{}}}", self.render(false))
    }
}

impl std::error::Error for Report {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_place_has_a_line_and_a_column() {
        let report = Report::new(
            Path::new("f"),
            "a\n é = 1\n",
            vec![Diagnostic::error(MessageId::ConfigValue, 6..7, "wrong")],
        );
        assert_eq!(report.lines().next().unwrap(), "f:2:4: error: wrong");
        assert_eq!(report.position(&(99..100)), (3, 1));
    }

    proptest! {
        #[test]
        fn any_place_in_any_text_can_be_shown(text in "(\\PC|\n|\t|\r){0,60}", start in 0_usize..80, len in 0_usize..20) {
            let related = Diagnostic::error(MessageId::ConfigValue, start..start + len, "x").related(len..start, "there").label("here");
            let report = Report::new(Path::new("f"), &text, vec![related]);
            prop_assert!(report.to_string().contains("error: x"));
            prop_assert_eq!(report.lines().count(), 1);
        }
    }
}
