//! The explorer: every state that two runs, one worker and a bad network can reach, breadth-first over the real cores.
