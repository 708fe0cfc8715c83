//! Files packed with zstd, as most traces are.

use ruzstd::decoding::StreamingDecoder;
use std::io::{self, BufRead, Read};

/// First bytes of a packed file.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

type Decoder = StreamingDecoder<Box<dyn BufRead>, ruzstd::decoding::FrameDecoder>;

/// Frame after frame.
struct Unpacked {
    state: State,
}

enum State {
    Inside(Box<Decoder>),
    Between(Box<dyn BufRead>),
    Ended,
}

fn garbled(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the file cannot be unpacked: {error}"))
}

impl Read for Unpacked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Inside(mut decoder) => {
                    let read = decoder.read(into).map_err(garbled)?;
                    if read > 0 || into.is_empty() {
                        self.state = State::Inside(decoder);
                        return Ok(read);
                    }
                    self.state = State::Between(decoder.into_inner());
                }
                State::Between(mut from) => {
                    if from.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let decoder = StreamingDecoder::new(from).map_err(garbled)?;
                    self.state = State::Inside(Box::new(decoder));
                }
                State::Ended => return Ok(0),
            }
        }
    }
}

/// Returns the content of a file, unpacked if it is packed.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(crate) fn unpacked(mut from: Box<dyn BufRead>) -> io::Result<Box<dyn BufRead>> {
    if from.fill_buf()?.starts_with(&MAGIC) {
        Ok(Box::new(io::BufReader::new(Unpacked { state: State::Between(from) })))
    } else {
        Ok(from)
    }
}
