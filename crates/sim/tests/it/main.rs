//! The explorer closes its setups without a violation, and catches every bug of the museum.

mod explorer;
mod museum;
