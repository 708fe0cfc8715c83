//! `[pool.NAME]`

use super::reader::{Reader, Table, Value, near_key};
use crate::CacheSpec;
use crate::diagnostic::{Diagnostic, Span};
use crate::keys;
use crate::model::PoolConfig;
use crate::settings::Settings;
use crate::tunables::Scope;
use forebay_admin::MessageId;
use toml::de::DeValue;

/// Reads the section.
pub(super) fn read(reader: &mut Reader, name: &str, table: &Table<'_>, span: Span) -> PoolConfig {
    let section = format!("pool.{name}");
    reader.require(&section, table, keys::POOL, &span);
    let mut pool = PoolConfig { devices: Vec::new(), settings: Settings::new(Scope::Pool) };
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "devices" => pool.devices = devices(reader, &section, value),
            name => reader.tunable(&section, &mut pool.settings, (name, key.span()), value, keys::POOL),
        }
    }
    pool
}

fn devices(reader: &mut Reader, section: &str, value: &Value<'_>) -> Vec<CacheSpec> {
    let DeValue::Array(list) = value.get_ref() else {
        reader.wrong_type("devices", value, "a list, like [\"/dev/nvme0n1p4\"]");
        return Vec::new();
    };
    if list.is_empty() {
        let message = format!("{section} has no device");
        reader.push(
            Diagnostic::error(MessageId::ConfigMissing, value.span(), message)
                .help("a pool needs at least one cache device"),
        );
    }
    let mut devices = Vec::new();
    for value in list.iter() {
        if let Some((device, span)) = device(reader, value) {
            reader.note(format!("{section}.devices[{}]", devices.len()), span);
            devices.push(device);
        }
    }
    devices
}

/// Reads a path, or a table with a path and a size; returns also the place of the path.
fn device(reader: &mut Reader, value: &Value<'_>) -> Option<(CacheSpec, Span)> {
    match value.get_ref() {
        DeValue::String(_) => {
            let path = reader.path("devices", value)?;
            Some((CacheSpec { path, size_bytes: None }, value.span()))
        }
        DeValue::Table(table) => {
            reader.require("an entry of `devices`", table, keys::DEVICE, &value.span());
            let (mut path, mut size_bytes, mut span) = (None, None, value.span());
            for (key, value) in table {
                match key.get_ref().as_ref() {
                    name @ "path" => {
                        path = reader.path(name, value);
                        span = value.span();
                    }
                    name @ "size" => size_bytes = reader.size(name, value),
                    name => {
                        let hint = near_key(name, keys::DEVICE);
                        reader.unknown("an entry of `devices`", name, key.span(), hint, "path, size");
                    }
                }
            }
            Some((CacheSpec { path: path?, size_bytes }, span))
        }
        _ => {
            reader.wrong_type("devices", value, "paths, or tables like { path = \"/p\", size = \"10GiB\" }");
            None
        }
    }
}
