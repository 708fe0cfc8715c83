//! Paths on the command line: the daemon has another working directory, so relative ones are made
//! absolute before they are sent. Text that cannot be parsed is sent unchanged, and the daemon
//! reports the error.

use std::fmt::Write;
use std::path::Path;

use forebay_export::uri::BackingUri;

/// Makes a path absolute.
pub(crate) fn absolute(path: &str) -> String {
    match std::path::absolute(path) {
        Ok(path) if !path.as_os_str().is_empty() => path.display().to_string(),
        _ => path.to_owned(),
    }
}

/// Makes the path in the URI of a backing store absolute.
pub(crate) fn backing(text: &str) -> String {
    match text.parse::<BackingUri>() {
        Ok(BackingUri::File(path)) if path.is_relative() => std::path::absolute(&path)
            .map_or_else(|_| text.to_owned(), |path| BackingUri::File(path).to_string()),
        Ok(BackingUri::Nbd(_)) => export(text),
        _ => text.to_owned(),
    }
}

/// Makes the paths of file or socket in the URI of an export absolute.
pub(crate) fn export(text: &str) -> String {
    for scheme in ["fuse:", "vhost-user:"] {
        if let Some(path) = text.strip_prefix(scheme).filter(|path| is_relative(path)) {
            return format!("{scheme}{}", in_uri(path));
        }
    }
    if let (true, Some((before, rest))) = (text.contains("+unix:"), text.split_once("socket=")) {
        let (path, after) = rest.split_at(rest.find('&').unwrap_or(rest.len()));
        if is_relative(path) {
            return format!("{before}socket={}{after}", in_uri(path));
        }
    }
    text.to_owned()
}

fn is_relative(path: &str) -> bool {
    !path.is_empty() && Path::new(path).is_relative()
}

/// Prefixes a path from a URI with the working directory, encoded for a URI.
fn in_uri(path: &str) -> String {
    let Ok(folder) = std::env::current_dir() else { return path.to_owned() };
    let mut whole = String::new();
    for byte in folder.display().to_string().bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' => whole.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => whole.push(char::from(byte)),
            byte => {
                let _ = write!(whole, "%{byte:02X}");
            }
        }
    }
    format!("{}/{}", whole.trim_end_matches('/'), path.trim_start_matches("./"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_paths_change() {
        let here = std::env::current_dir().unwrap().display().to_string();
        assert_eq!(absolute("flash.img"), format!("{here}/flash.img"));
        assert_eq!(backing("file:disk.img"), backing("./disk.img"));
        assert!(backing("disk.img").ends_with(&format!("{here}/disk.img")), "{}", backing("disk.img"));
        assert_eq!(export("fuse:mnt/x"), format!("fuse:{here}/mnt/x"));
        assert_eq!(export("nbd+unix:///v?socket=./s&x=1"), format!("nbd+unix:///v?socket={here}/s&x=1"));
        for same in ["", "/dev/sdb", "file:///a", "nbd://h:1/v", "s3:x"] {
            assert_eq!((backing(same), export(same)), (same.to_owned(), same.to_owned()));
        }
        assert_eq!(export("nbd+unix:///v?socket=/s"), "nbd+unix:///v?socket=/s");
        assert_eq!(export("ublk:x"), "ublk:x");
    }
}
