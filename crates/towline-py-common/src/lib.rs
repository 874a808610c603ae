//! Parts that the Python bindings of the server, the client and the state have in common: exceptions, cells under the GIL, coroutines.
// Python determines the signatures: arguments are extracted by value, methods have a self.
#![allow(clippy::needless_pass_by_value)]
pub mod coroutine;
pub mod errors;
pub mod gil;
