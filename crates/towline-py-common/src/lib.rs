//! Parts that the Python bindings of the server, the client and the state have in common: exceptions, cells of state, coroutines, event
//! loops and the future of a waiting task.
// Python determines the signatures: arguments are extracted by value, methods have a self.
#![allow(clippy::needless_pass_by_value)]
pub mod cell;
pub mod coroutine;
pub mod errors;
pub mod event_loop;
pub mod task_future;
