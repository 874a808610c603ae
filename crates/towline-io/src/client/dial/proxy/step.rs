//! Progress of the handshake with a proxy.

/// State of the handshake after some bytes from the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client::dial) enum Step {
    /// The handshake goes on; there may be bytes to send.
    More,
    /// The handshake is complete: bytes read from now on come from the origin.
    Done,
}

/// A refusal by the proxy, or a violation of its protocol. The text follows "the proxy URL ".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::client::dial) struct Refusal {
    pub(in crate::client::dial) text: String,
    /// Status of an HTTP proxy's response.
    pub(in crate::client::dial) status: Option<u16>,
    /// The refusal concerns this address of the origin; another one may be accepted.
    pub(in crate::client::dial) address_specific: bool,
}

impl Refusal {
    pub(in crate::client::dial) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            status: None,
            address_specific: false,
        }
    }
}
