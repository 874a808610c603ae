//! Labels of the counter of requests. Each set is fixed, so that a client cannot add series.

use towline_proto::Version;

use crate::serve::labels::labelled;

labelled! {
/// Methods with a label of their own; all others are `Other`.
pub enum MethodClass {
    Get: "GET",
    Head: "HEAD",
    Post: "POST",
    Put: "PUT",
    Patch: "PATCH",
    Delete: "DELETE",
    Options: "OPTIONS",
    Other: "other",
}
}

impl MethodClass {
    #[inline]
    pub fn of(method: &[u8]) -> Self {
        match method {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"PATCH" => Self::Patch,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            _ => Self::Other,
        }
    }
}

/// Versions of HTTP, with their labels: the protocol names of OpenTelemetry (`network.protocol.version`).
pub(super) const VERSIONS: [(Version, &str); 4] = [
    (Version::Http10, "1.0"),
    (Version::Http11, "1.1"),
    (Version::Http2, "2"),
    (Version::Http3, "3"),
];

pub(super) fn version_index(version: Version) -> usize {
    match version {
        Version::Http10 => 0,
        Version::Http11 => 1,
        Version::Http2 => 2,
        Version::Http3 => 3,
    }
}

/// Statuses with a label of their own: those of the IANA registry, and a few that are in use without it. The
/// others are counted by class. 0: no response was sent.
pub(super) const STATUSES: [u16; 72] = [
    0, 100, 101, 102, 103, 200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303,
    304, 305, 307, 308, 400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414,
    415, 416, 417, 418, 421, 422, 423, 424, 425, 426, 428, 429, 431, 451, 499, 500, 501, 502, 503,
    504, 505, 506, 507, 508, 510, 511, 520, 529, 599, 1, 2, 3, 4, 5,
];

/// Index of a status in [`STATUSES`].
const STATUS_INDEX: [u8; 600] = status_index();

#[allow(clippy::cast_possible_truncation)] // 72 statuses
const fn status_index() -> [u8; 600] {
    let mut index = [0; 600];
    let classes = STATUSES.len() - 6;
    let mut status = 100;
    while status < 600 {
        index[status] = (classes + status / 100) as u8;
        status += 1;
    }
    let mut at = 0;
    while at <= classes {
        index[STATUSES[at] as usize] = at as u8;
        at += 1;
    }
    index
}

/// The index of a status; of 0 for a number that is no status.
#[inline]
pub(super) fn status_of(status: u16) -> usize {
    usize::from(STATUS_INDEX.get(usize::from(status)).copied().unwrap_or(0))
}

/// `200`, `4xx` for a status without a label of its own, `none` without a response.
pub(super) fn status_label(index: usize) -> String {
    match STATUSES[index] {
        0 => "none".to_owned(),
        class @ 1..=9 => format!("{class}xx"),
        status => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_exact_labels_or_their_class() {
        let label = |status| status_label(status_of(status));
        assert_eq!(label(200), "200");
        assert_eq!(label(404), "404");
        assert_eq!(label(511), "511");
        assert_eq!(label(499), "499");
        assert_eq!(label(299), "2xx");
        assert_eq!(label(477), "4xx");
        assert_eq!(label(0), "none");
        assert_eq!(label(600), "none");
        assert_eq!(label(99), "none");
        for (index, status) in STATUSES.into_iter().enumerate() {
            if status >= 100 {
                assert_eq!(status_of(status), index, "{status}");
            }
        }
    }

    #[test]
    fn methods_and_versions() {
        assert_eq!(MethodClass::of(b"PATCH"), MethodClass::Patch);
        assert_eq!(
            MethodClass::of(b"get"),
            MethodClass::Other,
            "methods are case-sensitive"
        );
        for (index, method) in MethodClass::ALL.into_iter().enumerate() {
            assert_eq!(method as usize, index);
        }
        for (index, (version, _)) in VERSIONS.into_iter().enumerate() {
            assert_eq!(version_index(version), index);
        }
    }
}
