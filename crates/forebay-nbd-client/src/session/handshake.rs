//! The handshake: options in turn, each with its replies.

use forebay_export::nbd::codec::{self, Fields, OptionReplyHeader, handshake_flag, info, opt, rep};

use super::{ServerInfo, Session, SessionError, SessionEvent, Stage, server_text};

/// Longest data accepted in one option reply: two strings, and some.
const REPLY_BYTES_MAX: u32 = 16 << 10;
/// Most replies accepted to one option.
const REPLIES_MAX: usize = 1 << 16;

/// Features that a client requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeOptions {
    /// Structured replies: errors have messages, and block status is possible.
    pub structured: bool,
    /// Metadata contexts, by name. Names unknown to the server are ignored.
    pub contexts: Vec<String>,
    /// Use the old EXPORT_NAME instead of GO.
    pub export_name: bool,
}

impl Default for HandshakeOptions {
    fn default() -> Self {
        let contexts = vec!["base:allocation".to_owned(), "forebay:cache".to_owned()];
        HandshakeOptions { structured: true, contexts, export_name: false }
    }
}

/// The purpose of the handshake, and its progress.
#[derive(Debug)]
pub(super) struct Goal {
    wanted: HandshakeOptions,
    /// The last option; the earlier ones may be refused.
    last: u32,
    /// The option that was sent, and the number of replies to it so far.
    asked: u32,
    replies: usize,
    no_zeroes: bool,
    /// The server described the size of the export.
    is_described: bool,
    exports: Vec<(String, String)>,
}

impl Goal {
    pub(super) fn transmission(options: &HandshakeOptions) -> Goal {
        let last = if options.export_name { opt::EXPORT_NAME } else { opt::GO };
        Goal::new(options.clone(), last)
    }

    pub(super) fn list() -> Goal {
        Goal::new(HandshakeOptions { structured: false, contexts: Vec::new(), export_name: false }, opt::LIST)
    }

    fn new(wanted: HandshakeOptions, last: u32) -> Goal {
        let (no_zeroes, is_described) = (false, false);
        Goal { wanted, last, asked: 0, replies: 0, no_zeroes, is_described, exports: Vec::new() }
    }

    /// Length of the reply to EXPORT_NAME: size, flags and the padding.
    pub(super) fn export_name_bytes(&self) -> usize {
        10 + if self.no_zeroes { 0 } else { codec::EXPORT_NAME_PADDING_BYTES }
    }
}

impl Session {
    pub(super) fn take_greeting(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let flags = codec::decode_greeting(bytes)
            .ok_or(SessionError::Protocol("this is not a newstyle NBD server"))?;
        if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(SessionError::Protocol("the server does not know fixed newstyle"));
        }
        let agreed = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        self.goal.no_zeroes = agreed & handshake_flag::NO_ZEROES != 0;
        self.out.extend_from_slice(&u32::from(agreed).to_be_bytes());
        let first = if self.goal.wanted.structured { opt::STRUCTURED_REPLY } else { self.goal.last };
        self.ask(first);
        Ok(())
    }

    fn ask(&mut self, option: u32) {
        let name = self.info.name.as_bytes();
        let mut data = Vec::new();
        match option {
            opt::SET_META_CONTEXT => {
                codec::encode_counted(&mut data, name);
                data.extend_from_slice(&(self.goal.wanted.contexts.len() as u32).to_be_bytes());
                for context in &self.goal.wanted.contexts {
                    codec::encode_counted(&mut data, context.as_bytes());
                }
            }
            opt::GO => {
                codec::encode_counted(&mut data, name);
                let facts = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
                data.extend_from_slice(&(facts.len() as u16).to_be_bytes());
                facts.iter().for_each(|fact| data.extend_from_slice(&fact.to_be_bytes()));
            }
            opt::EXPORT_NAME => data.extend_from_slice(name),
            _ => {}
        }
        codec::encode_option(&mut self.out, option, &data);
        (self.goal.asked, self.goal.replies) = (option, 0);
        self.stage = if option == opt::EXPORT_NAME { Stage::ExportName } else { Stage::OptionHead };
    }

    pub(super) fn take_option_head(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let head = OptionReplyHeader::decode(bytes)
            .filter(|head| head.option == self.goal.asked && head.length <= REPLY_BYTES_MAX)
            .ok_or(SessionError::Protocol("a garbled option reply"))?;
        self.stage = Stage::OptionData(head);
        Ok(())
    }

    pub(super) fn take_option_reply(
        &mut self,
        head: OptionReplyHeader,
        data: &[u8],
    ) -> Result<(), SessionError> {
        self.goal.replies += 1;
        if self.goal.replies > REPLIES_MAX {
            return Err(SessionError::Protocol("too many replies to one option"));
        }
        let is_refused = head.kind & rep::ERROR_BIT != 0;
        if is_refused && self.goal.asked == self.goal.last {
            return Err(SessionError::Refused { kind: head.kind, message: server_text(data) });
        }
        if is_refused || head.kind == rep::ACK {
            return self.option_ended(!is_refused);
        }
        self.stage = Stage::OptionHead;
        match (self.goal.asked, head.kind) {
            (opt::SET_META_CONTEXT, rep::META_CONTEXT) => self.take_context(data),
            (opt::LIST, rep::SERVER) => self.take_list_entry(data),
            (opt::GO, rep::INFO) => {
                let fact = take_info(data, &mut self.info);
                self.goal.is_described |=
                    fact.ok_or(SessionError::Protocol("garbled information"))? == info::EXPORT;
                Ok(())
            }
            (opt::GO | opt::LIST, _) => Err(SessionError::Protocol("a reply of another option")),
            _ => Ok(()),
        }
    }

    fn take_context(&mut self, data: &[u8]) -> Result<(), SessionError> {
        let mut fields = Fields(data);
        let id = fields.u32().ok_or(SessionError::Protocol("a garbled metadata context"))?;
        if self.info.contexts.len() == self.goal.wanted.contexts.len() {
            return Err(SessionError::Protocol("more metadata contexts than were requested"));
        }
        self.info.contexts.push((id, String::from_utf8_lossy(fields.0).into_owned()));
        Ok(())
    }

    fn take_list_entry(&mut self, data: &[u8]) -> Result<(), SessionError> {
        let mut fields = Fields(data);
        let name = fields.counted().ok_or(SessionError::Protocol("a garbled list entry"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.goal.exports.push((text(name), text(fields.0)));
        Ok(())
    }

    /// The server has accepted or refused an option; a refusal of the last one is an error before.
    fn option_ended(&mut self, is_accepted: bool) -> Result<(), SessionError> {
        match self.goal.asked {
            opt::STRUCTURED_REPLY => {
                self.info.structured = is_accepted;
                let asks = is_accepted && !self.goal.wanted.contexts.is_empty();
                self.ask(if asks { opt::SET_META_CONTEXT } else { self.goal.last });
            }
            opt::SET_META_CONTEXT => {
                if !is_accepted {
                    self.info.contexts.clear();
                }
                self.ask(self.goal.last);
            }
            opt::LIST => {
                codec::encode_option(&mut self.out, opt::ABORT, &[]);
                self.events.push_back(SessionEvent::Exports(std::mem::take(&mut self.goal.exports)));
            }
            _ if !self.goal.is_described => {
                return Err(SessionError::Protocol("the server gave no size"));
            }
            _ => self.established(),
        }
        Ok(())
    }

    pub(super) fn take_export_name(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let mut fields = Fields(bytes);
        let garbled = SessionError::Protocol("a garbled export");
        let (Some(size_bytes), Some(flags)) = (fields.u64(), fields.u16()) else { return Err(garbled) };
        (self.info.size_bytes, self.info.flags) = (size_bytes, flags);
        self.established();
        Ok(())
    }

    fn established(&mut self) {
        self.stage = Stage::ReplyMagic;
        self.events.push_back(SessionEvent::Established);
    }
}

/// Stores one fact; returns its type, or `None` if it is malformed.
fn take_info(data: &[u8], server: &mut ServerInfo) -> Option<u16> {
    let mut fields = Fields(data);
    let kind = fields.u16()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match kind {
        info::EXPORT => {
            server.size_bytes = fields.u64()?;
            server.flags = fields.u16()?;
            fields.end()?;
        }
        info::NAME => server.name = text(fields.0),
        info::DESCRIPTION => server.description = text(fields.0),
        info::BLOCK_SIZE => {
            server.block_sizes = Some((fields.u32()?, fields.u32()?, fields.u32()?));
            fields.end()?;
        }
        _ => {} // unrequested facts are permitted
    }
    Some(kind)
}
