//! The memory of the block pool: K and V of every block, in f16.
//!
//! A layer has its K and its V each in one piece: [block][head][...], K transposed inside every 16 positions so that lanes are positions, V
//! row by row. Pages that no block was ever written to cost nothing.
//!
//! Invariant: nobody relies on what a block holds before it is written; a freed block keeps its garbage.

use kv::BlockId;

use crate::arch::llama::Shape;
use crate::error::ModelError;
use crate::kernel::memory::Buffer;
use crate::kernel::simd::LANES;

/// K and V of all blocks.
pub struct KvMemory {
    buffer: Buffer,
    blocks: usize,
    block_tokens: usize,
    /// f16 values of one block in one layer's K (or V).
    block_values: usize,
    layers: usize,
}

impl KvMemory {
    /// Reserves `blocks` blocks of `block_tokens` positions, a multiple of 16.
    pub fn new(shape: &Shape, blocks: usize, block_tokens: usize) -> Result<KvMemory, ModelError> {
        if block_tokens == 0 || !block_tokens.is_multiple_of(LANES) || u32::try_from(blocks).is_err() {
            return Err(ModelError::Step(format!("a pool of {blocks} blocks of {block_tokens} positions: a multiple of 16 is needed")));
        }
        let block_values = shape.kv_heads * shape.head_dim * block_tokens;
        let bytes = block_values.checked_mul(blocks).and_then(|n| n.checked_mul(shape.layers * 4));
        let bytes = bytes.ok_or_else(|| ModelError::Step(format!("a pool of {blocks} blocks is larger than any memory")))?;
        let buffer = Buffer::new(bytes, false).map_err(|source| ModelError::Pool { blocks, bytes, source })?;
        Ok(KvMemory { buffer, blocks, block_tokens, block_values, layers: shape.layers })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Positions a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Bytes of one block over all layers, K and V.
    pub fn block_bytes(&self) -> usize {
        self.block_values * self.layers * 4
    }

    /// Where a layer's K and V begin.
    pub(crate) fn layer(&mut self, layer: usize) -> (*mut u16, *mut u16) {
        assert!(layer < self.layers, "a layer of the model");
        let values = self.blocks * self.block_values;
        let first = self.buffer.as_mut_ptr().cast::<u16>();
        // SAFETY: the buffer has room for K and V of `layers` layers, and the layer was checked.
        unsafe { (first.add(2 * layer * values), first.add((2 * layer + 1) * values)) }
    }

    /// Fills blocks with one f16 bit pattern, to prove in tests that nothing depends on old contents.
    pub fn fill(&mut self, blocks: &[BlockId], bits: u16) {
        for layer in 0..self.layers * 2 {
            for block in blocks {
                let at = (layer * self.blocks + block.0 as usize) * self.block_values * 2;
                for value in self.buffer.bytes_mut()[at..at + self.block_values * 2].chunks_exact_mut(2) {
                    value.copy_from_slice(&bits.to_le_bytes());
                }
            }
        }
    }
}
