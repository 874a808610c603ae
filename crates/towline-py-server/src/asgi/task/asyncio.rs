//! The functions of asyncio with which a server runs requests in tasks.
use pyo3::PyTypeInfo;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use towline_py_common::cell::references;

/// Functions of `asyncio.tasks`, accelerated where available.
pub struct Asyncio {
    event_loop: Py<PyAny>,
    task: Py<PyAny>,
    /// `loop=loop`, for the constructor.
    task_arguments: Py<PyDict>,
    enter_task: Py<PyAny>,
    leave_task: Py<PyAny>,
    current_task: Py<PyAny>,
    weakrefs: Py<PyAny>,
}

impl Asyncio {
    pub fn new(event_loop: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = event_loop.py();
        let tasks = py.import("asyncio.tasks")?;
        let task_arguments = PyDict::new(py);
        task_arguments.set_item("loop", event_loop)?;
        let function = |name: &str| tasks.getattr(name).map(Bound::unbind);
        Ok(Self {
            event_loop: event_loop.clone().unbind(),
            task: function("Task")?,
            task_arguments: task_arguments.unbind(),
            enter_task: function("_enter_task")?,
            leave_task: function("_leave_task")?,
            current_task: function("current_task")?,
            weakrefs: py.import("_weakref")?.getattr("getweakrefcount")?.unbind(),
        })
    }

    pub fn create_future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.event_loop
            .bind(py)
            .call_method0(intern!(py, "create_future"))
    }

    pub fn event_loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.event_loop.clone_ref(py)
    }

    /// A task created by the loop, with its task factory.
    pub fn create_task<T: PyTypeInfo>(
        &self,
        py: Python<'_>,
        coroutine: &Py<T>,
    ) -> PyResult<Py<PyAny>> {
        self.event_loop
            .bind(py)
            .call_method1(intern!(py, "create_task"), (coroutine,))
            .map(Bound::unbind)
    }

    /// A task created without the task factory.
    pub fn create_plain_task<'py, T: PyTypeInfo>(
        &self,
        py: Python<'py>,
        coroutine: &Py<T>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = PyTuple::new(py, [coroutine])?;
        self.task
            .bind(py)
            .call(arguments, Some(self.task_arguments.bind(py)))
    }

    /// Whether the loop has a task factory (`loop.set_task_factory`), or can be run inside a request.
    pub fn runs_in_tasks(&self, py: Python<'_>) -> PyResult<bool> {
        let event_loop = self.event_loop.bind(py);
        let factory = event_loop.call_method0(intern!(py, "get_task_factory"))?;
        Ok(!factory.is_none() || event_loop.hasattr(intern!(py, "_nest_patched"))?)
    }

    /// Makes `task` the current one and returns the task that it replaces. There is none in a callback of the
    /// loop, as the turn is, unless a program calls the turn itself.
    pub fn enter(&self, py: Python<'_>, task: &Py<PyAny>) -> PyResult<Option<Py<PyAny>>> {
        let enter_task = self.enter_task.bind(py);
        if enter_task.call1((&self.event_loop, task)).is_ok() {
            return Ok(None);
        }
        let outer = self.current_task.bind(py).call1((&self.event_loop,))?;
        if !outer.is_none() {
            self.leave_task.bind(py).call1((&self.event_loop, &outer))?;
        }
        enter_task.call1((&self.event_loop, task))?;
        Ok((!outer.is_none()).then(|| outer.unbind()))
    }

    /// Undoes [`Asyncio::enter`].
    pub fn leave(
        &self,
        py: Python<'_>,
        task: &Py<PyAny>,
        outer: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        self.leave_task.bind(py).call1((&self.event_loop, task))?;
        if let Some(outer) = outer {
            self.enter_task.bind(py).call1((&self.event_loop, outer))?;
        }
        Ok(())
    }

    /// The externally visible state of a task, for a later comparison.
    pub fn snapshot(&self, py: Python<'_>, task: &Py<PyAny>) -> PyResult<TaskSnapshot> {
        let weakrefs = self.weakrefs.bind(py).call1((task,))?.extract()?;
        Ok(TaskSnapshot {
            references: references(task),
            weakrefs,
        })
    }
}

/// See [`Asyncio::snapshot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskSnapshot {
    references: isize,
    weakrefs: usize,
}
