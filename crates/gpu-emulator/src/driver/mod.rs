//! The driver: contexts, streams, events, memory, modules, launches and graphs, and the C functions that
//! programs call.
//!
//! All state is behind one lock, taken by each exported function. Stream work is a queue that runs when
//! something waits for it ([`stream`]); host functions are called with the lock released.

mod api_context;
mod api_event;
mod api_graph;
mod api_memory;
mod api_module;
mod api_stream;
mod capture;
pub mod codes;
pub mod control;
pub mod ffi;
pub mod state;
pub mod stream;

/// Every exported driver function, by name.
pub fn functions() -> Vec<(&'static str, usize)> {
    let mut all = api_context::table();
    all.extend(api_event::table());
    all.extend(api_graph::table());
    all.extend(api_memory::table());
    all.extend(api_module::table());
    all.extend(api_stream::table());
    all
}
