//! The live view: a few lines below the prompt during a run, removed when it ends.
//!
//! The live view changes no terminal state that would need to be restored: no raw mode, no alternate screen, and
//! the cursor stays visible. If the program is killed, some lines remain.

mod frame;
mod state;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ratatui::backend::{Backend, ClearType, CrosstermBackend};
use ratatui::{Terminal, TerminalOptions, Viewport};

use crate::config::Config;
use crate::monitor::Monitor;
use state::State;

/// Shorter runs have no view.
const FIRST_FRAME_AFTER: Duration = Duration::from_millis(250);
const FRAME_INTERVAL: Duration = Duration::from_millis(200);

/// Lines of the full layout.
const MAX_LINES: u16 = 17;

/// A view on a thread of its own; dropping it clears the lines.
pub(crate) struct LiveView {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LiveView {
    /// `None` if the output is not a capable terminal.
    pub(crate) fn start(config: &Config, monitor: &Monitor) -> Option<Self> {
        let stdout = io::stdout();
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        if !stdout.is_terminal() || is_dumb {
            return None;
        }
        // A handle of its own: the thread of the run may hold the lock of stdout.
        let screen = File::from(stdout.as_fd().try_clone_to_owned().ok()?);
        let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut state = State::new(config, has_colors);
        let monitor = monitor.clone();
        let (over, ended) = mpsc::channel();
        let show = move || {
            if ended.recv_timeout(FIRST_FRAME_AFTER) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            // No view on a terminal that does not report its cursor position.
            let Ok(mut view) = View::open(screen) else {
                return;
            };
            loop {
                state.update(&monitor, Instant::now());
                if view.draw(&state).is_err() {
                    return;
                }
                if ended.recv_timeout(FRAME_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("live view".into()).spawn(show);
        Some(Self {
            over: Some(over),
            thread: Some(thread.ok()?),
        })
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct View {
    terminal: Terminal<CrosstermBackend<File>>,
}

impl View {
    fn open(screen: File) -> io::Result<Self> {
        let backend = CrosstermBackend::new(screen);
        let lines = backend.size()?.height.saturating_sub(1).clamp(1, MAX_LINES);
        let viewport = Viewport::Inline(lines);
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport })?;
        Ok(Self { terminal })
    }

    fn draw(&mut self, state: &State) -> io::Result<()> {
        self.terminal.draw(|frame| {
            let area = frame.area();
            frame::draw(state, area, frame.buffer_mut());
            // Keeps the cursor visible, in case the program is killed.
            frame.set_cursor_position((area.x, area.bottom().saturating_sub(1)));
        })?;
        Ok(())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let top = self.terminal.get_frame().area().as_position();
        let screen = self.terminal.backend_mut();
        let _ = screen.set_cursor_position(top);
        let _ = screen.clear_region(ClearType::AfterCursor);
        let _ = Backend::flush(screen);
    }
}
