//! What NVIDIA's management library (NVML) says of the GPUs of this machine: how busy they are, and who holds how much of their memory.
//!
//! The library belongs to the driver and is opened when it is asked for; where there is none, that is told, and nothing is guessed. Names and
//! units are those of the NVML API reference (`nvmlDeviceGetUtilizationRates`, `nvmlDeviceGetMemoryInfo_v2`,
//! `nvmlDeviceGetComputeRunningProcesses_v3`).
//!
//! Invariant: looking changes nothing on a GPU, and what the driver does not tell stays unknown.

use std::path::Path;
use std::time::Duration;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::{Device, Nvml};

#[cfg(feature = "double")]
pub mod double;

/// The longest time over which the driver takes the mean that `busy` is: "between 1/6 and 1 second depending on the product" (NVML API
/// reference, `nvmlUtilization_t`). What it says may be as old.
pub const PERIOD: Duration = Duration::from_secs(1);

/// The GPUs of this machine.
#[derive(Debug)]
pub struct Gpus {
    nvml: Nvml,
}

/// A look at one of them.
#[derive(Clone, PartialEq, Debug)]
pub struct Look {
    /// Its number, as `nvidia-smi` counts.
    pub index: u32,
    /// `GPU-…`, which stays where numbers change.
    pub uuid: Option<String>,
    /// The product.
    pub name: Option<String>,
    /// Part of the last period in which anything was computed on it, by anybody. `None` where it is cut into instances (MIG).
    pub busy: Option<f64>,
    /// Its memory, in bytes.
    pub memory: Option<Memory>,
    /// Processes that compute on it.
    pub processes: Vec<Process>,
}

/// Memory of a GPU, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Installed.
    pub total: u64,
    /// Allocated, by anybody.
    pub used: u64,
    /// Not allocated.
    pub free: u64,
}

/// A process that computes on a GPU, by its number on the machine: in a container that has other numbers it is not found by its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// What it holds, in bytes. `None` where the driver does not tell.
    pub used: Option<u64>,
}

impl Gpus {
    /// Opens the driver's library: `library`, or by its usual name.
    ///
    /// # Errors
    /// There is none, or it has no driver to talk to; in a sentence.
    pub fn open(library: Option<&Path>) -> Result<Gpus, String> {
        let mut builder = Nvml::builder();
        if let Some(file) = library {
            builder.lib_path(file.as_os_str());
        }
        let named = library.map_or_else(|| "NVIDIA's management library".to_owned(), |file| file.display().to_string());
        let nvml = builder.init().map_err(|e| format!("{named} cannot be opened: {e}"))?;
        Ok(Gpus { nvml })
    }

    /// The driver's release.
    pub fn driver(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }

    /// Looks at all of them, in the order of their numbers. One that cannot be reached is left out.
    pub fn looks(&self) -> Vec<Look> {
        let count = self.nvml.device_count().unwrap_or(0);
        (0..count).filter_map(|index| self.look(index)).collect()
    }

    /// Looks at one of them. `None` if it is not there, or cannot be reached.
    pub fn look(&self, index: u32) -> Option<Look> {
        let device = self.nvml.device_by_index(index).ok()?;
        Some(Look {
            index,
            uuid: device.uuid().ok(),
            name: device.name().ok(),
            busy: busy(&device),
            memory: device.memory_info().ok().map(|of| Memory { total: of.total, used: of.used, free: of.free }),
            processes: processes(&device),
        })
    }

    /// How busy one of them is. `None` as in [`Look::busy`].
    pub fn busy(&self, index: u32) -> Option<f64> {
        busy(&self.nvml.device_by_index(index).ok()?)
    }
}

fn busy(device: &Device<'_>) -> Option<f64> {
    device.utilization_rates().ok().map(|rates| f64::from(rates.gpu.min(100)) / 100.0)
}

fn processes(device: &Device<'_>) -> Vec<Process> {
    let used = |of| match of {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let all = device.running_compute_processes().unwrap_or_default();
    all.into_iter().map(|of| Process { pid: of.pid, used: used(of.used_gpu_memory) }).collect()
}
