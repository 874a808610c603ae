//! Runs `conformance/{http1,http2,http3,websocket}/*.md`: every case whole, byte by byte, cut at every position and at random.

use std::fs;
use std::path::{Path, PathBuf};

use towline_testkit::case::{self, Case};
use towline_testkit::{Random, Setup};

/// Above this, a wire is cut in two at random positions only: every position would be quadratic.
const EVERY_CUT_BYTES: usize = 1024;
const RANDOM_CUTS: usize = 24;

const FOLDERS: [&str; 4] = ["http1", "http2", "http3", "websocket"];

fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let mut files = Vec::new();
    for folder in FOLDERS {
        let entries = fs::read_dir(root.join(folder)).expect("part of the repository");
        let found = entries.map(|entry| entry.expect("readable").path());
        let before = files.len();
        files.extend(found.filter(|path| path.extension().is_some_and(|e| e == "md")));
        assert!(files.len() > before, "{folder} is empty");
    }
    files.sort();
    files
}

/// The ways to cut a wire: each the sizes of its pieces.
fn cuts(len: usize, random: &mut Random) -> Vec<Vec<usize>> {
    let mut all = vec![vec![1; len]];
    if len <= EVERY_CUT_BYTES {
        all.extend((1..len).map(|at| vec![at]));
    } else {
        all.extend((0..RANDOM_CUTS).map(|_| vec![1 + random.below(len)]));
    }
    all.extend((0..RANDOM_CUTS).map(|_| random.pieces(len)));
    all
}

/// The first cut whose log differs from that of the whole wire.
fn cut_that_differs(setup: &Setup, case: &Case, whole: &str) -> Option<String> {
    if !setup.cuts {
        return None;
    }
    let len = case.wire.iter().map(Vec::len).sum();
    let mut random = Random::new(len as u64);
    cuts(len, &mut random).into_iter().find_map(|sizes| {
        let log = setup.log(&case.wire, &sizes);
        (log != whole).then(|| {
            let shown = &sizes[..sizes.len().min(12)];
            format!("cut into {shown:?}...:\n{}", diff(whole, &log))
        })
    })
}

fn diff(expected: &str, found: &str) -> String {
    let (expected, found): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    let same = expected
        .iter()
        .zip(&found)
        .take_while(|(a, b)| a == b)
        .count();
    let show = |sign: char, lines: &[&str]| -> String {
        lines[same..]
            .iter()
            .flat_map(|line| ["  ", if sign == '-' { "- " } else { "+ " }, line, "\n"])
            .collect()
    };
    let context: String = expected[..same]
        .iter()
        .flat_map(|line| ["    ", line, "\n"])
        .collect();
    format!("{context}{}{}", show('-', &expected), show('+', &found))
}

#[test]
fn every_case_gives_its_log_at_every_cut() {
    let blessing = std::env::var_os("TOWLINE_BLESS").is_some();
    let wanted = std::env::var("TOWLINE_CASE")
        .unwrap_or_default()
        .to_lowercase();
    let (mut count, mut problems) = (0, Vec::new());
    for path in files() {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let markdown = fs::read_to_string(&path).expect("readable");
        let cases = case::parse(&markdown).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut logs = Vec::new();
        for case in &cases {
            let setup = Setup::of(case).unwrap_or_else(|e| panic!("{name}: {e}"));
            let whole = setup.log(&case.wire, &[]);
            if case.title.to_lowercase().contains(&wanted) {
                count += 1;
                if whole != case.events && !blessing {
                    problems.push(format!(
                        "{name}: {}: whole\n{}",
                        case.title,
                        diff(&case.events, &whole)
                    ));
                }
                if let Some(problem) = cut_that_differs(&setup, case, &whole) {
                    problems.push(format!("{name}: {}: {problem}", case.title));
                }
            }
            logs.push(whole);
        }
        if blessing {
            fs::write(&path, case::bless(&markdown, &cases, &logs)).expect("writable");
        }
    }
    println!("{count} cases");
    assert!(
        problems.is_empty(),
        "{} of {count} cases:\n\n{}",
        problems.len(),
        problems.join("\n")
    );
}
