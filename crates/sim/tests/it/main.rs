//! The explorer closes its setups without a violation, and catches every bug of the museum; and the async shells that carry frames between
//! the cores, over a simulated network.

mod diagnosed;
mod explorer;
mod museum;
mod shells;
