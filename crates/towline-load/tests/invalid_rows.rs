//! Rows and captured values that make an invalid request: errors that name their place, after which the load goes on.

use serde_json::{Value, json};

use crate::users::{file, load, ok, probe, report, server};

/// Runs a load with these rows of one column, `user`, and returns its report.
fn with_rows(rows: &str, arguments: &[&str]) -> Value {
    let data = file("invalid.csv", &format!("user\n{rows}"));
    let output = load(
        &[
            &["--json", "-c", "1", "--data", data.to_str().unwrap()],
            arguments,
        ]
        .concat(),
    );
    std::fs::remove_file(data).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    report(&output)
}

#[test]
fn a_row_that_makes_an_invalid_request_is_an_error_and_the_load_goes_on() {
    let (server, received) = server(|_| ok("", "fine"));
    let (url, path) = (server.url(), format!("{}{{{{user:raw}}}}", server.url()));
    let (target, host) = (
        "malformed request target (RFC 9112 3.2)",
        "valid Host (RFC 9112 3.2)",
    );
    let (length, coding) = ("(RFC 9110 8.6)", "(RFC 9112 6.1)");
    let closed = ["-n", "6", &path];
    let open = ["-n", "6", "-R", "200", &path];
    let fresh = ["-n", "6", "--fresh", &path];
    let of_host = ["-n", "6", "-H", "Host: {{user}}", &url];
    let of_length = [
        "-n",
        "6",
        "--body",
        "x",
        "-H",
        "Content-Length: {{user}}",
        &url,
    ];
    let of_coding = [
        "-n",
        "6",
        "-H",
        "Transfer-Encoding: {{user}}",
        "--body",
        "x",
        &url,
    ];
    for (rows, arguments, rule, answered) in [
        ("a\nb#c\nd\n", &closed[..], target, 4),
        ("a\nb#c\nd\n", &open, target, 4),
        ("a\nb#c\nd\n", &fresh, target, 4),
        ("a\nb/c d\ne\n", &of_host, host, 4),
        ("1\n2\n1\n", &of_length, length, 4),
        ("gzip\ngzip\ngzip\n", &of_coding, coding, 0),
    ] {
        let report = with_rows(rows, arguments);
        let invalid = 6 - answered;
        assert_eq!(report["answered"], answered, "{arguments:?}: {report:#}");
        assert_eq!(report["errors"]["invalid"], invalid, "{report:#}");
        assert_eq!(
            std::mem::take(&mut *received.lock().unwrap()).len(),
            answered
        );
        let places = report["invalid"].as_array().unwrap();
        let number = if answered > 0 { 1 } else { 3 };
        assert_eq!(places.len(), number, "{report:#}");
        let place = places[number - 1].as_str().unwrap();
        let row = if answered > 0 {
            "row 2 of the data (line 3)"
        } else {
            "row 3 of the data (line 4)"
        };
        assert!(
            place.contains(&format!(": {row}, column \"user\": ")),
            "{place}"
        );
        assert!(place.contains(rule), "{place}");
        assert_eq!(report["first_failure"], places[0]);
    }
}

#[test]
fn a_load_whose_rows_are_all_invalid_ends() {
    let (server, received) = server(|_| ok("", "fine"));
    let path = format!("{}{{{{user:raw}}}}", server.url());
    for arguments in [
        &["-n", "100"][..],
        &["-d", "200ms"],
        &["-d", "200ms", "-R", "100"],
    ] {
        let report = with_rows("#\n##\n", &[arguments, &[path.as_str()]].concat());
        assert_eq!(report["answered"], 0);
        assert!(
            report["errors"]["invalid"].as_u64().unwrap() > 15,
            "{report:#}"
        );
        if arguments.len() == 2 && arguments[0] == "-n" {
            assert_eq!(report["errors"]["invalid"], 100);
        }
    }
    assert_eq!(received.lock().unwrap().len(), 0);
}

#[test]
fn a_value_of_a_response_that_makes_an_invalid_request_is_named() {
    let (server, received) = server(|request| {
        let next = if request.contains("u1") { "a#b" } else { "ok" };
        ok(&format!("X-Next: {next}\r\n"), "fine")
    });
    let url = server.url();
    let data = file("captured.csv", "user\nu0\nu1\n");
    let scenario = json!({
        "mix": "session", "connections": 1, "data": data,
        "targets": [
            {"url": format!("{url}{{{{user}}}}"), "capture": {"next": "header:X-Next"}},
            {"url": format!("{url}items/{{{{next:raw}}}}")},
        ],
    });
    let path = file("captured.json", &scenario.to_string());
    let output = load(&["-n", "8", "--json", "--scenario", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = report(&output);
    assert_eq!(
        (&report["answered"], &report["errors"]["invalid"]),
        (&6.into(), &2.into())
    );
    let place = report["invalid"][0].as_str().unwrap();
    assert!(
        place.contains("taken from a response: \"next\": malformed request target"),
        "{place}"
    );
    let seen = received.lock().unwrap();
    let lines: Vec<_> = seen
        .iter()
        .map(|request| request.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(
        lines,
        ["/u0", "/items/ok", "/u1", "/u0", "/items/ok", "/u1"]
    );
    for path in [path, data] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_probe_names_the_row() {
    let (server, _) = server(|_| ok("", "fine"));
    let data = file("probed.csv", "user\n\na#b\n");
    let url = format!("{}{{{{user:raw}}}}", server.url());
    let config = json!({"data": data, "targets": [{"url": url}]});
    let failure = &probe(&config.to_string())["responses"][0]["failure"];
    assert_eq!(
        failure,
        "invalid: GET /{{user:raw}}: row 1 of the data (line 3), column \"user\": malformed request target (RFC 9112 3.2)"
    );
    std::fs::remove_file(data).unwrap();
}
