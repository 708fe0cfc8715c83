//! The server's end against a client of the same library in memory, well-behaved and otherwise.

use super::*;
use crate::guard::GuardBook;
use crate::guard::testing::{Authority, Certified, section};
use forebay_config::choices::ClientCertificates;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{Read, Write};

/// A server's link and a client, and the bytes between them.
struct Wire {
    link: TlsLink,
    client: ClientConnection,
    /// Data that the server has received, decrypted.
    plain: Vec<u8>,
    work: Vec<u8>,
}

fn link(server: &Certified, authority: Option<&Authority>, optional: bool) -> TlsLink {
    let folder = tempfile::tempdir().unwrap();
    let mut tls = section(folder.path(), server, authority);
    if optional {
        tls.client_certificates = ClientCertificates::Optional;
    }
    let mut config = forebay_config::Config::default();
    config.tls.insert("t".into(), tls);
    let volume = "pool = \"p\"\nbacking = \"/b\"\nexports = [\"nbds://127.0.0.1:1/x?tls=t\"]";
    let text = format!(
        "[tls.t]\ncert_file=\"/c\"\nkey_file=\"/k\"\n[pool.p]\ndevices=[\"/d\"]\n[volume.v]\n{volume}\n"
    );
    config.volumes = forebay_config::parse(std::path::Path::new("t"), &text).unwrap().config.volumes;
    let book = GuardBook::default();
    assert_eq!(book.update(&config).refused, Vec::<String>::new());
    TlsLink::new(book.tls("t").unwrap().current().unwrap()).unwrap()
}

fn client(authority: &Authority, certificate: Option<&Certified>) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der.clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key: PrivateKeyDer<'static> = own.key.clone_key();
            builder.with_client_auth_cert(vec![own.der.clone()], key).unwrap()
        }
    };
    ClientConnection::new(config.into(), "localhost".try_into().unwrap()).unwrap()
}

impl Wire {
    fn new(link: TlsLink, client: ClientConnection) -> Self {
        Self { link, client, plain: Vec::new(), work: Vec::new() }
    }

    /// Sends the client's output to the server in pieces of at most `piece` bytes.
    fn client_speaks(&mut self, piece: usize) -> Result<(), TlsFailure> {
        let mut bytes = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut bytes).unwrap();
        }
        bytes.chunks(piece).try_for_each(|piece| self.raw(piece))
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<(), TlsFailure> {
        self.link.begin(&mut self.work);
        self.work.extend_from_slice(bytes);
        let plain = &mut self.plain;
        let result = self.link.received(&mut self.work, &mut |bytes| plain.extend_from_slice(bytes));
        assert!(self.link.leftover.len() <= LEFTOVER_BYTES_MAX && self.link.speech.len() <= SPEECH_BYTES_MAX);
        result
    }

    /// Sends the server's output to the client.
    fn server_speaks(&mut self) -> Result<(), rustls::Error> {
        let mut out = [0; 100];
        while self.link.wants_to_speak() {
            let count = self.link.speak(&mut out);
            self.client_gets(&out[..count])?;
        }
        Ok(())
    }

    fn client_gets(&mut self, mut bytes: &[u8]) -> Result<(), rustls::Error> {
        while !bytes.is_empty() {
            self.client.read_tls(&mut bytes).unwrap();
            self.client.process_new_packets()?;
        }
        Ok(())
    }

    fn shake(&mut self, piece: usize) -> Result<(), TlsFailure> {
        for _ in 0..6 {
            self.client_speaks(piece)?;
            if let Err(error) = self.server_speaks() {
                return Err(TlsFailure::Refused(format!("the client: {error}")));
            }
        }
        Ok(())
    }

    /// The server sends, the client reads.
    fn send(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = vec![0; RECORD_BYTES + RECORD_OVERHEAD_BYTES];
        let mut got = Vec::new();
        for piece in plain.chunks(RECORD_BYTES) {
            let count = self.link.encrypt(piece, &mut out).unwrap();
            self.client_gets(&out[..count]).unwrap();
            let start = got.len();
            got.resize(start + piece.len(), 0);
            self.client.reader().read_exact(&mut got[start..]).unwrap();
        }
        got
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn data_passes_both_ways_in_any_pieces() {
    let authority = Authority::new();
    let server = authority.sign(&["s"], &["localhost"], &[]);
    let own = authority.sign(&["c"], &[], &[]);
    for piece in [1, 7, 1000, usize::MAX] {
        let mut wire = Wire::new(link(&server, Some(&authority), false), client(&authority, Some(&own)));
        assert!(!wire.link.is_established() && wire.link.client_certificate().is_none());
        wire.shake(piece).unwrap();
        assert!(wire.link.is_established());
        assert_eq!(wire.link.client_certificate(), Some(&own.der[..]));
        let data = pattern(200_000);
        for chunk in data.chunks(50_000) {
            wire.client.writer().write_all(chunk).unwrap();
            wire.client_speaks(piece).unwrap();
        }
        assert!(wire.plain == data, "pieces of {piece}");
        assert!(wire.send(&data) == data, "pieces of {piece}");
    }
}

#[test]
fn client_certificates_are_verified() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.sign(&["s"], &["localhost"], &[]);
    let (own, foreign) = (authority.sign(&["c"], &[], &[]), other.sign(&["c"], &[], &[]));
    let shake = |client_ca: Option<&Authority>, optional, certificate: Option<&Certified>| {
        let mut wire = Wire::new(link(&server, client_ca, optional), client(&authority, certificate));
        let result = wire.shake(usize::MAX);
        assert_eq!(wire.link.is_established(), result.is_ok(), "{result:?}");
        (result, wire)
    };
    assert!(shake(Some(&authority), false, Some(&own)).0.is_ok());
    assert!(shake(None, false, None).0.is_ok());
    let (result, wire) = shake(Some(&authority), true, None);
    assert!(result.is_ok() && wire.link.client_certificate().is_none());
    for (optional, certificate) in [(false, None), (false, Some(&foreign)), (true, Some(&foreign))] {
        let (result, mut wire) = shake(Some(&authority), optional, certificate);
        assert!(result.is_err());
        assert!(wire.link.has_ended() && wire.link.client_certificate().is_none());
        assert!(wire.link.wants_to_speak(), "the client is told why");
        assert!(wire.server_speaks().is_err());
        // Everything fails after that.
        assert_eq!(wire.raw(b"anything"), Ok(()));
        assert!(wire.plain.is_empty() && wire.link.encrypt(b"x", &mut [0; 1000]).is_err());
    }
}

#[test]
fn invalid_tls_ends_without_taking_memory() {
    let authority = Authority::new();
    let server = authority.sign(&["s"], &["localhost"], &[]);
    let start = || Wire::new(link(&server, None, false), client(&authority, None));
    assert!(start().raw(b"IHAVEOPT\0\0\0\x07\0\0\0\0").is_err());
    assert!(start().raw(&[0; 100_000]).is_err());
    // A handshake message that claims to be long and never ends.
    let mut wire = start();
    let mut failed = false;
    for _ in 0..100 {
        let mut record = vec![22, 3, 1, 0x40, 0];
        record.extend([1, 0xff, 0xff, 0xff]);
        record.resize(5 + 0x4000, 0);
        if wire.raw(&record).is_err() {
            failed = true;
            break;
        }
    }
    assert!(failed, "an endless message was taken");
}

#[test]
fn damaged_record_is_refused() {
    let authority = Authority::new();
    let server = authority.sign(&["s"], &["localhost"], &[]);
    let mut wire = Wire::new(link(&server, None, false), client(&authority, None));
    wire.shake(usize::MAX).unwrap();
    wire.client.writer().write_all(b"secret").unwrap();
    let mut bytes = Vec::new();
    wire.client.write_tls(&mut bytes).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(wire.raw(&bytes).is_err() && wire.plain.is_empty());
}

#[test]
fn endless_key_updates_take_no_memory() {
    let authority = Authority::new();
    let server = authority.sign(&["s"], &["localhost"], &[]);
    let mut wire = Wire::new(link(&server, None, false), client(&authority, None));
    wire.shake(usize::MAX).unwrap();
    for round in 0..200 {
        wire.client.refresh_traffic_keys().unwrap();
        wire.client.writer().write_all(&[round as u8]).unwrap();
        if wire.client_speaks(usize::MAX).is_err() {
            break; // the library has refused: fine
        }
        if round < 5 {
            assert_eq!(wire.plain, (0..=round as u8).collect::<Vec<u8>>());
            assert_eq!(wire.send(b"answer"), b"answer");
        }
    }
}

#[test]
fn close_notify_is_sent_once_and_understood() {
    let authority = Authority::new();
    let server = authority.sign(&["s"], &["localhost"], &[]);
    let mut wire = Wire::new(link(&server, None, false), client(&authority, None));
    wire.shake(usize::MAX).unwrap();
    wire.client.writer().write_all(b"last").unwrap();
    wire.client.send_close_notify();
    wire.client_speaks(usize::MAX).unwrap();
    assert_eq!(wire.plain, b"last");
    assert!(wire.link.has_ended() && wire.link.is_established(), "replies may still be sent");
    assert_eq!(wire.send(b"answer"), b"answer");
    let mut out = [0; 1000];
    let count = wire.link.say_goodbye(&mut out);
    assert!(count > 0);
    wire.client_gets(&out[..count]).unwrap();
    assert_eq!(wire.client.reader().read(&mut [0; 10]).unwrap(), 0, "an orderly end");
    assert_eq!(wire.link.say_goodbye(&mut out), 0);
}

#[test]
fn debug_format_has_no_secrets() {
    let authority = Authority::new();
    let link = link(&authority.sign(&["s"], &["localhost"], &[]), None, false);
    assert_eq!(format!("{link:?}"), "TlsLink { state: Handshake, .. }");
}
