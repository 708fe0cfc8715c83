//! Shell commands: as text, and executed.

use forebay_admin::MessageId;
pub(super) use forebay_pool::shell_word::quoted;
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::screen::harmless_lines;

/// Returns a command line.
pub(super) fn line<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    words.into_iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// Returns the output of a program, which must succeed.
///
/// # Errors
/// The program is missing, or fails: with its own message.
pub(super) fn output(words: &[&str]) -> Result<String, Failure> {
    let (program, arguments) = words.split_first().expect("a command has a name");
    let run = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let run =
        run.map_err(|error| Failure::new(MessageId::CliPipeChild, format!("cannot run {program}: {error}")))?;
    let said = |bytes: &[u8]| harmless_lines(String::from_utf8_lossy(bytes).trim_end());
    if run.status.success() {
        return Ok(String::from_utf8_lossy(&run.stdout).into_owned());
    }
    let why = match said(&run.stderr) {
        why if why.is_empty() => run.status.to_string(),
        why => why,
    };
    Err(Failure::new(MessageId::CliPipeChild, format!("`{}` failed: {why}", line(words))))
}

/// Runs a program.
///
/// # Errors
/// As [`output`].
pub(super) fn run(words: &[&str]) -> Result<(), Failure> {
    output(words).map(drop)
}

/// Returns true if a program exists and succeeds.
pub(super) fn succeeds(words: &[&str]) -> bool {
    output(words).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_survive_a_shell() {
        for words in [&["a b", "", "it's", "\\x2d", "$HOME `x` *", "line\nline", "/srv/ü"][..], &["plain"]] {
            let script = format!("printf '%s\\0' {}", line(words));
            let printed = output(&["sh", "-c", &script]).unwrap();
            assert_eq!(printed.split_terminator('\0').collect::<Vec<_>>(), words);
        }
        assert_eq!(line(["mount", "-o", "noatime,x=1", "/srv/db"]), "mount -o noatime,x=1 /srv/db");
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let why = output(&["sh", "-c", "echo busy >&2; exit 3"]).unwrap_err().to_string();
        assert!(why.ends_with("failed: busy"), "{why}");
        assert!(run(&["/no/such/program"]).is_err() && succeeds(&["true"]) && !succeeds(&["false"]));
    }
}
