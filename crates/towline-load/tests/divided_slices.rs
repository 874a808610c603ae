//! An agent that divides the slices of another program among agents behind a program in place of ssh.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::agents::{Hosts, LOAD, await_end, signal};
use crate::scripted::Server;
use serde_json::{Value, json};

/// An agent that is the controller of others.
struct Controller {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Controller {
    fn start(hosts: &Hosts, names: &str) -> Self {
        let path = |name: &str| hosts.folder.join(name).display().to_string();
        let mut child = Command::new(LOAD)
            .args(["--agent", "--hosts", names, "--ssh", &path("ssh")])
            .args(["--agent-command", &path("agent")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn ask(&mut self, command: &Value) -> Value {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

#[test]
fn a_program_divides_its_slices_among_agents() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let mut controller = Controller::start(&hosts, "a,b=2");
    let hello = controller.ask(&json!({"op": "hello"}));
    assert_eq!(hello["hello"]["host"], "a, b", "{hello}");
    let config = json!({"targets": [{"url": server.url()}], "connections": 6, "timeout_s": 5});
    let opened = controller.ask(&json!({"op": "open", "session": "s", "config": config}));
    assert_eq!(opened, json!({"ok": true}));
    let probe = controller.ask(&json!({"op": "probe", "session": "s"}));
    assert_eq!(probe["responses"][0]["status"], 200);
    let count = json!({"op": "slice", "session": "s", "requests": 300});
    let rate = json!({"op": "slice", "session": "s", "duration_s": 0.6, "discard_s": 0.1, "rate_per_s": 300});
    let of = |slice: &Value| -> Vec<u64> {
        let agents = slice["slice"]["agents"].as_array().unwrap();
        agents
            .iter()
            .map(|agent| agent["answered"].as_u64().unwrap())
            .collect()
    };
    let slice = controller.ask(&count);
    assert_eq!(of(&slice), [100, 200], "{slice}");
    assert_eq!(slice["slice"]["answered"], 300);
    assert_eq!(slice["slice"]["response"]["count"], 300);
    assert_eq!(slice["slice"]["completed"], 300);
    assert!(
        slice["slice"]["histograms"]["response"]
            .as_str()
            .is_some_and(|histogram| histogram.starts_with("HISTF"))
    );
    let slice = controller.ask(&rate);
    assert_eq!(of(&slice).iter().sum::<u64>(), 150, "{slice}");
    // Longer than an agent waits for a word of its controller.
    let first = hosts.pid("a");
    sleep(Duration::from_secs(12));
    assert_eq!(of(&controller.ask(&count)), [100, 200]);
    assert_eq!(hosts.pid("a"), first);
    // A lost agent is named; the next slice has all of them again.
    signal(hosts.pid("b"), "KILL");
    await_end(hosts.pid("b"));
    let lost = controller.ask(&count);
    assert!(lost["error"].as_str().unwrap().contains('b'), "{lost}");
    assert_eq!(of(&controller.ask(&count)), [100, 200]);
    let prepare = controller.ask(&json!({"op": "clock"}));
    assert!(prepare["clock"].is_u64(), "{prepare}");
    // Nothing is left of it.
    let (a, b) = (hosts.pid("a"), hosts.pid("b"));
    controller.child.kill().unwrap();
    controller.child.wait().unwrap();
    await_end(a);
    await_end(b);
}

#[test]
fn a_controller_for_programs_takes_options_of_hosts_only() {
    for (arguments, part) in [
        (&["--agent", "-c", "3"][..], "--agent takes --hosts"),
        (&["--agent", "http://127.0.0.1:1/"], "--agent takes --hosts"),
        (&["--agent", "--ssh", "ssh"], "need --hosts"),
        (&["--agent", "--hosts", "-x"], "is not HOST"),
    ] {
        let output = Command::new(LOAD).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(part), "{text}");
    }
}
