//! Recordings of client requests: begin, take the records, end.

use super::Pool;
use crate::recorder::{RECORDINGS_MAX, Recorded};
use forebay_admin::{AdminError, ErrorKind, MessageId};
use forebay_trace::Record;

impl Pool {
    /// Begins to record a volume; returns the number of the recording, and the volume's size in
    /// bytes.
    ///
    /// # Errors
    /// It is not attached, or there are too many recordings.
    pub fn begin_recording(&mut self, volume: &str) -> Result<(u64, u64), AdminError> {
        let Some(id) = self.find(volume) else {
            return Err(AdminError::new(
                MessageId::VolumeNotAttached,
                format!("{volume} is not attached"),
                "",
            )
            .of_kind(ErrorKind::NotFound));
        };
        let now = self.io.now();
        let number = self.recorder.begin(id, now).ok_or_else(|| {
            let what = format!("{RECORDINGS_MAX} recordings are in progress in pool {}", self.name);
            AdminError::new(MessageId::RecordingTooMany, what, "wait for one, or cancel one: forebay jobs")
        })?;
        Ok((number, self.engine.volume_size_bytes(id).unwrap_or(0)))
    }

    /// Returns the collected records, in exchange for room; `None` if the volume is gone.
    pub fn take_recorded(&mut self, number: u64, room: Vec<Record>) -> Option<Recorded> {
        self.recorder.take(number, room)
    }

    /// Ends a recording.
    pub fn end_recording(&mut self, number: u64) {
        self.recorder.end(number);
    }
}
