//! Agents behind a program in place of ssh that runs their command on this machine.
#![allow(dead_code)] // every test file uses its own part

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::scripted::Server;

pub const LOAD: &str = env!("CARGO_BIN_EXE_towline-load");

/// A folder with the program in place of ssh. Agents note their process ids in it, by host.
pub struct Hosts {
    pub folder: PathBuf,
}

impl Hosts {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("towline-hosts-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let hosts = Self { folder };
        hosts.script(
            "ssh",
            "while [ \"$1\" != -- ]; do shift; done; host=$2; shift 2\n\
             echo $$ > \"$folder/$host.ssh\"; HOST=$host exec sh -c \"$*\"",
        );
        hosts.script(
            "agent",
            &format!("echo $$ > \"$folder/$HOST\"; exec {LOAD} --agent"),
        );
        hosts
    }

    /// Writes a program, for which `$folder` is the folder.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.folder.join(name);
        let folder = self.folder.display();
        fs::write(&path, format!("#!/bin/sh\nfolder={folder}\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    pub fn command(&self, hosts: &str, more: &[&str]) -> Command {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let mut command = Command::new(LOAD);
        command
            .args(["--hosts", hosts, "--json", "--ssh", &path("ssh")])
            .args(["--agent-command", &path("agent")])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run(&self, hosts: &str, more: &[&str]) -> Run {
        Run::of(&self.command(hosts, more).output().unwrap())
    }

    pub fn pid(&self, host: &str) -> i32 {
        pid(&self.folder.join(host))
    }

    pub fn await_end_of(&self, hosts: &[&str]) {
        for host in hosts {
            await_end(self.pid(host));
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub struct Run {
    pub status: Option<i32>,
    pub report: Value,
    pub stderr: String,
}

impl Run {
    pub fn of(output: &Output) -> Self {
        Self {
            status: output.status.code(),
            report: serde_json::from_slice(&output.stdout).unwrap_or(Value::Null),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub fn warnings(&self) -> String {
        self.report["warnings"].to_string()
    }

    pub fn agent(&self, name: &str) -> &Value {
        let agents = self.report["agents"].as_array().unwrap();
        agents.iter().find(|agent| agent["name"] == name).unwrap()
    }
}

fn pid(path: &Path) -> i32 {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if let Ok(pid) = text.trim().parse() {
            return pid;
        }
        assert!(Instant::now() < deadline, "{}", path.display());
        sleep(Duration::from_millis(5));
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim();
    !state.is_empty() && !state.starts_with('Z')
}

pub fn await_end(pid: i32) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "{pid} still runs");
        sleep(Duration::from_millis(10));
    }
}

pub fn signal(pid: i32, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

pub fn await_requests(server: &Server, count: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.request_count.load(Ordering::Relaxed) < count {
        assert!(Instant::now() < deadline, "no load");
        sleep(Duration::from_millis(5));
    }
}

pub fn end(child: Child) -> Run {
    Run::of(&child.wait_with_output().unwrap())
}
