//! The client and the link against scripted upstreams on real sockets: every way in which an upstream can fail, every way in which a caller
//! can leave, and what is left open behind it.

mod anew;
mod asked;
mod connecting;
mod engine;
mod leaving;
mod real;
mod record;
mod routing;
mod script;
mod scripted;
mod stand;
mod through;
mod tls;
mod told_first;
mod worded;
