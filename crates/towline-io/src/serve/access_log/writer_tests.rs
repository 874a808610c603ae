//! Real files, pipes and full disks.

use super::*;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::OpenOptionsExt;

const LONG: Duration = Duration::from_secs(20);

/// A directory for one test, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("towline-log-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("access.log")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(path: &PathBuf) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn fifo(path: &std::path::Path) {
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a valid C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

/// Opens the reading end, so that the FIFO can be opened for writing without blocking.
fn open_reader(path: &std::path::Path) -> File {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .unwrap()
}

#[test]
fn lines_arrive_in_order_and_close_flushes() {
    let directory = Directory::new("order");
    let writer = Writer::new(Sink::File(directory.file()), DEFAULT_BUFFER_BYTES).unwrap();
    let mut expected = String::new();
    for number in 0..5000 {
        let line = format!("line {number}\n");
        assert!(writer.push(line.as_bytes()));
        expected += &line;
    }
    assert!(writer.close(LONG));
    assert_eq!(read(&directory.file()), expected);
    assert!(!writer.push(b"late\n"));
    assert_eq!(writer.dropped(), 1);
    assert!(writer.close(LONG), "closing twice is harmless");
}

#[test]
fn lines_come_without_closing_and_after_a_pause() {
    let directory = Directory::new("pause");
    let writer = Writer::new(Sink::File(directory.file()), 1000).unwrap();
    writer.push(b"one\n");
    until("the first line", || read(&directory.file()) == "one\n");
    writer.push(b"two\n");
    until("the second line", || {
        read(&directory.file()) == "one\ntwo\n"
    });
}

#[test]
fn several_threads_never_mix_lines() {
    let directory = Directory::new("threads");
    let writer = Writer::new(Sink::File(directory.file()), DEFAULT_BUFFER_BYTES).unwrap();
    std::thread::scope(|scope| {
        for letter in ["a", "b", "c", "d"] {
            let writer = &writer;
            scope.spawn(move || {
                for _ in 0..500 {
                    assert!(writer.push(format!("{}\n", letter.repeat(40)).as_bytes()));
                }
            });
        }
    });
    assert!(writer.close(LONG));
    let text = read(&directory.file());
    assert_eq!(text.lines().count(), 2000);
    assert!(
        text.lines()
            .all(|line| line.len() == 40 && line.bytes().all(|byte| byte == line.as_bytes()[0]))
    );
}

#[test]
fn rotation_moves_to_a_new_file() {
    let directory = Directory::new("rotate");
    let (file, old) = (directory.file(), directory.0.join("old.log"));
    let writer = Writer::new(Sink::File(file.clone()), 1000).unwrap();
    writer.push(b"before\n");
    until("the line before", || read(&file) == "before\n");
    std::fs::rename(&file, &old).unwrap();
    writer.push(b"still old\n");
    until("the line in the moved file", || {
        read(&old).ends_with("still old\n")
    });
    writer.reopen();
    writer.push(b"after\n");
    assert!(writer.close(LONG));
    assert_eq!(read(&file), "after\n");
}

#[test]
fn a_reopen_that_fails_keeps_the_old_file() {
    let directory = Directory::new("reopen");
    let inner = directory.0.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let (file, moved) = (inner.join("access.log"), directory.0.join("moved"));
    let writer = Writer::new(Sink::File(file.clone()), 1000).unwrap();
    writer.push(b"one\n");
    until("the first line", || read(&file) == "one\n");
    std::fs::rename(&inner, &moved).unwrap();
    writer.reopen();
    writer.push(b"two\n");
    assert!(writer.close(LONG));
    assert_eq!(read(&moved.join("access.log")), "one\ntwo\n");
    assert_eq!(writer.dropped(), 0);
}

#[test]
fn a_path_that_cannot_be_written_fails_on_creation() {
    let directory = Directory::new("birth");
    let sink = Sink::File(directory.0.join("missing/access.log"));
    assert_eq!(
        Writer::new(sink, 1000).err().unwrap().kind(),
        ErrorKind::NotFound
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_drops_and_counts() {
    let writer = Writer::new(Sink::File("/dev/full".into()), 1000).unwrap();
    for _ in 0..3 {
        assert!(writer.push(b"line\n"));
    }
    until("the loss", || writer.dropped() == 3);
    assert_eq!((writer.take_unreported(), writer.take_unreported()), (3, 0));
    assert!(writer.push(b"line\n"), "the next line is tried again");
    assert!(!writer.close(LONG), "what was left could not be written");
    assert_eq!(writer.dropped(), 4);
}

#[test]
fn a_pipe_without_a_reader_bounds_memory_and_close() {
    let directory = Directory::new("pipe");
    fifo(&directory.file());
    let mut reader = open_reader(&directory.file());
    let writer = Writer::new(Sink::File(directory.file()), 64 * 1024).unwrap();
    let line = [&[b'x'; 99][..], b"\n"].concat();
    let started = Instant::now();
    let taken = (0..10_000).filter(|_| writer.push(&line)).count();
    assert!(started.elapsed() < LONG, "pushing waited for the reader");
    assert!(writer.dropped() > 0 && taken as u64 + writer.dropped() == 10_000);
    assert!(writer.shared.lock().lines.capacity() <= 128 * 1024);
    assert!(
        !writer.close(Duration::from_millis(50)),
        "the deadline ends the wait"
    );
    let mut sample = [0; 100];
    reader.read_exact(&mut sample).unwrap();
    assert_eq!(sample[..], line[..]);
}

#[test]
fn a_broken_pipe_drops_and_counts() {
    // Python ignores SIGPIPE, too; without this the write would raise it.
    // SAFETY: changes one disposition that no test relies on.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let directory = Directory::new("broken");
    fifo(&directory.file());
    let reader = open_reader(&directory.file());
    let writer = Writer::new(Sink::File(directory.file()), 1000).unwrap();
    let writing_end = Sink::File(directory.file()).open().unwrap();
    drop(reader);
    assert!(writer.push(b"line\n"));
    until("the loss", || writer.dropped() == 1);
    drop(writing_end);
    assert!(writer.close(LONG));
}

#[test]
fn pieces_are_whole_lines() {
    assert_eq!(piece(b"aa\nbb\ncc\n", 100), b"aa\nbb\ncc\n");
    assert_eq!(piece(b"aa\nbb\ncc\n", 7), b"aa\nbb\n");
    assert_eq!(piece(b"aaaaaaaa\n", 4), b"aaaa");
}

#[test]
fn a_line_torn_by_an_error_is_ended() {
    let directory = Directory::new("torn");
    let Target::File(mut target) = Sink::File(directory.file()).open().unwrap() else {
        panic!("a file");
    };
    assert_eq!(target.write_lines(b"half a li", || None), 9);
    assert!(target.torn);
    target.write_lines(b"next\n", || None);
    assert!(!target.torn);
    assert_eq!(read(&directory.file()), "half a li\nnext\n");
}

#[test]
fn a_writer_works_after_a_fork() {
    let directory = Directory::new("fork");
    let writer = Writer::new(Sink::File(directory.file()), 1000).unwrap();
    // SAFETY: the child only uses the writer, whose lock is free, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        writer.push(b"from the child\n");
        let status = i32::from(!writer.close(LONG));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: waits for the child forked above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    writer.push(b"from the parent\n");
    assert!(writer.close(LONG));
    assert_eq!(read(&directory.file()), "from the child\nfrom the parent\n");
}

#[test]
fn standard_streams_can_be_opened() {
    for sink in [Sink::Stdout, Sink::Stderr] {
        let Target::File(target) = sink.open().unwrap() else {
            panic!("a file");
        };
        assert!(
            target.file.into_raw_fd() > 2,
            "the stream itself stays with the process"
        );
    }
}

#[test]
fn lines_are_passed_to_a_function_on_the_thread_of_the_writer() {
    let received = Arc::new(Mutex::new((Vec::new(), None)));
    let sink = {
        let received = Arc::clone(&received);
        LineSink(Arc::new(move |lines: &[u8]| {
            let mut received = received.lock().unwrap();
            received.0.extend_from_slice(lines);
            received.1 = Some(std::thread::current().id());
        }))
    };
    let writer = Writer::new(Sink::Lines(sink), 1000).unwrap();
    assert!(writer.push(b"one\n") && writer.push(b"two\n"));
    assert!(writer.close(LONG));
    let received = received.lock().unwrap();
    assert_eq!(received.0, b"one\ntwo\n");
    assert_ne!(received.1, Some(std::thread::current().id()));
}
