//! The admin API of a daemon without devices, to test clients against and for the fuzzer
//! (`tests/e2e/test_api_fuzz.py`).
//!
//! `cargo run -p forebay-daemon --example fake-daemon -- SOCKET [TOKEN_FILE]` serves on a Unix
//! socket and, with a token, on a free TCP port of 127.0.0.1, prints `ready: ADDRESS`, and ends
//! when its standard input does. There always are a pool `fast` and a volume `db`: they are
//! recreated after a removal.

#[path = "../tests/api/fake.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests use more of it")]
mod fake;

use forebay_daemon::api::{ApiOptions, TcpOptions, serve};
use std::error::Error;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let socket = arguments.next().ok_or("usage: fake-daemon SOCKET [TOKEN_FILE]")?.into();
    let tcp = arguments.next().map(|token_file| TcpOptions {
        host: IpAddr::V4(Ipv4Addr::LOCALHOST).to_string(),
        port: 0,
        token_file: token_file.into(),
        read_token_file: None,
        tls: None,
    });
    let fake = fake::Fake::new();
    fake.furnish()?;
    let options = ApiOptions { tcp, ..ApiOptions::at(socket) };
    let server = serve(&options, fake.services())?;
    println!(
        "ready: {}",
        server.tcp_address().map_or("unix".into(), |address: SocketAddr| address.to_string())
    );
    std::thread::spawn(move || {
        loop {
            let _ = fake.furnish(); // while one of them is being removed: retried later
            std::thread::sleep(fake::JOB_TAKES);
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
