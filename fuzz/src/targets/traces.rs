//! Traces of requests: Forebay's own format, and those of other tools.

use std::io::Cursor;

use forebay_trace::native::Header;
use forebay_trace::{END_BYTES_MAX, Format, NewTrace, Operation, Options, Record, reader, writer};

use crate::Target;

/// A byte that selects the format, then the file. Every record read must fit a volume.
pub const READ: Target = Target {
    name: "trace",
    about: "files of traces, in every format",
    run: read,
    seeds,
    words: &[
        "FBYTRACE",
        "FBTB",
        ",R,",
        ",W,",
        "Read",
        "read",
        " Q ",
        " + ",
        "18446744073709551615",
        "-1",
        "fio version 3 iolog\n",
        "\n",
    ],
    bytes_max: 8192,
    short_run: 20_000,
};

fn read(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else { return };
    let format = Format::ALL[usize::from(*first) % Format::ALL.len()];
    let source = reader(Box::new(Cursor::new(bytes.to_vec())), Some(format), &Options::default());
    let Ok(mut source) = source else { return };
    while let Ok(Some(record)) = source.next_record() {
        assert!(record.offset.checked_add(record.len).is_some_and(|end| end <= END_BYTES_MAX));
        assert!(record.len > 0 || record.operation == Operation::Flush);
    }
}

/// A sink whose content is checked afterwards.
#[derive(Clone, Default)]
struct Kept(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

impl std::io::Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let records = [
        Record::new(0, Operation::Read, 4096, 8192),
        Record { fua: true, latency_ns: Some(70_000), ..Record::new(900, Operation::Write, 512, 512) },
        Record::new(5_000_000, Operation::Flush, 0, 0),
        Record::new(4_000_000, Operation::Discard, 0, 1 << 30),
    ];
    let seed = |(number, format): (usize, Format)| {
        let kept = Kept::default();
        let new = NewTrace { format, options: Options::default(), header: Header::default() };
        let mut sink = writer(Box::new(kept.clone()), &new).expect("it is written to memory");
        records.iter().for_each(|record| sink.push(record).expect("it is written to memory"));
        sink.finish().expect("it is written to memory");
        let bytes = kept.0.borrow();
        [&[number as u8], bytes.as_slice()].concat()
    };
    Format::ALL.into_iter().enumerate().map(seed).collect()
}
