//! Journal, metrics and timelines. Only receives; cannot change behaviour.
