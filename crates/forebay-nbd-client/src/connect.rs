//! Sockets for the client: unix and TCP behind one type.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::blocking::{ClientError, NbdClient};
use crate::session::HandshakeOptions;
use forebay_export::uri::{Endpoint, ExportUri};

/// A connected socket.
#[derive(Debug)]
pub enum Transport {
    /// A socket in the file system.
    Unix(UnixStream),
    /// A TCP connection, with small packets sent at once.
    Tcp(TcpStream),
}

impl Transport {
    /// Connects to a server's endpoint.
    pub fn connect(endpoint: &Endpoint) -> io::Result<Transport> {
        match endpoint {
            Endpoint::Unix(path) => UnixStream::connect(path).map(Transport::Unix),
            Endpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port))?;
                stream.set_nodelay(true)?;
                Ok(Transport::Tcp(stream))
            }
        }
    }

    /// Makes sends and receives return at once.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Transport::Unix(stream) => stream.set_nonblocking(true),
            Transport::Tcp(stream) => stream.set_nonblocking(true),
        }
    }

    /// The descriptor, to wait for it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Transport::Unix(stream) => stream.as_fd(),
            Transport::Tcp(stream) => stream.as_fd(),
        }
    }

    /// Limits the time of one send or receive; `None` for no limit.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Transport::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Transport::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }
}

impl Read for Transport {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Unix(stream) => stream.read(into),
            Transport::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Unix(stream) => stream.write(bytes),
            Transport::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // sockets do not buffer
    }
}

impl NbdClient<Transport> {
    /// Connects to an export, with structured replies and both metadata contexts if the server has
    /// them.
    pub fn connect(uri: &ExportUri) -> Result<Self, ClientError> {
        Self::connect_with(uri, &HandshakeOptions::default())
    }

    /// Connects to an export.
    pub fn connect_with(uri: &ExportUri, options: &HandshakeOptions) -> Result<Self, ClientError> {
        let ExportUri::Nbd { endpoint, name, guards, .. } = uri else {
            return Err(ClientError::Misuse("not the URI of an NBD export"));
        };
        if guards.tls.is_some() {
            return Err(ClientError::Misuse("this client speaks no TLS: use libnbd or QEMU with nbds:"));
        }
        NbdClient::handshake(Transport::connect(endpoint)?, name, options)
    }
}
