//! `forebay run`: `serve` with a configuration built from options. It has one pool with one volume,
//! and no file.

mod settings;

pub use settings::{SettingHelp, settings};

use crate::log_level::LogThreshold;
use crate::main_thread::RUN_POOL;
use crate::serve::{Origin, serve_config};
use crate::{RunEvent, RunOptions};
use forebay_admin::MessageId;
use forebay_config::CacheSpec;
use forebay_config::{Config, DaemonConfig, PoolConfig, VolumeConfig};
use forebay_export::uri::ExportUri;
use forebay_pool::RunError;
use settings::Plan;

/// Name of the volume of `forebay run` if its export has none.
const UNNAMED: &str = "volume";

/// Serves one volume until SIGINT or SIGTERM.
///
/// # Errors
/// [`RunError::Usage`] if the options are invalid; [`RunError::Failed`] if a device, the cache or a
/// socket cannot be used. Then nothing was changed on the devices, unless the message says so.
pub fn run(options: RunOptions, report: &mut dyn FnMut(RunEvent)) -> Result<(), RunError> {
    let Plan { settings, pool_settings, drain } = settings::plan(&options)?;
    for CacheSpec { path, .. } in &options.caches {
        if path.exists() && forebay_pool::cache_device::is_same(path, options.backing.path()) {
            return Err(RunError::failed(
                MessageId::CacheSameDevice,
                format!("cache and backing store are the same: {}", path.display()),
                "give the cache its own file or device",
            ));
        }
    }
    let volume = volume_name(&options.exports);
    let pool = PoolConfig { devices: options.caches, settings: pool_settings };
    let volume_config = VolumeConfig {
        pool: RUN_POOL.into(),
        backing: options.backing,
        exports: options.exports,
        size_bytes: None,
        settings,
        rules: Vec::new(),
    };
    let has_api = options.admin.is_some();
    let mut daemon = DaemonConfig { state_dir: state_dir(), ..DaemonConfig::default() };
    daemon.admin_socket = options.admin.unwrap_or(daemon.admin_socket);
    let config = Config {
        daemon,
        pools: [(RUN_POOL.to_owned(), pool)].into(),
        volumes: [(volume.clone(), volume_config)].into(),
        ..Config::default()
    };
    if let Some(problem) = forebay_config::mounts::problems(&config, config.volumes.iter()).into_iter().next()
    {
        return Err(RunError::failed(MessageId::VolumeDefinition, problem.message, problem.help));
    }
    let new_cache = if options.new_cache { vec![RUN_POOL.to_owned()] } else { Vec::new() };
    let drain = drain.then_some(volume.as_str());
    let origin = Origin {
        file: None,
        new_cache: &new_cache,
        taking: options.taking,
        has_api,
        drain,
        log_threshold: LogThreshold::default(),
    };
    serve_config(&origin, config, report)
}

/// Returns the directory in which `forebay run` records a failed cache: that from systemd, else the
/// default of the user.
#[must_use]
pub fn state_dir() -> std::path::PathBuf {
    let given =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(std::path::PathBuf::from);
    let own = || {
        let home = || given("HOME").map(|home| home.join(".local/state"));
        (!rustix::process::geteuid().is_root()).then(|| given("XDG_STATE_HOME").or_else(home)).flatten()
    };
    let own = given("STATE_DIRECTORY").or_else(|| own().map(|folder| folder.join("forebay")));
    own.unwrap_or_else(|| DaemonConfig::default().state_dir)
}

/// Returns the name of the first export that has one, which is the name of the volume of `forebay
/// run`.
fn volume_name(exports: &[ExportUri]) -> String {
    let named = exports.iter().find_map(|uri| match uri {
        ExportUri::Nbd { name, .. } if !name.is_empty() => Some(name.clone()),
        ExportUri::Fuse { path } => path.file_name().map(|name| name.to_string_lossy().into_owned()),
        ExportUri::Ublk { name } => name.clone(),
        ExportUri::VhostUser { path, .. } => path.file_stem().map(|name| name.to_string_lossy().into_owned()),
        ExportUri::Nbd { .. } => None,
    });
    let mut name = named.unwrap_or_else(|| UNNAMED.to_owned());
    while name.len() > forebay_format::checkpoint::NAME_BYTES_MAX {
        name.pop();
    }
    name
}
