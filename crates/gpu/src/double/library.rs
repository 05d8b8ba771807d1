// What `libnvidia-ml` says, out of a file. C names and layouts are those of nvml.h.
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

const OK: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const TOO_SMALL: c_int = 7;

#[repr(C)]
pub struct Rates {
    gpu: c_uint,
    memory: c_uint,
}

#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
pub struct Info {
    pid: c_uint,
    used: c_ulonglong,
    instance: c_uint,
    compute_instance: c_uint,
}

#[derive(Clone, Default)]
struct Gpu {
    busy: Option<c_uint>,
    used: u64,
    total: u64,
    processes: Vec<(c_uint, Option<u64>)>,
}

fn gpus() -> Vec<Gpu> {
    let mut all: Vec<Gpu> = Vec::new();
    for line in std::fs::read_to_string("SAID").unwrap_or_default().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word: &&str| word.parse::<u64>().ok());
        match (words.first().copied(), all.last_mut()) {
            (Some("gpu"), _) => all.push(Gpu {
                busy: number(1).map(|n| n as c_uint),
                used: number(2).unwrap_or(0),
                total: number(3).unwrap_or(0),
                processes: Vec::new(),
            }),
            (Some("process"), Some(gpu)) => gpu.processes.push((number(1).unwrap_or(0) as c_uint, number(2))),
            _ => {}
        }
    }
    all
}

fn of(device: *mut c_void) -> Option<Gpu> {
    gpus().get((device as usize).wrapping_sub(1)).cloned()
}

unsafe fn write(text: &str, into: *mut c_char, length: c_uint) -> c_int {
    if text.len() >= length as usize {
        return TOO_SMALL;
    }
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), into, text.len());
        *into.add(text.len()) = 0;
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(into: *mut c_char, length: c_uint) -> c_int {
    unsafe { write("999.0-double", into, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    unsafe { *count = gpus().len() as c_uint };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut *mut c_void) -> c_int {
    if index as usize >= gpus().len() {
        return NOT_FOUND;
    }
    unsafe { *device = (index as usize + 1) as *mut c_void };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(_: *mut c_void, into: *mut c_char, length: c_uint) -> c_int {
    unsafe { write("double of a GPU", into, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: *mut c_void, into: *mut c_char, length: c_uint) -> c_int {
    unsafe { write(&format!("GPU-double-{}", device as usize - 1), into, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(device: *mut c_void, rates: *mut Rates) -> c_int {
    match of(device).and_then(|gpu| gpu.busy) {
        None => NOT_SUPPORTED,
        Some(gpu) => {
            unsafe { *rates = Rates { gpu, memory: 0 } };
            OK
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut MemoryV2) -> c_int {
    let Some(gpu) = of(device) else { return NOT_FOUND };
    unsafe {
        (*memory).total = gpu.total;
        (*memory).reserved = 0;
        (*memory).used = gpu.used;
        (*memory).free = gpu.total - gpu.used;
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(device: *mut c_void, count: *mut c_uint, into: *mut Info) -> c_int {
    let Some(gpu) = of(device) else { return NOT_FOUND };
    let room = unsafe { std::mem::replace(&mut *count, gpu.processes.len() as c_uint) } as usize;
    if room < gpu.processes.len() {
        return TOO_SMALL;
    }
    for (at, (pid, used)) in gpu.processes.into_iter().enumerate() {
        let info = Info { pid, used: used.unwrap_or(u64::MAX), instance: u32::MAX, compute_instance: u32::MAX };
        unsafe { into.add(at).write(info) };
    }
    OK
}
