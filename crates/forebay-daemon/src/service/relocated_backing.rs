//! A volume that is not attached, and whose backing store has moved from its configured path: a
//! disk with another name, a moved file.
//!
//! Dirty data goes to the named store. So it must be proven to be the right one: by the cache's
//! record of it, or by the operator's statement (`on_backing_change`). The engine checks again when
//! the volume is attached.

use super::Service;
use super::import_backing::compare;
use super::pool_query::ask;
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, MessageId};
use forebay_config::VolumeConfig;
use forebay_config::mounts::Problem;
use forebay_core::OnBackingChange;
use forebay_export::uri::BackingUri;
use forebay_format::checkpoint::VolumeEntry;
use forebay_pool::MayWait;
use forebay_pool::cache_device::is_same;
use forebay_pool::open::{Likeness, is_same_file};
use forebay_pool::shell_word::quoted;
use forebay_pool::time_limit::{Undone, within};
use std::path::Path;
use std::time::Duration;

/// Time limit for identifying a file.
const WITHIN: Duration = Duration::from_secs(15);

/// Returns the error for a missing store of a volume that the cache knows.
pub(super) fn is_elsewhere(name: &str, error: AdminError) -> AdminError {
    let hint = format!("if it has moved: forebay volume attach {name} --backing URI");
    let hint = if error.hint.is_empty() { hint } else { format!("{}; {hint}", error.hint) };
    AdminError { hint, ..error }
}

/// Returns the error for a store that was changed under dirty data, for an attach with another
/// configuration than the stored one: the hint of the pool would be wrong.
pub(super) fn told_how(name: &str, config: &VolumeConfig, known: bool, error: AdminError) -> AdminError {
    if error.id != MessageId::Event(EventKind::BackingChanged) {
        return error;
    }
    let how = |word: &str| match known {
        true => format!(
            "forebay set {name} on_backing_change={word}, then forebay volume attach {name} --backing {}",
            quoted(config.backing.to_string())
        ),
        false => format!("the same command with --set on_backing_change={word}"),
    };
    let hint = format!(
        "if it is the wrong store, give the one that belongs to this cache; if it is the right one and its \
         changes may be lost: {}; if the data in the cache may be lost: {}",
        how("keep-dirty"),
        how("discard-dirty")
    );
    AdminError { hint, ..error }
}

impl Service {
    /// Returns the configuration of a volume whose backing store is at a new path.
    ///
    /// # Errors
    /// The store is in use for something else, is missing, or cannot be identified.
    pub(super) fn moved_to(
        &self,
        name: &str,
        config: &VolumeConfig,
        backing: BackingUri,
    ) -> Result<VolumeConfig, AdminError> {
        self.check_not_exchanged(name, backing.path())?;
        self.check_unused(backing.path())?;
        let wanted = name.to_owned();
        let handle = self.handle(&config.pool)?;
        let entry = ask(&handle, move |pool| pool.entry_of(&wanted))?;
        if let Some(entry) = entry {
            let word: OnBackingChange = config.tunables().on_backing_change;
            check_is_the_one(name, backing.path(), &entry, word)?;
        }
        let moved = VolumeConfig { backing, ..config.clone() };
        match Problem::of_volume(&self.catalog.config(), name, &moved) {
            Some(problem) => Err(AdminError::new(MessageId::VolumeDefinition, problem.message, problem.help)),
            None => Ok(moved),
        }
    }

    /// Refuses a store that the configuration has for another volume that is not attached: the
    /// disks may have exchanged their names. One command changes the store of one volume, so it
    /// cannot resolve that.
    fn check_not_exchanged(&self, name: &str, path: &Path) -> Result<(), AdminError> {
        let volumes = self.catalog.config().volumes.clone();
        let mut others = volumes.iter().filter(|(other, _)| *other != name);
        let Some((other, _)) = others.find(|(_, volume)| is_same(volume.backing.path(), path)) else {
            return Ok(());
        };
        let Some(file) = self.catalog.path().filter(|_| !self.is_attached(other).unwrap_or(true)) else {
            return Ok(());
        };
        Err(AdminError::new(
            MessageId::BackingInUse,
            format!(
                "{} is in the configuration as the backing store of volume {other}, which is not attached either",
                path.display()
            ),
            format!(
                "if the devices have swapped their names, swap them in the sections of {name} and {other} in \
                 {file}, then: forebay reload"
            ),
        ))
    }
}

fn check_is_the_one(
    name: &str,
    path: &Path,
    entry: &VolumeEntry,
    word: OnBackingChange,
) -> Result<(), AdminError> {
    let has_said = word != OnBackingChange::Refuse;
    let why = match compare(path, entry) {
        Likeness::Same { proven: true } => return Ok(()),
        Likeness::Unreadable(why) => {
            let hint = "give the current path of the backing store";
            return Err(AdminError::new(MessageId::BackingUnreadable, why, hint));
        }
        Likeness::Smaller(why) => return Err(is_not_the_one(name, path, &why, "give the right store")),
        Likeness::Other(why) if !has_said => why,
        _ if has_said || is_that_file(path, entry)? => return Ok(()),
        _ => "nothing on it proves that it is the right one".to_owned(),
    };
    let hint = format!(
        "give the right one; if it is this one, confirm that first: forebay set {name} \
         on_backing_change=keep-dirty, and afterwards: forebay set {name} on_backing_change="
    );
    Err(is_not_the_one(name, path, &why, &hint))
}

fn is_not_the_one(name: &str, path: &Path, why: &str, hint: &str) -> AdminError {
    let what = format!("{} is not accepted as the backing store of volume {name}: {why}", path.display());
    AdminError::new(MessageId::BackingNotTheOne, what, hint)
}

/// # Errors
/// There is no thread to check it.
fn is_that_file(path: &Path, entry: &VolumeEntry) -> Result<bool, AdminError> {
    let (place, entry) = (path.to_owned(), entry.clone());
    let work = move |may_wait: &MayWait| is_same_file(may_wait, &place, &entry);
    match within(WITHIN, "compare", work) {
        Ok(is_same) => Ok(is_same),
        Err(Undone::Late) => Ok(false),
        Err(Undone::NoThread(error)) => Err(AdminError::no_thread(&error)),
    }
}
