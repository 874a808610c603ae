//! The connection to an agent: lines to it, events from it, and its end. Its threads never wait for another agent's.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::messages::{PartCommand, PartEvent};
use super::options::HostOptions;
use super::{options::AgentAddress, ssh};
use crate::sync::lock;

/// Limit of a line: a long run's series.
const MAX_LINE_BYTES: u64 = 256 * 1024 * 1024;
/// The end of what a program writes to stderr.
const MAX_STDERR_BYTES: usize = 2000;
/// Lines that a host's shell may write before the agent.
const MAX_NOISE_LINES: u32 = 100;
/// Time for an agent and its ssh to end by themselves.
const ENDS_WITHIN: Duration = Duration::from_secs(3);

/// Something that came from an agent, by its index.
pub(super) type Incoming = (usize, LinkEvent);

#[derive(Debug)]
pub(super) enum LinkEvent {
    /// Commands may be sent.
    Open,
    /// A message, and the time at which it arrived.
    Message(Instant, PartEvent),
    /// The reply to a question about the clock, with the times of question and reply.
    Clock {
        sent: Instant,
        received: Instant,
        agent_ns: u64,
    },
    /// Nothing more comes; the reason.
    Closed(String),
}

pub(super) struct Link {
    /// `None`: closed by us.
    commands: Option<Sender<Outgoing>>,
    peer: Arc<Peer>,
}

struct Outgoing {
    bytes: Vec<u8>,
    is_clock: bool,
}

/// The other end.
enum Peer {
    Process {
        child: Mutex<Child>,
        stderr: Mutex<StderrTail>,
    },
    Socket(Socket),
}

/// The end of what a program has written to stderr, and whether it has closed it.
#[derive(Default)]
struct StderrTail {
    bytes: Vec<u8>,
    is_closed: bool,
}

/// Times at which questions about the clock were written.
type Questions = Arc<Mutex<VecDeque<Instant>>>;

impl Link {
    /// Starts a link; its events have this index.
    pub(super) fn start(
        address: &AgentAddress,
        options: &HostOptions,
        index: usize,
        events: &Sender<Incoming>,
    ) -> io::Result<Self> {
        if let Some(descriptor) = address.descriptor {
            return Self::socket(descriptor, index, events);
        }
        let program = options.agent_binary.as_deref().map(read).transpose()?;
        let bytes = program.as_ref().map(|program| program.len() as u64);
        let command = ssh::command(options, &address.name, bytes);
        Self::process(command, program, index, events)
    }

    fn process(
        mut command: Command,
        program: Option<Vec<u8>>,
        index: usize,
        events: &Sender<Incoming>,
    ) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the controller; a jump host's client is in this group, too.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                let name = command.get_program().display().to_string();
                io::Error::new(error.kind(), format!("{name}: {error}"))
            })?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(mut stderr)) = pipes else {
            return Err(io::Error::other("a pipe is missing"));
        };
        let peer = Arc::new(Peer::Process {
            child: Mutex::new(child),
            stderr: Mutex::default(),
        });
        let copied = program.is_some();
        let link = Self::threads(
            peer,
            (Box::new(stdout), Box::new(stdin)),
            copied,
            (index, events),
        )?;
        if let Some(bytes) = program {
            link.write(Outgoing {
                bytes,
                is_clock: false,
            });
        }
        let watched = Arc::clone(&link.peer);
        thread::Builder::new().spawn(move || {
            let mut space = [0; 1024];
            while let Ok(n @ 1..) = stderr.read(&mut space) {
                watched.keep_stderr(&space[..n]);
            }
            watched.close_stderr();
        })?;
        Ok(link)
    }

    fn socket(descriptor: RawFd, index: usize, events: &Sender<Incoming>) -> io::Result<Self> {
        // SAFETY: reads flags of a descriptor, or fails if it is none.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            let error = io::Error::last_os_error();
            return Err(io::Error::new(
                error.kind(),
                format!("descriptor {descriptor}: {error}"),
            ));
        }
        // SAFETY: it is open, and the caller of the program has passed it for this purpose, so that nothing else closes it.
        let socket = Socket::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let (read, write) = (socket.try_clone()?, socket.try_clone()?);
        let peer = Arc::new(Peer::Socket(socket));
        Self::threads(
            peer,
            (Box::new(read), Box::new(write)),
            false,
            (index, events),
        )
    }

    fn threads(
        peer: Arc<Peer>,
        (read, write): (Box<dyn Read + Send>, Box<dyn Write + Send>),
        copied: bool,
        (index, events): (usize, &Sender<Incoming>),
    ) -> io::Result<Self> {
        let (commands, outgoing) = mpsc::channel();
        let questions = Questions::default();
        let asked = Arc::clone(&questions);
        let written = Arc::clone(&peer);
        thread::Builder::new().spawn(move || {
            write_commands(write, &outgoing, &asked);
            written.end_input();
        })?;
        let own = Arc::clone(&peer);
        let events = events.clone();
        thread::Builder::new().spawn(move || {
            let send = |event| events.send((index, event)).is_ok();
            let why = read_events(BufReader::new(read), copied, &questions, &send);
            // The controller may be gone.
            send(LinkEvent::Closed(own.end(why)));
        })?;
        Ok(Self {
            commands: Some(commands),
            peer,
        })
    }

    pub(super) fn send(&self, command: &PartCommand<'_>) {
        let Ok(mut bytes) = serde_json::to_vec(command) else {
            return;
        };
        bytes.push(b'\n');
        self.write(Outgoing {
            bytes,
            is_clock: matches!(command, PartCommand::Clock {}),
        });
    }

    fn write(&self, outgoing: Outgoing) {
        if let Some(commands) = &self.commands {
            // Fails if the link is closed, which is an event of its own.
            let _ = commands.send(outgoing);
        }
    }

    /// Ends the agent's input, and so the agent.
    pub(super) fn close(&mut self) {
        self.commands = None;
    }

    /// Ends the link at once.
    pub(super) fn abort(&mut self) {
        self.close();
        self.peer.kill();
    }

    /// Waits for the end of the agent, and of the program that leads to it.
    pub(super) fn wait(&mut self, until: Instant) {
        self.close();
        while !self.peer.is_over() {
            if Instant::now() >= until {
                return self.peer.kill();
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Ends agents, within one time for all of them.
pub(super) fn end_all<'a>(links: impl IntoIterator<Item = &'a mut Link>) {
    let mut links: Vec<_> = links.into_iter().collect();
    for link in &mut links {
        link.close();
    }
    let until = Instant::now() + ENDS_WITHIN;
    for link in links {
        link.wait(until);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.wait(Instant::now() + ENDS_WITHIN);
    }
}

fn write_commands(
    mut write: Box<dyn Write + Send>,
    outgoing: &Receiver<Outgoing>,
    asked: &Questions,
) {
    while let Ok(message) = outgoing.recv() {
        if message.is_clock {
            let mut asked = lock(asked);
            asked.push_back(Instant::now());
        }
        let written = write.write_all(&message.bytes).and_then(|()| write.flush());
        if written.is_err() {
            // The reader learns the reason.
            return;
        }
    }
}

/// Reads until the end, and returns its reason, if the agent has given one.
fn read_events(
    mut input: impl BufRead,
    copied: bool,
    questions: &Questions,
    send: &dyn Fn(LinkEvent) -> bool,
) -> Option<String> {
    let mut awaits_copy = copied;
    if !copied && !send(LinkEvent::Open) {
        return None;
    }
    let (mut line, mut noise, mut was_understood) = (Vec::new(), 0, false);
    loop {
        line.clear();
        match input
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
        {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => return Some(error.to_string()),
        }
        let received = Instant::now();
        if awaits_copy && line.trim_ascii() == ssh::COPIED.as_bytes() {
            awaits_copy = false;
            if !send(LinkEvent::Open) {
                return None;
            }
            continue;
        }
        let event = match serde_json::from_slice(&line) {
            Ok(event) => event,
            // A shell's greeting.
            Err(_) if !was_understood && noise < MAX_NOISE_LINES => {
                noise += 1;
                continue;
            }
            Err(error) => return Some(format!("its reply is not understood: {error}")),
        };
        was_understood = true;
        let event = if let PartEvent::Clock(agent_ns) = event {
            let asked_at = lock(questions).pop_front();
            let Some(asked_at) = asked_at else {
                return Some("it has replied to a question that was not asked".into());
            };
            LinkEvent::Clock {
                sent: asked_at,
                received,
                agent_ns,
            }
        } else {
            LinkEvent::Message(received, event)
        };
        if !send(event) {
            return None;
        }
    }
}

impl Peer {
    fn end_input(&self) {
        // A process has its end of the pipe closed by the writer.
        if let Self::Socket(socket) = self {
            let _ = socket.shutdown(Shutdown::Write);
        }
    }

    /// Nothing more comes: waits for the process a little, and describes the end.
    fn end(&self, why: Option<String>) -> String {
        let Self::Process { child, stderr } = self else {
            return why.unwrap_or_else(|| "the connection was closed".into());
        };
        let until = Instant::now() + ENDS_WITHIN;
        let status = loop {
            let mut child = lock(child);
            match child.try_wait() {
                Ok(Some(status)) => break status.to_string(),
                Err(error) => break error.to_string(),
                Ok(None) if Instant::now() < until => {}
                Ok(None) => {
                    drop(child);
                    self.kill();
                    break "it did not end".into();
                }
            }
            drop(child);
            thread::sleep(Duration::from_millis(5));
        };
        // The last lines of its standard error may not have been read yet. A child of the process can keep the pipe open:
        // the wait has a limit.
        let stderr = loop {
            let tail = lock(stderr);
            if tail.is_closed || Instant::now() >= until {
                break tail;
            }
            drop(tail);
            thread::sleep(Duration::from_millis(5));
        };
        let text = String::from_utf8_lossy(&stderr.bytes);
        let lines: Vec<_> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let last = lines[lines.len().saturating_sub(2)..].join("; ");
        match (why, last.is_empty()) {
            (Some(why), _) => why,
            (None, true) => format!("ssh: {status}"),
            (None, false) => format!("{last} (ssh: {status})"),
        }
    }

    fn keep_stderr(&self, bytes: &[u8]) {
        if let Self::Process { stderr, .. } = self {
            let mut stderr = lock(stderr);
            stderr.bytes.extend_from_slice(bytes);
            let excess = stderr.bytes.len().saturating_sub(MAX_STDERR_BYTES);
            stderr.bytes.drain(..excess);
        }
    }

    fn close_stderr(&self) {
        if let Self::Process { stderr, .. } = self {
            lock(stderr).is_closed = true;
        }
    }

    fn kill(&self) {
        match self {
            Self::Socket(socket) => _ = socket.shutdown(Shutdown::Both),
            Self::Process { child, .. } => {
                let mut child = lock(child);
                if let Ok(None) = child.try_wait() {
                    // SAFETY: the process has not been awaited, so its id, which is that of its group, is its own.
                    unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
                    let _ = child.wait();
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Socket(socket) => {
                // Waits for the other end to close, so that the last commands arrive.
                let _ = socket.shutdown(Shutdown::Write);
                true
            }
            Self::Process { child, .. } => {
                let mut child = lock(child);
                !matches!(child.try_wait(), Ok(None))
            }
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
