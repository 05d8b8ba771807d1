//! SHA-256 of files, in one pass, also while they are copied.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// Copies everything and gives back the SHA-256 in lower-case hexadecimal and the length; `seen` hears of each piece's length.
pub fn copy(from: &mut impl Read, to: &mut impl Write, mut seen: impl FnMut(u64)) -> io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        hash.update(&buffer[..n]);
        to.write_all(&buffer[..n])?;
        total += n as u64;
        seen(n as u64);
    }
    let hex = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((hex, total))
}

/// SHA-256 and length of a file.
pub fn of_file(path: &Path) -> io::Result<(String, u64)> {
    copy(&mut File::open(path)?, &mut io::sink(), |_| ())
}
