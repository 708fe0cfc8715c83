//! Checks across sections: references, things that can be used only once, and settings that
//! conflict.

use super::reader::{Reader, Taken, lexical};
use crate::CacheSpec;
use crate::choices::Mirror;
use crate::conflicts::{self, Conflict};
use crate::device_name::node_of;
use crate::diagnostic::{Diagnostic, Span};
use crate::model::{AdminTcp, Config, UserList, VolumeConfig};
use crate::mounts;
use crate::value::nearest;
use crate::warnings::{self, Warning, is_loopback};
use forebay_admin::MessageId;
use forebay_export::uri::{Endpoint, ExportUri, FilePermissions, Guards, device_name_problem};
use forebay_format::geometry::{SEGMENT_BLOCKS_MIN, VOLUMES_MAX};
use forebay_format::member::DATA_START_BLOCK;
use forebay_format::{BLOCK_BYTES, Geometry};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Longest path of a unix socket: the kernel's address has 108 bytes, one of them the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Runs all checks.
pub(super) fn all(reader: &mut Reader, config: &Config) {
    daemon(reader, config);
    let devices = devices(reader, config);
    geometry(reader, config);
    conflicts_of_pools(reader, config);
    backings(reader, config, &devices);
    exports(reader, config);
    mounts(reader, config);
    guards(reader, config);
    volumes_max(reader, config);
    for (name, volume) in in_file_order(reader, config) {
        pool_of(reader, config, name, volume);
        settings(reader, config, name, volume);
    }
    shares(reader, config);
}

/// Returns the volumes in the order of the file, so that the later one of two equal things is
/// reported.
fn in_file_order<'a>(reader: &Reader, config: &'a Config) -> Vec<(&'a String, &'a VolumeConfig)> {
    let mut volumes: Vec<_> = config.volumes.iter().collect();
    volumes.sort_by_key(|(name, _)| at(reader, &format!("volume.{name}")).start);
    volumes
}

/// Returns the place of a setting; the start of the file for a default.
fn at(reader: &Reader, what: &str) -> Span {
    reader.place(what).unwrap_or(0..0)
}

fn daemon(reader: &mut Reader, config: &Config) {
    let daemon = &config.daemon;
    if daemon.admin_socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let message = format!("the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes");
        reader.push(Diagnostic::error(MessageId::ConfigLimit, at(reader, "daemon.admin_socket"), message));
    }
    if let Some(AdminTcp { host, tls: None, .. }) = &daemon.admin_tcp
        && !is_loopback(host)
    {
        let span = at(reader, "daemon.admin_tcp.listen");
        let message = format!("anyone on the network path to {host} can read the token");
        reader.push(
            Diagnostic::warning(MessageId::ConfigInsecure, span, message)
                .help("give cert_file and key_file, or listen on 127.0.0.1"),
        );
    }
    let others = [
        ("admin_group", daemon.admin_group.is_some()),
        (
            "admin_operate",
            daemon.admin_users.as_ref().is_some_and(|users| users.operate != UserList::default()),
        ),
        ("admin_tcp", daemon.admin_tcp.is_some()),
    ];
    if let Some((key, _)) = others.into_iter().find(|(_, is_set)| *is_set)
        && daemon.allowed_paths.is_none()
    {
        let span = at(reader, &format!("daemon.{key}"));
        let message = "every operator can make the daemon open, create and write any file that its user can";
        reader.push(Diagnostic::warning(MessageId::ConfigInsecure, span, message).help(
            "list the folders of devices, backing stores and sockets: allowed_paths = [\"/dev\", \"/srv\"]",
        ));
    }
    let Some(mount) = daemon.control_fs.as_deref().map(lexical) else { return };
    for (what, path) in [("admin_socket", &daemon.admin_socket), ("state_dir", &daemon.state_dir)] {
        if lexical(path).starts_with(&mount) {
            let span = at(reader, "daemon.control_fs");
            let message = format!("control_fs would hide `{what}` ({})", path.display());
            reader.push(
                Diagnostic::error(MessageId::ConfigConflict, span, message)
                    .help("mount it on a folder of its own"),
            );
        }
    }
}

/// Checks that each cache device is used once. Returns the users of the devices, by path and by
/// node.
fn devices(reader: &mut Reader, config: &Config) -> (Taken<PathBuf>, Taken<PathBuf>) {
    let mut all: Vec<(Span, &String, &CacheSpec)> = Vec::new();
    for (pool, section) in &config.pools {
        for (index, device) in section.devices.iter().enumerate() {
            all.push((at(reader, &format!("pool.{pool}.devices[{index}]")), pool, device));
        }
    }
    all.sort_by_key(|(span, ..)| span.start);
    let (mut taken, mut nodes) = (Taken::default(), Taken::default());
    for (span, pool, device) in all {
        let who = format!("pool `{pool}`");
        let path = lexical(&device.path);
        if let Some((holder, first)) = taken.take(path.clone(), &who, span.clone()) {
            let message = format!("{} is a cache device of {holder} already", device.path.display());
            reader.push(
                Diagnostic::error(MessageId::ConfigConflict, span, message).related(first, "first used here"),
            );
        } else if let Some((holder, first)) = nodes.take(node_of(&path), &who, span.clone()) {
            one_device(reader, span, &device.path, &format!("a cache device of {holder}"), first);
        }
    }
    (taken, nodes)
}

/// Warns that two names are those of one device. This is no error: the names may lead to other
/// devices at the next start, and the daemon must serve everything else then.
fn one_device(reader: &mut Reader, span: Span, path: &Path, what: &str, first: Span) {
    let message = format!("{} is another name of {what}", path.display());
    let same = Diagnostic::warning(MessageId::ConfigSameDevice, span, message)
        .related(first, "named otherwise here");
    reader.push(
        same.help(
            "only one of the two can be opened: give each device once, by a name below /dev/disk/by-id",
        ),
    );
}

/// Checks the settings of each pool for conflicts with each other and with the number of its
/// devices.
fn conflicts_of_pools(reader: &mut Reader, config: &Config) {
    for (pool, section) in &config.pools {
        for conflict in conflicts::of_pool(&section.tunables(), section.devices.len()) {
            let mut keys = conflict.keys.iter();
            let span = keys.find_map(|key| reader.place(&format!("pool.{pool}.{key}"))).unwrap_or(0..0);
            reader.push(
                Diagnostic::error(MessageId::SettingConflict, span, conflict.message).help(conflict.help),
            );
        }
    }
}

/// Checks that a cache has room for enough segments: on its first device, and on both of a mirrored
/// one. Each further device of an unmirrored cache needs room for one segment behind its header.
///
/// Sizes that the daemon has written itself must pass: a cache can have them after it has grown or
/// shrunk.
fn geometry(reader: &mut Reader, config: &Config) {
    for (pool, section) in &config.pools {
        let tunables = section.tunables();
        let segment_blocks = tunables.segment_size.map(|size| size.0 / BLOCK_BYTES as u64);
        let segment_blocks = segment_blocks.and_then(|blocks| u32::try_from(blocks).ok());
        for (index, device) in section.devices.iter().enumerate() {
            let Some(size_bytes) = device.size_bytes else { continue };
            let is_further = index > 0 && tunables.mirror == Mirror::Off;
            let problem = match is_further {
                true => too_small_to_join(size_bytes, segment_blocks),
                false => {
                    Geometry::for_device(size_bytes, segment_blocks).err().map(|error| error.to_string())
                }
            };
            if let Some(problem) = problem {
                let span = at(reader, &format!("pool.{pool}.devices[{index}]"));
                let message = format!("{} cannot be a cache: {problem}", device.path.display());
                let smaller = segment_blocks.map_or("", |_| "or make segment_size of the pool smaller");
                reader.push(Diagnostic::error(MessageId::CacheGeometry, span, message).help(smaller));
            }
        }
    }
}

/// Returns why a device of this size cannot join a cache. The segment size is known only if it is
/// configured.
fn too_small_to_join(size_bytes: u64, segment_blocks: Option<u32>) -> Option<String> {
    let blocks = DATA_START_BLOCK + u64::from(segment_blocks.unwrap_or(SEGMENT_BLOCKS_MIN));
    let least = blocks * BLOCK_BYTES as u64;
    (size_bytes < least).then(|| {
        format!(
            "{size_bytes} bytes are too few for a further device, which needs at least {least} bytes; give it a larger SIZE"
        )
    })
}

/// Checks that each backing store is used once, and that none is a cache device.
fn backings(reader: &mut Reader, config: &Config, (devices, nodes): &(Taken<PathBuf>, Taken<PathBuf>)) {
    let (mut taken, mut taken_nodes) = (Taken::default(), Taken::default());
    for (name, volume) in in_file_order(reader, config) {
        let span = at(reader, &format!("volume.{name}.backing"));
        let path = lexical(volume.backing.path());
        if let Some((pool, first)) = devices.holder(&path) {
            let message = format!("{} is a cache device of {pool}", path.display());
            let same = Diagnostic::error(MessageId::ConfigConflict, span.clone(), message)
                .related(first, "used as a cache here");
            reader.push(same.help("a backing store needs a file or device of its own"));
        } else if let Some((pool, first)) = nodes.holder(&node_of(&path)) {
            one_device(reader, span.clone(), &path, &format!("a cache device of {pool}"), first);
        }
        if let Some((holder, first)) = taken.take(path.clone(), &format!("volume `{name}`"), span.clone()) {
            let message = format!("{} is the backing store of {holder} already", path.display());
            let twice =
                Diagnostic::error(MessageId::ConfigConflict, span, message).related(first, "first used here");
            reader.push(twice.help("a volume may have several exports: add one there instead"));
        } else if let Some((holder, first)) =
            taken_nodes.take(node_of(&path), &format!("volume `{name}`"), span.clone())
        {
            one_device(reader, span, &path, &format!("the backing store of {holder}"), first);
        }
    }
}

/// Returns an address in one canonical spelling.
fn address(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Unix(path) => lexical(path).display().to_string(),
        Endpoint::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
        Endpoint::Tcp { host, port } => format!("{}:{port}", host.to_ascii_lowercase()),
    }
}

/// Checks that each export is used once, and each address for one purpose and one pool, whose
/// thread owns the socket.
fn exports(reader: &mut Reader, config: &Config) {
    let (mut names, mut addresses) = (Taken::default(), Taken::default());
    let daemon = &config.daemon;
    let admin = Endpoint::Unix(daemon.admin_socket.clone());
    addresses.take(address(&admin), "the admin API", at(reader, "daemon.admin_socket"));
    if let Some(AdminTcp { host, port, .. }) = &daemon.admin_tcp {
        let tcp = Endpoint::Tcp { host: host.clone(), port: *port };
        addresses.take(address(&tcp), "the admin API", at(reader, "daemon.admin_tcp.listen"));
    }
    if let Some(listen) = daemon.metrics_listen.filter(|listen| listen.port() != 0) {
        let tcp = address(&Endpoint::Tcp { host: listen.ip().to_string(), port: listen.port() });
        let span = at(reader, "daemon.metrics_listen");
        if let Some((holder, first)) = addresses.take(tcp.clone(), "metrics_listen", span.clone()) {
            let twice = Diagnostic::error(
                MessageId::ConfigConflict,
                span,
                format!("{tcp} is used by {holder} already"),
            );
            reader.push(twice.related(first, "first used here").help("give one of them another port"));
        }
    }
    for (volume, section) in in_file_order(reader, config) {
        for (index, uri) in section.exports.iter().enumerate() {
            let span = at(reader, &format!("volume.{volume}.exports[{index}]"));
            let pool = format!("pool `{}`", section.pool);
            let (endpoint, name, who) = match uri {
                ExportUri::Nbd { endpoint, name, .. } => (endpoint.clone(), name.clone(), pool),
                ExportUri::Fuse { .. } => continue, // see `mounts`
                ExportUri::Ublk { name } => {
                    device_name(reader, &mut names, (volume, name.as_deref().unwrap_or(volume)), span);
                    continue;
                }
                // A frontend does not name the volume: each socket has one.
                ExportUri::VhostUser { path, .. } => {
                    let who = format!("the vhost-user export of volume `{volume}`");
                    (Endpoint::Unix(path.clone()), String::new(), who)
                }
            };
            let address = address(&endpoint);
            if let Some((holder, first)) = addresses.take(address.clone(), &who, span.clone())
                && holder != who
            {
                let message = format!("{address} is used by {holder} already");
                let twice = Diagnostic::error(MessageId::ConfigConflict, span.clone(), message)
                    .related(first, "first used here");
                reader.push(
                    twice.help("NBD exports of one pool may share an address; others need one of their own"),
                );
                continue;
            }
            if let Some((holder, first)) =
                names.take((address.clone(), name.clone()), &format!("volume `{volume}`"), span.clone())
            {
                let message = format!("export \"{name}\" at {address} belongs to {holder} already");
                let twice = Diagnostic::error(MessageId::ConfigConflict, span.clone(), message)
                    .related(first, "first used here");
                reader.push(twice.help("give one of them another name"));
            }
            below_control_fs(reader, config, &endpoint, span);
        }
    }
}

/// Checks that a block device has a unique name.
fn device_name(
    reader: &mut Reader,
    names: &mut Taken<(String, String)>,
    (volume, name): (&str, &str),
    span: Span,
) {
    if let Some((_, problem)) = device_name_problem(name) {
        let wrong =
            Diagnostic::error(MessageId::ConfigName, span, format!("{problem}, and \"{name}\" does not"));
        return reader.push(wrong.help("give one: ublk:NAME"));
    }
    let key = ("/dev/forebay".to_owned(), name.to_owned());
    if let Some((holder, first)) = names.take(key, &format!("volume `{volume}`"), span.clone()) {
        let message = format!("the block device /dev/forebay/{name} belongs to {holder} already");
        let twice =
            Diagnostic::error(MessageId::ConfigConflict, span, message).related(first, "first used here");
        reader.push(twice.help("give one of them another name: ublk:NAME"));
    }
}

/// Checks for paths that FUSE files hide, and for deadlocks through served files.
fn mounts(reader: &mut Reader, config: &Config) {
    for problem in mounts::problems(config, in_file_order(reader, config).into_iter()) {
        let found = Diagnostic::error(MessageId::ConfigConflict, at(reader, &problem.key), problem.message)
            .help(problem.help);
        let other = problem.other.map(|other| at(reader, &other));
        reader.push(match other {
            Some(other) => found.related(other, problem.is_the),
            None => found,
        });
    }
}

/// Checks the access settings of exports: their sections exist, and their conditions can be met.
fn guards(reader: &mut Reader, config: &Config) {
    let mut modes: BTreeMap<String, (Option<String>, FilePermissions, Span)> = BTreeMap::new();
    for (volume, section) in in_file_order(reader, config) {
        for (index, uri) in section.exports.iter().enumerate() {
            let ExportUri::Nbd { endpoint, guards, permissions, .. } = uri else { continue };
            let span = at(reader, &format!("volume.{volume}.exports[{index}]"));
            let address = address(endpoint);
            let (tls, theirs, first) = modes
                .entry(address.clone())
                .or_insert_with(|| (guards.tls.clone(), permissions.clone(), span.clone()));
            let mixed = |what: &str, help| {
                let message = format!("{address} has other {what} for another export");
                Diagnostic::error(MessageId::ConfigConflict, span.clone(), message)
                    .related(first.clone(), "first used here")
                    .help(help)
            };
            if *tls != guards.tls {
                let help = "all exports at an address have the same TLS settings: give one of them another \
                    address";
                reader.push(mixed("TLS settings", help));
            }
            if theirs != permissions {
                let help = "the file of a socket has one mode, user and group: give both exports the same, or one of them another socket";
                reader.push(mixed("permissions", help));
            }
            if let Some(tls) = &guards.tls
                && !config.tls.contains_key(tls)
            {
                missing(reader, span.clone(), "tls", tls, config.tls.keys());
            }
            if let Some(access) = &guards.access {
                access_fits(reader, config, span, (access, guards, endpoint));
            }
        }
    }
}

/// Checks that a list has conditions that clients of this export can meet: a condition that no
/// client meets is useless, and one that is not checked is dangerous.
fn access_fits(
    reader: &mut Reader,
    config: &Config,
    span: Span,
    (name, guards, endpoint): (&str, &Guards, &Endpoint),
) {
    let Some(list) = config.access.get(name) else {
        return missing(reader, span, "access", name, config.access.keys());
    };
    let has_authority = |tls: &String| config.tls.get(tls).is_none_or(|tls| tls.client_ca_file.is_some());
    let is_unix = matches!(endpoint, Endpoint::Unix(_));
    let problem = if list.is_of_users() && !is_unix {
        "has uids or gids, which only clients of a unix socket have"
    } else if !list.addresses.is_empty() && is_unix {
        "has addresses, which clients of a unix socket do not have"
    } else if !list.clients.is_empty() && !guards.tls.as_ref().is_some_and(has_authority) {
        "has clients by the name of their certificate, which needs nbds: and a client_ca_file"
    } else {
        return;
    };
    let message = format!("no client could use this export: access.{name} {problem}");
    reader.push(
        Diagnostic::error(MessageId::ConfigConflict, span, message)
            .help("make another section [access.NAME] for this export"),
    );
}

fn missing<'a>(
    reader: &mut Reader,
    span: Span,
    kind: &str,
    name: &str,
    known: impl Iterator<Item = &'a String> + Clone,
) {
    let missing =
        Diagnostic::error(MessageId::ConfigReference, span, format!("there is no section [{kind}.{name}]"));
    reader.push(match nearest(name, known.map(String::as_str)) {
        Some(near) => missing.label(format!("did you mean \"{near}\"?")),
        None => missing.help(format!("make one: [{kind}.{name}]")),
    });
}

fn below_control_fs(reader: &mut Reader, config: &Config, endpoint: &Endpoint, span: Span) {
    let (Some(mount), Endpoint::Unix(path)) = (&config.daemon.control_fs, endpoint) else { return };
    if lexical(path).starts_with(lexical(mount)) {
        let message = format!("control_fs ({}) would hide this socket", mount.display());
        reader.push(
            Diagnostic::error(MessageId::ConfigConflict, span, message)
                .help("put the socket into another folder"),
        );
    }
}

/// Checks that the pool of a volume exists.
fn pool_of(reader: &mut Reader, config: &Config, name: &str, volume: &VolumeConfig) {
    if config.pools.contains_key(&volume.pool) {
        return;
    }
    let span = at(reader, &format!("volume.{name}.pool"));
    let near = nearest(&volume.pool, config.pools.keys().map(String::as_str));
    let missing =
        Diagnostic::error(MessageId::ConfigReference, span, format!("there is no pool `{}`", volume.pool));
    let known: Vec<&str> = config.pools.keys().map(String::as_str).collect();
    reader.push(match near {
        Some(near) => missing.label(format!("did you mean \"{near}\"?")),
        None if known.is_empty() => missing.help(format!("make one: [pool.{}]", volume.pool)),
        None => missing.help(format!("there are: {}", known.join(", "))),
    });
}

/// Checks the number of volumes: the volume table of a cache has a fixed number of entries.
fn volumes_max(reader: &mut Reader, config: &Config) {
    for pool in config.pools.keys() {
        let volumes: Vec<&String> = in_file_order(reader, config)
            .into_iter()
            .filter(|(_, volume)| &volume.pool == pool)
            .map(|(name, _)| name)
            .collect();
        let Some(first_too_many) = volumes.get(VOLUMES_MAX as usize) else { continue };
        let span = at(reader, &format!("volume.{first_too_many}.pool"));
        let message =
            format!("pool `{pool}` has {} volumes, and at most {VOLUMES_MAX} are possible", volumes.len());
        reader.push(
            Diagnostic::error(MessageId::ConfigLimit, span, message).help("spread them over several pools"),
        );
    }
}

/// Checks for settings of a volume that conflict with each other or with its pool, or that look
/// like a mistake.
fn settings(reader: &mut Reader, config: &Config, name: &str, volume: &VolumeConfig) {
    let tunables = volume.tunables();
    let mut found = conflicts::of_volume(&tunables);
    if let Some(pool) = config.pools.get(&volume.pool) {
        found.extend(conflicts::of_volume_in_pool(&tunables, &pool.tunables()));
    }
    for conflict in found {
        let span = blame(reader, &conflict, name, volume);
        reader
            .push(Diagnostic::error(MessageId::SettingConflict, span, conflict.message).help(conflict.help));
    }
    for Warning { id, key, message, help } in warnings::of_volume(name, volume) {
        let span = at(reader, &format!("volume.{name}.{key}"));
        reader.push(Diagnostic::warning(id, span, message).help(help));
    }
}

/// Returns the place of the first setting of a conflict that the file has; else that of the pool's
/// `dirty_limit_pct`; else the section of the volume.
fn blame(reader: &Reader, conflict: &Conflict, name: &str, volume: &VolumeConfig) -> Span {
    let own = conflict.keys.iter().find_map(|key| reader.place(&format!("volume.{name}.{key}")));
    let of_pool = || reader.place(&format!("pool.{}.dirty_limit_pct", volume.pool));
    own.or_else(of_pool).unwrap_or_else(|| at(reader, &format!("volume.{name}")))
}

/// Checks that the reserved shares of a pool's volumes fit the pool.
fn shares(reader: &mut Reader, config: &Config) {
    for pool in config.pools.keys() {
        let reserved: Vec<(&String, u32)> = in_file_order(reader, config)
            .into_iter()
            .filter(|(_, volume)| &volume.pool == pool)
            .map(|(name, volume)| (name, volume.tunables().min_share_pct))
            .filter(|(_, share)| *share > 0)
            .collect();
        let sum: u32 = reserved.iter().map(|(_, share)| share).sum();
        let Some((last, _)) = reserved.last().filter(|_| sum > 100) else { continue };
        let parts: Vec<String> = reserved.iter().map(|(name, share)| format!("{name} {share}")).collect();
        let span = at(reader, &format!("volume.{last}.min_share_pct"));
        let message =
            format!("min_share_pct of the volumes of pool `{pool}` is {sum} together, more than 100");
        reader.push(
            Diagnostic::error(MessageId::ConfigConflict, span, message)
                .help(format!("they are: {}", parts.join(", "))),
        );
    }
}
