//! A parsed and checked configuration.

use super::choices::{ClientCertificates, LockMemory, LogLevel};
use super::keys;
use super::rule_table::RuleTable;
use super::settings::Settings;
use super::tunables::{PoolTunables, VolumeTunables};
use crate::AccessList;
use crate::CacheSpec;
use forebay_export::uri::{BackingUri, ExportUri, Guards};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Longest name of a pool or volume, in bytes, by the format of the cache device.
pub const NAME_BYTES_MAX: usize = forebay_format::checkpoint::NAME_BYTES_MAX;

/// The whole configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// `[daemon]`
    pub daemon: DaemonConfig,
    /// `[tls.NAME]`
    pub tls: BTreeMap<String, TlsConfig>,
    /// `[access.NAME]`
    pub access: BTreeMap<String, AccessList>,
    /// `[pool.NAME]`
    pub pools: BTreeMap<String, PoolConfig>,
    /// `[volume.NAME]`; every pool named there exists.
    pub volumes: BTreeMap<String, VolumeConfig>,
}

impl Config {
    /// Returns the access settings of each NBD export.
    pub fn exports(&self) -> impl Iterator<Item = &Guards> {
        let all = self.volumes.values().flat_map(|volume| &volume.exports);
        all.filter_map(|uri| match uri {
            ExportUri::Nbd { guards, .. } => Some(guards),
            ExportUri::Fuse { .. } | ExportUri::Ublk { .. } | ExportUri::VhostUser { .. } => None,
        })
    }
}

/// Settings of the daemon itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DaemonConfig {
    /// Socket of the admin API.
    pub admin_socket: PathBuf,
    /// Its permissions.
    pub admin_mode: u32,
    /// Its group; by default that of the daemon.
    pub admin_group: Option<String>,
    /// The admin API over TCP.
    pub admin_tcp: Option<AdminTcp>,
    /// Where `/metrics` is served without a token: an address of loopback. Port 0: any free port.
    pub metrics_listen: Option<SocketAddr>,
    /// Permissions on the admin socket; by default, every user who can open it has all.
    pub admin_users: Option<AdminUsers>,
    /// Prefixes of the paths that clients of the admin API may name; any path by default. Root and
    /// the daemon's own user may name any path.
    pub allowed_paths: Option<Vec<PathBuf>>,
    /// Program and arguments to run for each alarm; empty: none.
    pub alarm_command: Vec<String>,
    /// Mount point of the control file system.
    pub control_fs: Option<PathBuf>,
    /// Log level.
    pub log_level: LogLevel,
    /// Whether memory may be swapped out.
    pub lock_memory: LockMemory,
    /// Folder for the daemon's persistent state.
    pub state_dir: PathBuf,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            admin_socket: keys::ADMIN_SOCKET.into(),
            admin_mode: keys::ADMIN_MODE,
            admin_group: None,
            admin_tcp: None,
            metrics_listen: None,
            admin_users: None,
            allowed_paths: None,
            alarm_command: Vec::new(),
            control_fs: None,
            log_level: LogLevel::Info,
            lock_memory: LockMemory::No,
            state_dir: keys::STATE_DIR.into(),
        }
    }
}

/// Permissions on the admin socket. Root and the daemon's own user always have all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AdminUsers {
    /// Users who may change things.
    pub operate: UserList,
    /// Users who may read.
    pub read: UserList,
}

/// Users and groups by their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UserList {
    /// Users.
    pub uids: Vec<u32>,
    /// Groups.
    pub gids: Vec<u32>,
}

/// `[tls.NAME]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsConfig {
    /// Certificate and private key.
    pub files: TlsFiles,
    /// Authorities that sign client certificates.
    pub client_ca_file: Option<PathBuf>,
    /// Whether clients must have a certificate.
    pub client_certificates: ClientCertificates,
}

/// The admin API over TCP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminTcp {
    /// Host name or address, without brackets.
    pub host: String,
    /// Port, not 0.
    pub port: u16,
    /// File with the token for changes.
    pub token_file: PathBuf,
    /// File with the token for reads only.
    pub read_token_file: Option<PathBuf>,
    /// Certificate and private key.
    pub tls: Option<TlsFiles>,
}

/// Files for TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// Certificate chain, PEM.
    pub cert_file: PathBuf,
    /// Private key, PEM.
    pub key_file: PathBuf,
}

/// A pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Cache devices, at least one.
    pub devices: Vec<CacheSpec>,
    /// Tunables that are set.
    pub settings: Settings,
}

impl PoolConfig {
    /// Returns its tunables, defaults included.
    #[must_use]
    pub fn tunables(&self) -> PoolTunables {
        PoolTunables::new(&self.settings)
    }
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeConfig {
    /// The pool that caches it.
    pub pool: String,
    /// The backing store.
    pub backing: BackingUri,
    /// Where clients reach it.
    pub exports: Vec<ExportUri>,
    /// Bytes to serve, a multiple of 512, unless it is the whole backing store.
    pub size_bytes: Option<u64>,
    /// Tunables that are set.
    pub settings: Settings,
    /// Rules in their order, as parsed keys and values.
    pub rules: Vec<RuleTable>,
}

impl VolumeConfig {
    /// Returns its tunables, defaults included.
    #[must_use]
    pub fn tunables(&self) -> VolumeTunables {
        VolumeTunables::new(&self.settings)
    }
}

/// Checks whether a text can be the name of a pool or volume. Names become file names, parts of
/// addresses and entries on the cache device.
///
/// The problem with the name.
pub fn check_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() {
        return Err("the name is empty".into());
    }
    if let Some(bad) = name.chars().find(|c| !legal(*c)) {
        return Err(format!("a name has letters, digits, `-`, `_` and `.`, but no {bad:?}"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("a name starts with a letter or digit".into());
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("a name has at most {NAME_BYTES_MAX} bytes, and this one {}", name.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn names_are_safe_in_paths_and_addresses() {
        for good in ["db", "a", "Vol-1_x.y", "0", &"x".repeat(64)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "..", ".x", "-x", "a/b", "a b", "é", "a\0", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
