//! Requests for files of a real directory.

use super::testing::Directory;
use super::*;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};

type Fields<'a> = &'a [(&'a str, &'a str)];

struct TestMount {
    directory: Directory,
    mount: Mount,
}

impl TestMount {
    fn new(name: &str, options: Options) -> Self {
        let directory = Directory::new(name);
        directory.write_at("root/a.txt", "0123456789", 0);
        directory.write_at("root/page.html", "<p>", 0);
        directory.write_at("root/sub/index.html", "index", 0);
        directory.write_at("root/.env", "secret", 0);
        directory.write_at("root/empty.css", "", 0);
        let mount = Mount::open("/static/", &directory.path().join("root"), options).unwrap();
        Self { directory, mount }
    }

    fn plain(name: &str) -> Self {
        Self::new(name, Options::default())
    }

    fn ask(&self, method: &str, target: &str, fields: Fields<'_>) -> TestResponse {
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let response = self.mount.response(
            method.as_bytes(),
            target.as_bytes(),
            fields,
            SystemTime::now(),
        );
        TestResponse::of(response.expect("the target is covered"))
    }

    fn get(&self, target: &str, fields: Fields<'_>) -> TestResponse {
        self.ask("GET", target, fields)
    }
}

struct TestResponse {
    status: u16,
    fields: Vec<(String, String)>,
    length: Option<u64>,
    body: String,
}

impl TestResponse {
    fn of(response: FileResponse) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let body = match response.body {
            FileBody::Empty => String::new(),
            FileBody::Text(text) => text.into(),
            FileBody::File {
                file,
                offset,
                bytes,
            } => {
                let mut space = vec![0; bytes as usize];
                file.read_exact_at(&mut space, offset).unwrap();
                text(&space)
            }
        };
        let fields = response
            .fields
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect();
        Self {
            status: response.status,
            fields,
            length: response.content_length,
            body,
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut opened = self.fields.iter().filter(|(other, _)| other == name);
        let first = opened.next().map(|(_, value)| value.as_str());
        assert!(opened.next().is_none(), "{name} twice");
        first
    }
}

#[test]
fn a_file_is_served_with_its_headers() {
    let site = TestMount::plain("fields");
    let response = site.get("/static/a.txt?v=1", &[]);
    assert_eq!(
        (response.status, response.body.as_str(), response.length),
        (200, "0123456789", Some(10))
    );
    assert_eq!(
        response.field("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(
        response.field("last-modified"),
        Some("Sun, 09 Sep 2001 01:46:40 GMT")
    );
    assert_eq!(response.field("etag"), Some("\"a-de0b6b3a7640000\""));
    assert_eq!(response.field("cache-control"), Some("max-age=86400"));
    assert_eq!(response.field("accept-ranges"), Some("bytes"));
    assert_eq!(response.field("vary"), Some("Accept-Encoding"));
    assert_eq!(response.field("x-content-type-options"), Some("nosniff"));
}

#[test]
fn only_get_and_head_are_allowed() {
    let site = TestMount::plain("methods");
    let (get, head) = (
        site.get("/static/a.txt", &[]),
        site.ask("HEAD", "/static/a.txt", &[("Range", "bytes=0-1")]),
    );
    assert_eq!(
        (head.status, head.body.as_str(), head.length),
        (200, "", Some(10))
    );
    assert_eq!(head.fields, get.fields);
    let post = site.ask("POST", "/static/a.txt", &[]);
    assert_eq!((post.status, post.field("allow")), (405, Some("GET, HEAD")));
    let missing = site.ask("HEAD", "/static/missing", &[]);
    assert_eq!(
        (missing.status, missing.body.as_str(), missing.length),
        (404, "", Some(10))
    );
    let empty = site.get("/static/empty.css", &[]);
    assert_eq!(
        (empty.status, empty.body.as_str(), empty.length),
        (200, "", Some(0))
    );
}

#[test]
fn a_missing_file_is_404() {
    let site = TestMount::plain("missing");
    for target in [
        "/static/missing",
        "/static",
        "/static/",
        "/static/sub",
        "/static/sub/",
        "/static/a.txt/",
        "/static/a.txt/b",
        "/static/.env",
        "/static/%2e%2e/root/a.txt",
        "/static//a.txt",
        "/static/../root/a.txt",
    ] {
        assert_eq!(site.get(target, &[]).status, 404, "{target}");
    }
    let long = format!("/static/{}", "x".repeat(5000));
    assert_eq!(site.get(&long, &[]).status, 404);
    let fields = std::iter::empty::<(&[u8], &[u8])>();
    for outside in ["/", "/staticx", "/other/a.txt", "*"] {
        assert!(
            site.mount
                .response(
                    b"GET",
                    outside.as_bytes(),
                    fields.clone(),
                    SystemTime::now()
                )
                .is_none()
        );
        assert!(!site.mount.covers(outside.as_bytes()));
    }
    assert!(site.mount.covers(b"/static/anything"));
}

#[test]
fn the_root_prefix_covers_everything() {
    let site = TestMount::plain("slash");
    let mount = Mount::open("/", &site.directory.path().join("root"), Options::default()).unwrap();
    let fields = std::iter::empty::<(&[u8], &[u8])>();
    let response = mount
        .response(b"GET", b"/sub/index.html", fields, SystemTime::now())
        .unwrap();
    assert_eq!(TestResponse::of(response).body, "index");
}

#[test]
fn an_index_is_served_for_its_directory() {
    let options = Options {
        index: Some("index.html".into()),
        ..Options::default()
    };
    let site = TestMount::new("index", options);
    assert_eq!(site.get("/static/sub/", &[]).body, "index");
    let redirect = site.get("/static/sub?a=b", &[]);
    assert_eq!(
        (redirect.status, redirect.field("location")),
        (301, Some("/static/sub/?a=b"))
    );
    assert_eq!(site.get("/static/", &[]).status, 404, "no index there");
    assert_eq!(site.get("/static", &[]).field("location"), Some("/static/"));
    assert_eq!(with_slash(b"//evil.example/x"), None);
    assert_eq!(with_slash(b"/\\evil.example/x"), None);
}

#[test]
fn an_unchanged_file_is_304() {
    let site = TestMount::plain("conditions");
    let etag = site
        .get("/static/a.txt", &[])
        .field("etag")
        .unwrap()
        .to_owned();
    for field in [
        ("If-None-Match", etag.as_str()),
        ("If-Modified-Since", "Sun, 09 Sep 2001 01:46:40 GMT"),
    ] {
        for method in ["GET", "HEAD"] {
            let response = site.ask(method, "/static/a.txt", &[field]);
            assert_eq!(
                (response.status, response.body.as_str(), response.length),
                (304, "", None)
            );
            assert_eq!(response.field("etag"), Some(etag.as_str()));
            assert_eq!(response.field("vary"), Some("Accept-Encoding"));
            assert_eq!(response.field("content-type"), None);
        }
    }
    assert_eq!(
        site.get("/static/a.txt", &[("If-Match", "\"x\"")]).status,
        412
    );
    site.directory.write_at("root/a.txt", "changed", 60);
    assert_eq!(
        site.get("/static/a.txt", &[("If-None-Match", &etag)]).body,
        "changed"
    );
}

#[test]
fn a_range_is_206() {
    let site = TestMount::plain("ranges");
    let part = site.get("/static/a.txt", &[("Range", "bytes=2-4")]);
    assert_eq!(
        (part.status, part.body.as_str(), part.length),
        (206, "234", Some(3))
    );
    assert_eq!(part.field("content-range"), Some("bytes 2-4/10"));
    let etag = part.field("etag").unwrap().to_owned();
    let beyond = site.get("/static/a.txt", &[("Range", "bytes=10-")]);
    assert_eq!(
        (beyond.status, beyond.field("content-range")),
        (416, Some("bytes */10"))
    );
    let several = site.get("/static/a.txt", &[("Range", "bytes=0-1,3-4")]);
    assert_eq!((several.status, several.length), (200, Some(10)));
    let same = site.get(
        "/static/a.txt",
        &[("Range", "bytes=-1"), ("If-Range", &etag)],
    );
    assert_eq!((same.status, same.body.as_str()), (206, "9"));
    let changed = site.get(
        "/static/a.txt",
        &[("Range", "bytes=-1"), ("If-Range", "\"x\"")],
    );
    assert_eq!((changed.status, changed.length), (200, Some(10)));
}

#[test]
fn precompressed_siblings_are_negotiated() {
    let site = TestMount::plain("siblings");
    site.directory.write_at("root/a.txt.gz", "GZIP", 0);
    site.directory.write_at("root/a.txt.br", "BROTLI", 5);
    site.directory.write_at("root/page.html.gz", "stale", 0);
    site.directory.write_at("root/page.html", "newer", 9);
    site.directory.write_at("root/image.png", "png", 0);
    site.directory.write_at("root/image.png.gz", "never", 0);
    let coded = |target: &str, accept: &str| {
        let response = site.get(target, &[("Accept-Encoding", accept)]);
        (
            response.body.clone(),
            response.field("content-encoding").map(str::to_owned),
        )
    };
    assert_eq!(
        coded("/static/a.txt", "gzip, br"),
        ("BROTLI".into(), Some("br".into()))
    );
    assert_eq!(
        coded("/static/a.txt", "gzip, zstd"),
        ("GZIP".into(), Some("gzip".into()))
    );
    assert_eq!(
        coded("/static/a.txt", "br;q=0"),
        ("0123456789".into(), None)
    );
    assert_eq!(coded("/static/page.html", "gzip"), ("newer".into(), None));
    assert_eq!(coded("/static/image.png", "gzip"), ("png".into(), None));
    assert_eq!(
        coded("/static/a.txt.gz", "gzip"),
        ("GZIP".into(), None),
        "asked for by its own name"
    );
    let encoded = site.get("/static/a.txt", &[("Accept-Encoding", "gzip")]);
    assert_eq!(
        encoded.field("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(encoded.field("vary"), Some("Accept-Encoding"));
    assert!(encoded.field("etag").unwrap().ends_with("-gzip\""));
    assert_eq!(site.get("/static/image.png", &[]).field("vary"), None);
    let fields = [("Accept-Encoding", "gzip"), ("Range", "bytes=1-2")];
    let part = site.get("/static/a.txt", &fields);
    assert_eq!(
        (part.status, part.body.as_str()),
        (206, "ZI"),
        "ranges count the encoded bytes"
    );
}

#[test]
fn only_regular_files_are_served() {
    let site = TestMount::plain("special");
    let fifo = site.directory.path().join("root/fifo");
    let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
    // SAFETY: a valid C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert_eq!(site.get("/static/fifo", &[]).status, 404);
    let _socket =
        std::os::unix::net::UnixListener::bind(site.directory.path().join("root/socket")).unwrap();
    assert_eq!(site.get("/static/socket", &[]).status, 404);
    std::os::unix::fs::symlink("/dev/zero", site.directory.path().join("root/device")).unwrap();
    assert_eq!(site.get("/static/device", &[]).status, 404);
}

#[test]
fn an_unreadable_file_is_forbidden() {
    let site = TestMount::plain("forbidden");
    let path = site.directory.write("root/locked.txt", "x");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    // Root may read all files, independent of their mode.
    let readable = File::open(&path).is_ok_and(|mut file| file.read(&mut [0]).is_ok());
    assert_eq!(
        site.get("/static/locked.txt", &[]).status,
        if readable { 200 } else { 403 }
    );
    assert_eq!(status_of(&io::Error::from_raw_os_error(libc::EACCES)), 403);
    assert_eq!(status_of(&io::Error::from_raw_os_error(libc::EMFILE)), 503);
}

#[test]
fn types_follow_the_extension() {
    let typed = |name: &str| String::from_utf8(content_type(name.as_bytes()).into_owned()).unwrap();
    assert_eq!(typed("a/b.js"), "text/javascript; charset=utf-8");
    assert_eq!(typed("x.HTML"), "text/html; charset=utf-8");
    assert_eq!(typed("x.json"), "application/json");
    assert_eq!(typed("x.wasm"), "application/wasm");
    assert_eq!(typed("x.tar.gz"), "application/gzip");
    assert_eq!(typed("x.woff2"), "font/woff2");
    assert_eq!(typed("dir.html/README"), "application/octet-stream");
    assert_eq!(typed("x.unheard-of"), "application/octet-stream");
}

#[test]
fn without_expiry_there_is_no_cache_control() {
    let site = TestMount::new(
        "expiry",
        Options {
            expires: 0,
            ..Options::default()
        },
    );
    assert_eq!(site.get("/static/a.txt", &[]).field("cache-control"), None);
    assert!(Mount::open("/x", Path::new("/nonexistent"), Options::default()).is_err());
}
