//! Rows of values from a CSV file or from JSON lines, for the templates of requests.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::LoadError;
use crate::schedule::Share;

/// Limit of a file, which is held in memory.
const MAX_BYTES: u64 = 256 << 20;

/// The rows of a file, used in order and then from the first again, by all threads together.
#[derive(Debug, Serialize, Deserialize)]
pub struct Data {
    names: Vec<Box<str>>,
    rows: Vec<Row>,
    #[serde(skip)]
    next: AtomicUsize,
}

/// One row.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    /// Among the rows of the file, from 1.
    number: usize,
    /// The line of the file on which it begins, from 1.
    line: usize,
    values: Box<[Box<str>]>,
}

impl Data {
    /// Reads `.csv`, whose first line has the names (RFC 4180), or `.jsonl`, `.ndjson` or `.json`: an object per
    /// line, of which the first has the names.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let failed = |why: String| LoadError::Config(format!("{}: {why}", path.display()));
        let bytes = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
        if bytes.len() > MAX_BYTES {
            return Err(failed(format!("larger than {} MiB", MAX_BYTES >> 20)));
        }
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let extension = path.extension().unwrap_or_default();
        let parsed = match extension.to_ascii_lowercase().to_str() {
            Some("csv") => csv(text),
            Some("jsonl" | "ndjson" | "json") => json_lines(text),
            _ => Err("data is in a .csv, .jsonl or .ndjson file".into()),
        };
        let (names, rows) = parsed.map_err(failed)?;
        if rows.is_empty() {
            return Err(failed("there is no row".into()));
        }
        Ok(Self {
            names,
            rows,
            next: AtomicUsize::new(0),
        })
    }

    /// The rows of one of several agents that share the load, so that together they use each row once before any
    /// row is used again; one row if there are more shares than rows.
    pub(crate) fn part(&self, share: Share) -> Self {
        let (first, of) = (share.index as usize, share.of as usize);
        let own = self.rows.iter().skip(first).step_by(of).cloned();
        let mut rows: Vec<_> = own.collect();
        if rows.is_empty() {
            rows.push(self.rows[first % self.rows.len()].clone());
        }
        Self {
            names: self.names.clone(),
            rows,
            next: AtomicUsize::new(0),
        }
    }

    pub(crate) fn names(&self) -> &[Box<str>] {
        &self.names
    }

    pub(crate) fn row(&self, index: usize) -> &[Box<str>] {
        &self.rows[index].values
    }

    /// Where a row is, for a message.
    pub(crate) fn place(&self, index: usize) -> String {
        let row = &self.rows[index];
        format!("row {} of the data (line {})", row.number, row.line)
    }

    /// The index of the next row.
    pub(crate) fn next(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.rows.len()
    }
}

fn csv(text: &str) -> Result<(Vec<Box<str>>, Vec<Row>), String> {
    let mut records = Records {
        rest: text,
        line: 1,
    };
    records.skip_blank_lines();
    let names = records
        .next()
        .ok_or("the line with the names is missing")??;
    let mut rows = Vec::new();
    loop {
        records.skip_blank_lines();
        let line = records.line;
        let Some(row) = records.next() else {
            return Ok((names, rows));
        };
        let row = row?;
        if row.len() != names.len() {
            let (found, expected) = (row.len(), names.len());
            return Err(format!("line {line}: {found} values for {expected} names"));
        }
        rows.push(Row {
            number: rows.len() + 1,
            line,
            values: row.into(),
        });
    }
}

/// The records of a CSV text.
struct Records<'a> {
    rest: &'a str,
    line: usize,
}

impl Iterator for Records<'_> {
    type Item = Result<Vec<Box<str>>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let mut values = Vec::new();
        loop {
            match self.value() {
                Ok((value, ends)) => {
                    values.push(value);
                    if ends {
                        return Some(Ok(values));
                    }
                }
                Err(why) => {
                    self.rest = "";
                    return Some(Err(why));
                }
            }
        }
    }
}

impl Records<'_> {
    /// Skips empty lines, which are no records; a line of `""` is a record with one empty value.
    fn skip_blank_lines(&mut self) {
        while let Some(rest) =
            (self.rest.strip_prefix("\r\n")).or_else(|| self.rest.strip_prefix('\n'))
        {
            self.rest = rest;
            self.line += 1;
        }
    }

    /// One value, and whether the record ends with it.
    fn value(&mut self) -> Result<(Box<str>, bool), String> {
        let value = if let Some(quoted) = self.rest.strip_prefix('"') {
            self.rest = quoted;
            self.quoted()?
        } else {
            let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
            let (value, rest) = self.rest.split_at(end);
            self.rest = rest;
            // The line may end with CR LF.
            if rest.starts_with(',') {
                value.into()
            } else {
                value.strip_suffix('\r').unwrap_or(value).into()
            }
        };
        if let Some(rest) = self.rest.strip_prefix(',') {
            self.rest = rest;
            return Ok((value, false));
        }
        let rest = self.rest.strip_prefix('\r').unwrap_or(self.rest);
        if !rest.is_empty() && !rest.starts_with('\n') {
            return Err(format!("line {}: text after a closing quote", self.line));
        }
        self.rest = rest.strip_prefix('\n').unwrap_or(rest);
        self.line += 1;
        Ok((value, true))
    }

    /// The value up to the closing quote; two quotes are one.
    fn quoted(&mut self) -> Result<Box<str>, String> {
        let mut value = String::new();
        loop {
            let end = self
                .rest
                .find('"')
                .ok_or_else(|| format!("line {}: a quote is not closed", self.line))?;
            let (part, rest) = self.rest.split_at(end);
            self.line += part.matches('\n').count();
            value.push_str(part);
            self.rest = &rest[1..];
            match self.rest.strip_prefix('"') {
                Some(rest) => {
                    value.push('"');
                    self.rest = rest;
                }
                None => return Ok(value.into()),
            }
        }
    }
}

fn json_lines(text: &str) -> Result<(Vec<Box<str>>, Vec<Row>), String> {
    let mut names: Vec<Box<str>> = Vec::new();
    let mut rows = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let object: BTreeMap<String, &RawValue> =
            serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
        if rows.is_empty() {
            names = object.keys().map(|name| name.as_str().into()).collect();
        }
        let value = |name: &str| {
            let value = object.get(name);
            let value = value.ok_or_else(|| format!("line {number}: {name:?} is missing"))?;
            text_of(value).map_err(|error| format!("line {number}: {name:?}: {error}"))
        };
        let values = names.iter().map(|name| value(name));
        let values = values.collect::<Result<_, _>>()?;
        rows.push(Row {
            number: rows.len() + 1,
            line: number,
            values,
        });
    }
    Ok((names, rows))
}

/// A string itself, nothing for null, and the text of anything else: `1.50` and long numbers keep their digits.
/// `Err`: the string has half of a surrogate pair.
pub(crate) fn text_of(value: &RawValue) -> Result<Box<str>, serde_json::Error> {
    match value.get() {
        "null" => Ok("".into()),
        text if text.starts_with('"') => serde_json::from_str(text),
        text => Ok(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_has_quotes_and_both_line_ends() {
        let (names, rows) = csv("user,note\r\nann,\"a, \"\"b\"\"\nc\"\r\nbob,\n").unwrap();
        assert_eq!(names, ["user".into(), "note".into()]);
        assert_eq!(&*rows[0].values, ["ann".into(), "a, \"b\"\nc".into()]);
        assert_eq!(&*rows[1].values, ["bob".into(), "".into()]);
        assert_eq!(rows.len(), 2);
        for (text, part) in [
            ("a,b\n1\n", "line 2: 1 values for 2 names"),
            ("a\n\"x", "line 2: a quote"),
            ("a\n\"x\"y\n", "line 2: text after"),
        ] {
            let why = csv(text).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn blank_lines_are_no_rows() {
        let rows = |text: &str| -> Vec<(usize, usize, String)> {
            let (_, rows) = csv(text).unwrap();
            let row = |row: &Row| (row.number, row.line, row.values.join("|"));
            rows.iter().map(row).collect()
        };
        let of = |number, line, text: &str| (number, line, text.to_owned());
        assert_eq!(
            rows("\nuser\n\nann\n\r\n\nbob\n\n"),
            [of(1, 4, "ann"), of(2, 7, "bob")]
        );
        // A quoted value that is empty, and spaces, are values.
        assert_eq!(
            rows("user\r\n\"\"\r\n\r\n  \r\n"),
            [of(1, 2, ""), of(2, 4, "  ")]
        );
        assert_eq!(
            rows("a,b\n\n\"x\n\ny\",\n\n,\n"),
            [of(1, 3, "x\n\ny|"), of(2, 7, "|")]
        );
    }

    #[test]
    fn parts_hold_each_row_once() {
        let rows = |text: &str| {
            let (names, rows) = csv(text).unwrap();
            let next = AtomicUsize::new(0);
            Data { names, rows, next }
        };
        let data = rows("n\n0\n1\n2\n3\n4\n");
        let part = |index, of| -> Vec<String> {
            let part = data.part(Share { index, of });
            part.rows
                .iter()
                .map(|row| row.values[0].to_string())
                .collect()
        };
        assert_eq!(part(0, 2), ["0", "2", "4"]);
        assert_eq!(part(1, 2), ["1", "3"]);
        let second = data.part(Share { index: 1, of: 2 });
        assert_eq!(second.place(1), "row 4 of the data (line 5)");
        // More agents than rows: each has one.
        assert_eq!(
            (part(4, 7), part(6, 7)),
            (vec!["4".into()], vec!["1".into()])
        );
    }

    #[test]
    fn json_lines_have_the_names_of_the_first() {
        let (names, rows) =
            json_lines("{\"a\":\"x\",\"b\":1}\n\n{\"b\":{\"c\":[2]},\"a\":null,\"d\":0}\n")
                .unwrap();
        assert_eq!(names.len(), 2);
        let of = |row: usize, name: &str| {
            let at = names.iter().position(|known| &**known == name).unwrap();
            &*rows[row].values[at]
        };
        assert_eq!((of(0, "a"), of(0, "b")), ("x", "1"));
        assert_eq!((of(1, "a"), of(1, "b")), ("", "{\"c\":[2]}"));
        let (_, rows) = json_lines("{\"n\":1.50,\"o\":{\"k\": 12345678901234567890123}}").unwrap();
        assert_eq!(
            &*rows[0].values,
            ["1.50".into(), "{\"k\": 12345678901234567890123}".into()]
        );
        assert!(
            json_lines("{\"a\":\"\\ud83d\"}")
                .unwrap_err()
                .contains("line 1: \"a\"")
        );
        assert!(
            json_lines("{\"a\":1}\n{}\n")
                .unwrap_err()
                .contains("line 2: \"a\"")
        );
    }
}
