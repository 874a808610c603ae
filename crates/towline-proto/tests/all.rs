//! The tests of this crate in one program: each program of its own is linked with all that the crate needs, and runs
//! alone. `allocations.rs` is one, since it replaces the allocator.

mod choice;
mod client;
mod common;
mod conformance;
mod corpus;
mod endings;
mod h2;
mod h2_any_input;
mod h2_attacks;
mod h2_closed;
mod h2_endings;
mod h2_exchange;
mod h2_head_cache;
mod h2_malformed;
mod h2_messages;
mod h2_properties;
mod h2_races;
mod h2_response_cache;
mod h2_states;
mod h2_timers;
mod h3_any_input;
mod h3_early_data;
mod h3_exchange;
mod h3_states;
mod hpack;
mod pipelining;
mod program;
mod properties;
mod server;
mod server_endings;
mod truncation;
mod ws;
