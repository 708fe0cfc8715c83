//! Reopening a backing store that was unplugged, if its path leads to the same disk again.

use super::Backing;
use super::backing::{BackingOptions, open_backing, unique};
use crate::may_wait::MayWait;
use crate::witness::Prepared;
use forebay_core::Suspicion;
use forebay_export::uri::BackingUri;
use forebay_format::checkpoint::BackingRecord;
use forebay_io::DeviceModel;
use std::path::PathBuf;

/// The store as it was when it was attached.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) uri: BackingUri,
    pub(crate) emulate: Option<DeviceModel>,
    pub(crate) record: BackingRecord,
    pub(crate) sector_bytes: u32,
    /// Used bytes of it.
    pub(crate) end_bytes: u64,
    /// Identity of the volume.
    pub(crate) uuid: [u8; 16],
    pub(crate) state_dir: PathBuf,
}

/// A store that can replace the one that was unplugged.
#[derive(Debug)]
pub(crate) struct Reopened {
    pub(crate) backing: Backing,
    pub(crate) prepared: Prepared,
}

/// Reopens the store. Can hang as long as the store does.
///
/// # Errors
/// Why the target of its path is not taken; empty if there is none.
pub(crate) fn open_again(may_wait: &MayWait, known: &Known) -> Result<Reopened, String> {
    if !known.uri.path().exists() {
        return Err(String::new());
    }
    let options = BackingOptions { emulate: known.emulate, ..BackingOptions::default() };
    let backing = open_backing(may_wait, &known.uri, &options).map_err(|error| error.to_string())?;
    let identity = backing.device.identity().map_err(|error| error.to_string())?;
    // Device numbers prove nothing: those of a removed disk can be given to another one.
    if !identity.unique.starts_with("serial:") {
        return Err("it has no serial number to recognise it by. Restart the daemon to use it".into());
    }
    if unique(&identity) != known.record.unique {
        return Err("its serial number is that of another disk".into());
    }
    if backing.sector_bytes != known.sector_bytes {
        let (now, then) = (backing.sector_bytes, known.sector_bytes);
        return Err(format!("it has sectors of {now} bytes, not {then} as before"));
    }
    if backing.size_bytes < known.end_bytes {
        let (now, end) = (backing.size_bytes, known.end_bytes);
        return Err(format!("it has {now} bytes, but {end} are in use"));
    }
    let prepared = Prepared::look(may_wait, &backing.device, &known.state_dir, known.uuid)
        .map_err(|error| error.to_string())?;
    match prepared.suspicion {
        Suspicion::Changed => Err(format!(
            "it was changed by others meanwhile: {}. Restart the daemon: if the cache has dirty data, the \
             start refuses the volume and names the ways out",
            prepared.why
        )),
        Suspicion::None | Suspicion::Uncertain => Ok(Reopened { backing, prepared }),
    }
}
