//! `[daemon]`

use super::guards::{entries, ids};
use super::reader::{Reader, Table, Value, near_key, raw};
use crate::choices::{LockMemory, LogLevel, Words};
use crate::daemon_settings::metrics_address;
use crate::diagnostic::{Diagnostic, Span};
use crate::keys::{self, Key};
use crate::model::{AdminTcp, DaemonConfig, TlsFiles, UserList};
use crate::value::AsValue;
use crate::value::{Choice, Raw, ValueKind};
use forebay_admin::MessageId;
use forebay_export::uri::{Endpoint, ExportUri, Guards};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Reads the section; invalid settings keep their defaults.
pub(super) fn read(reader: &mut Reader, table: &Table<'_>, _span: Span) -> DaemonConfig {
    let mut daemon = DaemonConfig::default();
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        reader.note(format!("daemon.{name}"), value.span());
        match name {
            "admin_socket" => {
                if let Some(path) = reader.path(name, value) {
                    daemon.admin_socket = path;
                }
            }
            "admin_mode" => daemon.admin_mode = file_mode(reader, name, value).unwrap_or(daemon.admin_mode),
            "admin_group" => daemon.admin_group = group(reader, name, value),
            "allowed_paths" => daemon.allowed_paths = Some(paths(reader, name, value)),
            "admin_tcp" => daemon.admin_tcp = admin_tcp(reader, value),
            "admin_operate" => {
                daemon.admin_users.get_or_insert_default().operate = users(reader, name, value);
            }
            "admin_read" => daemon.admin_users.get_or_insert_default().read = users(reader, name, value),
            "alarm_command" => daemon.alarm_command = command(reader, name, value).unwrap_or_default(),
            "control_fs" => daemon.control_fs = reader.path(name, value),
            "log_level" => {
                let level = choice(reader, name, value, LogLevel::CHOICES).and_then(LogLevel::from_value);
                daemon.log_level = level.unwrap_or(daemon.log_level);
            }
            "metrics_listen" => daemon.metrics_listen = metrics_listen(reader, name, value),
            "lock_memory" => {
                let lock = choice(reader, name, value, LockMemory::CHOICES).and_then(LockMemory::from_value);
                daemon.lock_memory = lock.unwrap_or(daemon.lock_memory);
            }
            "state_dir" => {
                if let Some(path) = reader.path(name, value) {
                    daemon.state_dir = path;
                }
            }
            _ => unknown(reader, "daemon", name, key.span(), keys::DAEMON),
        }
    }
    daemon
}

/// Reads numbers of users and groups.
fn users(reader: &mut Reader, key: &str, value: &Value<'_>) -> UserList {
    let section = format!("daemon.{key}");
    let mut users = UserList::default();
    let Some(table) = reader.table(key, value) else { return users };
    for (key, value) in table {
        match key.get_ref().as_ref() {
            name @ "uids" => users.uids = ids(reader, name, value),
            name @ "gids" => users.gids = ids(reader, name, value),
            name => unknown(reader, &section, name, key.span(), keys::USERS),
        }
    }
    users
}

fn unknown(reader: &mut Reader, section: &str, name: &str, span: Span, keys: &'static [Key]) {
    reader.unknown(section, name, span, near_key(name, keys), &keys::names(keys).join(", "));
}

/// Reads a file mode, `"0660"` or `0o660`.
fn file_mode(reader: &mut Reader, key: &str, value: &Value<'_>) -> Option<u32> {
    let mode = match raw(value.get_ref()) {
        Raw::Text(text) => u32::from_str_radix(text.strip_prefix("0o").unwrap_or(text), 8).ok(),
        Raw::Integer(mode) if value.get_ref().as_integer().is_some_and(|integer| integer.radix() == 8) => {
            u32::try_from(mode).ok()
        }
        _ => None,
    };
    let mode = mode.filter(|mode| *mode <= 0o777);
    if mode.is_none() {
        let message = format!("`{key}` takes permissions, octal, like \"0660\" or 0o660");
        reader.push(Diagnostic::error(MessageId::ConfigValue, value.span(), message));
    }
    mode
}

/// Reads a group by its name or number.
fn group(reader: &mut Reader, key: &str, value: &Value<'_>) -> Option<String> {
    match raw(value.get_ref()) {
        Raw::Text(name) if !name.is_empty() && !name.contains('\0') => return Some(name.to_owned()),
        Raw::Integer(number) if u32::try_from(number).is_ok_and(|number| number != u32::MAX) => {
            return Some(number.to_string());
        }
        _ => {}
    }
    let message = format!("`{key}` takes the name or the number of a group");
    reader.push(Diagnostic::error(MessageId::ConfigValue, value.span(), message));
    None
}

/// Reads a list of folders. Invalid entries are left out, and so permit nothing.
fn paths(reader: &mut Reader, key: &str, value: &Value<'_>) -> Vec<PathBuf> {
    entries(reader, key, value, "a list of absolute paths, like [\"/dev\"]")
        .iter()
        .filter_map(|entry| reader.path(key, entry))
        .collect()
}

/// Reads a program, by its absolute path, and its arguments.
fn command(reader: &mut Reader, key: &str, value: &Value<'_>) -> Option<Vec<String>> {
    const LIKE: &str = "a program and its arguments, like [\"/usr/local/sbin/tell-alarm\", \"--mail\"]";
    let words = entries(reader, key, value, LIKE);
    let found: Option<Vec<String>> =
        words.iter().map(|word| reader.text(key, word, LIKE).map(str::to_owned)).collect();
    let found = found?;
    if found.first().is_some_and(|program| program.starts_with('/'))
        && !found.iter().any(|word| word.contains('\0'))
    {
        return Some(found);
    }
    let message = format!("`{key}` takes {LIKE}; the program with its whole path");
    reader.push(Diagnostic::error(MessageId::ConfigValue, value.span(), message));
    None
}

/// Reads one of several words.
fn choice(
    reader: &mut Reader,
    key: &str,
    value: &Value<'_>,
    choices: &'static [Choice],
) -> Option<crate::value::Value> {
    match ValueKind::Choice(choices).read(raw(value.get_ref())) {
        Ok(chosen) => Some(chosen),
        Err(error) => {
            let hint = error.suggestion.map(|near| format!("did you mean \"{near}\"?")).unwrap_or_default();
            reader.push(
                Diagnostic::error(MessageId::ConfigValue, value.span(), format!("`{key}`: {error}"))
                    .label(hint),
            );
            None
        }
    }
}

/// Reads the address where metrics are served without a token.
fn metrics_listen(reader: &mut Reader, key: &str, value: &Value<'_>) -> Option<SocketAddr> {
    let text = reader.text(key, value, "an address and a port in quotes, like \"127.0.0.1:8661\"")?;
    metrics_address(text).unwrap_or_else(|error| {
        reader.push(Diagnostic::error(MessageId::ConfigValue, value.span(), format!("`{key}`: {error}")));
        None
    })
}

fn admin_tcp(reader: &mut Reader, value: &Value<'_>) -> Option<AdminTcp> {
    let section = "daemon.admin_tcp";
    let table = reader.table("admin_tcp", value)?;
    reader.require(section, table, keys::ADMIN_TCP, &value.span());
    let (mut listen, mut token_file, mut cert_file, mut key_file) = (None, None, None, None);
    let mut read_token_file = None;
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        reader.note(format!("{section}.{name}"), value.span());
        match name {
            "listen" => listen = address(reader, name, value),
            "token_file" => token_file = reader.path(name, value),
            "read_token_file" => read_token_file = reader.path(name, value),
            "cert_file" => cert_file = reader.path(name, value),
            "key_file" => key_file = reader.path(name, value),
            _ => unknown(reader, section, name, key.span(), keys::ADMIN_TCP),
        }
    }
    let tls = tls(reader, table, cert_file, key_file);
    let (host, port) = listen?;
    Some(AdminTcp { host, port, token_file: token_file?, read_token_file, tls })
}

/// Reads certificate and key, which must be given together.
fn tls(
    reader: &mut Reader,
    table: &Table<'_>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
) -> Option<TlsFiles> {
    for (given, missing) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if table.contains_key(given) && !table.contains_key(missing) {
            let span = reader.place(&format!("daemon.admin_tcp.{given}")).unwrap_or(0..0);
            reader.push(
                Diagnostic::error(MessageId::ConfigMissing, span, format!("`{given}` without `{missing}`"))
                    .help("TLS needs both: a certificate, and the private key that belongs to it"),
            );
        }
    }
    Some(TlsFiles { cert_file: cert_file?, key_file: key_file? })
}

/// Reads `host:port`, like in the URIs of exports.
fn address(reader: &mut Reader, key: &str, value: &Value<'_>) -> Option<(String, u16)> {
    let text = reader.text(key, value, "an address and a port in quotes, like \"127.0.0.1:8660\"")?;
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && !port.ends_with(']'));
    match format!("nbd://{text}").parse() {
        Ok(ExportUri::Nbd { endpoint: Endpoint::Tcp { host, port }, name, guards, .. })
            if has_port && name.is_empty() && guards == Guards::default() =>
        {
            Some((host, port))
        }
        _ => {
            let message = format!(
                "`{key}`: \"{text}\" is not an address and a port, like 127.0.0.1:8660 or [::1]:8660"
            );
            reader.push(Diagnostic::error(MessageId::ConfigValue, value.span(), message));
            None
        }
    }
}
