//! The running daemon's side: it starts its successor, hands everything over to it, and takes it
//! back if that fails.

use super::HandoverManifest;
use super::wire::{Message, PROTOCOL, Wire, WireError};
use forebay_pool::handover::HandoverSockets;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use thiserror::Error;

/// Time for the successor's program to start and to read the configuration. Clients do not wait for
/// it.
const HELLO_WITHIN: Duration = Duration::from_secs(30);
/// Time for the successor to open everything. Clients wait for it.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Reason for the lack of a successor. The daemon continues.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Failed {
    /// The program cannot be started.
    #[error("cannot start {path}: {why}", path = path.display())]
    Start { path: PathBuf, why: String },
    /// Communication failed.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// It has another protocol version.
    #[error(
        "version {version} cannot take over from this one: it uses protocol {protocol}, this one {PROTOCOL}"
    )]
    Protocol { version: String, protocol: u32 },
    /// It gave up.
    #[error("{0}")]
    GaveUp(String),
}

/// A successor that has been started. If it is dropped before it has taken over, it is killed and
/// waited for.
#[derive(Debug)]
pub(crate) struct Successor {
    child: Child,
    wire: Wire,
    version: String,
    took_over: bool,
}

impl Successor {
    /// Starts a program, and waits until it has read the configuration.
    ///
    /// # Errors
    /// The program cannot be started, ends, or is another program.
    pub(crate) fn start(program: &Path, config: &Path) -> Result<Self, Failed> {
        let path = program.to_owned();
        let (wire, theirs) = Wire::pair()?;
        let child = Command::new(&path)
            .arg("serve")
            .arg("--config")
            .arg(config)
            .arg("--successor")
            .stdin(Stdio::from(theirs))
            // These are for the process that the service manager started.
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_FDNAMES")
            .spawn()
            .map_err(|error| Failed::Start { path, why: error.to_string() })?;
        let mut successor = Self { child, wire, version: String::new(), took_over: false };
        match successor.wire.receive(HELLO_WITHIN)?.message {
            Message::Hello { protocol: PROTOCOL, version } => successor.version = version,
            Message::Hello { protocol, version } => return Err(Failed::Protocol { version, protocol }),
            Message::Failed(why) => return Err(Failed::GaveUp(why)),
            message => return Err(unclear(&message)),
        }
        Ok(successor)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Hands everything over, and waits until the successor serves. The pools are closed.
    ///
    /// # Errors
    /// The successor does not serve. Once this value is dropped, its process has ended.
    pub(crate) fn pass(&self, sockets: &HandoverSockets, manifest: HandoverManifest) -> Result<(), Failed> {
        for listener in &sockets.listeners {
            self.wire.pass_listener(listener)?;
        }
        for guest in &sockets.guests {
            self.wire.pass_guest(guest)?;
        }
        self.wire.send_message(&Message::Open(manifest))?;
        match self.wire.receive(READY_WITHIN)?.message {
            Message::Ready => Ok(()),
            Message::Failed(why) => Err(Failed::GaveUp(why)),
            message => Err(unclear(&message)),
        }
    }

    /// Transfers the clients to the successor. If it has ended just now, they are lost, as in a
    /// crash.
    pub(crate) fn let_go(mut self) {
        self.took_over = true;
        let _ = self.wire.send_message(&Message::GoOn); // closing this end has the same effect
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.took_over {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn unclear(message: &Message) -> Failed {
    Failed::Wire(WireError::Unclear(format!("unexpected {message:?}")))
}
