//! Helpers for tests of HTTP/2 on virtual time.
#![allow(dead_code, reason = "each test crate uses its part")]

use std::sync::Arc;

use towline_proto::{BodySize, Field, Limits, RequestHead, StreamId, UserError};
use towline_testkit::h2;
use towline_testkit::{App, End};

pub fn server(app: App) -> End {
    let mut end = End::h2_server(&Arc::new(Limits::server()), app);
    end.feed(&h2::client_preface());
    end
}

pub fn client_with(limits: Limits) -> End {
    let mut end = End::h2_client(&Arc::new(limits));
    end.feed(&h2::server_preface());
    end
}

pub fn request(end: &mut End, size: BodySize) -> Result<StreamId, UserError> {
    let host = Field {
        name: b"host",
        value: b"a",
    };
    let head = RequestHead {
        method: b"PUT",
        target: b"/",
        fields: &[host],
    };
    let id = end.conn.request(&head, size);
    end.run_until_idle();
    id
}

/// The frames that an end sends during an action.
pub fn sent_by(end: &mut End, what: impl FnOnce(&mut End)) -> Vec<String> {
    let before = end.written().len();
    what(end);
    end.run_until_idle();
    h2::lines(&end.written()[before..])
}

pub fn log(end: &End) -> String {
    end.log.text()
}

/// A client that has sent a request, whose stream is 1.
pub fn asking_client() -> End {
    let mut end = End::h2_client(&Arc::new(Limits::client()));
    get(&mut end);
    end.feed(&h2::server_preface());
    end
}

pub fn get(end: &mut End) -> StreamId {
    let host = Field {
        name: b"host",
        value: b"a",
    };
    let head = RequestHead {
        method: b"GET",
        target: b"/",
        fields: &[host],
    };
    let id = end.conn.request(&head, BodySize::Empty).expect("room");
    end.run_until_idle();
    id
}
