//! Paths in the commands of messages, which are copied into a shell.
//!
//! Invariant: the shell reads exactly this one path, with any characters. `rm` of an unquoted path
//! with a blank would remove another file.

use std::path::Path;

/// A path, or another argument, as one word of a shell: as it is, or in quotes.
pub fn quoted(word: impl AsRef<Path>) -> String {
    let word = word.as_ref().display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    let is_word = !word.is_empty() && word.chars().all(is_plain);
    if is_word { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word() {
        let words =
            [("/dev/sdb", "/dev/sdb"), ("", "''"), ("/srv/a b", "'/srv/a b'"), ("/it's", "'/it'\\''s'")];
        for (path, word) in words {
            assert_eq!(quoted(path), word);
        }
    }
}
