//! The stores: the local one against its rule, the Redis script on real servers.

mod local;
mod same;
mod script;
mod servers;
