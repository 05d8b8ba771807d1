//! Makes Rust of the .proto files, with a compiler that is itself Rust: no protoc has to be installed.
//!
//! The descriptors that go into the binary (for reflection) have no comments; the code is made from those that have, so that its
//! documentation is the .proto file's. What holds a prompt's or an answer's text gets no derived `Debug`: `src/quiet.rs` has theirs.
//!
//! Invariant: nothing is written outside `OUT_DIR`, and nothing but the .proto files is read.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const FILES: [&str; 2] = ["kvit/worker/v1/session.proto", "kvit/v1/runs.proto"];
/// Messages of both packages, and the two choices of a prompt, whose contents must not reach a log.
const QUIET: [&str; 16] = [
    ".kvit.worker.v1.Turn",
    ".kvit.worker.v1.Text",
    ".kvit.worker.v1.Tokens",
    ".kvit.worker.v1.Forward",
    ".kvit.worker.v1.Worded",
    ".kvit.worker.v1.Called",
    ".kvit.worker.v1.Passed",
    ".kvit.worker.v1.Delta",
    ".kvit.worker.v1.Logprob",
    ".kvit.worker.v1.Alternative",
    ".kvit.v1.Turn",
    ".kvit.v1.Text",
    ".kvit.v1.Tokens",
    ".kvit.v1.Delta",
    ".kvit.v1.Logprob",
    ".kvit.v1.Alternative",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let described = compiler.file_descriptor_set();
    let mut bare = described.clone();
    bare.file.iter_mut().for_each(|file| file.source_code_info = None);
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), bare.encode_to_vec())?;
    // Who connects and who listens brings the transport; this crate knows bytes only.
    tonic_prost_build::configure().build_transport(false).skip_debug(QUIET).compile_fds(described)?;
    Ok(())
}
