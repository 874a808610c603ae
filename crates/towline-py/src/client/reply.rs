//! A response head and a body that is pulled.
use pyo3::prelude::*;

#[pyclass(frozen, subclass, module = "towline._native")]
pub struct Reply {}

#[pyclass(frozen, extends = Reply, module = "towline._native")]
pub struct AsyncReply {}
