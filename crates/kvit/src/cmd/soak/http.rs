//! HTTP/1.1 over a plain socket: a soak has to close it, reset it and see exactly what was read, which a client library hides.
//!
//! Invariant: every wait has a limit, and an answer is read to its last byte or not at all.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

use crate::failure::Failure;

/// Largest answer that is read: a million blocks with their owners.
const BODY_BYTES_MAX: usize = 256 << 20;

/// Where the server is, and how long anything of it may take.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    socket: SocketAddr,
    patience: Duration,
}

impl Address {
    /// Of `http://HOST:PORT`.
    ///
    /// # Errors
    /// `Usage` for anything else.
    pub fn parse(url: &str, patience: Duration) -> Result<Address, Failure> {
        let bad = |why: String| Failure::Usage(format!("server `{url}`: {why}"));
        let rest = url.trim_end_matches('/').strip_prefix("http://").ok_or_else(|| bad("the address must begin with http://".into()))?;
        let with_port =
            if rest.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) { rest.to_owned() } else { format!("{rest}:80") };
        let socket = with_port.to_socket_addrs().map_err(|e| bad(e.to_string()))?.next();
        Ok(Address { socket: socket.ok_or_else(|| bad("the name has no address".into()))?, patience })
    }

    /// How long anything may take.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// A fresh connection.
    ///
    /// # Errors
    /// `Unreachable`, with what the system says.
    pub fn connect(&self) -> Result<TcpStream, Failure> {
        let stream = TcpStream::connect_timeout(&self.socket, self.patience)
            .map_err(|e| Failure::Unreachable(format!("no connection to http://{}: {e} (is `kvit serve` running there?)", self.socket)))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        Ok(stream)
    }
}

/// Sends one request.
///
/// # Errors
/// What the socket says.
pub fn send(stream: &mut TcpStream, method: &str, path: &str, id: Option<&str>, body: &str) -> io::Result<()> {
    let id = id.map(|id| format!("X-Request-Id: {id}\r\n")).unwrap_or_default();
    let key = crate::client::authorization().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why.to_string()))?;
    let key = key.map(|value| format!("Authorization: {value}\r\n")).unwrap_or_default();
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: kvit\r\n{id}{key}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes())
}

/// The head of an answer: its status and how its body is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The status.
    pub status: u16,
    length: Option<usize>,
    chunked: bool,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads a head; `None` if the connection ended before one.
///
/// # Errors
/// The socket's, or what is no HTTP.
pub fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(|| broken("the answer is no HTTP"))?;
    let mut head = Head { status, length: None, chunked: false };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(broken("the answer's head broke off"));
        }
        let line = line.trim_end().to_ascii_lowercase();
        match line.split_once(':') {
            Some(("content-length", n)) => head.length = n.trim().parse().ok(),
            Some(("transfer-encoding", how)) => head.chunked = how.contains("chunked"),
            Some(_) => {}
            None if line.is_empty() => return Ok(Some(head)),
            None => return Err(broken("the answer's head is no HTTP")),
        }
    }
}

/// Reads the body that belongs to a head.
///
/// # Errors
/// The socket's, or a body without an end.
pub fn read_body(reader: &mut impl BufRead, head: Head) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if head.chunked {
        while let Some(size) = chunk_size(reader)? {
            take(reader, size, &mut body)?;
            take(reader, 2, &mut Vec::new())?;
        }
        take(reader, 2, &mut Vec::new())?;
    } else {
        take(reader, head.length.ok_or_else(|| broken("the answer does not say how long it is"))?, &mut body)?;
    }
    Ok(body)
}

fn chunk_size(reader: &mut impl BufRead) -> io::Result<Option<usize>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let size = usize::from_str_radix(line.trim(), 16).map_err(|_| broken("a chunk has no size"))?;
    Ok((size > 0).then_some(size))
}

fn take(reader: &mut impl BufRead, n: usize, into: &mut Vec<u8>) -> io::Result<()> {
    if n > BODY_BYTES_MAX - into.len().min(BODY_BYTES_MAX) {
        return Err(broken("the answer is larger than anything this server says"));
    }
    let before = into.len();
    reader.take(n as u64).read_to_end(into)?;
    if into.len() - before == n { Ok(()) } else { Err(broken("the answer broke off")) }
}

/// One connection that is kept, over which a caller asks how things stand.
pub struct Watch {
    address: Address,
    reader: BufReader<TcpStream>,
}

impl Watch {
    /// Connects.
    ///
    /// # Errors
    /// As `Address::connect`.
    pub fn open(address: Address) -> Result<Watch, Failure> {
        Ok(Watch { address, reader: BufReader::new(address.connect()?) })
    }

    /// One exchange: status and body. A kept connection that the server has closed meanwhile is replaced once.
    ///
    /// # Errors
    /// `Unreachable`.
    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, Vec<u8>), Failure> {
        match self.exchange(method, path, body) {
            Ok(answer) => Ok(answer),
            Err(_) => {
                self.reader = BufReader::new(self.address.connect()?);
                self.exchange(method, path, body).map_err(|e| Failure::Unreachable(format!("{method} {path}: {e}")))
            }
        }
    }

    fn exchange(&mut self, method: &str, path: &str, body: &str) -> io::Result<(u16, Vec<u8>)> {
        send(self.reader.get_mut(), method, path, None, body)?;
        let head = read_head(&mut self.reader)?.ok_or_else(|| broken("the connection was closed"))?;
        Ok((head.status, read_body(&mut self.reader, head)?))
    }

    /// JSON, with its status; `null` where the answer is none.
    ///
    /// # Errors
    /// As `ask`.
    pub fn json(&mut self, method: &str, path: &str) -> Result<(u16, Value), Failure> {
        let (status, body) = self.ask(method, path, "")?;
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<(Option<Head>, Vec<u8>)> {
        let mut reader = BufReader::new(text.as_bytes());
        let head = read_head(&mut reader)?;
        let body = head.map(|h| read_body(&mut reader, h)).transpose()?;
        Ok((head, body.unwrap_or_default()))
    }

    #[test]
    fn bodies_are_read_to_their_last_byte_or_not_at_all() {
        let (head, body) = read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, and more").unwrap();
        assert_eq!((head.map(|h| h.status), body.as_slice()), (Some(200), &b"hello"[..]));
        let chunked = "HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n";
        let (head, body) = read(chunked).unwrap();
        assert_eq!((head.map(|h| h.status), body.as_slice()), (Some(404), &b"abc0123456789"[..]));
        assert!(read("").unwrap().0.is_none());
        for cut in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
            "HTTP/1.1 200 OK\r\nContent-",
            &chunked[..60],
            "<html>\r\n",
            "HTTP/1.1 200 OK\r\n\r\nx",
        ] {
            assert!(read(cut).is_err(), "{cut:?}");
        }
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let parse = |url| Address::parse(url, Duration::from_secs(1));
        assert_eq!(parse("http://127.0.0.1:8000/").unwrap().socket, "127.0.0.1:8000".parse().unwrap());
        assert_eq!(parse("http://[::1]:81").unwrap().socket, "[::1]:81".parse().unwrap());
        for bad in ["https://127.0.0.1:1", "127.0.0.1:1", "http://", "http://:x"] {
            assert!(matches!(parse(bad), Err(Failure::Usage(_))), "{bad}");
        }
    }
}
