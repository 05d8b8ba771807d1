//! The commands, one file each: read the arguments, ask or do, print.

pub mod alerts;
pub mod bench;
mod child;
pub mod conformance;
pub mod demo;
pub mod diagnose;
pub mod estimate;
pub mod explore;
pub mod gateway;
pub mod key;
pub mod kv;
mod loaded;
pub mod model;
pub mod museum;
mod past;
pub mod runs;
pub mod serve;
mod settings;
mod signals;
pub mod sim;
pub mod soak;
mod stored;
pub mod tap;
pub mod top;
pub mod trace;
pub mod verify;
pub mod waste;
pub mod worker;

use ::model::kernel::Isa as KernelIsa;

use crate::config::Isa;

/// The kernels' name of an instruction set; `None` lets them take the best there is.
pub fn kernel_isa(isa: Isa) -> Option<KernelIsa> {
    match isa {
        Isa::Auto => None,
        Isa::Amx => Some(KernelIsa::Amx),
        Isa::Avx512 => Some(KernelIsa::Avx512),
        Isa::Avx2 => Some(KernelIsa::Avx2),
        Isa::Scalar => Some(KernelIsa::Scalar),
    }
}
