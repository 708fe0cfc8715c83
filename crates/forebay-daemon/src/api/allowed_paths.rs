//! Restricts the paths that requests may name (`allowed_paths`). A client with level `Operate`
//! makes the daemon open, create and write files with the rights of its user; so the administrator
//! limits the locations.
//!
//! Invariants
//! - Root and the daemon's own user are not limited: they could open everything anyway.
//! - A path counts as its target after resolving links. A dangling link, or a path whose
//!   directories cannot be read, is not allowed.
//! - Only paths in requests are checked, not those in the configuration.
//!
//! Not covered: changes of a path after the check. A user with write access to an allowed directory
//! can put a link there later; so those directories must belong to root or the daemon's user.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use forebay_admin::{
    AdminError, DetachRequest, DeviceRequest, GrowRequest, ImportRequest, MessageId, PoolRequest,
    ReplaceRequest, SettingsRequest, VolumeRequest,
};
use forebay_config::KeySource;
use forebay_export::uri::{BackingUri, Endpoint, ExportUri, NbdBacking};

/// Prefixes of the paths that a client may name; `None`: all.
#[derive(Clone, Default)]
pub(crate) struct AllowedPaths(Option<Arc<[PathBuf]>>);

impl AllowedPaths {
    /// Allows only paths below these prefixes.
    pub(super) fn below(prefixes: &[PathBuf]) -> Self {
        Self(Some(prefixes.into()))
    }

    /// Checks the paths that a request names. May wait for a remote file system.
    ///
    /// # Errors
    /// The request names a path that is not allowed.
    pub(crate) fn check(&self, request: &impl NamesPaths) -> Result<(), AdminError> {
        let Some(prefixes) = &self.0 else { return Ok(()) };
        let roots: Vec<PathBuf> = prefixes.iter().filter_map(|prefix| resolved(prefix)).collect();
        let is_allowed = |path: &PathBuf| {
            resolved(path).is_some_and(|path| roots.iter().any(|root| path.starts_with(root)))
        };
        let Some(path) = request.paths().into_iter().find(|path| !is_allowed(path)) else { return Ok(()) };
        let list: Vec<String> = prefixes.iter().map(|prefix| prefix.display().to_string()).collect();
        let what = format!("{} is not below {}", path.display(), list.join(", "));
        let hint = "give a path there, or run the command as root; allowed_paths in [daemon] of the \
                    configuration lists the paths that users of the API may give";
        Err(AdminError::new(MessageId::ApiPathNotAllowed, what, hint))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AllowedPaths {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// Resolves a path: the existing part without links, followed by the names of the missing part.
fn resolved(path: &Path) -> Option<PathBuf> {
    let mut at = path;
    let mut missing = Vec::new();
    loop {
        match at.canonicalize() {
            Ok(found) => return Some(missing.iter().rev().fold(found, |found, name| found.join(name))),
            // A dangling link is not a file yet to be created.
            Err(error) if error.kind() == ErrorKind::NotFound && at.symlink_metadata().is_err() => {
                missing.push(at.file_name()?);
                at = at.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            }
            Err(_) => return None,
        }
    }
}

/// A request that names files, devices or sockets.
pub(crate) trait NamesPaths {
    /// Returns the paths as named. Text that is no URI is refused later, and contributes none.
    fn paths(&self) -> Vec<PathBuf>;
}

fn of_device(device: &DeviceRequest) -> PathBuf {
    PathBuf::from(&device.path)
}

fn of_backing(uri: &str) -> Option<PathBuf> {
    let uri = uri.parse::<BackingUri>().ok()?;
    match uri.nbd().map(NbdBacking::endpoint) {
        None => Some(uri.path().to_owned()),
        Some(Endpoint::Unix(path)) => Some(path.clone()),
        Some(Endpoint::Tcp { .. }) => None,
    }
}

fn of_export(uri: &str) -> Option<PathBuf> {
    match uri.parse().ok()? {
        ExportUri::Nbd { endpoint: Endpoint::Unix(path), .. }
        | ExportUri::Fuse { path }
        | ExportUri::VhostUser { path, .. } => Some(path),
        ExportUri::Nbd { endpoint: Endpoint::Tcp { .. }, .. } | ExportUri::Ublk { .. } => None,
    }
}

/// Returns the key file, unless the key is a credential of the daemon's unit. Values of settings
/// are trimmed when they are read.
fn of_key(key: &str) -> Option<PathBuf> {
    match key.trim().parse().ok()? {
        KeySource::File(path) => Some(path),
        KeySource::Credential(_) => None,
    }
}

const KEY_SETTING: &str = "encryption_key_file";

impl NamesPaths for PoolRequest {
    fn paths(&self) -> Vec<PathBuf> {
        let key = self.settings.get(KEY_SETTING).and_then(|key| of_key(key));
        self.devices.iter().map(of_device).chain(key).collect()
    }
}

impl NamesPaths for GrowRequest {
    fn paths(&self) -> Vec<PathBuf> {
        self.device.iter().map(of_device).collect()
    }
}

impl NamesPaths for ReplaceRequest {
    fn paths(&self) -> Vec<PathBuf> {
        std::iter::once(&self.device).chain(&self.other).map(of_device).collect()
    }
}

impl NamesPaths for ImportRequest {
    fn paths(&self) -> Vec<PathBuf> {
        let devices = self.devices.iter().map(PathBuf::from);
        let stores = self.backing.values().filter_map(|uri| of_backing(uri));
        let exports = self.exports.values().flatten().filter_map(|uri| of_export(uri));
        devices.chain(stores).chain(exports).chain(self.key_file.as_deref().and_then(of_key)).collect()
    }
}

impl NamesPaths for VolumeRequest {
    fn paths(&self) -> Vec<PathBuf> {
        // A configured volume is named without its backing store.
        let store = Some(&self.backing).filter(|uri| !uri.is_empty()).and_then(|uri| of_backing(uri));
        store.into_iter().chain(self.exports.iter().filter_map(|uri| of_export(uri))).collect()
    }
}

impl NamesPaths for DetachRequest {
    fn paths(&self) -> Vec<PathBuf> {
        self.save_to.iter().map(PathBuf::from).collect()
    }
}

impl NamesPaths for SettingsRequest {
    fn paths(&self) -> Vec<PathBuf> {
        self.set.get(KEY_SETTING).into_iter().flatten().filter_map(|key| of_key(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn volume(backing: &str, export: &str) -> VolumeRequest {
        let (name, pool, settings) = ("v".to_owned(), None, std::collections::BTreeMap::new());
        VolumeRequest { name, pool, backing: backing.into(), exports: vec![export.into()], settings }
    }

    #[test]
    fn only_paths_outside_folders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::create_dir(at("in")).unwrap();
        std::fs::write(at("secret"), b"").unwrap();
        symlink(at("secret"), at("in/link")).unwrap();
        symlink(at("nothing"), at("in/dangling")).unwrap();
        symlink(dir.path(), at("in/up")).unwrap();
        symlink(at("in"), at("alias")).unwrap();
        let allowed = AllowedPaths::below(&[at("alias").into()]);
        for name in ["in/disk.img", "in/new/folder/disk.img", "alias/disk.img", "in/up/in/disk.img"] {
            allowed.check(&volume(&at(name), "nbd://127.0.0.1/v")).expect(name);
        }
        let outside =
            ["secret", "in/link", "in/dangling", "in/up/secret", "in/../secret", "inside", "in/new/.."];
        for name in outside {
            let refused = allowed.check(&volume(&at(name), "ublk:")).expect_err(name);
            assert_eq!(refused.id, MessageId::ApiPathNotAllowed);
            assert!(refused.what.contains(&at(name)), "{refused:?}");
        }
        AllowedPaths::default().check(&volume(&at("secret"), "ublk:")).unwrap();
    }

    #[test]
    fn every_path_of_a_request_is_checked() {
        let allowed = AllowedPaths::below(&["/allowed".into()]);
        let device = |path: &str| DeviceRequest { path: path.into(), size: None };
        let inside = || device("/allowed/a");
        let refused = |request: &dyn Fn(&str) -> Vec<PathBuf>| {
            for path in ["/etc/shadow", "/allowed/x"] {
                let (paths, is_in) = (request(path), path.starts_with("/allowed"));
                assert_eq!(allowed.check(&Named(paths)).is_ok(), is_in, "{path}");
            }
        };
        for uri in ["fuse:", "vhost-user:", "nbd+unix:///x?socket=", "nbds+unix:///x?tls=t&socket="] {
            refused(&|path| volume("/allowed/disk", &format!("{uri}{path}")).paths());
        }
        refused(&|path| volume(&format!("file:{path}"), "ublk:x").paths());
        let key = |path: &str| [(KEY_SETTING.to_owned(), path.to_owned())].into();
        let pool = |devices, settings| PoolRequest {
            name: "p".into(),
            devices,
            settings,
            overwrite: false,
            fill: false,
            new_cache: false,
        };
        refused(&|path| pool(vec![inside(), device(path)], [].into()).paths());
        refused(&|path| pool(vec![inside()], key(path)).paths());
        refused(&|path| GrowRequest { device: Some(device(path)), ..GrowRequest::default() }.paths());
        let replace = |device, other| ReplaceRequest {
            device,
            other,
            old: None,
            discard_lost: false,
            overwrite: false,
            fill: false,
        };
        refused(&|path| replace(device(path), None).paths());
        refused(&|path| replace(inside(), Some(device(path))).paths());
        refused(&|path| DetachRequest { save_to: Some(path.into()), ..DetachRequest::default() }.paths());
        let set = |path: &str| [(KEY_SETTING.to_owned(), Some(path.to_owned()))].into();
        refused(&|path| SettingsRequest { set: set(path), ..SettingsRequest::default() }.paths());
        refused(&|path| {
            SettingsRequest { set: set(&format!(" {path}")), ..SettingsRequest::default() }.paths()
        });
        let import = |path: &str| ImportRequest { devices: vec![path.into()], ..ImportRequest::default() };
        refused(&|path| import(path).paths());
        let v = || "v".to_owned();
        refused(&|path| {
            ImportRequest { backing: [(v(), path.into())].into(), ..import("/allowed/d") }.paths()
        });
        let uri = |path: &str| vec![format!("fuse:{path}")];
        refused(&|path| ImportRequest { exports: [(v(), uri(path))].into(), ..import("/allowed/d") }.paths());
        refused(&|path| ImportRequest { key_file: Some(path.into()), ..import("/allowed/d") }.paths());
    }

    struct Named(Vec<PathBuf>);

    impl NamesPaths for Named {
        fn paths(&self) -> Vec<PathBuf> {
            self.0.clone()
        }
    }
}
