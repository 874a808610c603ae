//! Attacks on HTTP/2: each ends the connection within 1,000 frames, with the right code, or is bounded by the
//! limits; an exchange before it is unaffected.

mod floods;
mod header_blocks;
mod resets;
mod stalls;

use std::sync::Arc;
use std::time::Duration;

use towline_proto::{BodySize, ErrorCode, Limits};
use towline_testkit::h2;
use towline_testkit::{App, End};

/// No attack lasts longer.
const MAX_FRAMES: usize = 1000;

const CALM: ErrorCode = ErrorCode::ENHANCE_YOUR_CALM;
const SECOND: Duration = Duration::from_secs(1);

/// A server that has served a valid request on stream 1.
fn server(app: App) -> End {
    server_with(app, Limits::server())
}

fn server_with(app: App, limits: Limits) -> End {
    let mut end = End::h2_server(&Arc::new(limits), app);
    end.feed(&[h2::client_preface(), h2::get(1)].concat());
    if matches!(app, App::Manual | App::Silent) {
        end.send_response(200, &[], BodySize::Empty)
            .expect("a request");
        end.run_until_idle();
    }
    assert!(h2::lines(end.written()).contains(&"HEADERS 1 end".to_owned()));
    end
}

/// Frames of one step of an attack; new streams are numbered from 3.
type Step = fn(u32) -> Vec<u8>;

/// Sends the frames of `step` until the connection ends; returns their number.
fn frames_until_closed(end: &mut End, name: &str, step: Step) -> usize {
    let mut frames = 0;
    for stream in (3..).step_by(2) {
        let wire = step(stream);
        frames += h2::frames(&wire).len();
        end.feed(&wire);
        if end.is_closed() {
            break;
        }
        assert!(frames < 2 * MAX_FRAMES, "{name}: never cut off");
    }
    frames
}

fn assert_closes(mut end: End, name: &str, step: Step) {
    let frames = frames_until_closed(&mut end, name, step);
    assert!(frames <= MAX_FRAMES, "{name}: {frames} frames");
    assert_eq!(h2::connection_error(end.written()), Some(CALM), "{name}");
}
