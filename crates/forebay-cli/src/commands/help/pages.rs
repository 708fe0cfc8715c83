//! The pages of the documentation for operators: part of the program, so that they are available
//! with the daemon, in its version.

/// Name and text of the page in a file.
macro_rules! page {
    ($folder:literal, $name:literal) => {
        ($name, include_str!(concat!("../../../../../docs/", $folder, "/", $name, ".md")))
    };
}

/// All pages, by name: those of tasks and failures, then reference pages.
pub(super) const ALL: &[(&str, &str)] = &[
    page!("operate", "advise"),
    page!("operate", "api"),
    page!("operate", "attach-disk"),
    page!("operate", "boot"),
    page!("operate", "compare"),
    page!("operate", "control-fs"),
    page!("operate", "dashboard"),
    page!("operate", "databases"),
    page!("operate", "device-failure"),
    page!("operate", "disk-died"),
    page!("operate", "does-it-help"),
    page!("operate", "events"),
    page!("operate", "flash-died"),
    page!("operate", "flash-life"),
    page!("operate", "maintenance"),
    page!("operate", "monitoring"),
    page!("operate", "move-host"),
    page!("operate", "offline"),
    page!("operate", "pools-and-volumes"),
    page!("operate", "power-failed"),
    page!("operate", "replace-flash"),
    page!("operate", "restart"),
    page!("operate", "security"),
    page!("operate", "several-volumes"),
    page!("operate", "statistics"),
    page!("operate", "take-away"),
    page!("operate", "upgrade"),
    page!("operate", "what-if"),
    page!("use", "commands"),
    page!("use", "concepts"),
    page!("use", "destage"),
    page!("use", "destage-ordered"),
    page!("use", "endurance"),
    page!("use", "flashcache-names"),
    page!("use", "from-flashcache"),
    page!("use", "fuse"),
    page!("use", "install"),
    page!("use", "messages"),
    page!("use", "nbd"),
    page!("use", "network-stores"),
    page!("use", "policies"),
    page!("use", "rules"),
    page!("use", "settings"),
    page!("use", "traces"),
    page!("use", "ublk"),
    page!("use", "vhost-user"),
    page!("use", "vm"),
];

/// The index by task.
pub(super) const INDEX: &str = include_str!("../../../../../docs/README.md");

/// Returns the text of a page.
pub(super) fn find(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_page_for_operators_is_a_topic() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let mut written = BTreeSet::new();
        for folder in ["operate", "use"] {
            for entry in std::fs::read_dir(docs.join(folder)).unwrap().flatten() {
                if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_suffix(".md")) {
                    written.insert(name.to_owned());
                }
            }
        }
        let topics: BTreeSet<String> = ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(topics, written);
        assert_eq!(ALL.len(), written.len(), "a name twice");
    }
}
