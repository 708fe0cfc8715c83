//! Patterns for names that come from clients: executables, control groups, exports.
//!
//! Invariants
//! - An operator's pattern meets a name that a client chose, so matching takes time linear in the
//!   name: globs are compiled to automata (`globset`), never matched by backtracking.
//! - Two patterns are equal if their texts are equal.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};

/// Longest pattern in bytes: no path is longer (`PATH_MAX`).
pub const PATTERN_BYTES_MAX: usize = 4096;
/// Longest pattern with wildcards in bytes: its compiled form takes a multiple of its length.
const GLOB_BYTES_MAX: usize = 512;

/// A name, or a glob for names.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    matcher: Matcher,
}

#[derive(Debug, Clone)]
enum Matcher {
    Exact,
    /// A folder and all below it; the text ends in `/`.
    Subtree,
    Glob(Box<GlobMatcher>),
}

impl Pattern {
    /// Parses a pattern for paths: wildcards stop at `/`, only `**` crosses it. With `subtree`, a
    /// final `/` means the path and everything below it.
    pub(super) fn path(text: &str, subtree: bool) -> Result<Self, String> {
        Self::new(text, true, subtree)
    }

    /// Parses a pattern for names in which `/` is an ordinary character.
    pub(super) fn name(text: &str) -> Result<Self, String> {
        Self::new(text, false, false)
    }

    fn new(text: &str, separators: bool, subtree: bool) -> Result<Self, String> {
        if text.is_empty() || text.contains('\0') {
            return Err("expected a name, a path, or a glob such as /usr/bin/*".into());
        }
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("longer than {PATTERN_BYTES_MAX} bytes"));
        }
        let matcher = if text.contains(['*', '?', '[', ']', '{', '}', '\\']) {
            Matcher::Glob(Box::new(compile(text, separators)?))
        } else if subtree && text.ends_with('/') {
            Matcher::Subtree
        } else {
            Matcher::Exact
        };
        Ok(Self { text: text.to_owned(), matcher })
    }

    /// Returns the pattern's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether a name matches.
    pub fn matches(&self, name: &OsStr) -> bool {
        let bytes = name.as_bytes();
        match &self.matcher {
            Matcher::Exact => bytes == self.text.as_bytes(),
            Matcher::Subtree => {
                let below = self.text.as_bytes();
                bytes.starts_with(below) || below.strip_suffix(b"/") == Some(bytes)
            }
            Matcher::Glob(glob) => glob.is_match(Path::new(name)),
        }
    }

    /// Returns the name of the file, if this is a path without wildcards.
    pub(super) fn file_name(&self) -> Option<&OsStr> {
        matches!(self.matcher, Matcher::Exact).then(|| Path::new(&self.text).file_name())?
    }

    /// Returns whether this matches all names that `other` matches. May return false although it
    /// does.
    pub(super) fn covers(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        match (&self.matcher, &other.matcher) {
            (_, Matcher::Exact) => self.matches(OsStr::new(&other.text)),
            (Matcher::Subtree, Matcher::Subtree) => other.text.starts_with(&self.text),
            _ => false,
        }
    }
}

fn compile(text: &str, separators: bool) -> Result<GlobMatcher, String> {
    if text.len() > GLOB_BYTES_MAX {
        return Err(format!("a pattern with wildcards has at most {GLOB_BYTES_MAX} bytes"));
    }
    let glob = GlobBuilder::new(text).literal_separator(separators).backslash_escape(true).build();
    let glob =
        glob.map_err(|error| format!("{}; put a \\ before a character to take it as it is", error.kind()))?;
    Ok(glob.compile_matcher())
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::path(pattern, true).unwrap().matches(OsStr::new(name))
    }

    #[test]
    fn names_globs_and_subtrees() {
        assert!(matches("/usr/bin/rsync", "/usr/bin/rsync"));
        assert!(!matches("/usr/bin/rsync", "/usr/bin/rsync2"));
        assert!(matches("/usr/*/rsync", "/usr/bin/rsync"));
        assert!(!matches("/usr/*", "/usr/bin/rsync"));
        assert!(matches("/usr/**", "/usr/bin/rsync"));
        assert!(matches("mysql{d,dump}", "mysqldump"));
        assert!(matches("a\\*b", "a*b") && !matches("a\\*b", "axb"));
        for (group, expected) in
            [("/a.slice", true), ("/a.slice/x", true), ("/a.slicer", false), ("/", false)]
        {
            assert_eq!(matches("/a.slice/", group), expected, "{group}");
        }
        assert!(matches("/", "/") && matches("/", "/any/group"));
        assert!(Pattern::name("vm*").unwrap().matches(OsStr::new("vm/7")));
        assert!(Pattern::name("*").unwrap().matches(OsStr::from_bytes(b"\xff\xfe")));
    }

    #[test]
    fn broken_and_huge_patterns_are_refused() {
        for text in ["", "a[", "a{b", "a\0b"] {
            assert!(Pattern::name(text).is_err(), "{text:?}");
        }
        assert!(Pattern::name(&"x".repeat(4096)).is_ok());
        assert!(Pattern::name(&"x".repeat(4097)).is_err());
        assert!(Pattern::name(&"*".repeat(513)).is_err());
        // Its length bounds depth and repetition, so neither stack nor memory runs out.
        let _ = Pattern::name(&format!("{}{}", "{".repeat(256), "}".repeat(256)));
        let _ = Pattern::name(&"{a,".repeat(170));
    }

    #[test]
    fn hostile_name_does_not_slow_matching() {
        let pattern = Pattern::name(&"*a".repeat(100)).unwrap();
        let name = format!("{}b", "a".repeat(4000));
        let begin = Instant::now();
        assert!(!pattern.matches(OsStr::new(&name)));
        // Backtracking would take longer than the age of the universe; the bound allows for slow
        // machines.
        assert!(begin.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn covers_is_true_only_if_certain() {
        let pattern = |text: &str| Pattern::path(text, true).unwrap();
        assert!(pattern("/a/").covers(&pattern("/a/b/")));
        assert!(pattern("/a/").covers(&pattern("/a")));
        assert!(pattern("/a/*").covers(&pattern("/a/b")));
        assert!(pattern("/a/*").covers(&pattern("/a/*")));
        assert!(!pattern("/a/b").covers(&pattern("/a/*")));
        assert!(!pattern("/a/*").covers(&pattern("/a/?")), "unsure means no");
    }
}
