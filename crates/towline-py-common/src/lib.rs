//! Parts that the Python bindings of the server, the client and the state have in common: exceptions, cells under the GIL, coroutines, event
//! loops and the future of a waiting task.
// Python determines the signatures: arguments are extracted by value, methods have a self.
#![allow(clippy::needless_pass_by_value)]
pub mod coroutine;
pub mod errors;
pub mod event_loop;
pub mod gil;
pub mod task_future;
