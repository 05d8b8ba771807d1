//! Messages between gateway and worker.
