//! The museum: real bugs as other answers to the questions of `lifecycle::rules`, each caught by the explorer or the simulator.
