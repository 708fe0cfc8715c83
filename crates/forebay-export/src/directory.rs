//! The volumes that protocols may serve: names and geometry only.
//!
//! Invariants
//! - The empty name means "the default export". It resolves to an export that is really named ""
//!   or, failing that, to the only export. With two or more exports there is no default.

/// One volume in the form that clients see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// The name that clients request. At most [`crate::nbd::codec::STRING_BYTES_MAX`] bytes.
    pub name: String,
    /// One line for people; may be empty.
    pub description: String,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Writes, trims and zeroes are refused.
    pub read_only: bool,
    /// A flush on one connection covers writes completed on all others, so clients may open
    /// several.
    pub multi_conn: bool,
    /// The volume can report at once whether zeroing is faster than writing zeroes.
    pub fast_zero: bool,
}

impl ExportInfo {
    /// Creates a writable export that permits several connections.
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        ExportInfo {
            name: name.into(),
            description: String::new(),
            size_bytes,
            read_only: false,
            multi_conn: true,
            fast_zero: false,
        }
    }
}

/// The current exports of a server.
pub trait Exports {
    /// Returns all exports that may be listed, in their display order.
    fn list(&self) -> Vec<ExportInfo>;

    /// Returns the export of exactly this name.
    fn find(&self, name: &str) -> Option<ExportInfo>;

    /// Returns whether the export has reached its limit on connections.
    fn is_full(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Like [`Exports::find`], but the empty name finds the only export.
    fn resolve(&self, name: &str) -> Option<ExportInfo> {
        if let Some(found) = self.find(name) {
            return Some(found);
        }
        if !name.is_empty() {
            return None;
        }
        let mut all = self.list();
        if all.len() == 1 { all.pop() } else { None }
    }
}

/// A fixed list of exports is a directory.
impl Exports for [ExportInfo] {
    fn list(&self) -> Vec<ExportInfo> {
        self.to_vec()
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        self.iter().find(|export| export.name == name).cloned()
    }
}

/// A fixed list of exports is a directory.
impl Exports for Vec<ExportInfo> {
    fn list(&self) -> Vec<ExportInfo> {
        self.clone()
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        self.as_slice().find(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_name_finds_the_only_export() {
        let one = vec![ExportInfo::new("db", 10)];
        assert_eq!(one.resolve("").map(|export| export.name), Some("db".to_owned()));
        let two = vec![ExportInfo::new("db", 10), ExportInfo::new("vm", 10)];
        assert_eq!(two.resolve(""), None);
        let named = vec![ExportInfo::new("db", 10), ExportInfo::new("", 20)];
        assert_eq!(named.resolve("").map(|export| export.size_bytes), Some(20));
        assert_eq!(two.resolve("nope"), None);
        assert_eq!(Vec::<ExportInfo>::new().resolve(""), None);
    }
}
