//! Server-sent events (WHATWG HTML, section 9.2.6, "Interpreting an event stream").

use super::lines::{LineParser, TooLong};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A dispatched event. The bytes should be UTF-8, but are not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Type of the event; empty for the default, `message`.
    pub event: &'a [u8],
    pub data: &'a [u8],
    /// Last event id of the stream so far.
    pub id: &'a [u8],
    /// Reconnection time in milliseconds, if received since the previous event.
    pub retry: Option<u64>,
}

pub struct SseParser {
    lines: LineParser,
    state: State,
}

/// Fields set by the lines so far.
struct State {
    begun: bool,
    event: Vec<u8>,
    /// Data lines, each followed by a LF.
    data: Vec<u8>,
    id: Vec<u8>,
    last_id: Vec<u8>,
    retry: Option<u64>,
    max_bytes: usize,
}

impl SseParser {
    /// `max_bytes`: bound of a line, and of the fields of one event together. Both bounds are independent of
    /// how the bytes are split; up to twice as much memory may be used.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            lines: LineParser::new(max_bytes),
            state: State {
                begun: false,
                event: Vec::new(),
                data: Vec::new(),
                id: Vec::new(),
                last_id: Vec::new(),
                retry: None,
                max_bytes,
            },
        }
    }

    /// Calls `dispatch` with each event that `bytes` completes, also with those before one that is too long.
    /// An incomplete event at the end of the stream is not dispatched, as the standard requires.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        mut dispatch: impl FnMut(Event<'_>),
    ) -> Result<(), TooLong> {
        let state = &mut self.state;
        self.lines.feed_until(bytes, |line| {
            if line.is_empty() && state.begun {
                state.dispatch(&mut dispatch);
                return Ok(());
            }
            state.line(line)
        })
    }

    /// Value of Last-Event-ID for a reconnection.
    pub fn last_event_id(&self) -> &[u8] {
        &self.state.last_id
    }
}

impl State {
    fn line(&mut self, mut line: &[u8]) -> Result<(), TooLong> {
        if !self.begun {
            self.begun = true;
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(0) => return Ok(()), // a comment
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if self.buffered() + value.len() > self.max_bytes {
            return Err(TooLong);
        }
        match field {
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => replace(&mut self.event, value),
            b"id" if !value.contains(&0) => replace(&mut self.id, value),
            b"retry" => self.retry = milliseconds(value).or(self.retry),
            _ => {}
        }
        Ok(())
    }

    fn dispatch(&mut self, dispatch: &mut impl FnMut(Event<'_>)) {
        self.last_id.clone_from(&self.id);
        if let Some((_, data)) = self.data.split_last() {
            dispatch(Event {
                event: &self.event,
                data,
                id: &self.last_id,
                retry: self.retry.take(),
            });
        }
        self.data.clear();
        self.event.clear();
        // Memory of a long event is not kept.
        self.data.shrink_to(64 * 1024);
        self.event.shrink_to(1024);
    }

    fn buffered(&self) -> usize {
        self.data.len() + self.event.len() + self.id.len()
    }
}

fn replace(kept: &mut Vec<u8>, value: &[u8]) {
    kept.clear();
    kept.extend_from_slice(value);
}

/// Parses ASCII digits only; a number out of range is ignored.
fn milliseconds(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// "event|data|id|retry"
    fn shown(event: Event<'_>) -> String {
        let text = |bytes| String::from_utf8_lossy(bytes).replace('\n', "/");
        let retry = event.retry.map_or(String::new(), |retry| retry.to_string());
        let (name, data, id) = (text(event.event), text(event.data), text(event.id));
        format!("{name}|{data}|{id}|{retry}")
    }

    fn events(pieces: &[&[u8]], max_bytes: usize) -> (Vec<String>, Result<(), TooLong>) {
        let mut parser = SseParser::new(max_bytes);
        let mut events = Vec::new();
        for piece in pieces {
            if let Err(error) = parser.feed(piece, |event| events.push(shown(event))) {
                return (events, Err(error));
            }
        }
        (events, Ok(()))
    }

    /// Checks the events of the stream, whole and split at every position.
    #[track_caller]
    fn check(stream: &[u8], expected: &[&str]) {
        for cut in 0..=stream.len() {
            let (first, second) = stream.split_at(cut);
            let (given, end) = events(&[first, second], 1000);
            assert_eq!(
                (given.as_slice(), end),
                (
                    &expected.iter().map(ToString::to_string).collect::<Vec<_>>()[..],
                    Ok(())
                ),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn the_examples_of_the_standard() {
        check(b"data: YHOO\ndata: +2\ndata: 10\n\n", &["|YHOO/+2/10||"]);
        check(
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n",
            &["|first event|1|", "|second event||"],
        );
        check(b"data\n\ndata\ndata\n\ndata:", &["|||", "|/||"]);
        check(b"data:test\n\ndata: test\n\n", &["|test||", "|test||"]);
    }

    #[test]
    fn line_ends_may_be_mixed() {
        check(
            b"data: a\r\ndata: b\rdata: c\n\r\ndata: d\r\rdata: e\n\n",
            &["|a/b/c||", "|d||", "|e||"],
        );
    }

    #[test]
    fn one_byte_order_mark_at_the_start_is_skipped() {
        check(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", &["|a||"]);
        check(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", &[]);
        check(b"\xef\xbb\xbf\ndata: a\n\n", &["|a||"]);
        check(b"\ndata: a\n\n", &["|a||"]);
    }

    #[test]
    fn fields_are_parsed_as_the_standard_requires() {
        check(b"event: add\ndata: 1\n\ndata: 2\n\n", &["add|1||", "|2||"]);
        check(b"event: add\n\ndata: 2\n\n", &["|2||"]);
        check(
            b"id: 1\n\ndata: a\n\nid: 2\0\ndata: b\n\nid:\ndata: c\n\n",
            &["|a|1|", "|b|1|", "|c||"],
        );
        check(b"retry: 10\ndata: a\n\ndata: b\n\n", &["|a||10", "|b||"]);
        check(
            b"retry: 10\n\nretry: +5\nretry:\nretry: 1x\ndata: b\n\n",
            &["|b||10"],
        );
        check(b"retry: 99999999999999999999999\ndata: b\n\n", &["|b||"]);
        check(
            b"Data: a\ndata : b\n data: c\nnonsense\n:data: d\ndata: e\n\n",
            &["|e||"],
        );
    }

    #[test]
    fn the_bound_is_exact_and_earlier_events_are_delivered() {
        assert_eq!(events(&[b"data:1234567890\n\n"], 15).1, Ok(()));
        assert_eq!(events(&[b"data:12345\ndata:6789\n\n"], 10).1, Ok(()));
        let given = (vec!["|1||".to_owned()], Err(TooLong));
        assert_eq!(
            events(&[b"data:1\n\ndata:12345\ndata:67890\n\n"], 10),
            given
        );
        assert_eq!(events(&[b"data:1\n\n", b":12345678", b"90"], 10), given);
        assert_eq!(
            events(&[b"data:1\n\n", b"data:12345\nd", b"ata:67890\n"], 10),
            given
        );
    }

    proptest! {
        #[test]
        fn every_cut_gives_the_same_events(
            fields in prop::collection::vec(prop::sample::select(&[
                "data", "data:", "data: a", "data:é", "event: x", "id: 1", "id: \0", "retry: 3", ":", "", "\u{feff}",
            ][..]), 0..20),
            ends in prop::collection::vec(prop::sample::select(&["\r", "\n", "\r\n"][..]), 20),
            cuts in prop::collection::vec(1_usize..12, 1..5),
        ) {
            let stream: String = fields.iter().zip(&ends).flat_map(|(field, end)| [*field, *end]).collect();
            let whole = events(&[stream.as_bytes()], 1000);
            let (mut pieces, mut rest) = (Vec::new(), stream.as_bytes());
            for size in cuts.iter().cycle() {
                let (piece, later) = rest.split_at((*size).min(rest.len()));
                pieces.push(piece);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(events(&pieces, 1000), whole);
        }
    }
}
