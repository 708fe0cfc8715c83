//! A stream of bytes from the daemon.

use forebay_admin::MessageId;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::http::{self, Answer, Bytes, HttpRequest};
use super::{CHANGE_WITHIN, Client, to_text};
use crate::failure::Failure;

/// Interval at which a waiting caller can check whether to continue.
const GLANCE: Duration = Duration::from_millis(100);

/// The stream.
#[derive(Debug)]
pub(crate) struct ByteStream {
    client: Client,
    answer: Answer,
}

/// Result of waiting for bytes.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Some bytes.
    Bytes(Vec<u8>),
    /// None yet.
    Nothing,
    /// The stream has ended.
    End,
}

impl Client {
    /// Sends a request whose response is a stream; returns it with the path of the job that
    /// produces it.
    pub(crate) fn stream(&self, path: &str, body: &impl Serialize) -> Result<(ByteStream, String), Failure> {
        let request = HttpRequest { method: "POST", path, body: Some(to_text(body)?), headers: Vec::new() };
        let stop = || self.is_stopped();
        let answer = http::ask(&self.socket, &request, CHANGE_WITHIN, &stop);
        let mut answer = answer.map_err(|error| self.no_answer(error, "POST"))?;
        if !(200..300).contains(&answer.status) {
            let status = answer.status;
            let text = answer
                .text(Instant::now() + CHANGE_WITHIN, &stop)
                .map_err(|error| self.no_answer(error, "POST"))?;
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
    /// Waits a moment for the next bytes.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) fn next(&mut self) -> Result<Piece, Failure> {
        match self.answer.read(Instant::now() + GLANCE, &|| false) {
            Ok(Bytes::Some(bytes)) => Ok(Piece::Bytes(bytes)),
            Ok(Bytes::End) => Ok(Piece::End),
            Ok(Bytes::Nothing) => Ok(Piece::Nothing),
            Err(error) => Err(self.client.no_answer(http::Error::Io(error), "GET")),
        }
    }
}
