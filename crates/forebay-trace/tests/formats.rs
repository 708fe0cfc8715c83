//! Every format as its users see it: bytes in, records out, and back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use forebay_trace::native::Header;
use forebay_trace::{Format, Loss, NewTrace, Operation, Options, Outcome, Reading, Record, Tally};
use forebay_trace::{reader, writer};
use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

/// A shared buffer that the test can still read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn read_with(bytes: &[u8], format: Format, options: &Options) -> Result<(Vec<Record>, Reading), String> {
    let from = Box::new(Cursor::new(bytes.to_vec()));
    let mut source = reader(from, Some(format), options).map_err(|error| error.to_string())?;
    let mut records = Vec::new();
    while let Some(record) = source.next_record().map_err(|error| error.to_string())? {
        records.push(record);
    }
    Ok((records, source.reading().clone()))
}

fn read(bytes: &[u8], format: Format) -> Result<Vec<Record>, String> {
    read_with(bytes, format, &Options::default()).map(|(records, _)| records)
}

fn written(records: &[Record], format: Format) -> (Vec<u8>, Tally) {
    let to = Shared::default();
    let new = NewTrace { format, options: Options::default(), header: Header::default() };
    let mut sink = writer(Box::new(to.clone()), &new).unwrap();
    records.iter().for_each(|record| sink.push(record).unwrap());
    let tally = sink.finish().unwrap();
    (std::mem::take(&mut *to.0.lock().unwrap()), tally)
}

/// Returns records that every format except libCacheSim's can hold: whole blocks, whole
/// milliseconds.
fn plain() -> Vec<Record> {
    let ms = 1_000_000;
    vec![
        Record::new(0, Operation::Read, 4096, 8192),
        Record::new(5 * ms, Operation::Write, 1 << 40, 4096),
        Record::new(5 * ms, Operation::Read, 0, 4096),
        Record::new(2_000 * ms, Operation::Write, 12_288, 65_536),
    ]
}

#[test]
fn supported_fields_survive_each_format() {
    for format in
        [Format::Forebay, Format::Bin, Format::Iolog, Format::Blkparse, Format::Msr, Format::Alibaba]
    {
        let mut records = plain();
        if format == Format::Msr {
            records.iter_mut().for_each(|record| record.latency_ns = Some(700));
        }
        let (bytes, tally) = written(&records, format);
        assert_eq!(tally, Tally { records: 4, losses: vec![] }, "{}", format.name());
        assert_eq!(read(&bytes, format).unwrap(), records, "{}", format.name());
    }
}

#[test]
fn own_format_is_lossless_and_others_report() {
    let mut all = Record::new(0, Operation::Write, 512, 1024);
    (all.fua, all.outcome, all.latency_ns) = (true, Outcome::Hit, Some(12_345));
    let records = [
        all,
        Record::new(1_234, Operation::Flush, 0, 0),
        Record::new(1_500, Operation::Discard, 0, 4096),
        Record::new(1_600, Operation::WriteZeroes, 0, 4096),
    ];
    let (bytes, tally) = written(&records, Format::Forebay);
    assert_eq!((tally.records, tally.losses.as_slice()), (4, &[][..]));
    assert_eq!(read(&bytes, Format::Forebay).unwrap(), records);
    let left_out = [Operation::Flush, Operation::Discard, Operation::WriteZeroes];
    let left_out = left_out.map(|operation| (Loss::LeftOut(operation), 1));
    let of_write = |losses: &[Loss]| losses.iter().map(|loss| (*loss, 1)).collect::<Vec<_>>();
    let lost = |format| written(&records, format).1.losses;
    let expected = [of_write(&[Loss::Fua, Loss::Outcome, Loss::Latency]), left_out.to_vec()];
    assert_eq!(lost(Format::Msr), expected.concat());
    assert_eq!(lost(Format::Alibaba), expected.concat());
    let expected = [of_write(&[Loss::Range, Loss::Fua, Loss::Outcome, Loss::Latency]), left_out.to_vec()];
    assert_eq!(lost(Format::Bin), expected.concat());
    let iolog =
        [(Loss::Fua, 1), (Loss::Outcome, 1), (Loss::Latency, 1), (Loss::Time, 3), (Loss::Operation, 1)];
    assert_eq!(lost(Format::Iolog), iolog);
    let (bytes, tally) = written(&records, Format::Blkparse);
    assert_eq!(tally.losses, [(Loss::Outcome, 1), (Loss::Latency, 1), (Loss::Operation, 1)]);
    let back = read(&bytes, Format::Blkparse).unwrap();
    assert_eq!(back[0], Record { outcome: Outcome::Unknown, latency_ns: None, ..all });
    assert_eq!(back[1..3], records[1..3]);
    assert_eq!(back[3].operation, Operation::Discard);
}

#[test]
fn libcachesim_gets_one_request_per_block() {
    let records = [
        Record::new(0, Operation::Read, 4096, 8192),
        Record::new(7_900_000_000, Operation::Write, 6144, 100),
    ];
    let (bytes, tally) = written(&records, Format::Csv);
    let text = "time,obj_id,obj_size,op\n0,1,4096,read\n0,2,4096,read\n7,1,4096,write\n";
    assert_eq!(std::str::from_utf8(&bytes).unwrap(), text);
    assert_eq!(tally.losses, [(Loss::Range, 2), (Loss::Time, 1)]);
    assert_eq!(read(&bytes, Format::Csv).unwrap().len(), 3);
    let (bytes, tally) = written(&records, Format::OracleGeneral);
    assert_eq!(bytes.len(), 3 * 24);
    let next = |at: usize| i64::from_le_bytes(bytes[at * 24 + 16..at * 24 + 24].try_into().unwrap());
    assert_eq!([next(0), next(1), next(2)], [2, -1, -1]);
    assert_eq!(tally.losses, [(Loss::Range, 2), (Loss::Time, 1), (Loss::Operation, 1)]);
    let (back, _) = read_with(&bytes, Format::OracleGeneral, &Options::default()).unwrap();
    assert_eq!(back[2], Record::new(7_000_000_000, Operation::Read, 4096, 4096));
    let options = Options { id_bytes: 512, ..Options::default() };
    let (back, _) = read_with(&bytes, Format::OracleGeneral, &options).unwrap();
    assert_eq!(back[1].offset, 1024);
}

#[test]
fn traces_of_others_are_read() {
    let msr = "128166372003061629,usr,0,Read,7014609920,24576,41286\n128166372016382155,usr,0,Write,1317441536,8192,1963\n";
    let records = read(msr.as_bytes(), Format::Msr).unwrap();
    let mut first = Record::new(0, Operation::Read, 7_014_609_920, 24_576);
    first.latency_ns = Some(4_128_600);
    assert_eq!(records[0], first);
    assert_eq!(records[1].at_ns, 1_332_052_600);
    let alibaba = "419,W,8792731648,16384,1577808144360767\n419,R,0,4096,1577808144360767\n";
    let records = read(alibaba.as_bytes(), Format::Alibaba).unwrap();
    assert_eq!(records[0], Record::new(0, Operation::Write, 8_792_731_648, 16_384));
    let blkparse = "\
  8,16   1        1     0.000000000  5230  Q   R 2048 + 8 [fio]
  8,16   1        2     0.000003000  5230  G   R 2048 + 8 [fio]
  8,16   1        3     0.000150000     0  C   R 2048 + 8 [0]
  8,16   0        4     1.500000000  5230  Q FWS 4096 + 16 [jbd2]
  8,16   0        5     1.600000000  5230  Q  FN [jbd2]
  8,16   0        6     1.700000000  5230  Q   D 0 + 8 [fstrim]
  8,16   0        7     1.800000000  5230  Q WFS 8 + 8 [jbd2]
  8,16   0        8     1.900000000  5230  P   N [jbd2]

CPU0 (8,16):
 Reads Queued:           1,        4KiB  Writes Queued:           1,        8KiB
";
    let (records, reading) = read_with(blkparse.as_bytes(), Format::Blkparse, &Options::default()).unwrap();
    let expected = [
        Record::new(0, Operation::Read, 1 << 20, 4096),
        Record::new(1_500_000_000, Operation::Write, 2 << 20, 8192),
        Record::new(1_600_000_000, Operation::Flush, 0, 0),
        Record::new(1_700_000_000, Operation::Discard, 0, 4096),
        Record { fua: true, ..Record::new(1_800_000_000, Operation::Write, 4096, 4096) },
    ];
    assert_eq!(records, expected);
    assert_eq!(reading.other_lines, 5);
    let iolog = "fio version 3 iolog\n22 /f add\n122 /f open\n126 /f read 61440 4096\n396 /f sync 0 0\n500 /f close\n";
    let records = read(iolog.as_bytes(), Format::Iolog).unwrap();
    let flush = Record::new(270_000, Operation::Flush, 0, 0);
    assert_eq!(records, [Record::new(0, Operation::Read, 61_440, 4096), flush]);
}

#[test]
fn a_bad_line_is_named_with_its_column() {
    let error = |text: &str, format| read(text.as_bytes(), format).unwrap_err();
    let cases = [
        (Format::Alibaba, "1,R,0,4096,1\n1,X,0,4096,2\n", "line 2, column 3: \"X\": an opcode is R or W"),
        (Format::Alibaba, "1,R,0,4096\n", "line 1, column 11: there is no timestamp"),
        (Format::Alibaba, "1,R,-5,4096,1\n", "line 1, column 5: \"-5\": an offset is a number"),
        (Format::Alibaba, "1,R,0,18446744073709551615,1\n", "line 1, column 7: a read of"),
        (Format::Alibaba, "1,W,18446744073709551615,4096,1\n", "no volume goes beyond"),
        (Format::Alibaba, "1,R,0,4096,18446744073709551615\n", "line 1, column 12"),
        (Format::Msr, "1,h,0,Rad,0,4096,1\n", "line 1, column 7: \"Rad\": a type is Read or Write"),
        (Format::Iolog, "fio version 2 iolog\n", "line 1, column 1: this is no log of fio in version 3"),
        (Format::Iolog, "", "no log of fio"),
        (
            Format::Iolog,
            "fio version 3 iolog\n1 /f read 0 x\n",
            "line 2, column 13: \"x\": a length is a number",
        ),
        (Format::Blkparse, "8,0 0 1 0.0 1 Q R 8 - 8 [x]\n", "line 1, column 21: \"-\": a + stands"),
        (Format::Blkparse, "8,0 0 1 x 1 Q R 8 + 8 [x]\n", "line 1, column 9"),
        (Format::Csv, "time,obj\n1,2,4096,fly\n", "line 2, column 10"),
        (Format::Csv, "1,x,4096\n", "line 1, column 3: \"x\": an object's number is a number"),
    ];
    for (format, text, expected) in cases {
        let error = error(text, format);
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(error(&"x".repeat(5000), Format::Msr).contains("more than 4096 bytes"));
    assert!(read(&[0; 30], Format::Bin).unwrap_err().starts_with("record 1: 6 bytes"));
    assert!(read(&[0xff; 24], Format::Bin).unwrap_err().starts_with("record 0"));
    assert!(read(b"\xff\xfe,", Format::Msr).unwrap_err().contains("no text"));
}

#[test]
fn several_devices_need_a_choice() {
    let text = "1,R,0,4096,1\n2,R,0,4096,2\n1,W,0,4096,3\n";
    let error = read(text.as_bytes(), Format::Alibaba).unwrap_err();
    assert!(error.contains("several devices (1 and, in line 2, 2)") && error.contains("--only 1"), "{error}");
    let options = Options { only: Some("1".into()), ..Options::default() };
    let (records, reading) = read_with(text.as_bytes(), Format::Alibaba, &options).unwrap();
    assert_eq!((records.len(), reading.other_devices), (2, 1));
}

#[test]
fn times_may_not_go_before_the_first() {
    let text = "1,R,0,4096,100\n1,R,0,4096,300\n1,R,0,4096,200\n1,R,0,4096,50\n1,R,0,0,60\n";
    let (records, reading) = read_with(text.as_bytes(), Format::Alibaba, &Options::default()).unwrap();
    let times: Vec<u64> = records.iter().map(|record| record.at_ns).collect();
    assert_eq!(times, [0, 200_000, 100_000, 0]);
    assert_eq!((reading.before_start, reading.empty), (1, 1));
}

#[test]
fn formats_are_known_by_name_or_content() {
    assert_eq!(Format::of_name("a/b.oracleGeneral.zst"), Some(Format::OracleGeneral));
    assert_eq!(Format::of_name("x.fbtrace"), Some(Format::Forebay));
    assert_eq!(Format::of_name("x.msr"), Some(Format::Msr));
    assert_eq!(Format::of_name("x.txt"), None);
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    let (bytes, _) = written(&plain(), Format::Forebay);
    let source = reader(Box::new(Cursor::new(bytes)), None, &Options::default()).unwrap();
    assert_eq!(source.reading().format, Format::Forebay);
    let error = reader(Box::new(Cursor::new(b"1,2".to_vec())), None, &Options::default());
    assert!(error.err().unwrap().to_string().contains("say it, one of forebay, csv"));
}

#[test]
fn packed_file_is_unpacked_frame_by_frame() {
    // printf '1,R,0,4096,1\n' | zstd
    let one = include_bytes!("alibaba.zst");
    let two = [one.as_slice(), one].concat();
    assert_eq!(read(&two, Format::Alibaba).unwrap().len(), 2);
    assert!(read(&two[..two.len() - 3], Format::Alibaba).unwrap_err().contains("unpacked"));
}
