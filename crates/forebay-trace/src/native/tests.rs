#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::record::{END_BYTES_MAX, Operation, Outcome, REQUEST_BYTES_MAX, Record};
use proptest::prelude::*;

fn record(at_ns: u64, operation: Operation, offset: u64, len: u64) -> Record {
    Record::new(at_ns, operation, offset, len)
}

fn written(header: &Header, records: &[Record]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    records.iter().for_each(|record| writer.push(record).unwrap());
    writer.finish().unwrap()
}

/// Returns all records and the ending, or the error.
fn read(bytes: &[u8]) -> Result<(Vec<Record>, Ending), String> {
    let mut reader = Reader::new(bytes).map_err(|error| error.to_string())?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().map_err(|error| error.to_string())? {
        records.push(record);
    }
    Ok((records, reader.ending().unwrap()))
}

fn some(count: u64) -> Vec<Record> {
    let operation = |at: u64| Operation::ALL[(at % 5) as usize];
    let one = |at: u64| match operation(at) {
        Operation::Flush => record(at * 1000, Operation::Flush, 0, 0),
        operation => record(at * 1000, operation, at * 7919 % 1000 * 4096, 4096 << (at % 3)),
    };
    (0..count).map(one).collect()
}

#[test]
fn bytes_match_the_documentation() {
    let header =
        Header { started_unix_ns: 0x0102_0304_0506_0708, volume_bytes: 1 << 30, volume: "db".into() };
    let mut hit = record(1000, Operation::Read, 8192, 4096);
    (hit.outcome, hit.latency_ns) = (Outcome::Hit, Some(300));
    let write = Record { fua: true, ..record(500, Operation::Write, 12_288, 512) };
    let bytes = written(&header, &[hit, write, record(600, Operation::Flush, 0, 0)]);
    let golden: &[&[u8]] = &[
        b"FBYTRACE\x01\0\0\0\x02\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\0\0\0\x40\0\0\0\0db",
        &[0x0b, 0x99, 0x89, 0xba], // checksum of the header
        b"FBTB\0\0\0\0\x03\0\0\0\x13\0\0\0\x13\0\0\0\0\0\0\0\0\0\0\0",
        &[0x18, 0x96, 0xb8, 0x10], // checksum of the block
        &[0x48, 0xd0, 0x0f, 0x80, 0x80, 0x01, 0x80, 0x20, 0xac, 0x02], // the hit
        &[0x81, 0xe7, 0x07, 0x00, 0x80, 0x04], // 500 ns earlier, at the previous end
        &[0x02, 0xc8, 0x01],
        b"FBTB\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        &[0x79, 0xae, 0xe4, 0x8b],
    ];
    let golden = golden.concat();
    assert_eq!(bytes, golden, "{bytes:02x?}");
}

#[test]
fn packed_trace_of_version_1_stays_readable() {
    let golden: &[u8] = include_bytes!("golden.fbtrace");
    assert_eq!(read(golden).unwrap(), (some(5000), Ending::Whole));
}

#[test]
fn a_cut_trace_keeps_earlier_records() {
    let records = some(9000);
    let bytes = written(&Header::default(), &records);
    for end in (0..bytes.len()).step_by(37).chain([bytes.len() - 1, bytes.len() - 32]) {
        match read(&bytes[..end]) {
            Ok((some, ending)) => {
                assert!(records.starts_with(&some), "{end}");
                assert!(matches!(ending, Ending::Cut { .. }), "{end}: {ending:?}");
                assert!(some.len() % BLOCK_RECORDS_MAX == 0 || some.len() == records.len());
            }
            Err(_) => assert!(end < 36, "{end}: only a header must be whole"),
        }
    }
}

#[test]
fn a_bit_that_flips_is_noticed() {
    let bytes = written(&Header::default(), &some(40));
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // A length that was made larger than the file looks like truncation.
        let outcome = read(&bytes);
        assert!(!matches!(outcome, Ok((_, Ending::Whole))), "bit {bit}: {outcome:?}");
    }
}

#[test]
fn trailing_bytes_and_losses_are_reported() {
    let mut bytes = written(&Header::default(), &some(3));
    bytes.push(0);
    assert!(read(&bytes).unwrap_err().contains("follows the end"));
    let mut blocks = BlockWriter::default();
    let mut bytes = BlockWriter::header(&Header::default());
    blocks.lose(7);
    blocks.push(&some(1)[0]);
    bytes.extend(blocks.block());
    assert!(blocks.block().is_empty());
    blocks.lose(2);
    bytes.extend(blocks.end());
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    while reader.next_record().unwrap().is_some() {}
    assert_eq!((reader.lost(), reader.ending()), (9, Some(Ending::Whole)));
}

#[test]
fn no_trace_and_another_version_are_refused() {
    assert!(read(b"").unwrap_err().contains("no trace"));
    let mut bytes = written(&Header::default(), &[]);
    bytes[8] = 2;
    assert!(read(&bytes).unwrap_err().contains("version 2"));
}

#[test]
fn a_long_name_is_cut_between_letters() {
    let header = Header { volume: "ä".repeat(200), ..Header::default() };
    let bytes = written(&header, &[]);
    assert_eq!(Reader::new(bytes.as_slice()).unwrap().header().volume, "ä".repeat(127));
}

prop_compose! {
    fn any_record()(
        (at_ns, operation, fua, outcome) in (any::<u64>(), 0_usize..5, any::<bool>(), 0_usize..6),
        (offset, len) in (0..END_BYTES_MAX - REQUEST_BYTES_MAX, 1..=REQUEST_BYTES_MAX),
        latency_ns in any::<Option<u64>>(),
    ) -> Record {
        let operation = Operation::ALL[operation];
        let (offset, len) = if operation == Operation::Flush { (0, 0) } else { (offset, len) };
        Record { at_ns, operation, fua, offset, len, outcome: Outcome::ALL[outcome], latency_ns }
    }
}

proptest! {
    #[test]
    fn any_records_come_back(records in proptest::collection::vec(any_record(), 0..200)) {
        let bytes = written(&Header::default(), &records);
        prop_assert_eq!(read(&bytes).unwrap(), (records, Ending::Whole));
    }
}
