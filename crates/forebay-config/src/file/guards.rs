//! `[tls.NAME]` and `[access.NAME]`

use super::reader::{Reader, Table, Value, near_key, raw};
use crate::AccessList;
use crate::choices::{ClientCertificates, Words};
use crate::diagnostic::{Diagnostic, Span};
use crate::keys::{self, Key};
use crate::model::{TlsConfig, TlsFiles};
use crate::value::AsValue;
use crate::value::{Raw, ValueKind};
use forebay_admin::MessageId;
use std::str::FromStr;
use toml::de::DeValue;

/// Most entries of a list: it is searched for each connecting client.
const ENTRIES_MAX: usize = 4096;

/// Reads `[tls.NAME]`; returns nothing if a file is missing, which is reported.
pub(super) fn tls(reader: &mut Reader, name: &str, table: &Table<'_>, span: Span) -> Option<TlsConfig> {
    let section = format!("tls.{name}");
    reader.require(&section, table, keys::TLS, &span);
    let (mut cert_file, mut key_file, mut client_ca_file) = (None, None, None);
    let mut client_certificates = ClientCertificates::Required;
    for (key, value) in table {
        match key.get_ref().as_ref() {
            name @ "cert_file" => cert_file = reader.path(name, value),
            name @ "key_file" => key_file = reader.path(name, value),
            name @ "client_ca_file" => client_ca_file = reader.path(name, value),
            name @ "client_certificates" => {
                match ValueKind::Choice(ClientCertificates::CHOICES).read(raw(value.get_ref())) {
                    Ok(read) => {
                        client_certificates =
                            ClientCertificates::from_value(read).unwrap_or(client_certificates);
                    }
                    Err(error) => {
                        let message = format!("`{name}`: {error}");
                        let hint = error.suggestion.map(|near| format!("did you mean \"{near}\"?"));
                        reader.push(
                            Diagnostic::error(MessageId::ConfigValue, value.span(), message)
                                .label(hint.unwrap_or_default()),
                        );
                    }
                }
                if !table.contains_key("client_ca_file") {
                    let message = format!("`{name}` without `client_ca_file`");
                    let alone = Diagnostic::error(MessageId::ConfigMissing, key.span(), message);
                    reader.push(alone.help("without authorities no certificate can be verified"));
                }
            }
            name => unknown(reader, &section, name, key.span(), keys::TLS),
        }
    }
    let files = TlsFiles { cert_file: cert_file?, key_file: key_file? };
    Some(TlsConfig { files, client_ca_file, client_certificates })
}

/// Reads `[access.NAME]`.
pub(super) fn access(reader: &mut Reader, name: &str, table: &Table<'_>, span: Span) -> AccessList {
    let section = format!("access.{name}");
    let mut list = AccessList::default();
    for (key, value) in table {
        match key.get_ref().as_ref() {
            name @ "clients" => list.clients = texts(reader, name, value),
            name @ "addresses" => list.addresses = texts(reader, name, value),
            name @ "uids" => list.uids = ids(reader, name, value),
            name @ "gids" => list.gids = ids(reader, name, value),
            name => unknown(reader, &section, name, key.span(), keys::ACCESS),
        }
    }
    let is_empty =
        |value: &Value<'_>| matches!(value.get_ref(), DeValue::Array(entries) if entries.is_empty());
    if table.is_empty() || table.values().any(is_empty) {
        let nobody = Diagnostic::error(
            MessageId::ConfigMissing,
            span,
            format!("{section} has an empty list, or none at all"),
        );
        reader.push(nobody.help("leave out empty lists; to admit no client, remove the export"));
    }
    list
}

fn unknown(reader: &mut Reader, section: &str, name: &str, span: Span, keys: &'static [Key]) {
    reader.unknown(section, name, span, near_key(name, keys), &keys::names(keys).join(", "));
}

/// Returns the entries of a list of bounded length.
pub(super) fn entries<'a, 'i>(
    reader: &mut Reader,
    key: &str,
    value: &'a Value<'i>,
    takes: &str,
) -> &'a [Value<'i>] {
    let DeValue::Array(list) = value.get_ref() else {
        reader.wrong_type(key, value, takes);
        return &[];
    };
    if list.len() > ENTRIES_MAX {
        let message = format!("`{key}` has {} entries, and at most {ENTRIES_MAX} are possible", list.len());
        reader.push(Diagnostic::error(MessageId::ConfigLimit, value.span(), message));
        return &[];
    }
    list
}

/// Reads numbers of users or groups. The largest number means "none" to the kernel.
pub(super) fn ids(reader: &mut Reader, key: &str, value: &Value<'_>) -> Vec<u32> {
    let mut ids = Vec::new();
    for value in entries(reader, key, value, "a list of numbers, like [1000]") {
        let id = match raw(value.get_ref()) {
            Raw::Integer(number) => u32::try_from(number).ok().filter(|id| *id != u32::MAX),
            _ => None,
        };
        match id {
            Some(id) => ids.push(id),
            None => {
                let message = format!("`{key}` takes numbers of users or groups: `id` shows them");
                reader.push(Diagnostic::error(MessageId::ConfigType, value.span(), message));
            }
        }
    }
    ids
}

/// Reads a list of parsed texts.
fn texts<T: FromStr<Err = String>>(reader: &mut Reader, key: &str, value: &Value<'_>) -> Vec<T> {
    let mut read = Vec::new();
    for value in entries(reader, key, value, "a list of texts in quotes") {
        let Some(text) = reader.text(key, value, "texts in quotes") else { continue };
        match text.parse() {
            Ok(value) => read.push(value),
            Err(problem) => reader.push(Diagnostic::error(
                MessageId::ConfigValue,
                value.span(),
                format!("`{key}`: {problem}"),
            )),
        }
    }
    read
}
