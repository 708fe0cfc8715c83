//! Devices and sizes as requests name them.

use super::errors::invalid;
use forebay_admin::size::ByteSize;
use forebay_admin::{AdminError, DeviceRequest, MessageId};
use forebay_config::CacheSpec;
use forebay_config::device_name::stable_name;
use std::path::Path;

/// Parses a size.
pub(super) fn bytes(size: &str) -> Result<u64, AdminError> {
    let parsed: Result<ByteSize, _> = size.parse();
    parsed
        .map(|size| size.0)
        .map_err(|error| invalid(MessageId::SizeSyntax, format!("{size}: {error}"), "such as 20GiB"))
}

/// Parses a device, with its size if there is one.
pub(super) fn device(request: &DeviceRequest) -> Result<CacheSpec, AdminError> {
    let size_bytes = request.size.as_deref().map(bytes).transpose()?;
    if request.path.is_empty() {
        return Err(invalid(MessageId::DeviceSyntax, "a device has no path", ""));
    }
    Ok(CacheSpec { path: request.path.clone().into(), size_bytes })
}

/// Replaces a device path by a stable name.
pub(super) fn keep_name(request: &mut DeviceRequest) {
    let stable = stable_name(Path::new(&request.path));
    if let Some(stable) = stable.to_str() {
        request.path = stable.to_owned();
    }
}

/// Returns the request that names a device.
pub(super) fn asked(spec: &CacheSpec) -> DeviceRequest {
    DeviceRequest {
        path: spec.path.display().to_string(),
        size: spec.size_bytes.map(|bytes| bytes.to_string()),
    }
}
