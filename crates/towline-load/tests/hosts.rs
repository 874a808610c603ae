//! One load from several agents, behind a program in place of ssh that runs their command on this machine.

mod agents;
mod scripted;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agents::{Hosts, LOAD, Run, await_end, await_requests, end, signal};
use scripted::{HELLO, Reply, Server};
use serde_json::Value;

#[test]
fn connections_and_requests_are_divided_and_figures_add_up() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let run = hosts.run("a,b=3,a", &["-n", "1000", "-c", "11", &server.url()]);
    assert_eq!(run.status, Some(0), "{} {}", run.stderr, run.report);
    assert_eq!(server.request_count.load(Ordering::Relaxed), 1000);
    assert_eq!(server.accepted.load(Ordering::Relaxed), 11);
    let report = &run.report;
    assert_eq!(
        (&report["answered"], &report["response"]["count"]),
        (&1000.into(), &1000.into())
    );
    assert_eq!(
        (&report["setup"]["threads"], &report["setup"]["connections"]),
        (&5.into(), &11.into())
    );
    let of = |name: &str| run.agent(name)["answered"].as_u64().unwrap();
    assert_eq!((of("a"), of("b"), of("a (2)")), (200, 600, 200));
    assert_eq!(run.agent("b")["share"], 0.6);
    for agent in report["agents"].as_array().unwrap() {
        assert!(
            agent["clock_error_us"].as_f64().unwrap() < 5000.0,
            "{agent}"
        );
        assert_eq!(agent["lost"], Value::Null);
    }
    hosts.await_end_of(&["a", "b"]);
}

#[test]
fn hanging_and_invalid_requests_of_agents_are_errors_of_all() {
    let server = Server::new(|call| match call.number {
        6 => Reply::Silence,
        _ => Reply::Send(HELLO),
    });
    let hosts = Hosts::new();
    let data = hosts.folder.join("rows.csv");
    fs::write(&data, "user\na\n\nb\nc\nd#\n").unwrap();
    let (data, url) = (data.display().to_string(), server.url());
    let url = format!("{url}{{{{user:raw}}}}");
    let options = [
        "-d",
        "200ms",
        "-c",
        "4",
        "--timeout",
        "60s",
        "--data",
        &data,
    ];
    let more = ["--fail-if", "max>900ms", "errors>1000000000", "--", &url];
    let run = hosts.run("a,b", &[&options[..], &more].concat());
    // A condition on errors holds them; the latency of the request that hangs fails the run.
    assert_eq!(run.status, Some(3), "{} {}", run.stderr, run.report);
    let report = &run.report;
    assert_eq!(report["errors"]["timeout"], 1, "{report:#}");
    assert_eq!(report["in_flight"]["overdue"], 1, "{report:#}");
    assert_eq!(report["in_flight"]["age"]["count"], 4, "{report:#}");
    assert!(report["errors"]["invalid"].as_u64() > Some(0), "{report:#}");
    // The row and line of the whole file, of which each agent has every other row.
    let invalid = report["invalid"][0].as_str().unwrap();
    let place = "b: GET /{{user:raw}}: row 4 of the data (line 6), column \"user\": ";
    assert!(invalid.starts_with(place), "{invalid}");
}

/// Arrivals of requests, in seconds.
fn arrivals(hosts: &str, more: &[&str]) -> (Vec<f64>, Run) {
    let times = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&times);
    let server = Server::new(move |_| {
        own.lock().unwrap().push(Instant::now());
        Reply::Send(HELLO)
    });
    let run = Hosts::new().run(hosts, &[more, &[&server.url()]].concat());
    assert_eq!(run.status, Some(0), "{} {}", run.stderr, run.report);
    let mut times = std::mem::take(&mut *times.lock().unwrap());
    times.sort();
    let first = times[0];
    let times = times.iter().map(|at| (*at - first).as_secs_f64());
    (times.collect(), run)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn starts_of_all_agents_are_equally_far_apart() {
    let gap = 1.0 / 400.0;
    let mut error = f64::MAX;
    // A claim for an idle machine: until it holds once.
    for _ in 0..5 {
        let (times, run) = arrivals("a,b,c=2", &["-R", "400", "-d", "1", "-c", "8"]);
        assert_eq!(times.len(), 400);
        assert_eq!(
            run.report["open_loop"]["achieved_share"],
            1.0,
            "{}",
            run.warnings()
        );
        #[expect(clippy::cast_precision_loss, reason = "400")]
        let late = times.iter().enumerate().map(|(n, at)| at - n as f64 * gap);
        let middle = median(late.clone().collect());
        error = median(late.map(|late| (late - middle).abs()).collect());
        if error < 0.0005 {
            return;
        }
    }
    panic!("the schedule is missed by {error} s");
}

#[test]
fn gaps_between_poisson_starts_of_all_agents_are_exponential() {
    for _ in 0..10 {
        let options = [
            "-R",
            "1000",
            "--poisson",
            "-d",
            "2",
            "-c",
            "16",
            "--seed",
            "7",
        ];
        let (times, _) = arrivals("a,b,c,d", &options);
        assert!(times.len().abs_diff(2000) < 200, "{}", times.len());
        let mut gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_by(f64::total_cmp);
        // Kolmogorov and Smirnov's distance from 1 - exp(-1000 t); its 1 % limit is 1.63 / sqrt(n).
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let (n, distance) = gaps
            .iter()
            .enumerate()
            .fold((0.0, 0.0_f64), |(_, most), (k, gap)| {
                let n = gaps.len() as f64;
                let expected = 1.0 - (-1000.0 * gap).exp();
                let found = (k as f64 / n - expected)
                    .abs()
                    .max(((k + 1) as f64 / n - expected).abs());
                (n, most.max(found))
            });
        // Wake-ups of a busy machine move starts together.
        if distance < 1.63 / n.sqrt() + 0.03 {
            return;
        }
    }
    panic!("the gaps are not exponential");
}

#[test]
fn a_killed_agent_is_named_and_the_others_go_on() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let options = ["-R", "400", "-d", "3", "-c", "8", &server.url()];
    let load = hosts.command("a,b,c,d", &options).spawn().unwrap();
    await_requests(&server, 200);
    signal(hosts.pid("b"), "KILL");
    let run = end(load);
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    let named = run.stderr.contains("b: lost: ssh: signal: 9") || run.stderr.contains("137");
    assert!(named, "{}", run.stderr);
    assert!(
        run.warnings().contains("b was lost after"),
        "{}",
        run.warnings()
    );
    assert!(
        run.warnings().contains("25.0 % of the load is missing"),
        "{}",
        run.warnings()
    );
    let share = run.report["open_loop"]["achieved_share"].as_f64().unwrap();
    assert!((0.70..=0.75).contains(&share), "{share}");
    assert_eq!(run.report["answered"], 900);
    assert!(run.agent("b")["lost_after_s"].as_f64().unwrap() < 3.0);
    hosts.await_end_of(&["a", "c", "d", "b.ssh"]);
}

#[test]
fn a_run_can_stop_with_a_lost_agent() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let options = [
        "--on-lost-agent",
        "stop",
        "-d",
        "60",
        "-R",
        "100",
        &server.url(),
    ];
    let load = hosts.command("a,b", &options).spawn().unwrap();
    await_requests(&server, 50);
    signal(hosts.pid("b"), "KILL");
    let began = Instant::now();
    let run = end(load);
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    assert!(run.report["answered"].as_u64().unwrap() > 0);
    hosts.await_end_of(&["a"]);
}

#[test]
fn ctrl_c_ends_every_agent_and_reports() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let load = hosts
        .command("a,b", &["-d", "60", "-R", "100", &server.url()])
        .spawn()
        .unwrap();
    await_requests(&server, 50);
    signal(load.id().cast_signed(), "INT");
    let run = end(load);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(
        run.report["answered"].as_u64().unwrap() >= 40,
        "{}",
        run.report
    );
    assert!(run.agent("a")["lost"].is_null() && run.agent("b")["lost"].is_null());
    hosts.await_end_of(&["a", "b", "a.ssh", "b.ssh"]);
}

#[test]
fn nothing_is_left_of_a_killed_controller() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let mut load = hosts
        .command("a,b", &["-d", "600", "-R", "100", &server.url()])
        .spawn()
        .unwrap();
    await_requests(&server, 50);
    load.kill().unwrap();
    load.wait().unwrap();
    hosts.await_end_of(&["a", "b", "a.ssh", "b.ssh"]);
}

#[test]
fn a_silent_agent_is_noticed_and_then_lost() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let options = ["-R", "100", "-d", "14", "-c", "4", &server.url()];
    let load = hosts.command("a,b", &options).spawn().unwrap();
    await_requests(&server, 50);
    signal(hosts.pid("a"), "STOP");
    let run = end(load);
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    assert!(
        run.stderr.contains("a: nothing was heard of it for 2"),
        "{}",
        run.stderr
    );
    assert!(
        run.stderr
            .contains("a: lost: nothing was heard of it for 10 s"),
        "{}",
        run.stderr
    );
    hosts.await_end_of(&["a", "b"]);
}

#[test]
fn an_agent_ends_when_its_controller_is_silent() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let load = hosts
        .command("a", &["-d", "600", "-R", "100", &server.url()])
        .spawn()
        .unwrap();
    await_requests(&server, 50);
    let controller = load.id().cast_signed();
    signal(controller, "STOP");
    await_end(hosts.pid("a"));
    signal(controller, "CONT");
    let run = end(load);
    assert_eq!(run.status, Some(1));
    assert!(
        run.stderr.contains("nothing was heard of its controller"),
        "{}",
        run.stderr
    );
}

#[test]
fn agents_that_do_not_start_are_named_with_the_reason() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let url = server.url();
    let own = env!("CARGO_PKG_VERSION");
    let hello = |version: &str| {
        let introduction = format!(
            r#"{{"hello":{{"version":"{version}","host":"","local_ports":null,"open_files":null}}}}"#
        );
        format!("read l; echo '{introduction}'; read l; echo '{{\"ok\":true}}'; exec sleep 60")
    };
    for (body, part) in [
        (
            "echo 'Permission denied (publickey).' >&2; exit 255",
            "no agent on b: Permission denied (publickey).",
        ),
        (
            &hello("0.0.1"),
            &*format!("no agent on b: it is towline 0.0.1, this is {own}"),
        ),
        (
            r#"read l; echo '{"error":"unknown variant `hello`"}'"#,
            "it is another version",
        ),
        (
            "echo hello; echo world; exit 0",
            "no agent on b: ssh: exit status: 0",
        ),
    ] {
        hosts.script(
            "agent",
            &format!("if [ $HOST = b ]; then {body}\nfi\nexec {LOAD} --agent"),
        );
        let run = hosts.run("a,b", &["-d", "1", &url]);
        assert_eq!(run.status, Some(2), "{body}: {}", run.stderr);
        assert!(run.stderr.contains(part), "{part} in {}", run.stderr);
    }
    // A shell may greet before the agent.
    hosts.script(
        "agent",
        &format!("echo Welcome to $HOST; exec {LOAD} --agent"),
    );
    assert_eq!(hosts.run("a,b", &["-n", "10", &url]).status, Some(0));
    // No server; which agent is first is chance.
    hosts.script("agent", &format!("exec {LOAD} --agent"));
    let run = hosts.run("a,b", &["-d", "1", "http://127.0.0.1:1/"]);
    assert_eq!(run.status, Some(2));
    assert!(
        run.stderr.contains(": cannot connect to 127.0.0.1:1: "),
        "{}",
        run.stderr
    );
    // Too few open files.
    hosts.script(
        "agent",
        &format!("[ $HOST = b ] && ulimit -n 100; exec {LOAD} --agent"),
    );
    let run = hosts.run("a,b", &["-c", "200", "-d", "1", &url]);
    assert!(
        run.stderr
            .contains("b: 100 connections need more open files"),
        "{}",
        run.stderr
    );
    // An agent without a program.
    let missing = [
        ("--ssh", "no-such-program-for-ssh"),
        ("--agent-binary", "no-such-file"),
    ];
    for (option, value) in missing {
        let mut command = Command::new(LOAD);
        let run = Run::of(
            &command
                .args(["--hosts", "a", option, value, &url])
                .output()
                .unwrap(),
        );
        assert_eq!(run.status, Some(2));
        assert!(run.stderr.contains(value), "{}", run.stderr);
    }
}

#[test]
fn a_program_is_copied_used_and_removed() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let copies = hosts.folder.join("copies");
    fs::create_dir(&copies).unwrap();
    let mut command = Command::new(LOAD);
    let ssh = hosts.folder.join("ssh").display().to_string();
    let load = command
        .args(["--hosts", "a", "--ssh", &ssh, "--agent-binary", LOAD])
        .args(["--json", "-d", "60", "-R", "100", &server.url()])
        .env("TMPDIR", &copies)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_requests(&server, 50);
    let folder = fs::read_dir(&copies)
        .unwrap()
        .flatten()
        .find(|entry| entry.path().join("towline-load").exists());
    assert_eq!(
        folder.unwrap().metadata().unwrap().permissions().mode() & 0o777,
        0o700
    );
    signal(load.id().cast_signed(), "INT");
    let run = end(load);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    hosts.await_end_of(&["a.ssh"]);
    assert_eq!(fs::read_dir(&copies).unwrap().count(), 0);
}

#[test]
fn rows_of_data_are_divided_and_thresholds_are_about_all() {
    let paths = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&paths);
    let server = Server::new(move |request| {
        let line = request.request.split(|byte| *byte == b' ').nth(1).unwrap();
        own.lock()
            .unwrap()
            .push(String::from_utf8_lossy(line).into_owned());
        Reply::Send(HELLO)
    });
    let hosts = Hosts::new();
    let data = hosts.folder.join("users.csv");
    let rows: Vec<_> = (0..30).map(|n| n.to_string()).collect();
    fs::write(&data, format!("user\n{}\n", rows.join("\n"))).unwrap();
    let url = format!("{}{{{{user}}}}", server.url());
    let data = data.display().to_string();
    let options = [
        "--data",
        &data,
        "-n",
        "30",
        "-c",
        "3",
        "--fail-if",
        "rate>1",
        &url,
    ];
    let run = hosts.run("a,b,c", &options);
    assert_eq!(run.status, Some(3), "{}", run.stderr);
    let mut seen = std::mem::take(&mut *paths.lock().unwrap());
    seen.sort();
    let mut expected: Vec<_> = (0..30).map(|n| format!("/{n}")).collect();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn stages_are_those_of_all_agents() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    // 0 to 200/s in 1 s, 200/s for 1 s: 300 requests.
    let options = [
        "-R",
        "0.001",
        "--stages",
        "1s:200,1s:200",
        "-c",
        "8",
        &server.url(),
    ];
    let run = hosts.run("a,b,c", &options);
    assert_eq!(run.status, Some(0), "{} {}", run.stderr, run.report);
    let answered = run.report["answered"].as_u64().unwrap();
    assert!(answered.abs_diff(300) <= 3, "{answered}");
    assert_eq!(run.report["series"].as_array().unwrap().len(), 2);
    // Connections.
    let run = hosts.run("a,b,c", &["--stages", "1s:9,1s:9", &server.url()]);
    assert_eq!(
        run.report["live_connections"]["wanted"], 9,
        "{} {}",
        run.stderr, run.report
    );
    assert_eq!(run.report["live_connections"]["at_end"], 9);
}

#[test]
fn series_of_runs_use_the_same_agents() {
    let (server, hosts) = (Server::hello(), Hosts::new());
    let options = ["--connections-sweep", "2,6", "-d", "0.3", &server.url()];
    let lines = hosts.command("a,b", &options).output().unwrap();
    assert!(
        lines.status.success(),
        "{}",
        String::from_utf8_lossy(&lines.stderr)
    );
    let reports: Vec<Value> = (String::from_utf8_lossy(&lines.stdout).lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[1]["setup"]["connections"], 6);
    assert_eq!(server.accepted.load(Ordering::Relaxed), 8);
    let more = [
        "--find-peak",
        "-R",
        "50",
        "--max-rate",
        "100",
        "-d",
        "0.3",
        "--goal",
        "1s",
    ];
    let search = hosts.run("a,b", &[&more[..], &[&server.url()]].concat());
    assert_eq!(search.status, Some(0), "{}", search.stderr);
    hosts.await_end_of(&["a", "b"]);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    for (options, part) in [
        (&["--hosts", "a", "--barrier"][..], "barrier"),
        (&["--ssh", "ssh"], "need --hosts"),
        (
            &["--hosts", "a", "--on-lost-agent", "x"],
            "continue nor stop",
        ),
        (
            &[
                "--hosts",
                "a",
                "--agent-binary",
                "x",
                "--agent-command",
                "y",
            ],
            "exclude",
        ),
        (&["--hosts", "-oProxyCommand=x"], "HOST"),
    ] {
        let mut command = Command::new(LOAD);
        let run = Run::of(
            &command
                .args(options)
                .arg("http://127.0.0.1:1/")
                .output()
                .unwrap(),
        );
        assert_eq!(run.status, Some(2), "{options:?}");
        assert!(run.stderr.contains(part), "{}", run.stderr);
    }
}
