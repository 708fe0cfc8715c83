//! The volumes as protocols see them: names and geometry, nothing more.
//!
//! Invariants
//! - The empty name means "the default export". It resolves to an export that is really named ""
//!   or, failing that, to the only export there is. With two or more exports there is no default.

/// One volume as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// The name clients ask for. At most [`crate::nbd::codec::STRING_BYTES_MAX`] bytes.
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
    /// The volume can tell at once whether zeroing would be faster than writing zeroes.
    pub fast_zero: bool,
}

impl ExportInfo {
    /// A writable export that allows several connections.
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

/// The exports a server offers at this moment.
pub trait Exports {
    /// All exports that may be listed, in the order they should be shown.
    fn list(&self) -> Vec<ExportInfo>;

    /// The export of exactly this name.
    fn find(&self, name: &str) -> Option<ExportInfo>;

    /// Whether the export has as many connections as it may have.
    fn is_full(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// As [`Exports::find`], and the empty name finds the only export there is.
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
    fn the_empty_name_is_the_only_export_or_none() {
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
