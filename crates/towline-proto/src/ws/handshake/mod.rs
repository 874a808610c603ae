//! The opening handshake (RFC 6455 4, RFC 8441 5): pure functions over heads, for both sides.
//!
//! ```text
//!   server: Request::read(head) ──► accept(protocol, ...) ──► fields of the 101, or of the 200 to CONNECT
//!                       └─ Refusal: the status to respond with
//!   client: Offer::fields() ──► request ──► Offer::verify(head) ──► the agreement, or the broken rule
//! ```

mod client;
mod key;
mod server;

pub use client::{Agreement, Offer};
pub use server::{Acceptance, Refusal, Request, is_upgrade};

use crate::HeadRef;

/// The protocol version (RFC 6455 4.1).
const VERSION: &[u8] = b"13";

/// A field of a handshake, ready for a head.
pub type OwnedField = (&'static [u8], Vec<u8>);

/// The values of all fields of a name.
fn values<'a>(head: &HeadRef<'a>, name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
    head.fields()
        .filter(move |field| field.name.eq_ignore_ascii_case(name))
        .map(|field| field.value)
}

/// The elements of a list in several fields (RFC 9110 5.6.1), without the empty ones.
fn elements<'a>(values: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    values
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}
