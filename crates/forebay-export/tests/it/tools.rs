//! Independent clients with a small threaded server around the session: libnbd's tools and QEMU's.
//! A missing tool is skipped with a message.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::client::Requests;
use crate::common::*;
use forebay_export::directory::ExportInfo;
use forebay_export::nbd::codec::transmission_flag;
use forebay_export::nbd::{CloseReason, Limits};
use forebay_export::uri::{Endpoint, ExportUri, FilePermissions, Guards};
use forebay_nbd_client::{HandshakeOptions, NbdClient, list_exports};

const SIZE: u64 = 48 << 20;

/// A server on a unix socket in a directory of its own; its threads end with the process.
struct Server {
    directory: PathBuf,
    socket: PathBuf,
    disk: Arc<Mutex<Disk>>,
    connections: Arc<AtomicUsize>,
    ends: Arc<Mutex<Vec<Option<CloseReason>>>>,
}

impl Server {
    fn start() -> Server {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("forebay-export-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("nbd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = Server {
            directory,
            socket,
            disk: Arc::default(),
            connections: Arc::default(),
            ends: Arc::default(),
        };
        let (disk, connections) = (server.disk.clone(), server.connections.clone());
        let ends = server.ends.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                connections.fetch_add(1, Ordering::Relaxed);
                let (disk, ends) = (disk.clone(), ends.clone());
                std::thread::spawn(move || serve(stream, disk, &ends));
            }
        });
        server
    }

    fn uri(&self, name: &str) -> String {
        let endpoint = Endpoint::Unix(self.socket.clone());
        let (guards, permissions) = (Guards::default(), FilePermissions::default());
        ExportUri::Nbd { endpoint, name: name.to_owned(), guards, permissions }.to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Checks that the session refused no client.
    fn nobody_misbehaved(&self) {
        for end in self.ends.lock().unwrap().iter().flatten() {
            assert!(end.is_clean(), "a connection ended with: {end}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn serve(mut stream: UnixStream, disk: Arc<Mutex<Disk>>, ends: &Mutex<Vec<Option<CloseReason>>>) {
    let mut small = ExportInfo::new("iso", 10_000);
    small.read_only = true;
    small.description = "installation medium".to_owned();
    let mut peer = Peer::with_limits(vec![ExportInfo::new("db", SIZE), small], Limits::default());
    peer.disk = disk;
    let mut buffer = vec![0; 64 << 10];
    let mut out = Vec::new();
    let mut received = 0;
    loop {
        peer.feed(&buffer[..received], &mut out);
        let last = peer.events.last().cloned();
        peer.events.clear();
        if let Some(Event::Close(_)) = &last {
            peer.events.extend(last);
        }
        let sent = stream.write_all(&out);
        out.clear();
        if peer.closed().is_some() || sent.is_err() {
            break;
        }
        received = stream.read(&mut buffer).unwrap_or(0);
        if received == 0 {
            break;
        }
    }
    ends.lock().unwrap().push(peer.closed());
}

/// Runs a tool for at most a minute; returns `None`, with a message, if it is not installed.
fn tool(program: &str, arguments: &[&str]) -> Option<Output> {
    if Command::new(program).arg("--version").output().is_err() {
        eprintln!("\n*** SKIPPED: {program} is not installed, so this test shows nothing ***\n");
        return None;
    }
    let output = Command::new("timeout").arg("60").arg(program).args(arguments).output().unwrap();
    Some(output)
}

/// Like [`tool`], but the tool must succeed. Returns its output.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = tool(program, arguments)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}\n{errors}", output.status);
    Some(text)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns data with pages of zeroes in between.
fn image() -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    let mut state = 1_u64;
    for (number, page) in bytes.chunks_mut(4096).enumerate() {
        if number % 64 < 40 {
            for word in page.chunks_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word.copy_from_slice(&state.to_be_bytes());
            }
        }
    }
    bytes
}

#[test]
fn nbdinfo_reads_the_handshake() {
    let server = Server::start();
    let Some(text) = run("nbdinfo", &["--json", &server.uri("db")]) else { return };
    for expected in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-size\": 50331648",
        "\"is_read_only\": false",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_fast_zero\": false",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"block_size_minimum\": 1",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "base:allocation",
        "forebay:cache",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let list = run("nbdinfo", &["--list", &server.uri("")]).unwrap();
    assert!(list.contains("export=\"db\"") && list.contains("export=\"iso\""), "{list}");
    assert!(list.contains("installation medium"), "{list}");
    assert_eq!(run("nbdinfo", &["--size", &server.uri("iso")]).unwrap().trim(), "10000");
    run("nbdinfo", &["--is", "read-only", &server.uri("iso")]).unwrap();
    assert!(!tool("nbdinfo", &[&server.uri("nope")]).unwrap().status.success());
    server.nobody_misbehaved();
}

#[test]
fn nbdinfo_maps_both_contexts() {
    let server = Server::start();
    {
        let mut disk = server.disk.lock().unwrap();
        disk.write(0, &[1; 8192]);
        disk.flush();
        disk.write(1 << 20, &[2; 4096]);
    }
    let Some(base) = run("nbdinfo", &["--map", &server.uri("db")]) else { return };
    let lines = |text: &str| -> Vec<Vec<u64>> {
        let numbers = |line: &str| line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        text.lines().map(numbers).collect()
    };
    let mib = 1 << 20;
    let expected = [
        vec![0, 8192, 0],
        vec![8192, mib - 8192, 3],
        vec![mib, 4096, 0],
        vec![mib + 4096, SIZE - mib - 4096, 3],
    ];
    assert_eq!(lines(&base), expected, "{base}");
    let cache = run("nbdinfo", &["--map=forebay:cache", &server.uri("db")]).unwrap();
    let expected = [
        vec![0, 8192, 1],
        vec![8192, mib - 8192, 0],
        vec![mib, 4096, 3],
        vec![mib + 4096, SIZE - mib - 4096, 0],
    ];
    assert_eq!(lines(&cache), expected, "{cache}");
    server.nobody_misbehaved();
}

#[test]
fn nbdcopy_there_and_back() {
    for extra in
        [&["--flush"][..], &["--synchronous", "--connections=1"], &["--request-size=33554432", "-S0"]]
    {
        let server = Server::start();
        let (from, to) = (server.file("from"), server.file("to"));
        let image = image();
        fs::write(&from, &image).unwrap();
        let uri = server.uri("db");
        if run("nbdcopy", &[extra, &[path(&from), &uri]].concat()).is_none() {
            return;
        }
        let mut stored = vec![0; image.len()];
        server.disk.lock().unwrap().read(0, &mut stored);
        assert!(stored == image, "what arrived is not what was sent");
        run("nbdcopy", &[extra, &[&uri, path(&to)]].concat()).unwrap();
        assert!(fs::read(&to).unwrap() == image, "what came back is not what was stored");
        if extra.contains(&"--flush") {
            assert!(server.disk.lock().unwrap().flushes > 0);
            assert!(server.connections.load(Ordering::Relaxed) > 2, "multi-conn was not used");
        }
        server.nobody_misbehaved();
    }
}

#[test]
fn nbdcopy_zeroes_and_overwrites() {
    let server = Server::start();
    server.disk.lock().unwrap().write(0, &image());
    let from = server.file("zeroes");
    fs::File::create(&from).unwrap().set_len(SIZE).unwrap();
    if run("nbdcopy", &[path(&from), &server.uri("db")]).is_none() {
        return;
    }
    assert!(
        server.disk.lock().unwrap().extents(0, SIZE).iter().all(|extent| extent.zero),
        "no zeroing requests"
    );
    let refused = tool("nbdcopy", &[path(&from), &server.uri("iso")]).unwrap();
    assert!(!refused.status.success(), "a read-only export was written to");
    server.nobody_misbehaved();
}

#[test]
fn qemu_io_at_any_alignment() {
    let server = Server::start();
    let uri = server.uri("db");
    let commands = [
        "write -P 17 0 1M",
        "write -f -P 34 12345 6789", // FUA
        "read -P 34 12345 6789",
        "read -P 17 0 12345",
        "write -z 4096 4096",
        "read -P 0 4096 4096",
        "write -z -u 20000 40000",
        "read -P 0 20000 40000",
        "discard 1M 40M",
        "aio_write -P 51 8M 1M",
        "aio_read -P 17 512k 256k",
        "aio_flush",
        "read -P 51 8M 1M",
        "flush",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&uri);
    let Some(text) = run("qemu-io", &arguments) else { return };
    assert!(!text.contains("ailed"), "{text}");
    server.nobody_misbehaved();
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    let server = Server::start();
    let (from, to) = (server.file("from"), server.file("to"));
    let image = image();
    fs::write(&from, &image).unwrap();
    let uri = server.uri("db");
    let convert = ["convert", "-n", "-W", "-f", "raw", "-O", "raw", path(&from), &uri];
    if run("qemu-img", &convert).is_none() {
        return;
    }
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", path(&from), &uri]).unwrap();
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, path(&to)]).unwrap();
    assert!(fs::read(&to).unwrap() == image);
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", &uri]).unwrap();
    assert!(map.contains("\"zero\": true") && map.contains("\"data\": true"), "{map}");
    server.nobody_misbehaved();
}

#[test]
fn fio_writes_and_verifies_at_depth() {
    if let Some(engines) = run("fio", &["--enghelp"])
        && !engines.lines().any(|line| line.trim() == "nbd")
    {
        eprintln!("\n*** SKIPPED: this fio has no nbd engine, so this test shows nothing ***\n");
        return;
    }
    let server = Server::start();
    let (uri, size) = (format!("--uri={}", server.uri("db")), format!("--size={SIZE}"));
    let arguments = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        &size,
        "--rw=randwrite",
        "--bsrange=512-64k",
        "--bs_unaligned",
        "--iodepth=32",
        "--fsync=100",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--verify_state_save=0", // otherwise it leaves a file behind
    ];
    if run("fio", &arguments).is_some() {
        assert!(server.disk.lock().unwrap().flushes > 1);
        server.nobody_misbehaved();
    }
}

#[test]
fn our_client_over_a_socket() {
    let server = Server::start();
    let uri: ExportUri = server.uri("db").parse().unwrap();
    let mut client = NbdClient::connect(&uri).unwrap();
    client.stream().set_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let image = image();
    client.write_at(0, &image, false).unwrap();
    client.flush().unwrap();
    // Thirty-two in flight from one thread, long and short, in random order.
    let mut data = Vec::new();
    let mut places = std::collections::HashMap::new();
    for number in 0..2000_u64 {
        while client.in_flight() >= 32 {
            let reply = client.recv_reply(&mut data).unwrap();
            let (offset, length): (usize, usize) = places.remove(&reply.cookie).unwrap();
            assert!(data == image[offset..offset + length]);
        }
        let length = if number % 50 == 0 { 300_000 } else { 4096 };
        let offset = (number * 7_919 * 4099) % (SIZE - length);
        places.insert(number, (offset as usize, length as usize));
        client.send_read(number, offset, length as u32).unwrap();
    }
    while client.in_flight() > 0 {
        client.recv_reply(&mut data).unwrap();
    }
    client.disconnect().unwrap();
    let listed = list_exports(UnixStream::connect(&server.socket).unwrap()).unwrap();
    assert_eq!(listed.len(), 2);
    server.nobody_misbehaved();
}

/// Our client with an independent server.
#[test]
fn our_client_against_nbdkit() {
    let directory = std::env::temp_dir().join(format!("forebay-export-{}-nbdkit", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let socket = directory.join("s");
    if Command::new("nbdkit").arg("--version").output().is_err() {
        eprintln!("\n*** SKIPPED: nbdkit is not installed, so this test shows nothing ***\n");
        return;
    }
    let arguments = ["-f", "-U", path(&socket), "memory", "64M"];
    let mut child = Command::new("nbdkit").args(arguments).spawn().unwrap();
    for _ in 0..500 {
        // The file exists before the server listens.
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let result = std::panic::catch_unwind(|| {
        for options in [
            HandshakeOptions::default(),
            HandshakeOptions { structured: false, ..HandshakeOptions::default() },
        ] {
            let endpoint = Endpoint::Unix(socket.clone());
            let (guards, permissions) = (Guards::default(), FilePermissions::default());
            let uri = ExportUri::Nbd { endpoint, name: String::new(), guards, permissions };
            let mut client = NbdClient::connect_with(&uri, &options).unwrap();
            assert_eq!(client.size_bytes(), 64 << 20);
            assert!(client.info().has(transmission_flag::SEND_WRITE_ZEROES));
            let image = image();
            client.write_at(4096, &image, true).unwrap();
            client.write_zeroes(8192, 10_000, 0).unwrap();
            client.flush().unwrap();
            let mut back = vec![0; image.len()];
            client.read_at(4096, &mut back).unwrap();
            assert!(back[..4096] == image[..4096] && back[14_096..] == image[14_096..]);
            assert!(back[4096..14_096].iter().all(|byte| *byte == 0));
            client.trim(0, 64 << 20, false).unwrap();
            assert!(client.read_at(64 << 20, &mut [0]).is_err());
            if client.info().structured {
                let status = client.block_status(0, 64 << 20).unwrap();
                let sum: u64 = status[0].extents.iter().map(|extent| u64::from(extent.length_bytes)).sum();
                assert_eq!(sum, 64 << 20);
            }
            client.disconnect().unwrap();
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = fs::remove_dir_all(&directory);
    assert!(result.is_ok());
}
