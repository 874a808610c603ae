//! The tests of this crate in one program: each program of its own is linked with all that the crate needs, and runs
//! alone. `call_allocations.rs` is one, since it replaces the allocator, and `shortage.rs`, since it limits its process.

mod blocking_calls;
mod bodies;
mod calls;
mod encrypted;
mod encrypted_calls;
mod exchanges;
mod expectations;
mod outcomes;
mod shared_calls;
mod shared_frames;
mod shared_threads;
mod stress;
mod support;
mod turns;
mod waiting;
