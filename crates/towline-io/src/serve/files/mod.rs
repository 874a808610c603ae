//! Static files: a mounted prefix is served from a directory, without the application.
//!
//! [`Mount::response`] turns a request into a [`FileResponse`]: status, headers and an open file with the
//! part of it to send, by `sendfile` or in pieces. A mount owns its prefix: a missing file is 404 and does
//! not fall through to the application (as in Granian).
//!
//! Dotfiles are hidden (except `.well-known`), there are no directory listings, `index.html` is served only
//! with [`Options::index`], a request for several ranges gets the whole file (see [`range`]), and
//! precompressed siblings are used only if they are at least as new as the file itself.

mod conditions;
mod path;
mod range;
mod root;
#[cfg(test)]
pub(crate) mod testing;

use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::time::SystemTime;

use self::conditions::{Conditions, Outcome, Validators, evaluate};
use self::range::Selection;
use self::root::Root;
use super::compress::is_compressible;
use crate::coding::Coding;
use crate::coding::accept_encoding::AcceptEncoding;

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// `max-age` in seconds; 0 sends no Cache-Control.
    pub expires: u64,
    /// File served for its directory, such as `index.html`.
    pub index: Option<String>,
    pub dotfiles: bool,
    /// Serve `.br`, `.zst` and `.gz` siblings of a file.
    pub precompressed: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            expires: 86_400,
            index: None,
            dotfiles: false,
            precompressed: true,
        }
    }
}

/// A prefix and the directory from which it is served.
#[derive(Debug)]
pub struct Mount {
    prefix: Vec<u8>,
    root: Root,
    options: Options,
    cache_control: Option<String>,
}

/// A header of a response.
pub type ResponseField = (&'static [u8], Cow<'static, [u8]>);

/// Response of a mount. Content-Length is not among the headers: it is `content_length`.
#[derive(Debug)]
pub struct FileResponse {
    pub status: u16,
    pub fields: Vec<ResponseField>,
    /// `None` for 304, which must not send an unknown length (RFC 9110 8.6).
    pub content_length: Option<u64>,
    pub body: FileBody,
}

#[derive(Debug)]
pub enum FileBody {
    /// No body; for HEAD, too, where `content_length` is that of GET.
    Empty,
    Text(&'static str),
    File {
        file: File,
        offset: u64,
        bytes: u64,
    },
}

/// Methods supported for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Get,
    Head,
}

/// An open regular file and its metadata.
struct OpenedFile {
    file: File,
    data: Metadata,
}

impl Mount {
    /// Mounts `directory` at `prefix`, which starts with a slash. Fails when the directory cannot be opened.
    pub fn open(prefix: &str, directory: &Path, options: Options) -> io::Result<Self> {
        let root = Root::open(directory)?;
        let prefix = prefix.trim_end_matches('/').as_bytes().to_vec();
        let cache_control = (options.expires > 0).then(|| format!("max-age={}", options.expires));
        Ok(Self {
            prefix,
            root,
            options,
            cache_control,
        })
    }

    /// The prefix without its trailing slash; the empty prefix covers everything.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Whether this mount serves the target, rather than the application.
    pub fn covers(&self, target: &[u8]) -> bool {
        path::of_target(target).is_some_and(|path| path::below(path, &self.prefix).is_some())
    }

    /// Response to a request; `None` when the target is outside the prefix.
    pub fn response<'a>(
        &self,
        method: &[u8],
        target: &[u8],
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])> + Clone,
        now: SystemTime,
    ) -> Option<FileResponse> {
        let encoded = path::below(path::of_target(target)?, &self.prefix)?;
        let method = match method {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            _ => return Some(method_not_allowed()),
        };
        let Some(relative) = path::relative(encoded, self.options.dotfiles) else {
            return Some(plain(404, method));
        };
        let response = self.find(&relative, target).map(|found| match found {
            Found::File(name, opened) => self.file_response(method, &name, opened, fields, now),
            Found::Redirect(location) => redirect(location, method),
        });
        Some(response.unwrap_or_else(|error| plain(status_of(&error), method)))
    }

    fn find(&self, relative: &path::Relative, target: &[u8]) -> io::Result<Found> {
        let not_found = || io::Error::from(io::ErrorKind::NotFound);
        let file = self.root.file(&relative.bytes)?;
        let data = file.metadata()?;
        if data.is_file() && !relative.slash {
            return Ok(Found::File(
                relative.bytes.clone(),
                OpenedFile { file, data },
            ));
        }
        let Some(index) = self.options.index.as_ref().filter(|_| data.is_dir()) else {
            return Err(not_found());
        };
        // The root's own slash belongs to the prefix.
        if !path::of_target(target).is_some_and(|path| path.ends_with(b"/")) {
            return with_slash(target)
                .map(Found::Redirect)
                .ok_or_else(not_found);
        }
        let mut name = relative.bytes.clone();
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(index.as_bytes());
        let file = self.root.file(&name)?;
        let data = file.metadata()?;
        if !data.is_file() {
            return Err(not_found());
        }
        Ok(Found::File(name, OpenedFile { file, data }))
    }

    fn file_response<'a>(
        &self,
        method: Method,
        name: &[u8],
        opened: OpenedFile,
        request: impl IntoIterator<Item = (&'a [u8], &'a [u8])> + Clone,
        now: SystemTime,
    ) -> FileResponse {
        let content_type = content_type(name);
        let mut fields: Vec<ResponseField> = Vec::with_capacity(10);
        let mut coding = None;
        let mut opened = opened;
        if self.options.precompressed && is_compressible(&content_type) {
            let accepted = AcceptEncoding::from_fields(request.clone());
            if let Some((sibling, its_coding)) = self.sibling(name, &opened.data, &accepted) {
                opened = sibling;
                coding = Some(its_coding);
            }
            fields.push((b"vary", borrowed("Accept-Encoding")));
        }
        let validators = Validators::of(&opened.data, coding.map_or("", Coding::name), now);
        fields.push((b"etag", owned(validators.etag.clone())));
        fields.push((b"last-modified", owned(validators.last_modified())));
        if let Some(value) = &self.cache_control {
            fields.push((b"cache-control", owned(value.clone())));
        }
        let conditions = Conditions::from_fields(request);
        let with_range = match evaluate(&conditions, &validators) {
            Outcome::NotModified => {
                return FileResponse {
                    status: 304,
                    fields,
                    content_length: None,
                    body: FileBody::Empty,
                };
            }
            Outcome::Failed => return plain(412, method),
            Outcome::Go { with_range } => with_range,
        };
        fields.push((b"content-type", content_type));
        fields.push((b"accept-ranges", borrowed("bytes")));
        // The media type follows from the file's name; browsers must not guess it from the content.
        fields.push((b"x-content-type-options", borrowed("nosniff")));
        if let Some(coding) = coding {
            fields.push((b"content-encoding", borrowed(coding.name())));
        }
        // Range is defined for GET only (RFC 9110 14.2).
        let range = conditions
            .range
            .filter(|_| with_range && method == Method::Get);
        send(method, opened, fields, range)
    }

    /// The existing precompressed sibling that the client prefers.
    fn sibling(
        &self,
        name: &[u8],
        original: &Metadata,
        accepted: &AcceptEncoding,
    ) -> Option<(OpenedFile, Coding)> {
        if !accepted.is_present() {
            return None;
        }
        let mut left = Coding::ENCODED.to_vec();
        while let Some(coding) = accepted.choose(&left) {
            if let Some(opened) = self.open_sibling(name, original, coding) {
                return Some((opened, coding));
            }
            left.retain(|&other| other != coding);
        }
        None
    }

    fn open_sibling(&self, name: &[u8], original: &Metadata, coding: Coding) -> Option<OpenedFile> {
        let name = [name, b".", coding.suffix().as_bytes()].concat();
        let file = self.root.file(&name).ok()?;
        let data = file.metadata().ok()?;
        let is_current = data.modified().ok()? >= original.modified().ok()?;
        (data.is_file() && is_current).then_some(OpenedFile { file, data })
    }
}

enum Found {
    File(Vec<u8>, OpenedFile),
    Redirect(Vec<u8>),
}

fn send(
    method: Method,
    opened: OpenedFile,
    mut fields: Vec<ResponseField>,
    range: Option<&[u8]>,
) -> FileResponse {
    let size = opened.data.len();
    let (status, offset, bytes) =
        match range.map_or(Selection::Whole, |range| range::select(range, size)) {
            Selection::Whole => (200, 0, size),
            Selection::Part { offset, bytes } => {
                let last = offset + bytes - 1;
                fields.push((
                    b"content-range",
                    owned(format!("bytes {offset}-{last}/{size}")),
                ));
                (206, offset, bytes)
            }
            Selection::Unsatisfiable => {
                let mut response = plain(416, method);
                response
                    .fields
                    .push((b"content-range", owned(format!("bytes */{size}"))));
                return response;
            }
        };
    let body = match method {
        Method::Get if bytes > 0 => FileBody::File {
            file: opened.file,
            offset,
            bytes,
        },
        _ => FileBody::Empty,
    };
    FileResponse {
        status,
        fields,
        content_length: Some(bytes),
        body,
    }
}

/// The target with a slash after its path, so that a page's relative links work. `None` for a target that
/// starts with two slashes: as a Location it would name another host.
fn with_slash(target: &[u8]) -> Option<Vec<u8>> {
    if target.starts_with(b"//") || target.contains(&b'\\') {
        return None;
    }
    let path = path::of_target(target)?;
    Some([path, b"/", &target[path.len()..]].concat())
}

fn redirect(location: Vec<u8>, method: Method) -> FileResponse {
    let mut response = plain(301, method);
    response.fields.push((b"location", Cow::Owned(location)));
    response
}

fn method_not_allowed() -> FileResponse {
    let mut response = plain(405, Method::Get);
    response.fields.push((b"allow", borrowed("GET, HEAD")));
    response
}

/// A response without a file.
fn plain(status: u16, method: Method) -> FileResponse {
    let text = match status {
        301 => "Moved Permanently\n",
        403 => "Forbidden\n",
        404 => "Not Found\n",
        405 => "Method Not Allowed\n",
        412 => "Precondition Failed\n",
        416 => "Range Not Satisfiable\n",
        503 => "Service Unavailable\n",
        _ => "Internal Server Error\n",
    };
    let fields = vec![(&b"content-type"[..], borrowed("text/plain; charset=utf-8"))];
    let body = if method == Method::Head {
        FileBody::Empty
    } else {
        FileBody::Text(text)
    };
    FileResponse {
        status,
        fields,
        content_length: Some(text.len() as u64),
        body,
    }
}

fn status_of(error: &io::Error) -> u16 {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => 403,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => 503,
        Some(libc::EIO) => 500,
        // ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, ENXIO (a socket): no such file for a client.
        _ => 404,
    }
}

/// Media type by file extension; text is declared as UTF-8.
fn content_type(name: &[u8]) -> Cow<'static, [u8]> {
    let extension = name.rsplit(|&byte| byte == b'/').next().and_then(|file| {
        let dot = file.iter().rposition(|&byte| byte == b'.')?;
        std::str::from_utf8(&file[dot + 1..]).ok()
    });
    let guess = extension.and_then(|extension| mime_guess::from_ext(extension).first_raw());
    match guess {
        None => borrowed("application/octet-stream"),
        Some(essence) if essence.starts_with("text/") || essence.ends_with("javascript") => {
            owned(format!("{essence}; charset=utf-8"))
        }
        Some(essence) => borrowed(essence),
    }
}

fn borrowed(value: &'static str) -> Cow<'static, [u8]> {
    Cow::Borrowed(value.as_bytes())
}

fn owned(value: String) -> Cow<'static, [u8]> {
    Cow::Owned(value.into_bytes())
}

#[cfg(test)]
mod tests;
