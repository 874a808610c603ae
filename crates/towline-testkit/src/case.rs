//! Reads conformance cases from Markdown: `## title`, a paragraph with the rule, a `wire` block, an `events` block.

use towline_proto::Side;

use crate::{h2, h3, notation, ws};

/// One case of a conformance file.
#[derive(Clone, Debug)]
pub struct Case {
    pub title: String,
    /// The words after `wire` on its fence line: `client`, `method=HEAD`, `eof`, ...
    pub options: Vec<(String, String)>,
    /// The parts of the wire: each arrives after the one before has been handled. Mostly one.
    pub wire: Vec<Vec<u8>>,
    /// The event log in the file; empty before it is blessed for the first time.
    pub events: String,
    /// Line (from 0) of the fence that opens the events block, and of the one that closes it.
    pub events_lines: (usize, usize),
}

impl Case {
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn has(&self, name: &str) -> bool {
        self.option(name).is_some()
    }

    /// The end that receives the wire.
    pub fn side(&self) -> Side {
        if self.has("client") {
            Side::Client
        } else {
            Side::Server
        }
    }

    fn unescape(&self, text: &str) -> Result<Vec<Vec<u8>>, String> {
        if self.has("http2") {
            h2::notation::wire(text)
        } else if self.has("http3") {
            h3::notation::wire(text)
        } else if self.has("websocket") {
            ws::notation::wire(text, self.side())
        } else {
            notation::unescape(text)
        }
    }
}

/// Parses every case of a file.
///
/// # Errors
/// The malformed part, with its line: a test file must never be skipped silently.
pub fn parse(markdown: &str) -> Result<Vec<Case>, String> {
    let lines: Vec<&str> = markdown.lines().collect();
    let mut cases: Vec<Case> = Vec::new();
    let mut title = None;
    let mut open: Option<Case> = None;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if let Some(text) = line.strip_prefix("## ") {
            if title.is_some() || open.is_some() {
                return Err(format!(
                    "line {}: the case before has no wire or no events block",
                    at + 1
                ));
            }
            title = Some(text.trim().to_owned());
        } else if let Some(info) = line.strip_prefix("```wire") {
            let title = title
                .take()
                .ok_or_else(|| format!("line {}: wire block without a title", at + 1))?;
            let end = block_end(&lines, at)?;
            let mut case = Case {
                title,
                options: options(info),
                wire: Vec::new(),
                events: String::new(),
                events_lines: (0, 0),
            };
            let text = joined(&lines[at + 1..end]);
            case.wire = case
                .unescape(&text)
                .map_err(|e| format!("line {}: {}: {e}", at + 1, case.title))?;
            open = Some(case);
            at = end;
        } else if line == "```events" {
            let mut case = open
                .take()
                .ok_or_else(|| format!("line {}: events without a wire block", at + 1))?;
            let end = block_end(&lines, at)?;
            case.events = joined(&lines[at + 1..end]);
            case.events_lines = (at, end);
            cases.push(case);
            at = end;
        } else if line.starts_with("```") {
            return Err(format!(
                "line {}: only wire and events blocks are allowed",
                at + 1
            ));
        }
        at += 1;
    }
    if title.is_some() || open.is_some() {
        return Err("the last case has no wire or no events block".into());
    }
    Ok(cases)
}

/// Returns the file with the events blocks replaced by `logs`, one for each case in order.
pub fn bless(markdown: &str, cases: &[Case], logs: &[String]) -> String {
    let lines: Vec<&str> = markdown.lines().collect();
    let mut out = String::with_capacity(markdown.len());
    let mut from = 0;
    for (case, log) in cases.iter().zip(logs) {
        let (open, close) = case.events_lines;
        out.push_str(&joined(&lines[from..=open]));
        out.push_str(log);
        from = close;
    }
    out.push_str(&joined(&lines[from..]));
    out
}

fn block_end(lines: &[&str], open: usize) -> Result<usize, String> {
    let found = lines[open + 1..].iter().position(|line| *line == "```");
    found
        .map(|n| open + 1 + n)
        .ok_or_else(|| format!("line {}: the block is never closed", open + 1))
}

fn joined(lines: &[&str]) -> String {
    lines.iter().flat_map(|line| [*line, "\n"]).collect()
}

fn options(info: &str) -> Vec<(String, String)> {
    let pair = |word: &str| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        (key.to_owned(), value.to_owned())
    };
    info.split_whitespace().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# Title\n\nIntro.\n\n## One\n\nThe rule.\n\n```wire client method=HEAD\nA\n```\n\n```events\nold\n```\n";

    #[test]
    fn files_are_parsed_and_blessed() {
        let cases = parse(FILE).unwrap();
        assert_eq!(cases.len(), 1);
        assert_eq!(
            (cases[0].wire.concat().as_slice(), cases[0].events.as_str()),
            (&b"A\r\n"[..], "old\n")
        );
        assert_eq!(
            (
                cases[0].option("method"),
                cases[0].has("client"),
                cases[0].has("eof")
            ),
            (Some("HEAD"), true, false)
        );
        assert_eq!(
            bless(FILE, &cases, &["new\n".into()]),
            FILE.replace("old", "new")
        );
    }

    #[test]
    fn malformed_files_are_errors() {
        assert!(parse("## One\n\n## Two\n").is_err());
        assert!(parse("## One\n\n```wire\nA\n").is_err());
        assert!(parse("## One\n\n```wire\nA\n```\n").is_err());
        assert!(parse("```events\n```\n").is_err());
        assert!(parse("## One\n```wires\n```\n").is_err());
    }
}
