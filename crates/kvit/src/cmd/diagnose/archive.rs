//! A folder of texts as one file: a tar through gzip, which `tar xzf` reads.
//!
//! Invariant: the same texts give the same bytes: no owner, no name of this machine, and one fixed time.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// The archive of these files, in a folder of this name.
///
/// # Errors
/// A name that is too long, or what gzip says.
pub fn tar_gz(folder: &str, files: &[(String, String)]) -> std::io::Result<Vec<u8>> {
    let mut all = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, text) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        all.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())?;
    }
    let mut gzip = all.into_inner()?;
    gzip.flush()?;
    gzip.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_texts_are_the_same_bytes_and_nobody_is_named() {
        let files = [("a.txt".to_owned(), "one".to_owned()), ("b.json".to_owned(), "x".repeat(3000))];
        let bytes = tar_gz("incident", &files).expect("it is written");
        assert_eq!(bytes, tar_gz("incident", &files).expect("it is written"));
        let mut read = tar::Archive::new(flate2::read::GzDecoder::new(&*bytes));
        let mut seen = Vec::new();
        for entry in read.entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let header = entry.header();
            assert_eq!((header.uid().ok(), header.gid().ok(), header.mtime().ok()), (Some(0), Some(0), Some(0)));
            assert_eq!((header.username().ok().flatten(), header.groupname().ok().flatten()), (Some(""), Some("")));
            let (path, mut text) = (entry.path().expect("a path").display().to_string(), String::new());
            std::io::Read::read_to_string(&mut entry, &mut text).expect("a text");
            seen.push((path, text));
        }
        assert_eq!(seen, files.map(|(name, text)| (format!("incident/{name}"), text)));
    }
}
