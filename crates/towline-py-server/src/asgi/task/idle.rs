//! The idle task of a server, and the functions of asyncio that run a request in it.
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::coroutine::TaskCoroutine;

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
    pub fn create_task(
        &self,
        py: Python<'_>,
        coroutine: &Py<TaskCoroutine>,
    ) -> PyResult<Py<PyAny>> {
        self.event_loop
            .bind(py)
            .call_method1(intern!(py, "create_task"), (coroutine,))
            .map(Bound::unbind)
    }

    /// A task created without the task factory.
    pub fn create_plain_task<'py>(
        &self,
        py: Python<'py>,
        coroutine: &Py<TaskCoroutine>,
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

    /// Creates an idle task. Its first step, already scheduled in the loop, parks it, unless a request comes first.
    pub fn create_idle_task(&self, py: Python<'_>) -> PyResult<IdleTask> {
        let coroutine = Py::new(py, TaskCoroutine::new(self.event_loop.clone_ref(py)))?;
        let task = self.create_plain_task(py, &coroutine)?;
        // No warning if it is still parked when the loop is closed.
        task.setattr(intern!(py, "_log_destroy_pending"), false)?;
        let get_name = task.getattr(intern!(py, "get_name"))?;
        let name = get_name.call0()?.unbind();
        Ok(IdleTask {
            task: task.unbind(),
            coroutine,
            get_name: get_name.unbind(),
            name,
        })
    }

    /// The externally visible state of a task, for a later comparison.
    pub fn snapshot(&self, idle_task: &IdleTask, py: Python<'_>) -> PyResult<TaskSnapshot> {
        let references = super::super::exchange::references(&idle_task.task);
        let weakrefs = self
            .weakrefs
            .bind(py)
            .call1((&idle_task.task,))?
            .extract()?;
        Ok(TaskSnapshot {
            references,
            weakrefs,
        })
    }

    /// True if the request has left the task unchanged: there is no new reference or weak reference to it, no done
    /// callback, and it has been neither cancelled nor renamed.
    pub fn is_unchanged(
        &self,
        py: Python<'_>,
        idle_task: &IdleTask,
        before: TaskSnapshot,
    ) -> PyResult<bool> {
        let now = self.snapshot(idle_task, py)?;
        if now != before || idle_task.is_cancelled(py)? {
            return Ok(false);
        }
        let task = idle_task.task.bind(py);
        let renamed = !idle_task.get_name.bind(py).call0()?.is(&idle_task.name);
        Ok(!renamed && task.getattr(intern!(py, "_callbacks"))?.is_none())
    }
}

/// See [`Asyncio::snapshot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskSnapshot {
    references: isize,
    weakrefs: usize,
}

/// State of the current task of the loop while it is an idle task that runs requests.
pub struct CurrentTask {
    /// Its snapshot before any request.
    pub before: TaskSnapshot,
    /// The task that was current before.
    pub outer: Option<Py<PyAny>>,
}

/// A real `asyncio.Task` that waits for a request.
pub struct IdleTask {
    pub task: Py<PyAny>,
    pub coroutine: Py<TaskCoroutine>,
    /// Its bound method.
    pub get_name: Py<PyAny>,
    name: Py<PyAny>,
}

impl IdleTask {
    /// False if it has ended or has been cancelled (as `asyncio.run` does at its end).
    pub fn is_usable(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.coroutine.get().is_idle(py) && !self.is_cancelled(py)?)
    }

    fn is_cancelled(&self, py: Python<'_>) -> PyResult<bool> {
        match self.coroutine.get().is_parked_future_done(py)? {
            // Cancelling a parked task cancels its future ...
            Some(done) => Ok(done),
            // ... and a task that has not run its first step remembers it.
            None => self
                .task
                .bind(py)
                .getattr(intern!(py, "_must_cancel"))?
                .is_truthy(),
        }
    }

    /// Restores the warning about a pending task that is destroyed: from now on the task runs a request.
    pub fn mark_adopted(&self, py: Python<'_>) -> PyResult<()> {
        self.task
            .bind(py)
            .setattr(intern!(py, "_log_destroy_pending"), true)
    }
}
