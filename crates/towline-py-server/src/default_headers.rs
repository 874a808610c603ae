//! Headers that the server adds to every response that does not have them.
use std::time::{Duration, UNIX_EPOCH};

use towline_proto::Field;

use super::options::Options;

/// `server`, `date` (RFC 9110 6.6.1) and those of `--header`.
#[derive(Debug)]
pub struct DefaultHeaders {
    date_header: bool,
    fixed: Vec<(Vec<u8>, Vec<u8>)>,
    second: u64,
    date: String,
}

impl DefaultHeaders {
    pub fn new(options: &Options) -> Self {
        let mut fixed = options.headers.clone();
        let has = |fixed: &[(Vec<u8>, Vec<u8>)], wanted: &[u8]| {
            fixed
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case(wanted))
        };
        if options.server_header && !has(&fixed, b"server") {
            fixed.push((b"server".to_vec(), b"towline".to_vec()));
        }
        Self {
            date_header: options.date_header,
            fixed,
            second: 0,
            date: String::new(),
        }
    }

    /// Formats the date again when the second has changed.
    pub fn refresh(&mut self) {
        if !self.date_header {
            return;
        }
        let now = towline_io::unix_seconds();
        if now != self.second {
            self.second = now;
            self.date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now));
        }
    }

    /// The headers to add to a response: all for which `has` returns false. `own`: those of the address.
    pub fn missing<'a>(
        &'a self,
        own: &'a [(&'static [u8], Vec<u8>)],
        has: impl Fn(&[u8]) -> bool + 'a,
    ) -> impl Iterator<Item = Field<'a>> {
        let date = self.date_header.then_some(Field {
            name: b"date",
            value: self.date.as_bytes(),
        });
        let fixed = self.fixed.iter().map(|(name, value)| Field { name, value });
        let own = own.iter().map(|(name, value)| Field { name, value });
        date.into_iter()
            .chain(fixed)
            .chain(own)
            .filter(move |field| !has(field.name))
    }
}
