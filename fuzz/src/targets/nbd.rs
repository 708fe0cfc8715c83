//! Both ends of NBD: a server session fed in pieces, before and after STARTTLS, and the client fed
//! with a server's replies.

use self::peer::client::Requests;
use std::io::{self, Cursor, Read, Write};

use forebay_export::nbd::codec::{encode_option, opt};
use forebay_export::nbd::{Session, Tls};
use forebay_nbd_client::{ClientError, HandshakeOptions, NbdClient, list_exports};

use self::peer::{Event, Payload, Peer, Pipe};
use crate::Target;

#[path = "../../../crates/forebay-export/tests/it/common/mod.rs"]
mod peer;

/// The first byte has the parameters: two bits of TLS mode, two of payload handling, four of piece
/// length.
pub const SERVER: Target = Target {
    name: "nbd-server",
    about: "handshake (STARTTLS too) and transmission, in pieces of any length; every request let through is in bounds",
    run: server,
    seeds: server_seeds,
    words: &["\0\0\0\x03", "IHAVEOPT", "base:allocation", "forebay:cache", "db", "iso"],
    bytes_max: 8192,
    short_run: 30_000,
};

/// The first byte selects the client's requests; the rest are the server's replies.
pub const CLIENT: Target = Target {
    name: "nbd-client",
    about: "what a server says to the client: greeting, options, simple and structured replies, lists of exports",
    run: client,
    seeds: client_seeds,
    words: &["NBDMAGIC", "IHAVEOPT", "base:allocation"],
    bytes_max: 16384,
    short_run: 30_000,
};

fn server(input: &[u8]) {
    let Some((how, bytes)) = input.split_first() else { return };
    let mut peer = Peer::with_limits(peer::two_exports(), peer::TIGHT);
    peer.session = Session::with_tls(
        peer::TIGHT,
        [Tls::Off, Tls::Required, Tls::Required, Tls::Off][usize::from(how & 3)],
    );
    peer.payload = if how >> 2 & 3 == 2 { Payload::Direct } else { Payload::Copy };
    peer.serve = false;
    let piece = [1, 2, 3, 5, 7, 16, 27, 28, 29, 64, 100, 512, 1000, 4096, 5000, 9000][usize::from(how >> 4)];
    let mut out = Vec::new();
    for piece in bytes.chunks(piece) {
        let asked = peer.events.iter().filter(|event| matches!(event, Event::StartTls)).count();
        peer.feed(piece, &mut out);
        let asks = peer.events.iter().filter(|event| matches!(event, Event::StartTls)).count();
        if asks > asked {
            assert_eq!(asks, 1, "STARTTLS twice");
            peer.session.tls_established();
        }
    }
    peer.check_tight();
}

fn server_seeds() -> Vec<Vec<u8>> {
    let plain = peer::conversation();
    let mut tls = 3_u32.to_be_bytes().to_vec();
    encode_option(&mut tls, opt::STARTTLS, &[]);
    tls.extend_from_slice(&peer::hello("db", false)[4..]);
    let with = |how: u8, bytes: &[u8]| [&[how], bytes].concat();
    let mut seeds: Vec<_> = [0x00, 0x54, 0xe8].map(|how| with(how, &plain)).into();
    // Pieces of one byte: TLS begins behind the option, as with a client that waits for the reply.
    seeds.extend([0x01, 0x02, 0x05].map(|how| with(how, &tls)));
    seeds
}

/// A server with scripted replies.
#[derive(Debug)]
struct Liar<'a>(Cursor<&'a [u8]>);

impl Read for Liar<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Liar<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn options(how: u8) -> HandshakeOptions {
    HandshakeOptions { structured: how & 1 == 1, ..HandshakeOptions::default() }
}

fn client(input: &[u8]) {
    let Some((how, bytes)) = input.split_first() else { return };
    if how & 2 == 2 {
        let _ = list_exports(Liar(Cursor::new(bytes)));
    }
    let _ = converse(Liar(Cursor::new(bytes)), &options(*how));
}

/// Runs the client's half of a conversation, up to the first error of the connection.
fn converse<S: Read + Write>(stream: S, options: &HandshakeOptions) -> Result<S, ClientError> {
    let mut client = NbdClient::handshake(stream, "db", options)?;
    let mut data = Vec::new();
    for cookie in 0..4_u64 {
        client.send_write(cookie * 8, cookie * 512, &[3; 600], false)?;
        client.send_read(cookie * 8 + 1, cookie * 512, 1000)?;
        client.send_block_status(cookie * 8 + 3, 0, 1 << 30, false)?;
        client.send_flush(cookie * 8 + 4)?;
    }
    while client.in_flight() > 0 {
        let reply = client.recv_reply(&mut data)?;
        assert!(
            data.is_empty() || (data.len() == 1000 && reply.cookie % 8 <= 2),
            "data that nobody asked for"
        );
    }
    client.disconnect()
}

/// A pipe that records the server's replies.
struct Recorder(Pipe, Vec<u8>);

impl Read for Recorder {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(into)?;
        self.1.extend_from_slice(&into[..count]);
        Ok(count)
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn client_seeds() -> Vec<Vec<u8>> {
    let said = |how: u8| {
        let recorder = Recorder(Pipe::new(Peer::new(peer::two_exports()), usize::MAX), Vec::new());
        converse(recorder, &options(how)).map(|recorder| [&[how], &recorder.1[..]].concat())
    };
    [0, 1, 2, 3].into_iter().filter_map(|how| said(how).ok()).collect()
}
