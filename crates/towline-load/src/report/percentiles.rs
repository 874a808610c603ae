//! The percentiles of a report: for its JSON, its tables, the live view, `--fail-if`, `--goal-percentile`, and their help.

/// Where a percentile is shown, beside the report in JSON and the conditions on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shown {
    InJson,
    /// In the table of latencies and in the live view.
    InTable,
    /// In these places and in the narrow table of the requests of a session.
    Always,
}

/// All percentiles, ascending.
pub(crate) const PERCENTILES: [(f64, Shown); 10] = [
    (10.0, Shown::InJson),
    (25.0, Shown::InJson),
    (50.0, Shown::Always),
    (75.0, Shown::InJson),
    (90.0, Shown::Always),
    (95.0, Shown::InJson),
    (99.0, Shown::Always),
    (99.9, Shown::InTable),
    (99.99, Shown::InTable),
    (100.0, Shown::Always),
];

pub(crate) fn all() -> impl Iterator<Item = f64> {
    PERCENTILES.iter().map(|(percent, _)| *percent)
}

/// The percentiles of a table, with their headings.
pub(crate) fn columns(table: Shown) -> impl Iterator<Item = (f64, String)> {
    let columns = PERCENTILES.iter().filter(move |(_, shown)| *shown >= table);
    columns.map(|&(percent, _)| match percent {
        100.0 => (percent, "max".into()),
        _ => (percent, format!("p{percent}")),
    })
}

/// The percentiles, separated by spaces, with `prefix` before each.
pub(crate) fn list(prefix: &str) -> String {
    let names: Vec<_> = all().map(|percent| format!("{prefix}{percent}")).collect();
    names.join(" ")
}

/// The error about a percentile that is not among them.
pub(crate) fn check(percent: f64) -> Result<f64, String> {
    if all().any(|known| (known - percent).abs() < 1e-9) {
        return Ok(percent);
    }
    let known = list("p");
    Err(format!(
        "p{percent} is not reported; the percentiles are {known}"
    ))
}
