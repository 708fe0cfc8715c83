//! The configuration of one pool and its volumes, as a text that another host can merge into its
//! own file: an export writes it to the cache.
//!
//! Invariants
//! - The text has only values that were set; the reader's defaults apply to the rest.
//! - It contains no secrets: a key, a token or a certificate is named by its file.
//! - A text from a device is untrusted. Its references to other sections (TLS, access lists,
//!   addresses) are checked when it is merged into a file.

use super::diagnostic::{Diagnostic, Report};
use super::edit::{Edit, EditError};
use super::file::parse_sections;
use super::model::{Config, PoolConfig, VolumeConfig};
use super::settings::Settings;
use forebay_admin::MessageId;
use std::path::Path;
use toml_edit::DocumentMut;

/// Name of the text in messages.
const SHOWN: &str = "settings copy";

/// A pool and its volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolSection {
    /// Name of the pool.
    pub name: String,
    /// The pool.
    pub pool: PoolConfig,
    /// Its volumes, by name.
    pub volumes: Vec<(String, VolumeConfig)>,
}

impl PoolSection {
    /// Returns a pool of a configuration, if there is one of that name.
    #[must_use]
    pub fn of(config: &Config, name: &str) -> Option<Self> {
        let pool = config.pools.get(name)?.clone();
        let ours = config.volumes.iter().filter(|(_, volume)| volume.pool == name);
        let volumes = ours.map(|(name, volume)| (name.clone(), volume.clone())).collect();
        Some(Self { name: name.into(), pool, volumes })
    }

    /// Returns it under another name.
    #[must_use]
    pub fn renamed(mut self, name: &str) -> Self {
        for (_, volume) in &mut self.volumes {
            name.clone_into(&mut volume.pool);
        }
        Self { name: name.into(), ..self }
    }

    /// Returns the edits that add it to a file.
    #[must_use]
    pub fn added(&self) -> Vec<Edit> {
        let set = |settings: &Settings| {
            settings.iter().map(|(key, value)| (key.to_owned(), value.to_string())).collect()
        };
        let pool = Edit::AddPool {
            name: self.name.clone(),
            devices: self.pool.devices.clone(),
            settings: set(&self.pool.settings),
        };
        let mut edits = vec![pool];
        for (name, volume) in &self.volumes {
            edits.push(Edit::AddVolume {
                name: name.clone(),
                pool: self.name.clone(),
                backing: volume.backing.clone(),
                exports: volume.exports.clone(),
                size_bytes: volume.size_bytes,
                settings: set(&volume.settings),
            });
            if !volume.rules.is_empty() {
                edits.push(Edit::ReplaceRules { volume: name.clone(), rules: volume.rules.clone() });
            }
        }
        edits
    }

    /// Returns the edits that remove it from a file.
    #[must_use]
    pub fn removed(&self) -> Vec<Edit> {
        let volumes = self.volumes.iter().map(|(name, _)| Edit::RemoveVolume { name: name.clone() });
        volumes.chain([Edit::RemovePool { name: self.name.clone() }]).collect()
    }

    /// Returns the text.
    ///
    /// A path is not UTF-8.
    pub fn text(&self) -> Result<String, EditError> {
        let mut document = DocumentMut::new();
        for edit in self.added() {
            edit.apply(&mut document)?;
        }
        Ok(document.to_string())
    }

    /// Parses a text.
    ///
    /// All errors; also if the text does not hold one pool and its volumes.
    pub fn parse(text: &str) -> Result<Self, Report> {
        let path = Path::new(SHOWN);
        let config = parse_sections(path, text)?;
        let wrong = |message: String| {
            Report::new(path, text, vec![Diagnostic::error(MessageId::ConfigWrong, 0..0, message)])
        };
        let mut names = config.pools.keys();
        let (Some(name), None) = (names.next(), names.next()) else {
            return Err(wrong(format!("it has {} pools, and should have one", config.pools.len())));
        };
        if let Some((volume, other)) = config.volumes.iter().find(|(_, volume)| volume.pool != *name) {
            return Err(wrong(format!("volume `{volume}` is of pool `{}`, not of `{name}`", other.pool)));
        }
        let only =
            Config { pools: config.pools.clone(), volumes: config.volumes.clone(), ..Config::default() };
        if only != config {
            return Err(wrong("it has other sections than those of a pool and its volumes".into()));
        }
        Self::of(&config, name).ok_or_else(|| wrong("it has no pool".into()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const FILE: &str = r#"
# comments stay where they are
[daemon]
log_level = "warn"

[access.office]
addresses = ["10.0.0.0/8"]

[pool.fast]
devices = ["/dev/disk/by-id/nvme-X", { path = "/srv/more.img", size = "1GiB" }]
segment_size = "256KiB"
encryption_key_file = "/etc/forebay/key"

[pool.other]
devices = ["/dev/other"]

[volume.db]
pool = "fast"
backing = "/dev/disk/by-id/ata-Y"
exports = ["ublk:", "nbd://127.0.0.1:10809/db?access=office"]
size = "10GiB"
mode = "writethrough" # for now

[[volume.db.rule]]
action = "bypass"
exe = "rsync"

[[volume.db.rule]]
action = "cache"
direction = "read"

[volume.else]
pool = "other"
backing = "/dev/else"
exports = ["ublk:"]
"#;

    fn config(text: &str) -> Config {
        parse_sections(Path::new("f"), text).unwrap()
    }

    #[test]
    fn written_section_reads_back_alone() {
        let section = PoolSection::of(&config(FILE), "fast").unwrap();
        let text = section.text().unwrap();
        for foreign in ["office]", "other", "else", "log_level", "comments"] {
            assert!(!text.contains(foreign), "{foreign}: {text}");
        }
        let read = PoolSection::parse(&text).unwrap();
        assert_eq!(read.text().unwrap(), text);
        assert_eq!((&read.name, &read.pool), (&section.name, &section.pool));
        let [(name, volume)] = &read.volumes[..] else { panic!("{read:?}") };
        assert_eq!(name, "db");
        assert_eq!(volume.settings, section.volumes[0].1.settings);
        assert_eq!(volume.exports, section.volumes[0].1.exports);
        assert_eq!((volume.size_bytes, volume.rules.len()), (Some(10 << 30), 2));
        assert_eq!(PoolSection::of(&config(FILE), "none"), None);
    }

    #[test]
    fn section_can_be_renamed_added_and_removed() {
        let section = PoolSection::of(&config(FILE), "fast").unwrap();
        let host = "# of this host\n[pool.fast]\ndevices = [\"/dev/mine\"]\n";
        let mut document: DocumentMut = host.parse().unwrap();
        let renamed = section.renamed("quick");
        renamed.added().iter().for_each(|edit| edit.apply(&mut document).unwrap());
        let there = PoolSection::of(&config(&document.to_string()), "quick").unwrap();
        assert_eq!(there.text().unwrap(), renamed.text().unwrap());
        assert_eq!(there.volumes[0].1.pool, "quick");
        renamed.removed().iter().for_each(|edit| edit.apply(&mut document).unwrap());
        assert_eq!(config(&document.to_string()), config(host));
    }

    #[test]
    fn hostile_texts_are_refused_in_words() {
        for (text, why) in [
            ("", "it has 0 pools"),
            ("[pool.a]\ndevices = [\"/a\"]\n[pool.b]\ndevices = [\"/b\"]\n", "it has 2 pools"),
            ("[pool.a]\ndevices = [\"/a\"]\n[daemon]\nstate_dir = \"/tmp\"\n", "other sections"),
            (
                "[pool.a]\ndevices = [\"/a\"]\n[volume.v]\npool = \"b\"\nbacking = \"/v\"\nexports = []\n",
                "is of pool `b`",
            ),
            ("[pool.a]\ndevices = []\n", "has no device"),
            ("[pool.a]\ndevices = [\"/a\"]\nno_such_thing = 1\n", "no_such_thing"),
            ("[pool.\"../a\"]\ndevices = [\"/a\"]\n", "cannot be the name of a pool"),
            ("[pool.a\n", ""),
        ] {
            let report = PoolSection::parse(text).expect_err(text).to_string();
            assert!(report.contains(why), "{text}: {report}");
        }
    }
}
