//! SPDY/3.1 frames, as far as port forwarding has them: the server's side, which opens no streams.
//!
//! The rules are those of the draft "SPDY Protocol - Draft 3.1". Windows are neither kept nor asked for: no client of Kubernetes
//! keeps any (its library ignores `WINDOW_UPDATE`), so a peer that sends too fast is held back by its connection.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use std::collections::BTreeMap;
use std::io;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// What header blocks are compressed with (section 2.6.10.1 of the draft).
const DICTIONARY: &[u8] = include_bytes!("spdy.dictionary");
/// The adler-32 of [`DICTIONARY`], by which a zlib stream says that it needs it.
const DICTIONARY_ID: u32 = 0xe3c6_a7c2;
/// The version that frames carry; 3.1 has the number of 3.
const VERSION: u16 = 3;
/// The longest frame that is no data, in bytes. Upstream's clients send a few hundred.
const LONGEST_CONTROL: usize = 64 << 10;
/// The longest header block once it is decompressed, in bytes.
const LONGEST_HEADERS: usize = 64 << 10;
/// The most headers of a block.
const MOST_HEADERS: u32 = 128;
/// The most bytes of data in a frame of ours.
pub(super) const CHUNK: usize = 16 << 10;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;
/// The sender of this frame sends no more in the stream.
const FIN: u8 = 1;

/// Why a stream is reset: too many of them.
pub(super) const REFUSED: u32 = 3;
/// Why a stream is reset: nobody wants it.
pub(super) const CANCELLED: u32 = 5;

/// The headers of a stream, in lower case.
pub(super) type Headers = BTreeMap<String, String>;

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The peer is gone.
    #[error(transparent)]
    Connection(#[from] io::Error),
    /// The peer sent what no SPDY is.
    #[error("what the client sent is no SPDY/3.1: {0}")]
    Protocol(&'static str),
}

/// What the client sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// It opens a stream; `fin`: and sends nothing in it.
    Open { stream: u32, fin: bool, headers: Headers },
    /// It gives a stream up.
    Reset { stream: u32 },
    /// It asks whether somebody is there.
    Ping { id: u32 },
    /// It opens no more streams.
    GoAway,
    /// It sends nothing more in the stream.
    Finished { stream: u32 },
    /// It sends this many bytes in a stream, which [`Reader::chunk`] gives.
    Data { stream: u32, fin: bool, length: usize },
    /// Nothing that changes anything here.
    Other,
}

/// Reads frames.
pub(super) struct Reader<R> {
    io: BufReader<R>,
    headers: Decompress,
    /// How much of a data frame is still to be read.
    left: usize,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(io: R) -> Reader<R> {
        Reader { io: BufReader::with_capacity(CHUNK, io), headers: Decompress::new(true), left: 0 }
    }

    /// The next frame; None when the client has ended the connection between two frames. What is left of the data of the
    /// frame before is passed over.
    pub async fn next(&mut self) -> Result<Option<Frame>, Broken> {
        while !self.chunk().await?.is_empty() {}
        if self.io.fill_buf().await?.is_empty() {
            return Ok(None);
        }
        let word = self.io.read_u32().await?;
        let sizes = self.io.read_u32().await?;
        let (flags, length) = ((sizes >> 24) as u8, (sizes & 0xff_ffff) as usize);
        if word & (1 << 31) == 0 {
            self.left = length;
            return Ok(Some(Frame::Data { stream: word, fin: flags & FIN != 0, length }));
        }
        let (version, kind) = ((word >> 16) as u16 & 0x7fff, word as u16);
        if version != VERSION {
            return Err(Broken::Protocol("a frame is of another version"));
        }
        if length > LONGEST_CONTROL {
            return Err(Broken::Protocol("a control frame is too long"));
        }
        let mut payload = vec![0; length];
        self.io.read_exact(&mut payload).await?;
        self.control(kind, flags, &payload).map(Some)
    }

    /// The next bytes of the data frame that was read last; none when there are no more.
    pub async fn chunk(&mut self) -> Result<Vec<u8>, Broken> {
        if self.left == 0 {
            return Ok(Vec::new());
        }
        let available = self.io.fill_buf().await?;
        let bytes = available.get(..self.left.min(available.len())).unwrap_or_default().to_vec();
        if bytes.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.io.consume(bytes.len());
        self.left -= bytes.len();
        Ok(bytes)
    }

    fn control(&mut self, kind: u16, flags: u8, payload: &[u8]) -> Result<Frame, Broken> {
        let word = |at: usize| {
            let bytes = payload.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_be_bytes).ok_or(Broken::Protocol("a control frame is too short"))
        };
        let stream = || match word(0)? & !(1 << 31) {
            0 => Err(Broken::Protocol("a frame is about stream 0")),
            stream => Ok(stream),
        };
        let fin = flags & FIN != 0;
        Ok(match kind {
            SYN_STREAM => {
                let stream = stream()?;
                // Its associated stream, priority and slot mean nothing here.
                let block = payload.get(10..).ok_or(Broken::Protocol("a SYN_STREAM is too short"))?;
                Frame::Open { stream, fin, headers: self.block(block)? }
            }
            // Both are read though they say nothing here: all header blocks are one compressed stream.
            SYN_REPLY | HEADERS => {
                let stream = stream()?;
                self.block(payload.get(4..).unwrap_or_default())?;
                if fin { Frame::Finished { stream } } else { Frame::Other }
            }
            RST_STREAM => {
                word(4)?;
                Frame::Reset { stream: stream()? }
            }
            PING => Frame::Ping { id: word(0)? },
            GOAWAY => {
                word(4)?;
                Frame::GoAway
            }
            SETTINGS => {
                let (count, entries) = (word(0)? as usize, payload.len() / 8);
                if count > entries {
                    return Err(Broken::Protocol("a SETTINGS is too short"));
                }
                Frame::Other
            }
            WINDOW_UPDATE => {
                word(4)?;
                Frame::Other
            }
            _ => return Err(Broken::Protocol("a control frame is of no known kind")),
        })
    }

    /// Decompresses and reads a header block.
    fn block(&mut self, mut compressed: &[u8]) -> Result<Headers, Broken> {
        const BAD: Broken = Broken::Protocol("a header block is not compressed as it should be");
        let mut plain = Vec::new();
        let mut part = [0; 4096];
        loop {
            let (read, wrote) = (self.headers.total_in(), self.headers.total_out());
            let outcome = self.headers.decompress(compressed, &mut part, FlushDecompress::Sync);
            let taken = (self.headers.total_in() - read) as usize;
            compressed = compressed.get(taken..).unwrap_or_default();
            match outcome {
                Ok(Status::Ok | Status::BufError) => {}
                Ok(Status::StreamEnd) => return Err(BAD),
                Err(error) if error.needs_dictionary() == Some(DICTIONARY_ID) => {
                    self.headers.set_dictionary(DICTIONARY).map_err(|_| BAD)?;
                    continue;
                }
                Err(_) => return Err(BAD),
            }
            let made = (self.headers.total_out() - wrote) as usize;
            plain.extend_from_slice(part.get(..made).unwrap_or_default());
            if plain.len() > LONGEST_HEADERS {
                return Err(Broken::Protocol("a header block is too long"));
            }
            if made < part.len() {
                if !compressed.is_empty() && taken == 0 {
                    return Err(BAD);
                }
                if compressed.is_empty() {
                    break;
                }
            }
        }
        headers(&plain)
    }
}

/// Reads name-value pairs.
fn headers(mut block: &[u8]) -> Result<Headers, Broken> {
    const SHORT: Broken = Broken::Protocol("a header block is too short");
    fn number(block: &mut &[u8]) -> Result<u32, Broken> {
        let (number, rest) = block.split_first_chunk().ok_or(SHORT)?;
        *block = rest;
        Ok(u32::from_be_bytes(*number))
    }
    fn text(block: &mut &[u8]) -> Result<String, Broken> {
        let length = number(block)? as usize;
        let (text, rest) = block.split_at_checked(length).ok_or(SHORT)?;
        *block = rest;
        String::from_utf8(text.to_vec()).map_err(|_| Broken::Protocol("a header is not text"))
    }
    let count = number(&mut block)?;
    if count > MOST_HEADERS {
        return Err(Broken::Protocol("there are too many headers"));
    }
    let mut headers = Headers::new();
    for _ in 0..count {
        let (name, value) = (text(&mut block)?, text(&mut block)?);
        if name.is_empty() || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(Broken::Protocol("a header's name is empty or not in lower case"));
        }
        if headers.insert(name, value).is_some() {
            return Err(Broken::Protocol("a header is there twice"));
        }
    }
    if block.is_empty() { Ok(headers) } else { Err(Broken::Protocol("a header block is too long")) }
}

/// What is sent to the client.
#[derive(Debug)]
pub(super) enum Send {
    /// The stream is taken.
    Reply { stream: u32 },
    /// Bytes of a stream.
    Data { stream: u32, bytes: Vec<u8>, fin: bool },
    /// The stream is not taken, or given up.
    Reset { stream: u32, why: u32 },
    /// The answer to a ping.
    Pong { id: u32 },
    /// The connection ends because of what the client sent.
    GoAway { last: u32 },
}

/// Writes frames.
pub(super) struct Encoder {
    headers: Compress,
}

impl Encoder {
    pub fn new() -> io::Result<Encoder> {
        let mut headers = Compress::new(Compression::fast(), true);
        headers.set_dictionary(DICTIONARY).map_err(io::Error::other)?;
        Ok(Encoder { headers })
    }

    /// Appends a frame.
    pub fn encode(&mut self, frame: &Send, out: &mut Vec<u8>) -> io::Result<()> {
        const PROTOCOL_ERROR: u32 = 1;
        match frame {
            Send::Reply { stream } => {
                // No headers.
                let block = self.block(&0u32.to_be_bytes())?;
                control(out, SYN_REPLY, &[*stream], &block);
            }
            Send::Data { stream, bytes, fin } => {
                out.extend_from_slice(&stream.to_be_bytes());
                let flags = if *fin { u32::from(FIN) << 24 } else { 0 };
                out.extend_from_slice(&(flags | (bytes.len() as u32 & 0xff_ffff)).to_be_bytes());
                out.extend_from_slice(bytes);
            }
            Send::Reset { stream, why } => control(out, RST_STREAM, &[*stream, *why], &[]),
            Send::Pong { id } => control(out, PING, &[*id], &[]),
            Send::GoAway { last } => control(out, GOAWAY, &[*last, PROTOCOL_ERROR], &[]),
        }
        Ok(())
    }

    fn block(&mut self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(plain.len() + 64);
        let before = self.headers.total_in();
        self.headers.compress_vec(plain, &mut out, FlushCompress::Sync).map_err(io::Error::other)?;
        if self.headers.total_in() - before != plain.len() as u64 || out.len() == out.capacity() {
            return Err(io::Error::other("a header block does not fit"));
        }
        Ok(out)
    }
}

fn control(out: &mut Vec<u8>, kind: u16, words: &[u32], rest: &[u8]) {
    out.extend_from_slice(&(1 << 31 | u32::from(VERSION) << 16 | u32::from(kind)).to_be_bytes());
    out.extend_from_slice(&((words.len() * 4 + rest.len()) as u32 & 0xff_ffff).to_be_bytes());
    for word in words {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A client's side: what it would send.
    pub struct Client {
        headers: Compress,
    }

    impl Client {
        pub fn new() -> Client {
            let mut headers = Compress::new(Compression::best(), true);
            headers.set_dictionary(DICTIONARY).unwrap();
            Client { headers }
        }

        pub fn compress(&mut self, plain: &[u8]) -> Vec<u8> {
            let mut out = Vec::with_capacity(plain.len() + 1024);
            self.headers.compress_vec(plain, &mut out, FlushCompress::Sync).unwrap();
            out
        }

        pub fn open(&mut self, stream: u32, headers: &[(&str, &str)]) -> Vec<u8> {
            let block = self.compress(&pairs(headers));
            let mut out = Vec::new();
            control(&mut out, SYN_STREAM, &[stream, 0], &[&[0, 0], block.as_slice()].concat());
            out
        }
    }

    fn pairs(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
            plain.extend_from_slice(text.as_bytes());
        }
        plain
    }

    pub fn data(stream: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let frame = Send::Data { stream, bytes: bytes.to_vec(), fin };
        Encoder::new().unwrap().encode(&frame, &mut out).unwrap();
        out
    }

    pub fn frame(kind: u16, words: &[u32], rest: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        control(&mut out, kind, words, rest);
        out
    }

    pub fn ping(id: u32) -> Vec<u8> {
        frame(PING, &[id], &[])
    }

    pub fn reset(stream: u32) -> Vec<u8> {
        frame(RST_STREAM, &[stream, CANCELLED], &[])
    }

    async fn all(bytes: &[u8]) -> Result<Vec<Frame>, Broken> {
        let mut reader = Reader::new(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = reader.next().await? {
            frames.push(frame);
        }
        Ok(frames)
    }

    fn names(of: &[(&str, &str)]) -> Headers {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[tokio::test]
    async fn frames() {
        let mut client = Client::new();
        let (error, bytes) = ([("streamtype", "error"), ("port", "80")], [("streamtype", "data"), ("port", "80")]);
        let mut sent = client.open(1, &error);
        sent.extend(client.open(3, &bytes));
        let block = client.compress(&pairs(&[("a", "b")]));
        sent.extend(frame(HEADERS, &[3], &block));
        sent.extend(data(3, b"hello", false));
        sent.extend(ping(7));
        sent.extend(frame(SETTINGS, &[1, 4, 100], &[]));
        sent.extend(frame(WINDOW_UPDATE, &[3, 65536], &[]));
        sent.extend(data(3, b"", true));
        sent.extend(reset(1));
        sent.extend(frame(GOAWAY, &[0, 0], &[]));
        let frames = all(&sent).await.unwrap();
        assert_eq!(
            frames,
            [
                Frame::Open { stream: 1, fin: false, headers: names(&error) },
                Frame::Open { stream: 3, fin: false, headers: names(&bytes) },
                Frame::Other,
                Frame::Data { stream: 3, fin: false, length: 5 },
                Frame::Ping { id: 7 },
                Frame::Other,
                Frame::Other,
                Frame::Data { stream: 3, fin: true, length: 0 },
                Frame::Reset { stream: 1 },
                Frame::GoAway,
            ]
        );
    }

    #[tokio::test]
    async fn data_comes_in_chunks() {
        let long = vec![7; CHUNK * 3 + 5];
        let sent = data(1, &long, false);
        let mut reader = Reader::new(sent.as_slice());
        assert!(matches!(reader.next().await.unwrap(), Some(Frame::Data { stream: 1, .. })));
        let mut got = Vec::new();
        loop {
            let chunk = reader.chunk().await.unwrap();
            assert!(chunk.len() <= CHUNK);
            if chunk.is_empty() {
                break;
            }
            got.extend(chunk);
        }
        assert_eq!(got, long);
        assert!(reader.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn replies_can_be_read() {
        let mut encoder = Encoder::new().unwrap();
        let mut sent = Vec::new();
        for stream in [1, 3, 5] {
            encoder.encode(&Send::Reply { stream }, &mut sent).unwrap();
        }
        assert_eq!(all(&sent).await.unwrap(), [Frame::Other, Frame::Other, Frame::Other]);
    }

    #[tokio::test]
    async fn hostile_frames_are_refused() {
        let refused = async |bytes: &[u8]| match all(bytes).await {
            Err(Broken::Protocol(why)) => why,
            other => panic!("{other:?}"),
        };
        let open = |block: &[u8]| frame(SYN_STREAM, &[1, 0], &[&[0, 0], block].concat());
        let block = |plain: &[u8]| open(&Client::new().compress(plain));
        assert_eq!(refused(&[0x80, 2, 0, 1, 0, 0, 0, 0]).await, "a frame is of another version");
        assert_eq!(refused(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]).await, "a control frame is too long");
        assert_eq!(refused(&[0x80, 3, 0, 1, 0, 0, 0, 0]).await, "a control frame is too short");
        assert_eq!(refused(&frame(SYN_STREAM, &[1], &[])).await, "a SYN_STREAM is too short");
        assert_eq!(refused(&frame(SETTINGS, &[9], &[])).await, "a SETTINGS is too short");
        assert_eq!(refused(&frame(99, &[], &[])).await, "a control frame is of no known kind");
        assert_eq!(refused(&reset(0)).await, "a frame is about stream 0");
        assert_eq!(refused(&open(b"nonsense")).await, "a header block is not compressed as it should be");
        // Without the dictionary, and with its stream ended.
        let plain = {
            let mut out = Vec::with_capacity(256);
            Compress::new(Compression::best(), true)
                .compress_vec(&pairs(&[]), &mut out, FlushCompress::Finish)
                .unwrap();
            out
        };
        assert_eq!(refused(&open(&plain)).await, "a header block is not compressed as it should be");
        assert_eq!(refused(&block(&[0, 0, 0, 1])).await, "a header block is too short");
        assert_eq!(refused(&block(&[0, 0, 0, 0, 0])).await, "a header block is too long");
        assert_eq!(refused(&block(&[0xff; 4])).await, "there are too many headers");
        assert_eq!(refused(&block(&pairs(&[("A", "b")]))).await, "a header's name is empty or not in lower case");
        assert_eq!(refused(&block(&pairs(&[("a", "b"), ("a", "c")]))).await, "a header is there twice");
        // A few kilobytes that would become megabytes.
        let bomb = block(&vec![0; 8 << 20]);
        assert!(bomb.len() < LONGEST_CONTROL, "{}", bomb.len());
        assert_eq!(refused(&bomb).await, "a header block is too long");
        // A frame that ends in the middle is a connection that broke off.
        assert!(matches!(all(&data(1, b"abc", false)[..9]).await, Err(Broken::Connection(_))));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512), kind in 0u16..12) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(all(&bytes));
            let _ = runtime.block_on(all(&frame(kind, &[], &bytes)));
            let block = Client::new().compress(&bytes);
            let _ = runtime.block_on(all(&frame(SYN_STREAM, &[1, 0], &[&[0, 0], block.as_slice()].concat())));
        }
    }
}
