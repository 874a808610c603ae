//! The scripted program above a connection: takes its events, reads bodies, sends responses and the next requests.

use towline_proto::{
    BodySize, Event, Field, RequestHead, ResponseHead, Side, StreamId, StreamRead, UserError,
};

use super::End;

/// Behaviour of the program above the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// Reads each request's body to its end, then responds with 200 without a body. As a client: reads each
    /// response.
    Read,
    /// Responds with 200 as soon as the head has arrived and never reads the body.
    Ignore,
    /// Responds with 200 and `Connection: close` after the body.
    Close,
    /// Responds with 101 after the body, or 200 to CONNECT, and reads the raw bytes that follow.
    Switch,
    /// Reads bodies, never responds: the test does.
    Manual,
    /// Neither reads nor responds.
    Silent,
}

/// An exchange as the scripted program sees it.
#[derive(Debug)]
pub(super) struct Exchange {
    id: StreamId,
    connect: bool,
}

/// Reaction of the program to an event.
#[derive(Clone, Copy)]
pub(super) enum Action {
    Nothing,
    Head(StreamId, bool),
    Read(StreamId),
}

impl End {
    /// Takes one event, logs it and returns the program's reaction.
    pub(super) fn event(&mut self) -> Option<Action> {
        let (announced, is_h3) = (self.conn.has_events(), self.is_h3());
        let event = self.conn.next_event()?;
        assert!(
            announced,
            "{event:?} was not promised: an engine that believes it would sleep"
        );
        assert!(!self.closed, "{event:?} after Closed");
        let action = match event {
            Event::Head { stream, head, end } => {
                // HTTP/3: the end may come after the head, and is a line of its own.
                self.log.head(self.side, stream, &head, end && !is_h3);
                let connect = self.side == Side::Server && head.method() == b"CONNECT";
                self.last_stream = Some(stream);
                self.exchanges.push(Exchange {
                    id: stream,
                    connect,
                });
                Action::Head(stream, end)
            }
            Event::Informational { stream, head } => {
                self.log.interim(stream, &head);
                Action::Nothing
            }
            Event::Readable(stream) => Action::Read(stream),
            Event::Writable(_) => Action::Nothing,
            Event::HalfClosed(stream) => {
                self.log.line(&format!("half-closed {}", stream.0));
                Action::Nothing
            }
            Event::Switched { stream } => {
                self.log.line(&format!("switched {}", stream.0));
                Action::Read(stream)
            }
            Event::Failed(stream, error) => {
                self.log.line(&format!("failed {} {error}", stream.0));
                self.exchanges.retain(|open| open.id != stream);
                Action::Nothing
            }
            Event::GoingAway { last } => {
                self.log.line(&format!("going away {}", last.0));
                Action::Nothing
            }
            Event::Closed(error) => {
                self.log.line(&format!("closed {error}"));
                self.closed = true;
                Action::Nothing
            }
        };
        Some(action)
    }

    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Nothing => {}
            Action::Head(stream, end) => match (self.side, self.app) {
                (_, App::Silent) => {}
                (Side::Server, App::Ignore) => self.respond(stream),
                _ if end => {
                    if self.is_h3() && !self.is_tunnel(stream) {
                        self.log.line(&format!("end {}", stream.0));
                    }
                    self.body_ended(stream);
                }
                _ => self.to_read.push_back(stream),
            },
            Action::Read(stream) => {
                if self.app != App::Silent && self.app != App::Ignore {
                    self.read(stream);
                }
            }
        }
    }

    fn is_tunnel(&self, stream: StreamId) -> bool {
        let mut exchanges = self.exchanges.iter();
        exchanges.any(|exchange| exchange.id == stream && exchange.connect)
    }

    /// Reads until nothing more is available.
    pub fn read(&mut self, stream: StreamId) {
        loop {
            // A closed stream cannot be read any more; its `Failed` event gives the reason.
            let Ok(mut body) = self.conn.stream(stream) else {
                return;
            };
            match body.read(8 * 1024) {
                StreamRead::Data(data) => self.log.body(stream, data),
                StreamRead::Pending | StreamRead::Failed => return,
                StreamRead::End => break,
            }
        }
        self.log.line(&format!("end {}", stream.0));
        if let Ok(body) = self.conn.stream(stream) {
            for field in body.trailers() {
                self.log.field(field.name, field.value);
            }
        }
        self.body_ended(stream);
    }

    fn body_ended(&mut self, stream: StreamId) {
        match self.side {
            _ if self.app == App::Manual => {}
            Side::Server => self.respond(stream),
            Side::Client => self.next_request(),
        }
    }

    /// Responds to the exchange whose head was received last.
    ///
    /// # Errors
    /// `UserError`, as of `Connection::respond`.
    pub fn send_response(
        &mut self,
        status: u16,
        fields: &[Field<'_>],
        body: BodySize,
    ) -> Result<(), UserError> {
        let stream = self.last_stream.unwrap_or(StreamId(1));
        self.conn.respond(stream, &head_of(status, fields), body)
    }

    fn respond(&mut self, stream: StreamId) {
        let Some(at) = self.exchanges.iter().position(|open| open.id == stream) else {
            return;
        };
        let exchange = self.exchanges.swap_remove(at);
        let switching: &[Field<'_>] = &[
            Field {
                name: b"Connection",
                value: b"Upgrade",
            },
            Field {
                name: b"Upgrade",
                value: b"test",
            },
        ];
        let closing: &[Field<'_>] = &[Field {
            name: b"Connection",
            value: b"close",
        }];
        let (status, fields) = match self.app {
            App::Switch if !exchange.connect => (101, switching),
            App::Close => (200, closing),
            _ => (200, &[][..]),
        };
        let head = head_of(status, fields);
        if let Err(error) = self.conn.respond(stream, &head, BodySize::Empty) {
            self.log
                .line(&format!("respond {} refused: {error}", stream.0));
        }
    }

    pub(super) fn next_request(&mut self) {
        let Some((method, target)) = self.requests.pop_front() else {
            return;
        };
        let fields = [
            Field {
                name: b"Host",
                value: b"a",
            },
            Field {
                name: b"Connection",
                value: b"Upgrade",
            },
            Field {
                name: b"Upgrade",
                value: b"test",
            },
        ];
        let (method, fields) = match method.strip_suffix("+upgrade") {
            Some(method) => (method, &fields[..]),
            None => (method.as_str(), &fields[..1]),
        };
        let head = RequestHead {
            method: method.as_bytes(),
            target: target.as_bytes(),
            fields,
        };
        if let Err(error) = self.conn.request(&head, BodySize::Empty) {
            self.log.line(&format!("request refused: {error}"));
        }
    }
}

/// The head of a response.
fn head_of<'a>(status: u16, fields: &'a [Field<'a>]) -> ResponseHead<'a> {
    ResponseHead {
        status,
        reason: b"",
        fields,
    }
}
