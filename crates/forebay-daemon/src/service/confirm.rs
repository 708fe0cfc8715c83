//! Decides which settings on a cache an import takes, and which need the operator's confirmation.
//!
//! Any process that can write to the flash can write settings onto it. They name files and devices
//! that the daemon reads and writes, mount points, listen addresses, and a key file. So the
//! settings are only a proposal, and the command must name what to use. Only the key of an
//! encrypted cache, which the command names as well, proves that the export of this cache wrote
//! them (`forebay_format::SettingsCopy::mac`).
//!
//! Invariants
//! - Of unsigned settings, no backing store, export or key is used that the command does not name.
//! - A key file is read only if the command names it.
//! - The options that a refusal shows can be copied into a shell unchanged.

use super::errors::invalid;
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

/// The resources that a command names.
#[derive(Debug)]
pub(super) struct Named {
    /// Backing stores by volume.
    pub(super) backing: BTreeMap<String, BackingUri>,
    exports: BTreeMap<String, Vec<ExportUri>>,
    /// Source of the key.
    pub(super) key: Option<KeySource>,
}

impl Named {
    /// Parses a command. Each volume is one of the pool.
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

    /// Returns the option for a key that the settings name and the command does not.
    pub(super) fn lacks_key(&self, section: &PoolSection) -> Option<String> {
        let suggested = section.pool.tunables().encryption_key_file.filter(|_| self.key.is_none());
        suggested.map(|source| format!("--key-file {}", shell_word(&source)))
    }

    /// Returns the options for backing stores and exports that the command does not name.
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

/// Returns true if the settings on a cache are signed, with any key.
pub(super) fn has_mac(found: &Exported) -> bool {
    found.copy.mac != [0; SETTINGS_MAC_BYTES]
}

/// Returns true if the key of the cache has signed the settings on it.
///
/// # Errors
/// It is not the key of the cache, or the settings were modified since.
pub(super) fn is_signed(found: &Exported, key: Option<&Key>) -> Result<bool, AdminError> {
    let shown = found.devices.first().map(|path| path.display().to_string()).unwrap_or_default();
    unlock(&found.superblock, key, &shown).map_err(RunError::from)?;
    let Some(key) = key.filter(|_| has_mac(found)) else { return Ok(false) };
    if key.has_signed(&found.copy) {
        return Ok(true);
    }
    Err(AdminError::new(
        MessageId::CacheExportForged,
        format!("{shown}: the settings on the cache were not written with its key: they were tampered with"),
        "nothing was changed; `forebay pool create` opens the cache without them, and `forebay volume attach` finds its volumes by their \
         names",
    ))
}

/// Refuses an import whose command does not name everything that the settings name.
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
            "pool {}: anything with write access to the cache can have written the settings on it, and the \
             command does not confirm them: {}",
            section.name,
            lacking.join(" ")
        ),
        format!("nothing was changed; if each of them is correct on this host: {command}"),
    )
}

/// Returns the parts already named by a command, as options.
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

/// Quotes a word for a shell if needed.
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
    fn shell_reads_back_each_word() {
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
