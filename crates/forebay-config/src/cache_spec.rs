//! A cache device in text form: `PATH[:SIZE]`.

use forebay_admin::size::ByteSize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A cache device as given by the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheSpec {
    /// File or block device.
    pub path: PathBuf,
    /// Size in bytes, if given. Required to create a cache file.
    pub size_bytes: Option<u64>,
}

/// `PATH[:SIZE]`. A path with colons is a whole path if it exists, or if the text after the last
/// colon does not look like a size. A path in `/dev` is also whole unless the part before the colon
/// exists: device names contain colons (`/dev/disk/by-path/...-ata-1:0`), and no cache file is
/// created in `/dev`, except in `/dev/shm`.
impl FromStr for CacheSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheSpec, String> {
        let whole = CacheSpec { path: PathBuf::from(text), size_bytes: None };
        if text.is_empty() {
            return Err("the path of the cache is missing".into());
        }
        let Some((path, size)) = text.rsplit_once(':') else { return Ok(whole) };
        let is_of_devices = path.starts_with("/dev/") && !path.starts_with("/dev/shm/");
        let is_absent_device = is_of_devices && !Path::new(path).exists();
        if Path::new(text).exists() || size.contains('/') || is_absent_device {
            return Ok(whole);
        }
        match ByteSize::from_str(size) {
            Ok(_) if path.is_empty() => Err("the path of the cache is missing before the size".into()),
            Ok(size) => Ok(CacheSpec { path: PathBuf::from(path), size_bytes: Some(size.bytes()) }),
            Err(error) if size.is_empty() || size.starts_with(|c: char| c.is_ascii_digit()) => {
                Err(format!("what follows the last colon is not a size: {error}"))
            }
            Err(_) => Ok(whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_a_path_and_perhaps_a_size() {
        let spec = |text: &str| {
            text.parse::<CacheSpec>().map(|spec| (spec.path.display().to_string(), spec.size_bytes))
        };
        assert_eq!(spec("/f/c.img"), Ok(("/f/c.img".into(), None)));
        assert_eq!(spec("/f/c.img:10GiB"), Ok(("/f/c.img".into(), Some(10 << 30))));
        assert_eq!(spec("/dev/disk/by-path/pci:a"), Ok(("/dev/disk/by-path/pci:a".into(), None)));
        assert_eq!(
            spec("/dev/disk/by-path/scsi-0:0:1:0"),
            Ok(("/dev/disk/by-path/scsi-0:0:1:0".into(), None))
        );
        assert_eq!(spec("/dev/shm/none:4KiB"), Ok(("/dev/shm/none".into(), Some(4096))));
        assert_eq!(spec("/dev/null:4KiB"), Ok(("/dev/null".into(), Some(4096))));
        assert_eq!(spec("/a:1/c"), Ok(("/a:1/c".into(), None)));
        assert!(spec("/f/c.img:64XiB").unwrap_err().contains("64XiB"));
        assert!(spec("/f/c.img:").is_err() && spec(":1G").is_err() && spec("").is_err());
    }
}
