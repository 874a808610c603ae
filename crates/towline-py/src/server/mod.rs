//! The server face. Both servers read the same options and share what does not depend on the
//! application's interface; `asgi` and `wsgi` hold what does.
pub mod asgi;
pub mod default_headers;
pub mod feature_config;
pub mod listeners;
pub mod options;
pub mod pem;
pub mod setup;
pub mod shared_stats;
pub mod target;
pub mod wsgi;
