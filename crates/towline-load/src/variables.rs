//! The variables of a load, from its data and from responses, and the requests in which they appear.

use std::collections::HashSet;

use bytes::Bytes;
use towline_proto::{Field, PreparedRequest, RequestHead, UserError};

use crate::capture::Capture;
use crate::config::{Config, Mix};
use crate::data::Data;
use crate::error::LoadError;
use crate::target::{SendMode, Target};
use crate::template::{Context, Template, has_placeholders};

/// A request with values.
#[derive(Debug)]
pub(crate) struct VariableRequest {
    /// The name of the target in reports.
    name: String,
    method: Box<[u8]>,
    path: Template,
    fields: Vec<(Box<[u8]>, Template)>,
    body: Option<Template>,
}

/// The names of all variables: the columns of the data, then the captures in the order of the targets.
pub(crate) fn names(config: &Config) -> Vec<Box<str>> {
    let columns = config.data.iter().flat_map(|data| data.names());
    let captures = captures(config).map(|(_, capture)| &capture.name);
    columns.chain(captures).cloned().collect()
}

/// Where these variables come from: a row of the data, by its columns, or responses.
pub(crate) fn place(
    names: &[Box<str>],
    row: Option<(&Data, usize)>,
    variables: &[usize],
) -> String {
    let columns = row.map_or(0, |(data, _)| data.names().len());
    let quoted = |is_column: bool| -> Vec<_> {
        let of = variables
            .iter()
            .filter(|one| (**one < columns) == is_column);
        of.map(|variable| format!("{:?}", names[*variable]))
            .collect()
    };
    let (columns, captured) = (quoted(true).join(", "), quoted(false).join(", "));
    let mut places = Vec::new();
    if let Some((data, index)) = row
        && !columns.is_empty()
    {
        places.push(format!("{}, column {columns}", data.place(index)));
    }
    if !captured.is_empty() {
        places.push(format!("taken from a response: {captured}"));
    }
    places.join("; ")
}

/// All captures, with the index of their target.
fn captures(config: &Config) -> impl Iterator<Item = (usize, &Capture)> {
    let targets = config.targets.iter().enumerate();
    targets.flat_map(|(index, target)| {
        (target.expect.captures.iter()).map(move |capture| (index, capture))
    })
}

/// The place of each target's first capture among all, and the number of all.
pub(crate) fn first_captures(config: &Config) -> (Vec<usize>, usize) {
    let mut captures = 0;
    let first = (config.targets.iter())
        .map(|target| {
            captures += target.expect.captures.len();
            captures - target.expect.captures.len()
        })
        .collect();
    (first, captures)
}

/// The requests of all targets; `None` for those without values.
pub(crate) fn requests(config: &Config) -> Result<Vec<Option<VariableRequest>>, LoadError> {
    if !config.has_variables() {
        return Ok(config.targets.iter().map(|_| None).collect());
    }
    let names = names(config);
    let request = |target: &Target| {
        let request = VariableRequest::new(target, &names);
        request.map_err(|why| LoadError::Config(format!("{}: {why}", target.url())))
    };
    config.targets.iter().map(request).collect()
}

/// Validates the variables and their use.
pub(crate) fn check(config: &Config) -> Result<(), LoadError> {
    let wrong = |why: String| Err(LoadError::Config(why));
    if config.mix == Mix::Session {
        if config.destinations().len() > 1 {
            return wrong("the requests of a session have one origin".into());
        }
        if config.concurrency() > 1 {
            return wrong("a session sends one request at a time".into());
        }
        if config
            .targets
            .iter()
            .any(|target| target.messages.is_some())
        {
            return wrong("a session consists of requests, not of WebSocket messages".into());
        }
    } else if captures(config).next().is_some() {
        return wrong(
            "values are taken from responses in a session only: mix = \"session\"".into(),
        );
    }
    let mut seen = HashSet::new();
    let names = names(config);
    if let Some(name) = names.iter().find(|name| !seen.insert(&***name)) {
        return wrong(format!("two values have the name {name:?}"));
    }
    let columns = config.data.as_ref().map_or(0, |data| data.names().len());
    let captured_by: Vec<_> = captures(config).map(|(target, _)| target).collect();
    let mut has_value = false;
    for (index, request) in requests(config)?.iter().enumerate() {
        let Some(request) = request else {
            continue;
        };
        for variable in request.variables() {
            has_value = true;
            let by = variable
                .checked_sub(columns)
                .map(|place| captured_by[place]);
            if by.is_some_and(|by| by >= index) {
                let (url, name) = (config.targets[index].url(), &names[variable]);
                return wrong(format!("{url}: {name:?} comes from a later response"));
            }
        }
    }
    if config.data.is_some() && !has_value {
        return wrong("no request has a value of the data, such as {{name}}".into());
    }
    Ok(())
}

impl VariableRequest {
    fn new(target: &Target, names: &[Box<str>]) -> Result<Option<Self>, String> {
        let body = target.body.as_deref().unwrap_or_default();
        let has_any = has_placeholders(target.path.as_bytes())
            || target
                .fields
                .iter()
                .any(|(_, value)| has_placeholders(value))
            || has_placeholders(body);
        if !has_any {
            return Ok(None);
        }
        if target.messages.is_some() {
            return Err("WebSocket messages have no values".into());
        }
        if target.send_mode != SendMode::Whole || target.chunk_bytes.is_some() {
            return Err("a request with values is sent whole".into());
        }
        let field = |(name, value): &(_, _)| {
            let (name, value): (&std::sync::Arc<[u8]>, &std::sync::Arc<[u8]>) = (name, value);
            let value = Template::parse(value, names, Context::Header)?;
            Ok((Box::from(&**name), value))
        };
        let body = target.body.as_deref();
        let body = body.map(|body| Template::parse(body, names, Context::Body));
        Ok(Some(Self {
            name: target.step_name(),
            method: target.method.as_bytes().into(),
            path: Template::parse(target.path.as_bytes(), names, Context::Path)?,
            fields: (target.whole_fields().iter())
                .map(field)
                .collect::<Result<_, String>>()?,
            body: body.transpose()?,
        }))
    }

    /// Describes why a request with these values is invalid, which `error` says: the variables that each make it
    /// invalid alone, or all.
    pub(crate) fn mistake<'v>(
        &self,
        error: UserError,
        value: impl Fn(usize) -> &'v [u8],
        describe: impl Fn(&[usize]) -> String,
    ) -> String {
        let mut used: Vec<_> = self.variables().collect();
        used.sort_unstable();
        used.dedup();
        let is_wrong = |one: &usize| {
            let alone = |variable| {
                if variable == *one {
                    value(variable)
                } else {
                    b"x"
                }
            };
            self.prepared(false, alone).err() == Some(error)
        };
        let mut wrong: Vec<_> = used.iter().copied().filter(is_wrong).collect();
        if wrong.is_empty() {
            wrong = used;
        }
        format!("{}: {}: {error}", self.name, describe(&wrong))
    }

    fn variables(&self) -> impl Iterator<Item = usize> {
        let fields = self.fields.iter().flat_map(|(_, value)| value.variables());
        let body = self.body.iter().flat_map(Template::variables);
        self.path.variables().chain(fields).chain(body)
    }

    /// The request with these values; the last one of a connection has `Connection: close`.
    pub(crate) fn prepared<'v>(
        &self,
        is_last: bool,
        value: impl Fn(usize) -> &'v [u8],
    ) -> Result<PreparedRequest, UserError> {
        let path = self.path.render(Context::Path, &value);
        let rendered: Vec<_> = (self.fields.iter())
            .map(|(name, text)| (name, text.render(Context::Header, &value)))
            .collect();
        let says_close =
            (self.fields.iter()).any(|(name, _)| name.eq_ignore_ascii_case(b"connection"));
        let close = (is_last && !says_close).then_some(Field {
            name: b"Connection",
            value: b"close",
        });
        let fields: Vec<_> = (rendered.iter())
            .map(|(name, value)| Field {
                name,
                value: value.trim_ascii(),
            })
            .chain(close)
            .collect();
        let body = self.body.as_ref();
        let body = body.map(|body| Bytes::from(body.render(Context::Body, &value)));
        let head = RequestHead {
            method: &self.method,
            target: &path,
            fields: &fields,
        };
        PreparedRequest::new(&head, body)
    }
}
