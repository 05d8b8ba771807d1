//! What NVIDIA's driver says of this machine's GPUs, on the metrics page: by a double of its library, for no GPU is here.

use gpu::double::Double;

use crate::kvit;
use crate::server::{Server, tiny_model};

#[test]
fn the_memory_of_gpus_stands_beside_that_of_the_process_and_apart_from_the_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    let double = Double::new(folder.path()).expect("it is compiled");
    let library = double.library.to_str().expect("text").to_owned();
    double.say("gpu 25 3000 8000\nprocess 17 2000\nprocess 18 500\ngpu 0 10 8000\n").expect("it is written");
    let server = Server::start(&tiny_model(), &["--nvml", &library]);
    let gauges = || -> Vec<String> {
        let page = String::from_utf8(server.request("GET", "/metrics", None, None).2).expect("text");
        page.lines().filter(|line| line.starts_with("kvit_gpu")).map(str::to_owned).collect()
    };
    let told = [
        "kvit_gpu_memory_used_bytes{gpu=\"0\"} 3000",
        "kvit_gpu_memory_used_bytes{gpu=\"1\"} 10",
        "kvit_gpu_memory_total_bytes{gpu=\"0\"} 8000",
        "kvit_gpu_memory_total_bytes{gpu=\"1\"} 8000",
        "kvit_gpu_processes_memory_bytes{gpu=\"0\"} 2500",
        "kvit_gpu_processes_memory_bytes{gpu=\"1\"} 0",
        "kvit_gpu_busy_ratio{gpu=\"0\"} 0.25",
        "kvit_gpu_busy_ratio{gpu=\"1\"} 0",
    ];
    assert_eq!(gauges(), told);
    // It is looked at anew for each scrape, and what a process holds may not be told.
    double.say("gpu 0 20 8000\nprocess 17 -\n").expect("it is written");
    assert_eq!(
        gauges(),
        ["kvit_gpu_memory_used_bytes{gpu=\"0\"} 20", "kvit_gpu_memory_total_bytes{gpu=\"0\"} 8000", "kvit_gpu_busy_ratio{gpu=\"0\"} 0"]
    );
    assert!(server.terminate());
}

#[test]
fn a_library_that_is_named_has_to_be_there() {
    let cache = tempfile::tempdir().expect("a folder");
    let args = ["gateway", "--port", "0", "--store", "none", "--worker", "127.0.0.1:1", "--nvml", "/nowhere/libnvidia-ml.so"];
    let output = kvit(cache.path(), &args).output().expect("it is started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("nvml: /nowhere/libnvidia-ml.so cannot be opened: "), "{said}");
}
