//! The spare task of a server, and what of asyncio is needed to lend it to a request.
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::coroutine::Host;

/// Functions of `asyncio.tasks`, the accelerated ones where there are any.
pub struct Asyncio {
    loop_: Py<PyAny>,
    task: Py<PyAny>,
    /// `loop=loop`, for the constructor.
    task_arguments: Py<PyDict>,
    enter_task: Py<PyAny>,
    leave_task: Py<PyAny>,
    current_task: Py<PyAny>,
    weakrefs: Py<PyAny>,
}

impl Asyncio {
    pub fn new(loop_: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = loop_.py();
        let tasks = py.import("asyncio.tasks")?;
        let task_arguments = PyDict::new(py);
        task_arguments.set_item("loop", loop_)?;
        let function = |name: &str| tasks.getattr(name).map(Bound::unbind);
        Ok(Self {
            loop_: loop_.clone().unbind(),
            task: function("Task")?,
            task_arguments: task_arguments.unbind(),
            enter_task: function("_enter_task")?,
            leave_task: function("_leave_task")?,
            current_task: function("current_task")?,
            weakrefs: py.import("_weakref")?.getattr("getweakrefcount")?.unbind(),
        })
    }

    pub fn create_future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.loop_
            .bind(py)
            .call_method0(intern!(py, "create_future"))
    }

    pub fn loop_(&self, py: Python<'_>) -> Py<PyAny> {
        self.loop_.clone_ref(py)
    }

    /// A task made as the program wants its tasks made.
    pub fn create_task(&self, py: Python<'_>, host: &Py<Host>) -> PyResult<Py<PyAny>> {
        self.loop_
            .bind(py)
            .call_method1(intern!(py, "create_task"), (host,))
            .map(Bound::unbind)
    }

    /// A task made our way, whatever the program said.
    pub fn plain_task<'py>(&self, py: Python<'py>, host: &Py<Host>) -> PyResult<Bound<'py, PyAny>> {
        let arguments = PyTuple::new(py, [host])?;
        self.task
            .bind(py)
            .call(arguments, Some(self.task_arguments.bind(py)))
    }

    /// The program has said how (`loop.set_task_factory`).
    pub fn has_task_factory(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self
            .loop_
            .bind(py)
            .call_method0(intern!(py, "get_task_factory"))?
            .is_none())
    }

    /// Makes `task` the current one and returns whom it displaced: nobody, since the turn is a callback of
    /// the loop, unless a program calls it by hand.
    pub fn enter(&self, py: Python<'_>, task: &Py<PyAny>) -> PyResult<Option<Py<PyAny>>> {
        let enter_task = self.enter_task.bind(py);
        if enter_task.call1((&self.loop_, task)).is_ok() {
            return Ok(None);
        }
        let outer = self.current_task.bind(py).call1((&self.loop_,))?;
        if !outer.is_none() {
            self.leave_task.bind(py).call1((&self.loop_, &outer))?;
        }
        enter_task.call1((&self.loop_, task))?;
        Ok((!outer.is_none()).then(|| outer.unbind()))
    }

    /// Undoes [`Asyncio::enter`].
    pub fn leave(
        &self,
        py: Python<'_>,
        task: &Py<PyAny>,
        outer: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        self.leave_task.bind(py).call1((&self.loop_, task))?;
        if let Some(outer) = outer {
            self.enter_task.bind(py).call1((&self.loop_, outer))?;
        }
        Ok(())
    }

    /// A new spare. Its first step is on the loop's list already and parks it, unless a request comes
    /// before.
    pub fn spare(&self, py: Python<'_>) -> PyResult<Spare> {
        let host = Py::new(py, Host::new(self.loop_.clone_ref(py)))?;
        let task = self.plain_task(py, &host)?;
        // A spare that is still parked when its loop ends is no task that somebody forgot.
        task.setattr(intern!(py, "_log_destroy_pending"), false)?;
        let get_name = task.getattr(intern!(py, "get_name"))?;
        let name = get_name.call0()?.unbind();
        Ok(Spare {
            task: task.unbind(),
            host,
            get_name: get_name.unbind(),
            name,
        })
    }

    /// What can be seen of a task from outside, to be compared later.
    pub fn marks(&self, spare: &Spare, py: Python<'_>) -> PyResult<Marks> {
        let references = super::super::exchange::references(&spare.task);
        let weakrefs = self.weakrefs.bind(py).call1((&spare.task,))?.extract()?;
        Ok(Marks {
            references,
            weakrefs,
        })
    }

    /// True when the request has left the spare as it was: nobody kept the task, weakly or not, hangs on
    /// its end, has cancelled or renamed it.
    pub fn is_unmarked(&self, py: Python<'_>, spare: &Spare, before: Marks) -> PyResult<bool> {
        let now = self.marks(spare, py)?;
        if now != before || spare.is_cancelled(py)? {
            return Ok(false);
        }
        let task = spare.task.bind(py);
        let renamed = !spare.get_name.bind(py).call0()?.is(&spare.name);
        Ok(!renamed && task.getattr(intern!(py, "_callbacks"))?.is_none())
    }
}

/// See [`Asyncio::marks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    references: isize,
    weakrefs: usize,
}

/// The spare is the current task.
pub struct Loan {
    /// What it looked like before any request.
    pub before: Marks,
    /// The task that was current before.
    pub outer: Option<Py<PyAny>>,
}

/// A real `asyncio.Task` that waits for a request.
pub struct Spare {
    pub task: Py<PyAny>,
    pub host: Py<Host>,
    /// The task's method, bound once.
    pub get_name: Py<PyAny>,
    name: Py<PyAny>,
}

impl Spare {
    /// False when it must not serve: somebody has cancelled it (`asyncio.run` at its end does), or it
    /// has ended.
    pub fn is_fit(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.host.get().is_idle(py) && !self.is_cancelled(py)?)
    }

    fn is_cancelled(&self, py: Python<'_>) -> PyResult<bool> {
        match self.host.get().is_unparked(py)? {
            // Cancelling a parked task cancels what it waits for ...
            Some(over) => Ok(over),
            // ... and one that has not begun remembers it.
            None => self
                .task
                .bind(py)
                .getattr(intern!(py, "_must_cancel"))?
                .is_truthy(),
        }
    }

    /// From here on the task is a request's: forgetting it would be a mistake worth a message.
    pub fn take_up(&self, py: Python<'_>) -> PyResult<()> {
        self.task
            .bind(py)
            .setattr(intern!(py, "_log_destroy_pending"), true)
    }
}
