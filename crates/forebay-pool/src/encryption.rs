//! The key of an encrypted pool: its source, and reading it. `forebay_offline::key` checks whether
//! it is the right one.
//!
//! A key is read when a pool is opened, and by a successor before its predecessor hands anything
//! over; it is dropped once the cipher has been made from it. Nothing is written to a device before
//! its superblock was compared with the key.
//!
//! Invariants
//! - The content of a key file is in no log, error, event or debug format.
//! - A file system that does not answer delays a start by at most 10 s (`READ_WITHIN`).

use crate::error::RunError;
use crate::secret_file::{FileProblem, open_secret};
use crate::time_limit::within;
use forebay_admin::MessageId;
use forebay_config::KeySource;
use forebay_crypt::{FileKey, KEY_BYTES};
use forebay_offline::Key;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// Maximum of bytes read of a key file: longer than any key.
const READ_BYTES_MAX: usize = 4 * KEY_BYTES;
/// Time limit for reading a key file, which can lie on another party's file system.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// Where systemd stores the credentials of a service.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Reads a key.
///
/// # Errors
/// The file does not exist, is readable by all users, or holds no key.
pub fn read_key(source: &KeySource) -> Result<Key, RunError> {
    let path = path_of(source)?;
    let wrong = |what: &dyn fmt::Display, hint: &str| {
        RunError::failed(MessageId::KeyUnreadable, format!("the key file {}: {what}", path.display()), hint)
    };
    let file = path.clone();
    let read = within(READ_WITHIN, "key", move |_| read(&file));
    let late =
        |undone| wrong(&format!("{undone} (within {} s)", READ_WITHIN.as_secs()), "nothing was changed");
    let (bytes, len) = read.map_err(late)?.map_err(|problem| wrong(&problem, "nothing was changed"))?;
    let hint = "give the file that the cache was created with, or create a new key for a new cache";
    if len == READ_BYTES_MAX {
        let least = len - 1;
        let what =
            format!("it has more than {least} bytes; a key is 64 random bytes, or 128 hexadecimal digits");
        return Err(wrong(&what, hint));
    }
    let key = FileKey::parse(&bytes[..len]).map_err(|error| wrong(&error, hint))?;
    Ok(Key::new(source, key))
}

/// Reads a key from a file whose path the user has given.
///
/// # Errors
/// As [`read_key`].
pub fn read_key_file(path: &Path) -> Result<Key, RunError> {
    read_key(&KeySource::File(path.to_owned()))
}

fn path_of(source: &KeySource) -> Result<PathBuf, RunError> {
    match source {
        KeySource::File(path) => Ok(path.clone()),
        KeySource::Credential(name) => {
            let folder = std::env::var_os(CREDENTIALS).filter(|folder| !folder.is_empty());
            let folder = folder.ok_or_else(|| {
                RunError::failed(
                    MessageId::KeyCredential,
                    format!("there is no credential {name}: {CREDENTIALS} is not set"),
                    format!(
                        "start the service with LoadCredential={name}:PATH, or give the path of the file"
                    ),
                )
            })?;
            Ok(PathBuf::from(folder).join(name))
        }
    }
}

/// The beginning of a file, in memory that is overwritten afterwards, and how long it is.
type Beginning = (Box<Zeroizing<[u8; READ_BYTES_MAX]>>, usize);

fn read(path: &Path) -> Result<Beginning, FileProblem> {
    let mut file = open_secret(path)?;
    // Another thread gets it: in a box it is not copied when it moves.
    let mut bytes = Box::new(Zeroizing::new([0; READ_BYTES_MAX]));
    let mut len = 0;
    while len < bytes.len() {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((bytes, len))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(folder: &Path, name: &str, contents: &[u8], mode: u32) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn random(seed: u8) -> Vec<u8> {
        (0..64).map(|index| seed ^ (index as u8).wrapping_mul(29)).collect()
    }

    fn says(result: Result<impl fmt::Debug, RunError>) -> String {
        match result.unwrap_err() {
            RunError::Failed { what, hint, .. } => format!("{what}; {hint}"),
            RunError::Usage { what, .. } => what,
        }
    }

    #[test]
    fn a_source_is_a_whole_path_or_a_credential() {
        for text in ["/etc/forebay/key", "credential:pool-key.1"] {
            assert_eq!(text.parse::<KeySource>().unwrap().to_string(), text);
        }
        for text in [
            "key",
            "./key",
            "",
            "credential:",
            "credential:../key",
            "credential:a/b",
            "credential:.x",
            "/a\nb",
        ] {
            assert!(text.parse::<KeySource>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_a_private_file_with_a_key_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name, contents: &[u8], mode| read_key_file(&file(folder.path(), name, contents, mode));
        assert!(read("good", &random(1), 0o600).is_ok());
        assert!(read("group", &random(1), 0o640).is_ok());
        assert!(says(read("open", &random(1), 0o644)).contains("chmod o="));
        assert!(says(read("short", &random(1)[..32], 0o600)).contains("it has 32 bytes"));
        assert!(
            says(read("long", &[7; 5000], 0o600)).contains("more than 255 bytes; a key is 64 random bytes")
        );
        assert!(says(read("255", &[7; 255], 0o600)).contains("it has 255 bytes; a key is 64 random bytes"));
        assert!(says(read("zero", &[0; 64], 0o600)).contains("no random key"));
        assert!(says(read_key_file(&folder.path().join("none"))).contains("cannot be read"));
        assert!(says(read_key_file(folder.path())).contains("the key file"));
    }

    #[test]
    fn no_key_is_in_an_error_or_a_debug_format() {
        let folder = tempfile::tempdir().unwrap();
        let digits: String = random(1).iter().map(|byte| format!("{byte:02x}")).collect();
        let wrong = digits.replacen(&digits[..2], "zz", 1);
        let path = file(folder.path(), "key", wrong.as_bytes(), 0o600);
        let mut said = says(read_key_file(&path));
        std::fs::write(&path, &digits).unwrap();
        let key = read_key_file(&path).unwrap();
        said += &format!("{key:?}");
        for part in digits.as_bytes().windows(8) {
            assert!(!said.contains(std::str::from_utf8(part).unwrap()), "{said}");
        }
    }
}
