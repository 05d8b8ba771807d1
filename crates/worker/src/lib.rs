//! The engine thread, the device thread and the mailbox between them. Cannot see `gateway`.
