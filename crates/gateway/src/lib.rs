//! HTTP front door and call table. Cannot see `engine`, `kv`, `model` or `worker`.
