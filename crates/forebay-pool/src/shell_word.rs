//! Paths in the commands of messages, which are copied into a shell.
//!
//! Invariant: what a shell reads is the one path, whatever characters it has. `rm` of an unquoted
//! path with a blank would remove another file.

use std::path::Path;

/// A path as one word of a shell: as it is, or in quotes.
#[must_use]
pub fn quoted(path: &Path) -> String {
    let word = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    if word.chars().all(is_plain) { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word() {
        let words = [("/dev/sdb", "/dev/sdb"), ("/srv/a b", "'/srv/a b'"), ("/it's", "'/it'\\''s'")];
        for (path, word) in words {
            assert_eq!(quoted(Path::new(path)), word);
        }
    }
}
