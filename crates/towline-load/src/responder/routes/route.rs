//! The routing table of the responder.

use std::time::Duration;

use towline_proto::{BodySize, HeadRef};

use super::behaviour::App;
use super::injection::Injection;
use super::job::{CollectResponse, DrainResponse};
use super::query::{Query, decoded_pairs};
use super::request::{EventPlan, Route};
use super::responses::HELLO;
use super::{catalogue, websocket};

/// The size of an "endless" body: a tebibyte.
const ENDLESS_BYTES: u64 = 1 << 40;
const DOWNLOAD_BYTES: u64 = 10 << 20;
const REQ_DELAY: Duration = Duration::from_millis(10);

/// The resource of a request, and the injection in its query.
pub fn route(head: &HeadRef<'_>, app: App) -> (Route, Option<Box<Injection>>) {
    let fallback = match app {
        App::Catalogue => plain,
        App::HelloWorld => hello_world,
    };
    let target = head.target();
    let Some(mark) = target.iter().position(|&byte| byte == b'?') else {
        return (fallback(target, head), None);
    };
    let (path, query) = (&target[..mark], Query(&target[mark + 1..]));
    let injection = Injection::of(&query);
    (
        queried(path, &query).unwrap_or_else(|| fallback(path, head)),
        injection,
    )
}

/// Targets without a query.
fn plain(path: &[u8], head: &HeadRef<'_>) -> Route {
    match path {
        b"/api" if head.method() == b"OPTIONS" => Route::Fixed(&catalogue::PREFLIGHT),
        b"/" | b"/api" => Route::Fixed(&HELLO),
        b"/large" => Route::Fixed(&catalogue::LARGE),
        b"/json" if head.method() == b"GET" || head.method() == b"HEAD" => {
            Route::Fixed(&catalogue::JSON)
        }
        b"/json" => Route::Collect(CollectResponse::Json),
        b"/echo" => Route::Echo,
        b"/drain" => Route::Drain(DrainResponse::Ok),
        b"/after" => Route::Drain(DrainResponse::Hello),
        b"/upload" => Route::Drain(DrainResponse::Bytes),
        b"/form" => Route::Collect(CollectResponse::Form),
        b"/cookies" => Route::Text(catalogue::cookies(head).to_string()),
        b"/gzip" => Route::Gzip,
        b"/streaming" => Route::Pieces(4, 4096),
        b"/small" => Route::Pieces(100, 64),
        b"/sse" => Route::Ticks,
        b"/etag" if head.field(b"if-none-match") == Some(b"\"v1\"") => {
            Route::Fixed(&catalogue::NOT_MODIFIED)
        }
        b"/etag" => Route::Fixed(&catalogue::TAGGED),
        b"/static/hello.txt" => Route::Fixed(&catalogue::FILE),
        b"/redirect" => Route::Fixed(&catalogue::REDIRECT),
        b"/qs" => Route::Text("0".into()),
        b"/chunked" => Route::Chunked,
        b"/req" => Route::Req(REQ_DELAY),
        b"/download" => Route::Bytes(DOWNLOAD_BYTES, BodySize::Known(DOWNLOAD_BYTES)),
        b"/endless" => Route::Bytes(ENDLESS_BYTES, BodySize::Known(ENDLESS_BYTES)),
        b"/ws" => websocket::route(head),
        b"/injected" => Route::InjectedFaults,
        _ if catalogue::is_item(path) => Route::Fixed(&HELLO),
        _ => Route::Fixed(&catalogue::NOT_FOUND),
    }
}

/// The application `hello_world`: a delay stands for its sleep and its tasks.
fn hello_world(path: &[u8], _: &HeadRef<'_>) -> Route {
    Route::Fixed(match path {
        b"/" => &catalogue::WORLD,
        b"/large" => &catalogue::LARGE_WORLD,
        b"/async_sleep" => {
            let slept = Box::new(Route::Fixed(&catalogue::SLEPT));
            return Route::Later(slept, Duration::from_millis(1));
        }
        b"/concurrent_tasks" => &catalogue::GATHERED,
        b"/injected" => return Route::InjectedFaults,
        _ => &catalogue::NOT_FOUND,
    })
}

/// Targets that use their query.
fn queried(path: &[u8], query: &Query<'_>) -> Option<Route> {
    Some(match path {
        b"/qs" => Route::Text(decoded_pairs(query.0).to_string()),
        b"/baseline11" => {
            let sum = |name| query.number::<i64>(name).unwrap_or(0);
            Route::Text(sum("a").wrapping_add(sum("b")).to_string())
        }
        b"/req" => Route::Req(query.number("ms").map_or(REQ_DELAY, Duration::from_millis)),
        b"/delay" => {
            let delay = Duration::from_millis(query.number("ms").unwrap_or(0))
                + Duration::from_micros(query.number("us").unwrap_or(0));
            Route::Later(Box::new(Route::Fixed(&HELLO)), delay)
        }
        b"/bytes" | b"/endless" => {
            let bytes = query.number("n").unwrap_or(ENDLESS_BYTES);
            let chunked = query.value("chunked").is_some();
            let size = if chunked {
                BodySize::Unknown
            } else {
                BodySize::Known(bytes)
            };
            Route::Bytes(bytes, size)
        }
        b"/sse" => Route::Events(EventPlan {
            per_s: query.number("per_s").unwrap_or(500),
            count: query.number("n").unwrap_or(0),
            data_bytes: query.number("bytes").unwrap_or(0),
        }),
        [b'/', b'h', ..] => {
            let number = path.strip_prefix(b"/httparena_json/")?;
            Route::Document(catalogue::items(number, query.number("m").unwrap_or(1))?)
        }
        b"/file" => Route::File(query.value("path").unwrap_or_default().into()),
        _ => return None,
    })
}
