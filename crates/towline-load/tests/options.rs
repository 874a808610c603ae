//! The program with the options that users of k6, oha and vegeta expect, against real servers.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::responder::Responder;
use crate::scripted::{HELLO, Reply, Server};
use serde_json::Value;

fn load(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_towline-load"))
        .args(arguments)
        .output()
        .unwrap()
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn refusing_url() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}/", listener.local_addr().unwrap())
}

#[test]
fn a_condition_that_holds_is_status_3() {
    let server = Server::new(|call| {
        thread::sleep(Duration::from_millis(3));
        Reply::Send(if call.number % 10 == 9 {
            b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
        } else {
            HELLO
        })
    });
    let url = server.url();
    let run = |conditions: &[&str]| {
        let mut arguments = vec!["-n", "40", "-c", "1", "--fail-if"];
        arguments.extend(conditions);
        arguments.push(&url);
        load(&arguments)
    };
    // Four of 40 fail, and no response takes less than 3 ms.
    let met = run(&["errors>20%", "p50>10s", "rate<1"]);
    assert_eq!(status(&met), 0, "{met:?}");
    let slow = run(&["p50>1ms", "errors>20%"]);
    assert_eq!(status(&slow), 3, "{slow:?}");
    assert!(
        errors(&slow).contains("failed by p50>1ms: it is"),
        "{slow:?}"
    );
    assert!(!errors(&slow).contains("errors>20%"));
    let failing = run(&["errors>5%"]);
    assert_eq!(status(&failing), 3);
    assert!(
        errors(&failing).contains("errors>5%: it is 10.000 %"),
        "{failing:?}"
    );
    // Without a condition on errors, failed requests are status 1.
    assert_eq!(status(&run(&["p50>10s"])), 1);
    let wrong = load(&["--fail-if", "p98>1ms", &url]);
    assert_eq!(status(&wrong), 2);
    assert!(errors(&wrong).contains("p98 is not reported"), "{wrong:?}");
}

#[test]
fn a_response_unlike_the_first_one_is_reported() {
    let server = Server::new(|call| {
        Reply::Send(match call.number {
            7 => b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhell",
            8 => b"HTTP/1.1 204 No Content\r\n\r\n",
            _ => HELLO,
        })
    });
    let url = server.url();
    let output = load(&["-n", "20", "-c", "1", "--json", &url]);
    let report = report(&output);
    assert_eq!(status(&output), 0);
    assert_eq!(
        (&report["answered"], &report["changed"]),
        (&20.into(), &2.into())
    );
    assert_eq!(report["first_change"], "a body of 4 bytes after 5");
    // Two threads have the first response in common.
    let alternating = Server::new(|call| {
        Reply::Send(if call.number == 0 {
            HELLO
        } else {
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"
        })
    });
    let url = alternating.url();
    let output = load(&[
        "-n",
        "8",
        "-c",
        "2",
        "-t",
        "2",
        "--fail-if",
        "changed>0",
        &url,
    ]);
    assert_eq!(status(&output), 3, "{output:?}");
    let own = load(&[
        "-n",
        "8",
        "-c",
        "1",
        "--expect-status",
        "200",
        "--fail-if",
        "changed>0",
        &url,
    ]);
    assert_eq!(status(&own), 0, "{own:?}");
}

#[test]
fn a_dead_server_ends_the_run_at_once() {
    let url = refusing_url();
    for threads in ["1", "2"] {
        let begun = Instant::now();
        let output = load(&["-d", "30", "-t", threads, &url]);
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert_eq!(status(&output), 2, "{output:?}");
        let why = errors(&output);
        let authority = url.trim_start_matches("http://").trim_end_matches('/');
        assert!(
            why.contains(&format!("cannot connect to {authority}")),
            "{why}"
        );
        assert!(why.to_lowercase().contains("refused"), "{why}");
    }
    // With new connections for each request, it is found out while the load runs.
    let begun = Instant::now();
    let output = load(&["-d", "30", "--fresh", "--give-up-after", "200ms", &url]);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(status(&output), 1, "{output:?}");
}

#[test]
fn a_server_that_dies_ends_the_run_in_bounded_time() {
    let server = Responder::plain(&[]);
    let url = server.url("/");
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(700));
        drop(server);
        Instant::now()
    });
    let output = load(&[
        "-d",
        "60",
        "-c",
        "4",
        "--give-up-after",
        "500ms",
        "--json",
        &url,
    ]);
    let died = killer.join().unwrap();
    assert!(died.elapsed() < Duration::from_secs(5));
    assert_eq!(status(&output), 1);
    let report = report(&output);
    assert!(report["answered"].as_u64().unwrap() > 0);
    let why = report["ended_early"].as_str().unwrap();
    assert!(
        why.contains("the server was lost") && why.contains("cannot connect to 127.0.0.1"),
        "{why}"
    );
}

#[test]
fn no_connection_is_opened_without_a_request_for_it() {
    let server = Server::hello();
    let output = load(&["-n", "1", &server.url()]);
    assert_eq!(status(&output), 0, "{output:?}");
    assert_eq!(server.accepted.load(Ordering::Relaxed), 1);
}

#[test]
fn requests_go_to_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("towline-load-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let mut n = 0;
        for _ in 0..3 {
            n = socket.read(&mut request).unwrap();
            socket.write_all(HELLO).unwrap();
        }
        String::from_utf8_lossy(&request[..n]).into_owned()
    });
    let socket = path.to_str().unwrap();
    let output = load(&[
        "-n",
        "3",
        "-c",
        "1",
        "--unix-socket",
        socket,
        "http://app.example/a?b",
    ]);
    assert_eq!(status(&output), 0, "{output:?}");
    let request = server.join().unwrap();
    assert!(
        request.starts_with("GET /a?b HTTP/1.1\r\nHost: app.example\r\n"),
        "{request}"
    );
    std::fs::remove_file(&path).unwrap();
    let output = load(&["-n", "3", "--unix-socket", socket, "http://app.example/"]);
    assert_eq!(status(&output), 2);
    assert!(errors(&output).contains(socket), "{output:?}");
}

/// The connections of each second, and the successful responses in it.
fn seconds(report: &Value) -> Vec<(u64, u64)> {
    let series = report["series"].as_array().unwrap();
    let number = |second: &Value, name: &str| second[name].as_u64().unwrap();
    series
        .iter()
        .map(|second| {
            (
                number(second, "live_connections"),
                number(second, "answered"),
            )
        })
        .collect()
}

#[test]
fn connections_follow_the_stages() {
    let server = Server::new(|_| {
        thread::sleep(Duration::from_millis(5));
        Reply::Send(HELLO)
    });
    let url = server.url();
    for threads in ["1", "2"] {
        let output = load(&[
            "--stages",
            "1s:20,1s:20,1s:4",
            "-t",
            threads,
            "--json",
            &url,
        ]);
        assert_eq!(status(&output), 0, "{output:?}");
        let report = report(&output);
        assert!((report["measured_s"].as_f64().unwrap() - 3.0).abs() < 1e-6);
        assert_eq!(report["setup"]["stages"], "1s:20,1s:20,1s:4");
        let live: Vec<_> = seconds(&report).iter().map(|(live, _)| *live).collect();
        assert!((18..=20).contains(&live[0]) && live[1] == 20, "{live:?}");
        assert!((4..=6).contains(&live[2]), "{live:?}");
        assert_eq!(report["reconnects"], 0);
    }
    let fresh = load(&["--stages", "300ms:5,300ms:0", "--fresh", "--json", &url]);
    assert_eq!(status(&fresh), 0, "{fresh:?}");
}

#[test]
fn the_rate_follows_the_stages() {
    let server = Responder::plain(&[]);
    let url = server.url("/");
    let output = load(&[
        "-R",
        "100",
        "--stages",
        "1s:300,1s:300,1s:0",
        "-c",
        "4",
        "--json",
        &url,
    ]);
    assert_eq!(status(&output), 0, "{output:?}");
    let report = report(&output);
    let answered: Vec<_> = seconds(&report)
        .iter()
        .map(|(_, answered)| *answered)
        .collect();
    // The areas of the three trapezia; a response may end in the next second.
    for (answered, expected) in answered.iter().zip([200, 300, 150_u64]) {
        assert!(
            answered.abs_diff(expected) <= 30,
            "{answered} for {expected}"
        );
    }
    assert!(
        report["answered"].as_u64().unwrap().abs_diff(650) <= 2,
        "{report}"
    );
    for (arguments, part) in [
        (
            ["--stages", "1s:2", "-d", "3"],
            "--stages and --duration exclude",
        ),
        (["--stages", "1s", "-c", "3"], "such as 30s:100"),
        (["--stages", "1s:1.5", "-c", "3"], "whole numbers"),
    ] {
        let output = load(&[&arguments[..], &[&url]].concat());
        assert_eq!(status(&output), 2);
        assert!(errors(&output).contains(part), "{output:?}");
    }
}
