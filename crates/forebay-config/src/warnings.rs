//! Settings of a volume that are allowed but look like mistakes: the same checks for a file, the
//! command line and the API.

use crate::model::VolumeConfig;
use crate::rules::DefaultAction;
use forebay_admin::MessageId;
use forebay_core::OnBackingChange;
use forebay_export::uri::{Endpoint, ExportUri, FilePermissions};

/// A warning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// Id of the message, for scripts.
    pub id: MessageId,
    /// Key within the section of the volume: `exports[0]`, `on_backing_change`.
    pub key: String,
    /// In words.
    pub message: String,
    /// Suggested action.
    pub help: &'static str,
}

/// Returns all warnings of a volume.
#[must_use]
pub fn of_volume(name: &str, volume: &VolumeConfig) -> Vec<Warning> {
    let mut found: Vec<Warning> =
        volume.exports.iter().enumerate().filter_map(|of| of_export(name, of)).collect();
    let tunables = volume.tunables();
    if tunables.default_action == DefaultAction::Bypass && volume.rules.is_empty() {
        found.push(Warning {
            id: MessageId::ConfigUnused,
            key: "default_action".into(),
            message: format!("nothing of `{name}` is cached: there are no rules"),
            help: "add a rule for the requests to cache, or leave default_action out",
        });
    }
    if tunables.on_backing_change == OnBackingChange::DiscardDirty {
        found.push(Warning {
            id: MessageId::ConfigDataLoss,
            key: "on_backing_change".into(),
            message: "each time the backing store looks changed, dirty data is discarded".into(),
            help: "set it for one attach, then remove it",
        });
    }
    found
}

/// Write permission on a socket file permits connecting: here for every user.
const WRITE_OF_OTHERS: u32 = 0o002;

/// Warns of an export that is open to all clients that reach its address.
fn of_export(name: &str, (index, uri): (usize, &ExportUri)) -> Option<Warning> {
    let is_open =
        |permissions: &FilePermissions| permissions.mode.is_some_and(|mode| mode & WRITE_OF_OTHERS > 0);
    let who = match uri {
        ExportUri::Nbd { guards, .. } if guards.access.is_some() || guards.tls.is_some() => return None,
        ExportUri::Nbd { endpoint: Endpoint::Tcp { host, .. }, .. } if !is_loopback(host) => {
            format!("anyone who can reach {host}")
        }
        ExportUri::Nbd { endpoint: Endpoint::Tcp { .. }, .. } => "every user of this machine".to_owned(),
        ExportUri::Nbd { permissions, .. } | ExportUri::VhostUser { permissions, .. }
            if is_open(permissions) =>
        {
            "every user of this machine with access to the folder of the socket".to_owned()
        }
        _ => return None,
    };
    Some(Warning {
        id: MessageId::ConfigInsecure,
        key: format!("exports[{index}]"),
        message: format!("{who} can read and change `{name}`"),
        help: "use nbd+unix: with a socket that only its users may open, or nbds: with [tls.NAME] and its client_ca_file",
    })
}

/// Returns whether only this machine can reach it.
pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
