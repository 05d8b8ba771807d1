//! A caller of the demo: one request on a socket of its own, which it leaves in the way that its scene is about.
//!
//! Nothing stands between the caller and the wire: no HTTP client's pool may keep a connection open, and none may close it early.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use socket2::{Domain, SockRef, Socket, Type};

/// Longest wait for the server's next byte.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a caller that has closed its side waits for the server to close too.
const LAST_BYTES: Duration = Duration::from_secs(5);

/// A request in progress.
pub struct Caller {
    reader: BufReader<TcpStream>,
}

impl Caller {
    /// Connects and sends a chat request. `window` is the receive buffer in bytes, for a caller that wants to be sent little.
    ///
    /// # Errors
    /// The server does not accept it.
    pub fn ask(port: u16, id: &str, body: &Value, window: Option<usize>) -> anyhow::Result<Caller> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("a caller got no socket")?;
        if let Some(window) = window {
            socket.set_recv_buffer_size(window).context("a caller's window cannot be set")?;
        }
        socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).context("the server does not accept a caller")?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let body = body.to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: demo\r\nX-Request-Id: {id}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        (&stream).write_all(format!("{head}{body}").as_bytes()).context("a caller cannot send its request")?;
        Ok(Caller { reader: BufReader::new(stream) })
    }

    /// Reads `tokens` pieces of a streamed answer, or all of it where it is shorter; the text.
    ///
    /// # Errors
    /// The answer is an error, or breaks off.
    pub fn read(&mut self, tokens: usize) -> anyhow::Result<String> {
        let (mut text, mut seen) = (String::new(), 0);
        while seen < tokens {
            let mut line = String::new();
            if self.reader.read_line(&mut line).context("a caller waited in vain for its answer")? == 0 {
                bail!("the server closed a stream before its end");
            }
            let line = line.trim_end();
            if line.starts_with("HTTP/1.1 ") && !line.starts_with("HTTP/1.1 200") {
                bail!("the server answered `{line}` to a caller");
            }
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                break;
            }
            let event: Value = serde_json::from_str(data).context("an event of the stream is no JSON")?;
            if let Some(error) = event.pointer("/error/message").and_then(Value::as_str) {
                return Err(anyhow!("the stream ended with an error: {error}"));
            }
            if let Some(piece) = event.pointer("/choices/0/delta/content").and_then(Value::as_str).filter(|p| !p.is_empty()) {
                text.push_str(piece);
                seen += 1;
            }
        }
        Ok(text)
    }

    /// Reads the rest of a streamed answer.
    ///
    /// # Errors
    /// As `read`.
    pub fn read_all(mut self) -> anyhow::Result<String> {
        self.read(usize::MAX)
    }

    /// Closes in good order: says that nothing more will come, and takes what the server had sent until it closes too. Bytes that nobody
    /// takes would turn the close into a reset.
    pub fn close(self) {
        let mut stream = self.reader.into_inner();
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.set_read_timeout(Some(LAST_BYTES));
        let mut rest = [0; 65_536];
        while matches!(stream.read(&mut rest), Ok(n) if n > 0) {}
    }

    /// Resets the connection, as the end of a process with unread bytes does.
    pub fn reset(self) {
        let _ = SockRef::from(self.reader.get_ref()).set_linger(Some(Duration::ZERO));
    }

    /// From now on every packet of the server to this socket is dropped before the socket sees it, and so nothing is acknowledged or
    /// answered: what the server sees is a peer whose machine lost its power or its network, without a FIN and without a RST. The socket takes
    /// packets only that have crossed no router (RFC 5082 has it for routers' own sessions): what asks for that much of a packet's time to live
    /// gets none, not even from the loopback. Nobody needs to be root for it.
    ///
    /// # Errors
    /// The system does not let us.
    #[cfg(target_os = "linux")]
    pub fn vanish(&self) -> std::io::Result<()> {
        use nix::{setsockopt_impl, sockopt_impl};
        sockopt_impl!(MinimumTimeToLive, SetOnly, libc::IPPROTO_IP, libc::IP_MINTTL, u8);
        /// More than the 64 that packets begin with.
        const MORE_THAN_ANY: u8 = u8::MAX;
        Ok(nix::sys::socket::setsockopt(self.reader.get_ref(), MinimumTimeToLive, &MORE_THAN_ANY)?)
    }

    /// Only Linux is known to have the option.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(target_os = "linux"))]
    pub fn vanish(&self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}
