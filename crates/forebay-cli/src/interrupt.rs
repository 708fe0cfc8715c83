//! Ctrl-C (and SIGTERM) as a flag to poll, so that commands end in an orderly way.
//!
//! The first one sets a flag. The second one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::{Failure, system};

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Begins to handle the signals.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset.
            signal_hook::flag::register_conditional_shutdown(signal, 1, flag.clone())
                .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
                .map_err(system("cannot listen for Ctrl-C"))?;
        }
        Ok(Self(flag))
    }

    /// Returns true if a signal arrived.
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
