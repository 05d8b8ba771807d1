//! GPUs on which the engine computes, as their driver tells of them: how busy they are, and the memory that the engine's processes hold there.
//!
//! What the driver calls busy is a mean over its own period, up to a second, and what others compute on the same GPU is in it. So work that
//! lasted less than that shows as nothing, and a rest is told up to a period late: [`LATE_MS`].
//!
//! Invariant: nothing is asked of the engine, so looking changes nothing; a GPU that does not tell is left out.

use std::sync::Arc;
use std::time::Instant;

use gpu::{Gpus, Look, PERIOD};

use super::cpu::{Loads, Processes, Sampler, WINDOW};

/// How late a rest may be told, in milliseconds.
pub const LATE_MS: f64 = PERIOD.as_millis() as f64;

/// The GPUs of an engine.
#[derive(Clone, Debug)]
pub struct Devices {
    gpus: Arc<Gpus>,
    which: Vec<u32>,
}

impl Devices {
    /// Those on which any of these processes computes, or what comes from them. `None` if there is none: in a container the driver's numbers
    /// of processes are others, and GPUs are named.
    pub fn of(gpus: Arc<Gpus>, processes: &Processes) -> Option<Devices> {
        let pids = processes.pids();
        let computes = |look: &Look| look.processes.iter().any(|of| pids.contains(&of.pid));
        let which: Vec<u32> = gpus.looks().iter().filter(|look| computes(look)).map(|look| look.index).collect();
        (!which.is_empty()).then_some(Devices { gpus, which })
    }

    /// These, by their numbers.
    ///
    /// # Errors
    /// The first that is not there.
    pub fn named(gpus: Arc<Gpus>, which: &[u32]) -> Result<Devices, String> {
        match which.iter().find(|index| gpus.look(**index).is_none()) {
            Some(index) => Err(format!("there is no GPU {index} here, or its driver does not reach it; there are {}", gpus.looks().len())),
            None => Ok(Devices { gpus, which: which.to_vec() }),
        }
    }

    /// What they are, for a report: each with its product and its driver.
    pub fn told(&self) -> Vec<String> {
        let driver = self.gpus.driver().unwrap_or_else(|| "unknown".to_owned());
        let look = |index: &u32| self.gpus.look(*index);
        let name = |look: Look| format!("GPU {} ({}, driver {driver})", look.index, look.name.as_deref().unwrap_or("unknown"));
        self.which.iter().filter_map(look).map(name).collect()
    }

    /// The busy part of the busiest of them.
    fn busy(&self) -> Option<f64> {
        self.which.iter().filter_map(|index| self.gpus.busy(*index)).reduce(f64::max)
    }

    /// Memory that the engine's processes hold there, in KiB; of GPUs whose driver does not tell of them, all that is allocated.
    pub fn held_kib(&self, processes: Option<&Processes>) -> Option<f64> {
        let pids = processes.map(Processes::pids).unwrap_or_default();
        let looks: Vec<Look> = self.which.iter().filter_map(|index| self.gpus.look(*index)).collect();
        let own = looks.iter().flat_map(|look| &look.processes).filter(|of| pids.contains(&of.pid)).filter_map(|of| of.used);
        let bytes = own.reduce(|one, other| one + other);
        let bytes = bytes.or_else(|| looks.iter().filter_map(|look| Some(look.memory?.used)).reduce(|one, other| one + other));
        bytes.map(|bytes| bytes as f64 / 1024.0)
    }

    /// Begins to look, again and again.
    pub fn sample(&self) -> Sampler {
        let devices = self.clone();
        Sampler::every(WINDOW, move |loads: &mut Loads| {
            if let Some(busy) = devices.busy() {
                loads.told(Instant::now(), busy);
            }
        })
    }
}
