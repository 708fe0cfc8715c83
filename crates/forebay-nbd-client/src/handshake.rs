//! The client's half of the handshake.

use std::io::{Read, Write};

use super::{ClientError, NbdClient, ServerInfo, receive::Buffer};
use forebay_export::nbd::codec::{self, Fields, OptionReplyHeader, handshake_flag, info, opt, rep};

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

/// The stream and the bytes received from it.
struct Conversation<S> {
    stream: S,
    receive: Buffer,
    no_zeroes: bool,
}

/// One reply to an option.
struct OptionReply {
    kind: u32,
    data: Vec<u8>,
}

impl<S: Read + Write> NbdClient<S> {
    /// Negotiates with the server at the other end of `stream` and starts transmission to the
    /// export `name`.
    pub fn handshake(stream: S, name: &str, options: &HandshakeOptions) -> Result<Self, ClientError> {
        if name.len() > codec::STRING_BYTES_MAX {
            return Err(ClientError::Misuse("an export's name is at most 4096 bytes long"));
        }
        let mut talk = Conversation::start(stream)?;
        let mut server = ServerInfo { name: name.to_owned(), ..ServerInfo::default() };
        if options.structured {
            let replies = talk.ask(opt::STRUCTURED_REPLY, &[])?;
            server.structured = replies.last().is_some_and(|last| last.kind == rep::ACK);
        }
        if server.structured && !options.contexts.is_empty() {
            server.contexts = talk.set_contexts(name, &options.contexts)?;
        }
        if options.export_name {
            talk.export_name(name, &mut server)?;
        } else {
            talk.go(name, &mut server)?;
        }
        Ok(NbdClient::new(talk.stream, server, talk.receive))
    }
}

/// Returns the names and descriptions of all exports of the server at the other end of `stream`.
pub fn list_exports<S: Read + Write>(stream: S) -> Result<Vec<(String, String)>, ClientError> {
    let mut talk = Conversation::start(stream)?;
    let mut exports = Vec::new();
    for reply in talk.ask(opt::LIST, &[])? {
        match reply.kind {
            rep::SERVER => {
                let mut fields = Fields(&reply.data);
                let name = fields.counted().ok_or(ClientError::Protocol("a garbled list entry"))?;
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                exports.push((text(name), text(fields.0)));
            }
            rep::ACK => {}
            _ => return Err(refusal(reply)),
        }
    }
    talk.ask(opt::ABORT, &[]).ok(); // the list is complete; a failed disconnect does not matter
    Ok(exports)
}

impl<S: Read + Write> Conversation<S> {
    fn start(mut stream: S) -> Result<Self, ClientError> {
        let mut receive = Buffer::new();
        let greeting: [u8; codec::GREETING_BYTES] = receive.array(&mut stream)?;
        let flags = codec::decode_greeting(&greeting)
            .ok_or(ClientError::Protocol("this is not a newstyle NBD server"))?;
        if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(ClientError::Protocol("the server does not know fixed newstyle"));
        }
        let agreed = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        stream.write_all(&u32::from(agreed).to_be_bytes())?;
        Ok(Conversation { stream, receive, no_zeroes: agreed & handshake_flag::NO_ZEROES != 0 })
    }

    fn send(&mut self, option: u32, data: &[u8]) -> Result<(), ClientError> {
        let mut bytes = Vec::with_capacity(codec::OPTION_HEADER_BYTES + data.len());
        codec::encode_option(&mut bytes, option, data);
        self.stream.write_all(&bytes)?;
        Ok(self.stream.flush()?)
    }

    /// Sends an option; returns all replies, the last of which is an ACK or an error.
    fn ask(&mut self, option: u32, data: &[u8]) -> Result<Vec<OptionReply>, ClientError> {
        self.send(option, data)?;
        let mut replies = Vec::new();
        while replies.len() < REPLIES_MAX {
            let head: [u8; codec::OPTION_REPLY_HEADER_BYTES] = self.receive.array(&mut self.stream)?;
            let head = OptionReplyHeader::decode(&head)
                .filter(|head| head.option == option && head.length <= REPLY_BYTES_MAX)
                .ok_or(ClientError::Protocol("a garbled option reply"))?;
            let data = self.receive.vec(&mut self.stream, head.length as usize)?;
            let last = head.kind == rep::ACK || head.kind & rep::ERROR_BIT != 0;
            replies.push(OptionReply { kind: head.kind, data });
            if last {
                return Ok(replies);
            }
        }
        Err(ClientError::Protocol("too many replies to one option"))
    }

    /// Returns the contexts that the server accepted; none if it refuses them all.
    fn set_contexts(&mut self, name: &str, wanted: &[String]) -> Result<Vec<(u32, String)>, ClientError> {
        let mut data = Vec::new();
        codec::encode_counted(&mut data, name.as_bytes());
        data.extend_from_slice(&(wanted.len() as u32).to_be_bytes());
        for context in wanted {
            codec::encode_counted(&mut data, context.as_bytes());
        }
        let mut agreed = Vec::new();
        for reply in self.ask(opt::SET_META_CONTEXT, &data)? {
            if reply.kind == rep::META_CONTEXT {
                let mut fields = Fields(&reply.data);
                let id = fields.u32().ok_or(ClientError::Protocol("a garbled metadata context"))?;
                agreed.push((id, String::from_utf8_lossy(fields.0).into_owned()));
            } else if reply.kind != rep::ACK {
                agreed.clear();
            }
        }
        Ok(agreed)
    }

    fn go(&mut self, name: &str, server: &mut ServerInfo) -> Result<(), ClientError> {
        let mut data = Vec::new();
        codec::encode_counted(&mut data, name.as_bytes());
        let facts = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
        data.extend_from_slice(&3_u16.to_be_bytes());
        for fact in facts {
            data.extend_from_slice(&fact.to_be_bytes());
        }
        let mut described = false;
        for reply in self.ask(opt::GO, &data)? {
            match reply.kind {
                rep::INFO => {
                    let fact = take_info(&reply.data, server);
                    described |= fact.ok_or(ClientError::Protocol("garbled information"))? == info::EXPORT;
                }
                rep::ACK if described => {}
                rep::ACK => return Err(ClientError::Protocol("the server gave no size")),
                _ => return Err(refusal(reply)),
            }
        }
        Ok(())
    }

    fn export_name(&mut self, name: &str, server: &mut ServerInfo) -> Result<(), ClientError> {
        self.send(opt::EXPORT_NAME, name.as_bytes())?;
        server.size_bytes = u64::from_be_bytes(self.receive.array(&mut self.stream)?);
        server.flags = u16::from_be_bytes(self.receive.array(&mut self.stream)?);
        if !self.no_zeroes {
            let _: [u8; codec::EXPORT_NAME_PADDING_BYTES] = self.receive.array(&mut self.stream)?;
        }
        Ok(())
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

fn refusal(reply: OptionReply) -> ClientError {
    ClientError::Handshake { kind: reply.kind, message: String::from_utf8_lossy(&reply.data).into_owned() }
}
