//! A double of NVIDIA's management library, for tests: what it says stands in a file, which is read anew at each question.
//!
//! It is compiled by the `rustc` that compiles the tests. Lines of the file are `gpu BUSY USED TOTAL`, one for each GPU (per cent, bytes), and
//! behind it `process PID USED` for those that compute on it; USED may be `-`. Nothing else of the library is in it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A library that can be opened, and what it says.
#[derive(Debug)]
pub struct Double {
    /// The library.
    pub library: PathBuf,
    said: PathBuf,
}

impl Double {
    /// Compiles one into a folder.
    ///
    /// # Errors
    /// `rustc` is not there, or does not compile it; in its words.
    pub fn new(folder: &Path) -> Result<Double, String> {
        let (source, library, said) = (folder.join("nvml_double.rs"), folder.join("libnvml_double.so"), folder.join("gpus"));
        let text = include_str!("double/library.rs.txt").replace("SAID", &said.display().to_string());
        std::fs::write(&source, text).map_err(|e| e.to_string())?;
        std::fs::write(&said, "").map_err(|e| e.to_string())?;
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let made = Command::new(rustc).args(["--edition=2024", "--crate-type=cdylib", "-o"]).arg(&library).arg(&source).output();
        let made = made.map_err(|e| e.to_string())?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned());
        }
        Ok(Double { library, said })
    }

    /// From now on it says this.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn say(&self, gpus: &str) -> std::io::Result<()> {
        // Whoever reads meanwhile finds the one or the other.
        let next = self.said.with_extension("next");
        std::fs::write(&next, gpus)?;
        std::fs::rename(next, &self.said)
    }
}
