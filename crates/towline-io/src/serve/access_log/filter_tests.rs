//! Rules, patterns and the order of the three decisions.

use super::*;

fn filter(rules: &[&str]) -> Filter {
    Filter {
        exclude: rules
            .iter()
            .map(|rule| Rule::parse(rule).unwrap())
            .collect(),
        ..Filter::default()
    }
}

fn excludes(rules: &[&str], path: &str, status: u16) -> bool {
    filter(rules).decide(status, path.as_bytes(), None) == Decision::Never
}

#[test]
fn a_rule_has_a_path_a_status_or_both() {
    assert!(excludes(&["/healthz"], "/healthz", 200));
    assert!(excludes(&["/healthz"], "/healthz", 503));
    assert!(!excludes(&["/healthz"], "/healthz/live", 200));
    assert!(!excludes(&["/healthz"], "/", 200));
    assert!(excludes(&["200:/metrics"], "/metrics", 200));
    assert!(!excludes(&["200:/metrics"], "/metrics", 500));
    assert!(excludes(&["2xx:/m*"], "/metrics", 204));
    assert!(!excludes(&["2xx:/m*"], "/metrics", 304));
    assert!(excludes(&["404"], "/any", 404));
    assert!(excludes(&["/no", "3xx"], "/any", 304));
    assert!(!excludes(&["3xx"], "/any", 0));
    // A colon in a path begins no status.
    assert!(excludes(&["/a:b"], "/a:b", 200));
}

#[test]
fn a_star_is_any_part_of_a_path() {
    let cases = [
        ("/static/*", "/static/a/b.css", true),
        ("/static/*", "/static/", true),
        ("/static/*", "/static", false),
        ("*.css", "/a/b.css", true),
        ("*.css", "/a.css/b", false),
        ("/a/*/c", "/a/b/b/c", true),
        ("/a/*/c", "/a/c", false),
        ("/*a*a*b", "/aaaab", true),
        ("/*a*a*b", "/aaaa", false),
        ("*", "/", true),
        ("**", "", true),
    ];
    for (pattern, path, expected) in cases {
        let matched = matches(pattern.as_bytes(), path.as_bytes());
        assert_eq!(matched, expected, "{pattern} {path}");
    }
    let (pattern, path) = ("*a".repeat(100) + "b", "a".repeat(8000));
    assert!(!matches(pattern.as_bytes(), path.as_bytes()));
}

#[test]
fn what_is_no_rule_is_none() {
    for wrong in [
        "healthz", "", "20:/a", "200:", "200:a", "600", "2x", "2xxx", "xx",
    ] {
        assert_eq!(Rule::parse(wrong), None);
    }
}

#[test]
fn slow_comes_before_exclusion_and_exclusion_before_sampling() {
    use Decision::{Always, Never, Sampled};
    let slow = Some(Duration::from_secs(1));
    let filter = Filter {
        sample: Some(0.25),
        slow,
        ..filter(&["/h"])
    };
    let of = |path: &str, status, duration| filter.decide(status, path.as_bytes(), duration);
    let quick = Some(Duration::from_millis(999));
    assert_eq!(of("/h", 200, slow), Always);
    assert_eq!(of("/h", 200, quick), Never);
    assert_eq!(of("/h", 500, quick), Never);
    assert_eq!(of("/a", 200, quick), Sampled);
    assert_eq!(of("/a", 304, quick), Sampled);
    assert_eq!(of("/a", 101, None), Sampled);
    assert_eq!(of("/a", 404, quick), Always);
    assert_eq!(of("/a", 0, quick), Always);
}
