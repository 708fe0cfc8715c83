//! What an import takes from the settings on a cache, and what only the operator decides.
//!
//! Whoever can write to the flash can write settings onto it. They name files and devices that the
//! daemon reads and writes, places where it mounts, addresses at which it serves, and a key file.
//! So the settings suggest, and the command names what is to be taken. Only the key of an encrypted
//! cache, which the command names as well, tells that the export of this cache wrote them
//! (`forebay_format::SettingsCopy::mac`).
//!
//! Invariants
//! - Of settings that are not signed no backing store, export or key is used that the command does
//!   not name.
//! - A key file is read only if the command names it.
//! - The options that a refusal shows work in a shell as they stand.

use super::settings::invalid;
use forebay_admin::{AdminError, ImportRequest, MessageId};
use forebay_config::{KeySource, PoolSection};
use forebay_export::uri::{BackingUri, ExportUri};
use forebay_format::settings_copy::SETTINGS_MAC_BYTES;
use forebay_offline::exported::Exported;
use forebay_offline::{Key, unlock};
use forebay_pool::RunError;
use std::collections::BTreeMap;
use std::fmt::Display;

/// The setting of a pool that names its key.
const KEY_SETTING: &str = "encryption_key_file";

/// What a command names.
#[derive(Debug)]
pub(super) struct Named {
    /// Backing stores by volume.
    pub(super) backing: BTreeMap<String, BackingUri>,
    exports: BTreeMap<String, Vec<ExportUri>>,
    /// Where the key is.
    pub(super) key: Option<KeySource>,
}

impl Named {
    /// Reads a command. Each volume is one of the pool.
    pub(super) fn of(request: &ImportRequest, section: &PoolSection) -> Result<Self, AdminError> {
        let mut named = Self { backing: BTreeMap::new(), exports: BTreeMap::new(), key: None };
        for (volume, uri) in &request.backing {
            check_volume(section, volume)?;
            let uri = uri
                .parse()
                .map_err(|error| invalid(MessageId::BackingSyntax, error, "--backing VOLUME=PATH"))?;
            named.backing.insert(volume.clone(), uri);
        }
        for (volume, uris) in &request.exports {
            check_volume(section, volume)?;
            let parsed: Result<Vec<ExportUri>, _> = uris.iter().map(|uri| uri.parse()).collect();
            let parsed =
                parsed.map_err(|error| invalid(MessageId::ExportSyntax, error, "--export VOLUME=URI"))?;
            named.exports.insert(volume.clone(), parsed);
        }
        let key = request.key_file.as_ref().map(|text| text.parse());
        named.key = key.transpose().map_err(|error: String| {
            invalid(MessageId::KeyUnreadable, error, "--key-file PATH, or --key-file credential:NAME")
        })?;
        Ok(named)
    }

    /// Puts key and exports into the settings of the pool.
    pub(super) fn put_into(&self, section: &mut PoolSection) -> Result<(), AdminError> {
        if let Some(key) = &self.key {
            let set = section.pool.settings.set(KEY_SETTING, &key.to_string());
            set.map_err(|error| invalid(MessageId::KeyUnreadable, error, ""))?;
        }
        for (name, volume) in &mut section.volumes {
            if let Some(exports) = self.exports.get(name) {
                volume.exports.clone_from(exports);
            }
        }
        Ok(())
    }

    /// The option for a key that the settings name and the command does not.
    pub(super) fn lacks_key(&self, section: &PoolSection) -> Option<String> {
        let suggested = section.pool.tunables().encryption_key_file.filter(|_| self.key.is_none());
        suggested.map(|source| format!("--key-file {}", shell_word(&source)))
    }

    /// The options for backing stores and exports that the command does not name.
    pub(super) fn lacks(&self, section: &PoolSection) -> Vec<String> {
        let mut options = Vec::new();
        for (name, volume) in &section.volumes {
            if !self.backing.contains_key(name) {
                options.push(format!("--backing {}", shell_word(&format_args!("{name}={}", volume.backing))));
            }
            if !self.exports.contains_key(name) {
                let words = volume.exports.iter().map(|uri| shell_word(&format_args!("{name}={uri}")));
                options.extend(words.map(|word| format!("--export {word}")));
            }
        }
        options
    }
}

fn check_volume(section: &PoolSection, volume: &str) -> Result<(), AdminError> {
    if section.volumes.iter().any(|(name, _)| name == volume) {
        return Ok(());
    }
    let known: Vec<&str> = section.volumes.iter().map(|(volume, _)| volume.as_str()).collect();
    let what = format!("the pool has no volume {volume}");
    Err(invalid(MessageId::VolumeNotInPool, what, format!("its volumes are {}", known.join(", "))))
}

/// Whether somebody has signed the settings on a cache, with whatever key.
pub(super) fn has_mac(found: &Exported) -> bool {
    found.copy.mac != [0; SETTINGS_MAC_BYTES]
}

/// Whether the key of the cache has signed the settings on it.
///
/// # Errors
/// It is not the key of the cache, or others have changed the settings since.
pub(super) fn is_signed(found: &Exported, key: Option<&Key>) -> Result<bool, AdminError> {
    let shown = found.devices.first().map(|path| path.display().to_string()).unwrap_or_default();
    unlock(&found.superblock, key, &shown).map_err(RunError::from)?;
    let Some(key) = key.filter(|_| has_mac(found)) else { return Ok(false) };
    if key.has_signed(&found.copy) {
        return Ok(true);
    }
    Err(AdminError::new(
        MessageId::CacheExportForged,
        format!("{shown}: the settings on the cache were not written with its key: others have changed them"),
        "nothing was changed; `forebay pool create` opens the cache without them, and `forebay volume attach` finds its volumes by their \
         names",
    ))
}

/// Refuses an import whose command does not name what the settings name.
pub(super) fn refuse(request: &ImportRequest, section: &PoolSection, lacking: &[String]) -> AdminError {
    let mut command = String::from("forebay pool import");
    for device in &request.devices {
        command += &format!(" --device {}", shell_word(device));
    }
    if let Some(pool) = &request.pool {
        command += &format!(" --pool {}", shell_word(pool));
    }
    for option in given(request).iter().chain(lacking) {
        command += &format!(" {option}");
    }
    AdminError::new(
        MessageId::PoolImportUnconfirmed,
        format!(
            "pool {}: anyone who can write to the cache can have written the settings on it, and the command does not name what they \
             name: {}",
            section.name,
            lacking.join(" ")
        ),
        format!("nothing was changed; if each of them is right on this host: {command}"),
    )
}

/// What a command names already, as options.
fn given(request: &ImportRequest) -> Vec<String> {
    let mut options = Vec::new();
    options.extend(request.key_file.iter().map(|key| format!("--key-file {}", shell_word(key))));
    for (volume, uri) in &request.backing {
        options.push(format!("--backing {}", shell_word(&format_args!("{volume}={uri}"))));
    }
    for (volume, uris) in &request.exports {
        let none = [String::new()];
        for uri in if uris.is_empty() { &none[..] } else { uris } {
            options.push(format!("--export {}", shell_word(&format_args!("{volume}={uri}"))));
        }
    }
    options
}

/// A word that a shell takes as it is, in quotes if need be.
fn shell_word(value: &dyn Display) -> String {
    let text = value.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_each_word() {
        for text in [
            "db=/dev/sdb",
            "",
            "a b",
            "it's",
            "$(rm -rf /)",
            "`x`",
            "a\nb",
            "nbd+unix:///db?socket=/run/a&b=c",
        ] {
            let line = format!("printf %s {}", shell_word(&text));
            let said = std::process::Command::new("sh").arg("-c").arg(line).output();
            assert_eq!(said.map(|said| said.stdout).ok(), Some(text.as_bytes().to_vec()), "{text}");
        }
        assert_eq!(shell_word(&"db=/dev/sdb"), "db=/dev/sdb");
    }
}
