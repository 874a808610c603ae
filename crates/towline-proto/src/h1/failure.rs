//! How a connection has failed: for its events, and for the program's logs.

use std::sync::Arc;

use crate::error::CloseReason;
use crate::{ConnectionError, Refusal, StreamId};

/// The end of a connection, or of its input; most connections have none.
#[derive(Debug, Default)]
pub(super) struct Failure(Option<Box<Ended>>);

#[derive(Debug, Default)]
struct Ended {
    error: Option<Arc<ConnectionError>>,
    /// Server: the refusal that has ended the connection, and whether the program has not taken it yet.
    refusal: Option<(Refusal, bool)>,
    transport: Option<&'static str>,
}

impl Failure {
    /// The first error of the connection.
    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        self.0.as_ref()?.error.as_ref()
    }

    /// Records why the connection is over, unless an earlier error has ended it.
    pub fn record(&mut self, error: ConnectionError) {
        let ended = self.0.get_or_insert_default();
        ended.error.get_or_insert_with(|| Arc::new(error));
    }

    /// Client: the failure of the transport while bytes of the response were still unread.
    pub fn transport(&self) -> Option<&'static str> {
        self.0.as_ref()?.transport
    }

    pub fn record_transport(&mut self, rule: &'static str) {
        let ended = self.0.get_or_insert_default();
        ended.transport.get_or_insert(rule);
    }

    /// Records the refusal of a request, for the program to take.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.0.get_or_insert_default().refusal = Some((refusal, true));
    }

    pub fn has_refusal(&self) -> bool {
        let refusal = self.0.as_ref().and_then(|ended| ended.refusal.as_ref());
        refusal.is_some_and(|refusal| refusal.1)
    }

    pub fn take_refusal(&mut self) -> Option<Refusal> {
        let (refusal, is_new) = self.0.as_mut()?.refusal.as_mut()?;
        std::mem::replace(is_new, false).then(|| refusal.clone())
    }

    /// The fault that has ended the exchange `id`: its status (0: no response was sent) and its rule.
    pub fn refusal_of(&self, id: StreamId) -> Option<(u16, CloseReason, &'static str)> {
        let (refusal, _) = self.0.as_ref()?.refusal.as_ref()?;
        (refusal.stream == Some(id)).then_some((refusal.status, refusal.reason, refusal.rule))
    }
}
