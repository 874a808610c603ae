//! Requests with values of a file, and sessions that carry values from one response to the next request.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::scripted::{Reply, Server};
use serde_json::{Value, json};

/// The requests that a server has received.
pub type RequestLog = Arc<Mutex<Vec<String>>>;

pub fn server(respond: impl Fn(&str) -> String + Send + Sync + 'static) -> (Server, RequestLog) {
    let received = RequestLog::default();
    let seen = Arc::clone(&received);
    let server = Server::new(move |call| {
        let request = String::from_utf8_lossy(call.request).into_owned();
        let response = respond(&request);
        seen.lock().unwrap().push(request);
        Reply::Send(Box::leak(response.into_bytes().into_boxed_slice()))
    });
    (server, received)
}

pub fn ok(fields: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub fn file(name: &str, text: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let unique = format!("towline-{}-{number}-{name}", std::process::id());
    let path = std::env::temp_dir().join(unique);
    std::fs::write(&path, text).unwrap();
    path
}

pub fn load(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_towline-load"))
        .args(arguments)
        .output()
        .unwrap()
}

pub fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn each_request_has_the_next_row_of_the_file() {
    let (server, received) =
        server(|request| ok("", if request.contains("ann") { "1" } else { "22" }));
    let url = format!("{}users/{{{{name}}}}?q={{{{text}}}}", server.url());
    let csv = file("rows.csv", "name,text\r\nann,\"a b, c\"\r\nbob,x\r\n");
    let jsonl = file(
        "rows.jsonl",
        "{\"name\":\"ann\",\"text\":\"a b, c\"}\n{\"name\":\"bob\",\"text\":\"x\"}\n",
    );
    for path in [&csv, &jsonl] {
        let data = path.to_str().unwrap();
        let output = load(&[
            "-n",
            "4",
            "-c",
            "1",
            "--json",
            "--data",
            data,
            "-H",
            "X-Name: {{name}}",
            "-T",
            "application/json",
            "--body",
            r#"{"t":"{{text:json}}"}"#,
            &url,
        ]);
        assert!(output.status.success(), "{output:?}");
        // The length follows from the values: it is no change.
        assert_eq!(
            (&report(&output)["answered"], &report(&output)["changed"]),
            (&4.into(), &0.into())
        );
        let seen = std::mem::take(&mut *received.lock().unwrap());
        assert_eq!(seen.len(), 4);
        assert!(
            seen[0].starts_with("POST /users/ann?q=a%20b%2C%20c HTTP/1.1\r\n"),
            "{}",
            seen[0]
        );
        assert!(seen[0].contains("X-Name: ann\r\n") && seen[0].ends_with(r#"{"t":"a b, c"}"#));
        assert!(seen[1].starts_with("POST /users/bob?q=x ") && seen[1].ends_with(r#"{"t":"x"}"#));
        assert_eq!((&seen[0], &seen[1]), (&seen[2], &seen[3]));
        std::fs::remove_file(path).unwrap();
    }
    // Without data, braces are sent as they are.
    let output = load(&["-n", "1", "--body", "{{name}}", &server.url()]);
    assert!(output.status.success());
    assert!(received.lock().unwrap()[0].ends_with("{{name}}"));
}

/// A session of three steps, in which everything comes from the response before.
fn scenario(server: &Server, data: &str) -> PathBuf {
    let url = server.url();
    let scenario = json!({
        "mix": "session", "connections": 3, "data": data,
        "targets": [
            {"url": format!("{url}login"), "method": "POST", "body": {"text": "user={{user}}"},
             "capture": {"token": "json:auth.token", "sid": "cookie:sid", "next": "header:X-Next"}},
            {"url": format!("{url}items/{{{{next}}}}"), "fields": [["Authorization", "Bearer {{token}}"]]},
            {"url": format!("{url}logout"), "fields": [["Cookie", "sid={{sid}}; user={{user}}"]]},
        ],
    });
    file("session.json", &scenario.to_string())
}

/// The user's number is in every value of the response to a login.
fn shop(request: &str) -> String {
    if let Some((_, user)) = request.split_once("user=u")
        && request.starts_with("POST /login ")
    {
        let fields = format!("Set-Cookie: sid=s{user}; Path=/\r\nX-Next: n{user}\r\n");
        return ok(&fields, &format!("{{\"auth\":{{\"token\":\"t{user}\"}}}}"));
    }
    let is_item = |n: usize| {
        request.starts_with(&format!("GET /items/n{n} "))
            && request.contains(&format!("Bearer t{n}\r\n"))
    };
    let is_logout = |n: usize| {
        request.starts_with("GET /logout ")
            && request.contains(&format!("Cookie: sid=s{n}; user=u{n}\r\n"))
    };
    if (0..5).any(|n| is_item(n) || is_logout(n)) {
        ok("", "fine")
    } else {
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".into()
    }
}

#[test]
fn a_session_carries_values_to_its_next_requests() {
    let data = file("users.csv", "user\nu0\nu1\nu2\nu3\nu4\n");
    for threads in ["1", "2"] {
        let (server, received) = server(shop);
        let path = scenario(&server, data.to_str().unwrap());
        let output = load(&[
            "-n",
            "60",
            "-t",
            threads,
            "--json",
            "--scenario",
            path.to_str().unwrap(),
        ]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(report(&output)["answered"], 60);
        let seen = received.lock().unwrap();
        let logins: Vec<_> = seen
            .iter()
            .filter(|request| request.starts_with("POST"))
            .collect();
        assert!(logins.len() >= 20 && logins.len() <= 22, "{}", logins.len());
        for n in 0..5 {
            // The rows are used in turn, by all connections together.
            let of = logins
                .iter()
                .filter(|request| request.ends_with(&format!("user=u{n}")))
                .count();
            assert!((4..=5).contains(&of), "{of}");
        }
        std::fs::remove_file(path).unwrap();
    }
    std::fs::remove_file(data).unwrap();
}

#[test]
fn a_session_begins_again_after_a_failure() {
    let data = file("failing.csv", "user\nu0\nu1\n");
    let (server, received) = server(|request| {
        if request.contains("user=u1") && request.starts_with("POST") {
            ok("Set-Cookie: sid=s1\r\nX-Next: n1\r\n", "{\"auth\":{}}")
        } else {
            shop(request)
        }
    });
    let path = scenario(&server, data.to_str().unwrap());
    let output = load(&[
        "-n",
        "16",
        "-c",
        "1",
        "--json",
        "--scenario",
        path.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = report(&output);
    // u0 has three requests, u1 only the login, whose response has no token.
    assert_eq!(
        (&report["answered"], &report["errors"]["content"]),
        (&12.into(), &4.into())
    );
    assert_eq!(
        report["first_failure"],
        "the value token is not in the response"
    );
    let seen = received.lock().unwrap();
    let lines: Vec<_> = seen
        .iter()
        .map(|request| request.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(
        lines[..5],
        ["/login", "/items/n0", "/logout", "/login", "/login"]
    );
    for path in [path, data] {
        std::fs::remove_file(path).unwrap();
    }
}

/// A number, and an object from a coded body, are written everywhere as the response has them.
#[test]
fn captured_values_keep_their_text_everywhere() {
    let json = r#"{"price":1.50,"id":12345678901234567890123,"o":{"k": 1.0},"s":"a \"b\""}"#;
    let mut coded = Vec::new();
    let mut encoder =
        flate2::bufread::GzEncoder::new(json.as_bytes(), flate2::Compression::default());
    std::io::Read::read_to_end(&mut encoder, &mut coded).unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        coded.len()
    );
    let login: &'static [u8] = Box::leak([head.as_bytes(), &coded].concat().into_boxed_slice());
    let received = RequestLog::default();
    let seen = Arc::clone(&received);
    let server = Server::new(move |call| {
        let request = String::from_utf8_lossy(call.request).into_owned();
        let is_login = request.starts_with("GET /login ");
        seen.lock().unwrap().push(request);
        Reply::Send(if is_login {
            login
        } else {
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        })
    });
    let url = server.url();
    let scenario = json!({
        "mix": "session", "connections": 1,
        "targets": [
            {"url": format!("{url}login"),
             "capture": {"price": "json:price", "id": "json:id", "o": "json:o", "s": "json:s"}},
            {"url": format!("{url}p/{{{{price}}}}/{{{{s}}}}?id={{{{id}}}}&o={{{{o}}}}"), "method": "POST",
             "fields": [["X-Price", "{{price}}"], ["X-O", "{{o}}"]],
             "body": {"text": "{\"id\":{{id}},\"o\":{{o}},\"t\":\"{{o:json}}\",\"s\":\"{{s:json}}\"}"}},
        ],
    });
    let path = file("everywhere.json", &scenario.to_string());
    let output = load(&["-n", "2", "--json", "--scenario", path.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let sent = received.lock().unwrap()[1].clone();
    for part in [
        "POST /p/1.50/a%20%22b%22?id=12345678901234567890123&o=%7B%22k%22%3A%201.0%7D HTTP/1.1\r\n",
        "\r\nX-Price: 1.50\r\nX-O: {\"k\": 1.0}\r\n",
        r#"{"id":12345678901234567890123,"o":{"k": 1.0},"t":"{\"k\": 1.0}","s":"a \"b\""}"#,
    ] {
        assert!(sent.contains(part), "{sent}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn mistakes_are_named() {
    let data = file("mistakes.csv", "user\nu0\n");
    let data = data.to_str().unwrap();
    let url = "http://127.0.0.1:9/";
    for (arguments, part) in [
        (vec!["--data", data, url], "no request has a value"),
        (
            vec!["--data", data, "--body", "{{usr}}", url],
            "there is no value \"usr\"",
        ),
        (
            vec![
                "--data",
                data,
                "--body",
                "{{user}}",
                "--chunk-bytes",
                "2",
                url,
            ],
            "sent whole",
        ),
        (vec!["--data", "missing.csv", url], "missing.csv: "),
    ] {
        let output = load(&arguments);
        assert_eq!(output.status.code(), Some(2));
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(why.contains(part), "{why}");
    }
    let step = |fields: &str, capture: Value| json!({"url": url, "fields": [["X", fields]], "capture": capture});
    let login = || step("", json!({"token": "json:token"}));
    for (scenario, part) in [
        (json!({"targets": [login()]}), "in a session only"),
        (
            json!({"mix": "session", "targets": [step("{{token}}", json!({})), login()]}),
            "later response",
        ),
        (
            json!({"mix": "session", "targets": [login(), login()]}),
            "two values have the name",
        ),
        (
            json!({"mix": "session", "pipeline": 2, "targets": [login()]}),
            "one request at a time",
        ),
        (
            json!({"mix": "session", "targets": [step("", json!({"a": "body"}))]}),
            "cookie:NAME",
        ),
        (
            json!({"mix": "session", "targets": [{"url": url}, {"url": "http://127.0.0.2/"}]}),
            "one origin",
        ),
    ] {
        let path = file("mistake.json", &scenario.to_string());
        let output = load(&["--scenario", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{scenario}");
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(why.contains(part), "{scenario}: {why}");
    }
}

/// The reply to a probe of a session with this configuration.
pub fn probe(config: &str) -> Value {
    let input = format!(
        "{{\"op\":\"open\",\"session\":\"a\",\"config\":{config}}}\n{{\"op\":\"probe\",\"session\":\"a\"}}\n"
    );
    let mut output = Vec::new();
    towline_load::agent::serve(input.as_bytes(), &mut output).unwrap();
    let replies = String::from_utf8(output).unwrap();
    serde_json::from_str(replies.lines().nth(1).unwrap()).unwrap()
}

/// A probe, such as the bench's before a measurement, sends the values of the first row and carries those of responses.
#[test]
fn a_probe_has_the_values_of_a_session() {
    let data = file("probed.csv", "user\nu3\nu4\n");
    let (server, received) = server(shop);
    let path = scenario(&server, data.to_str().unwrap());
    let config = std::fs::read_to_string(&path).unwrap();
    for _ in 0..2 {
        let responses = probe(&config);
        for (step, body) in ["eyJhdXRoIjp7InRva2VuIjoidDMifX0=", "ZmluZQ==", "ZmluZQ=="]
            .iter()
            .enumerate()
        {
            let response = &responses["responses"][step];
            assert_eq!(
                (
                    &response["status"],
                    &response["body_base64"],
                    &response["failure"]
                ),
                (&200.into(), &(*body).into(), &Value::Null),
                "{step}: {responses}"
            );
        }
    }
    assert!(received.lock().unwrap()[1].starts_with("GET /items/n3 "));
    // A value that the response does not have is a failure of its request.
    let responses = probe(&config.replace("json:auth.token", "json:auth.none"));
    assert_eq!(
        responses["responses"][0]["failure"],
        "content: the value token is not in the response"
    );
    assert_eq!(responses["responses"][1]["status"], 403);
    for path in [path, data] {
        std::fs::remove_file(path).unwrap();
    }
}

/// The report has the figures of each step, and conditions can be about one.
#[test]
fn each_step_has_figures_of_its_own() {
    let data = file("steps.csv", "user\nu0\nu1\n");
    let (server, _received) = server(|request| {
        if request.starts_with("GET /items/") {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        shop(request)
    });
    let path = scenario(&server, data.to_str().unwrap());
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text.replacen("{\"body\"", "{\"name\":\"log in\",\"body\"", 1),
    )
    .unwrap();
    let at = path.to_str().unwrap();
    let run = |more: &[&str]| load(&[&["-n", "60", "-c", "2", "--scenario", at], more].concat());
    let output = run(&["--json"]);
    let found = report(&output);
    let steps = found["steps"].as_array().unwrap();
    let names: Vec<_> = steps.iter().map(|step| &step["name"]).collect();
    assert_eq!(names, ["log in", "GET /items/{{next}}", "GET /logout"]);
    let answered: u64 = (steps.iter())
        .map(|step| {
            let answered = step["answered"].as_u64().unwrap();
            assert!((19..=21).contains(&answered), "{step}");
            assert_eq!(
                (&step["response"]["count"], &step["failed"]),
                (&answered.into(), &0.into())
            );
            answered
        })
        .sum();
    assert_eq!(answered, 60);
    let p50 = |step: usize| {
        steps[step]["response"]["percentiles"][2]["us"]
            .as_f64()
            .unwrap()
    };
    assert!(
        p50(1) >= 20_000.0 && p50(0) < 20_000.0 && p50(2) < 20_000.0,
        "{found}"
    );
    let output = run(&[
        "--fail-if",
        "GET /items/{{next}}.p50>19ms",
        "log in.errors>0",
    ]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("by request") && text.contains("\nlog in "),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let output = run(&["--fail-if", "login.p50>19ms"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    for path in [path, data] {
        std::fs::remove_file(path).unwrap();
    }
}
