//! An event stream and its lines: the same in one piece and in many, within the bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_io::text::lines::LineParser;
use towline_io::text::sse::SseParser;

const MOST_BYTES: usize = 64;

type Given = (Vec<Vec<u8>>, bool);

fn events(stream: &[u8], piece: usize) -> Given {
    let mut parser = SseParser::new(MOST_BYTES);
    let mut given = Vec::new();
    let mut pieces = stream.chunks(piece);
    let whole = pieces.all(|piece| {
        let dispatch = |event: towline_io::text::sse::Event<'_>| {
            assert!(event.data.len() <= MOST_BYTES && !event.id.contains(&0));
            given.push([event.event, event.data, event.id].join(&0));
        };
        parser.feed(piece, dispatch).is_ok()
    });
    (given, whole)
}

fn lines(stream: &[u8], piece: usize) -> Given {
    let mut parser = LineParser::new(MOST_BYTES);
    let mut given = Vec::new();
    let mut pieces = stream.chunks(piece);
    let whole = pieces.all(|piece| parser.feed(piece, |line| given.push(line.to_vec())).is_ok());
    if whole {
        given.extend(parser.finish());
    }
    (given, whole)
}

// The first byte is the size of the pieces.
fuzz_target!(|data: &[u8]| {
    let [size, stream @ ..] = data else { return };
    let piece = usize::from(*size) + 1;
    assert_eq!(events(stream, usize::MAX), events(stream, piece));
    assert_eq!(lines(stream, usize::MAX), lines(stream, piece));
});
