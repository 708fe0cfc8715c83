//! What is allowed and looks like a mistake, of one volume: the same whether it comes by a file, by
//! the command line or by the API.

use crate::choices::{DefaultAction, OnBackingChange};
use crate::model::VolumeConfig;
use forebay_admin::MessageId;
use forebay_export::uri::{Endpoint, ExportUri};

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// What it is about, for scripts.
    pub id: MessageId,
    /// Which part of the section of the volume: `exports[0]`, `on_backing_change`.
    pub key: String,
    /// In words.
    pub message: String,
    /// What to do.
    pub help: &'static str,
}

/// All of a volume.
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
            help: "add a rule for what is to be cached, or leave default_action out",
        });
    }
    if tunables.on_backing_change == OnBackingChange::DiscardDirty {
        found.push(Warning {
            id: MessageId::ConfigDataLoss,
            key: "on_backing_change".into(),
            message: "each time the backing store looks changed, what only the cache has is thrown away"
                .into(),
            help: "set it for one attach and take it out again",
        });
    }
    found
}

/// An export that everybody can use who reaches its address.
fn of_export(name: &str, (index, uri): (usize, &ExportUri)) -> Option<Warning> {
    let ExportUri::Nbd { endpoint: Endpoint::Tcp { host, .. }, guards, .. } = uri else { return None };
    if guards.access.is_some() || guards.tls.is_some() {
        return None;
    }
    let who = match is_loopback(host) {
        true => "every user of this machine".to_owned(),
        false => format!("whoever can reach {host}"),
    };
    Some(Warning {
        id: MessageId::ConfigInsecure,
        key: format!("exports[{index}]"),
        message: format!("{who} can read and change `{name}`"),
        help: "use nbd+unix: with a socket that only its users may open, or nbds: with [tls.NAME] and its client_ca_file",
    })
}

/// Only this machine can reach it.
pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
