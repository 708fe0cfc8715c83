//! Bytes that the daemon sends as they come.

use forebay_admin::MessageId;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::http::{self, Answer, Bytes, HttpRequest};
use super::{CHANGE_WITHIN, Client, to_text};
use crate::failure::Failure;

/// Who waits for bytes is asked so often whether that makes sense.
const GLANCE: Duration = Duration::from_millis(100);

/// The bytes.
#[derive(Debug)]
pub(crate) struct ByteStream {
    client: Client,
    answer: Answer,
}

/// What comes of waiting for them.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Some.
    Bytes(Vec<u8>),
    /// None yet.
    Nothing,
    /// There are no more.
    End,
}

impl Client {
    /// Asks for something that answers with bytes, and the path of the job that makes them.
    pub(crate) fn stream(&self, path: &str, body: &impl Serialize) -> Result<(ByteStream, String), Failure> {
        let request = HttpRequest { method: "POST", path, body: Some(to_text(body)?), headers: Vec::new() };
        let stop = || self.is_stopped();
        let answer = http::ask(&self.socket, &request, CHANGE_WITHIN, &stop);
        let mut answer = answer.map_err(|error| self.no_answer(error))?;
        if !(200..300).contains(&answer.status) {
            let status = answer.status;
            let text =
                answer.text(Instant::now() + CHANGE_WITHIN, &stop).map_err(|error| self.no_answer(error))?;
            return Err(self.refused(status, path, &text));
        }
        let job = answer
            .location
            .take()
            .ok_or_else(|| Failure::new(MessageId::DaemonAnswer, "the daemon does not name the job"))?;
        Ok((ByteStream { client: self.clone(), answer }, job))
    }
}

impl ByteStream {
    /// Waits a moment for what comes next.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) fn next(&mut self) -> Result<Piece, Failure> {
        match self.answer.read(Instant::now() + GLANCE, &|| false) {
            Ok(Bytes::Some(bytes)) => Ok(Piece::Bytes(bytes)),
            Ok(Bytes::End) => Ok(Piece::End),
            Ok(Bytes::Nothing) => Ok(Piece::Nothing),
            Err(error) => Err(self.client.no_answer(http::Error::Io(error))),
        }
    }
}
