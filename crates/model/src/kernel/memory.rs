//! Big buffers: anonymous maps, so that untouched pages cost nothing, on huge pages where a buffer is read from end to end.
//!
//! Invariant: a `Buffer` is page-aligned and never moves.

use std::io;

use memmap2::{Advice, MmapMut};

/// Bytes past the end that software prefetch and whole-vector loads may touch.
const SLACK: usize = 64;

/// A big, lazily reserved buffer.
pub struct Buffer {
    map: MmapMut,
    len: usize,
}

impl Buffer {
    /// Reserves `len` bytes that read as 0. With `dense`, asks for huge pages: reading 100 MB of weights a token is bound by page walks else.
    pub fn new(len: usize, dense: bool) -> io::Result<Buffer> {
        let map = MmapMut::map_anon(len.saturating_add(SLACK))?;
        if dense {
            // A kernel without huge pages refuses; the buffer is then only slower.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Buffer { map, len })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.len]
    }

    /// The bytes, to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }

    /// The first byte, for kernels.
    pub fn as_ptr(&self) -> *const u8 {
        self.map.as_ptr()
    }

    /// The first byte, for kernels.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
