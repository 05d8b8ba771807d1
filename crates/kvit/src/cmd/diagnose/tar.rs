//! A folder of texts as one file: POSIX's tar (ustar), through gzip. `tar xzf` reads it.
//!
//! Forty lines that write one kind of entry, in place of a library that writes and reads all of them.
//!
//! Invariant: the same texts give the same bytes: no owner, no name of this machine, and one fixed time.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

const BLOCK: usize = 512;

/// The archive of these files, in a folder of this name.
///
/// # Errors
/// Never by itself; what gzip says.
pub fn archive(folder: &str, files: &[(String, String)]) -> std::io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    for (name, text) in files {
        gzip.write_all(&header(&format!("{folder}/{name}"), text.len()))?;
        gzip.write_all(text.as_bytes())?;
        gzip.write_all(&vec![0; text.len().next_multiple_of(BLOCK) - text.len()])?;
    }
    gzip.write_all(&[0; 2 * BLOCK])?;
    gzip.finish()
}

fn header(name: &str, size: usize) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, &name[..name.len().min(100)]);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{size:011o}\0"));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}
