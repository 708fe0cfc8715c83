//! Opening a backing store, and the data by which the cache recognises it.

use crate::cache_device::{device_error, waiting_for_lock};
use crate::error::RunError;
use crate::may_wait::MayWait;
use forebay_admin::MessageId;
use forebay_config::VolumeTunables;
use forebay_export::uri::{BackingUri, NbdBacking};
use forebay_format::BLOCK_BYTES;
use forebay_format::checkpoint::{BackingRecord, SAMPLES_MAX};
use forebay_io::{Device, DeviceError, DeviceIdentity, DeviceKind, DeviceModel, DeviceOptions};
use forebay_nbd_client::Transport;
use forebay_nbd_client::driver::{NbdStore, OpenError};
use forebay_nbd_client::lane::LaneConfig;
use std::sync::Arc;
use std::time::Duration;

/// A backing store, opened and inspected.
#[derive(Debug)]
pub struct Backing {
    /// The device.
    pub device: Device,
    /// Usable size in bytes.
    pub size_bytes: u64,
    /// Smallest unit of a write, in bytes.
    pub(crate) sector_bytes: u32,
    /// Its identity as the cache records it.
    pub record: BackingRecord,
    /// Messages for the operator.
    pub notes: Vec<String>,
}

/// How to open a backing store.
#[derive(Clone, Debug)]
pub struct BackingOptions {
    /// A device to emulate.
    pub emulate: Option<DeviceModel>,
    /// How long operations wait for a network store that is away; `None`: for ever.
    pub store_timeout: Option<Duration>,
    /// How long its server must answer before a change whose connection broke is repeated.
    pub store_quarantine: Duration,
}

impl Default for BackingOptions {
    fn default() -> Self {
        Self::of(&VolumeTunables::default())
    }
}

impl BackingOptions {
    /// Takes them from the settings of a volume.
    #[must_use]
    pub fn of(tunables: &VolumeTunables) -> Self {
        let VolumeTunables { emulate, store_timeout, store_quarantine, .. } = *tunables;
        Self { emulate, store_timeout, store_quarantine }
    }
}

/// Returns whether a server listens at the address of a network store. Can hang as long as it does.
#[must_use]
pub fn is_served(_: &MayWait, export: &NbdBacking) -> bool {
    Transport::connect(export.endpoint()).is_ok()
}

/// Opens an export of an NBD server.
fn open_nbd(export: &NbdBacking, options: &BackingOptions) -> Result<Device, RunError> {
    let address = BackingUri::Nbd(export.clone());
    let config = LaneConfig {
        export: export.name().to_owned(),
        quarantine: options.store_quarantine,
        store_timeout: options.store_timeout,
        seed: crate::cache_device::random_uuid()
            .map_or(1, |id| u64::from_le_bytes(std::array::from_fn(|at| id[at]))),
        ..LaneConfig::default()
    };
    let opened = NbdStore::open(export.endpoint().clone(), config).map_err(|error| {
        let hint = match &error {
            OpenError::Trouble(trouble) if trouble.is_refusal() => {
                "give a writable export with FLUSH, by the name that its server has for it"
            }
            _ => "start the server, or give the address that it listens on",
        };
        RunError::failed(
            MessageId::BackingUnreadable,
            format!("cannot use {address} as a backing store: {error}"),
            hint,
        )
    })?;
    let mut device = Device::remote(Arc::new(opened), address.path().to_owned()).map_err(device_error)?;
    device.emulate(options.emulate).map_err(device_error)?;
    Ok(device)
}

/// Opens a backing store.
///
/// # Errors
/// It does not exist, is in use, is empty, or has sectors of an unsupported size.
pub fn open_backing(_: &MayWait, uri: &BackingUri, options: &BackingOptions) -> Result<Backing, RunError> {
    let wanted = DeviceOptions { emulate: options.emulate, ..DeviceOptions::default() };
    let device = match uri.nbd() {
        Some(export) => open_nbd(export, options)?,
        None => waiting_for_lock(|| Device::open_backing(uri.path(), wanted.clone()))?,
    };
    let size_bytes = device.size_bytes() / 512 * 512;
    if size_bytes == 0 {
        let path = device.path().display();
        let hint = match uri {
            BackingUri::Device(_) => {
                "the device has no size: is a medium inserted? `lsblk` shows the sizes".to_owned()
            }
            BackingUri::Nbd(_) => "its server has to give it a size".to_owned(),
            BackingUri::File(_) => format!("give it a size first, for example with: truncate -s 10G {path}"),
        };
        return Err(RunError::failed(
            MessageId::BackingEmpty,
            format!("the backing store {path} is empty"),
            hint,
        ));
    }
    let mut notes = device.notes().to_vec();
    if size_bytes != device.size_bytes() {
        let left = device.size_bytes() - size_bytes;
        notes.push(format!(
            "the last {left} bytes of {} are not served: its size is not a multiple of 512",
            device.path().display()
        ));
    }
    let identity = device.identity().map_err(device_error)?;
    let has_sectors = matches!(identity.kind, DeviceKind::Block | DeviceKind::Remote);
    let sector_bytes = if has_sectors { device.logical_block_bytes() } else { 512 };
    if !matches!(sector_bytes, 512 | 4096) {
        return Err(RunError::failed(
            MessageId::BackingSectorSize,
            format!("{} has sectors of {sector_bytes} bytes", device.path().display()),
            "backing stores must have sectors of 512 or 4096 bytes",
        ));
    }
    let record = record(&identity, Vec::new());
    Ok(Backing { device, size_bytes, sector_bytes, record, notes })
}

/// The record by which the cache recognises a backing store.
fn record(identity: &DeviceIdentity, samples: Vec<(u64, u32)>) -> BackingRecord {
    BackingRecord {
        kind: match identity.kind {
            DeviceKind::File => 1,
            DeviceKind::Block => 2,
            DeviceKind::Special | DeviceKind::Remote => 3,
        },
        size_bytes: identity.size_bytes,
        unique: unique(identity),
        stamp_ns: identity.mtime_ns,
        samples,
    }
}

/// The identity of the store as it is in the record.
pub(super) fn unique(identity: &DeviceIdentity) -> [u64; 2] {
    [fnv(0xcbf2_9ce4_8422_2325, &identity.unique), fnv(0x9ae1_6a3b_2f90_404f, &identity.unique)]
}

/// FNV-1a, 64 bits: the identity is a text of any length, the record has room for two numbers.
fn fnv(basis: u64, text: &str) -> u64 {
    text.bytes().fold(basis, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Blocks that identify a backing store: the first ones, where file systems keep metadata that
/// changes with every mount, and some spread over the rest.
pub(crate) fn sample_blocks(size_bytes: u64) -> impl Iterator<Item = u64> {
    let blocks = size_bytes / BLOCK_BYTES as u64;
    let wanted = (0..SAMPLES_MAX as u64).map(move |index| {
        if index < 4 { index } else { blocks / SAMPLES_MAX as u64 * index + index * 7 % 13 }
    });
    wanted.filter(move |block| *block < blocks)
}

/// The record of a backing store after the last write to it: for an orderly stop. `blocks` are
/// those of [`sample_blocks`] whose content is as the cache expects: only those identify it.
pub(crate) fn final_record(
    _: &MayWait,
    backing: &Device,
    blocks: &[u64],
) -> Result<BackingRecord, DeviceError> {
    let mut samples = Vec::new();
    let mut bytes = vec![0; BLOCK_BYTES];
    for block in blocks {
        backing.read_at(block * BLOCK_BYTES as u64, &mut bytes)?;
        samples.push((*block, forebay_format::checksum(&bytes)));
    }
    Ok(record(&backing.identity()?, samples))
}
