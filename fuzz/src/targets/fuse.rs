//! Requests over FUSE from the kernel, or from another holder of the descriptor: a volume as a
//! file, and a tree of text files.

use std::ffi::OsStr;

use forebay_export::fuse::ring::{self, HEAD_BYTES};
use forebay_export::fuse::wire::{IN_HEADER_BYTES, opcode};
use forebay_export::fuse::{
    ControlTree, Errno, FuseStep, Limits, NodeKind, Provider, Session, Tree, VolumeTree,
};

use crate::Target;

/// The first byte: 1 for the tree of text files. Then requests, each preceded by its length of two
/// bytes.
pub const TARGET: Target = Target {
    name: "fuse",
    about: "requests of the kernel, one after the other, to a volume's file and to control files",
    run,
    seeds,
    words: &["stats\0", "volumes\0", "config\0", "vol\0", "1\n"],
    bytes_max: 8192,
    short_run: 30_000,
};

const SIZE: u64 = (1 << 30) + 512;

#[derive(Debug)]
struct Files;

impl Provider for Files {
    fn find(&mut self, path: &str) -> Option<NodeKind> {
        match path {
            "" | "volumes" => Some(NodeKind::Directory),
            "stats" => Some(NodeKind::File { permissions: 0o444 }),
            "volumes/flush" => Some(NodeKind::File { permissions: 0o644 }),
            _ => None,
        }
    }

    fn list(&mut self, path: &str) -> Vec<(String, NodeKind)> {
        let file = |name: &str| (name.to_owned(), NodeKind::File { permissions: 0o444 });
        if path.is_empty() {
            vec![("volumes".into(), NodeKind::Directory), file("stats")]
        } else {
            vec![file("flush")]
        }
    }

    fn text(&mut self, path: &str) -> Result<String, Errno> {
        Ok(format!("text of {path}\n"))
    }
}

fn run(input: &[u8]) {
    let Some((how, requests)) = input.split_first() else { return };
    let limits =
        Limits { handles_max: 8, text_bytes_max: 4096, payload_bytes_max: 64 << 10, ..Limits::default() };
    match how & 1 {
        1 => feed(&mut Session::new(ControlTree::new(Files, (0, 0), 0), limits), requests),
        _ => feed(
            &mut Session::new(VolumeTree::new(Some(OsStr::new("vol")), SIZE, (0, 0), 0), limits),
            requests,
        ),
    }
}

fn feed<T: Tree>(session: &mut Session<T>, mut requests: &[u8]) {
    let mut out = Vec::new();
    while let [high, low, rest @ ..] = requests {
        let len = (usize::from(*high) << 8 | usize::from(*low)).min(rest.len());
        let (request, rest) = rest.split_at(len);
        requests = rest;
        out.clear();
        if let Some(head) = request.first_chunk::<HEAD_BYTES>()
            && let Ok(taken) = ring::request(head, 64 << 10, &mut out)
        {
            assert_eq!(out.len() + taken.payload_bytes, taken.length_bytes, "a message that is not whole");
            out.clear();
        }
        let Ok(step) = session.step(request, request.len(), &mut out) else { return };
        if out.len() >= 4 {
            let stated = u32::from_le_bytes([out[0], out[1], out[2], out[3]]);
            assert_eq!(stated as usize, out.len(), "an answer that is not one message");
        }
        if let FuseStep::Volume(volume) = &step {
            let request = volume.request;
            assert!(request.offset_bytes + request.length_bytes <= SIZE, "beyond the end");
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let request = |code: u32, node: u64, body: &[u8]| {
        let len = IN_HEADER_BYTES + body.len();
        let mut bytes = (len as u16).to_be_bytes().to_vec();
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        bytes.extend_from_slice(&code.to_le_bytes());
        bytes.extend_from_slice(&99_u64.to_le_bytes());
        bytes.extend_from_slice(&node.to_le_bytes());
        bytes.extend_from_slice(&[0; 16]);
        bytes.extend_from_slice(body);
        bytes
    };
    let init = request(opcode::INIT, 0, &[7, 0, 0, 0, 36, 0, 0, 0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0x3f]);
    let mut seeds = Vec::new();
    for how in 0..2_u8 {
        for code in 1..52 {
            let name = if how == 1 { &b"volumes\0stats\0"[..] } else { &b"vol\0"[..] };
            let bodies = [
                name,
                &[0; 40][..],
                &[1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0][..],
            ];
            let all = bodies.map(|body| [request(code, 1, body), request(code, 2, body)].concat()).concat();
            seeds.push([&[how], &init[..], &all].concat());
        }
    }
    seeds
}
