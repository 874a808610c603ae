//! TLS configuration of a client: trust, client certificate and versions.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustls::ClientConfig;
use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Resumption};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;

use super::config::MinVersion;
use super::explain::is_beyond_rustls;
use super::external::ExternalTlsContext;
use super::identity::{Identity, bad};
use super::session::Session;
use super::trust;
use super::verify::Verifier;
use crate::fork;
use crate::thread_pool::{FILES, Task, TaskHandle};

/// Servers whose tickets are kept for QUIC; as many as rustls keeps for TCP.
const QUIC_SESSIONS: usize = 256;

/// Servers that are remembered to need the legacy implementation.
const LEGACY_SERVERS: usize = 1024;

/// Certificates that a client trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The system's store, loaded once per process when it is first needed.
    #[default]
    System,
    /// The system's store, independent of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    Platform,
    /// The file and folders that `SSL_CERT_FILE` and `SSL_CERT_DIR` name when it is loaded.
    Environment,
    /// A PEM file, or a directory of such files.
    Path(PathBuf),
    /// The certificate of the peer is not verified.
    Insecure,
}

#[derive(Clone, Debug, Default)]
pub struct ClientTlsSettings {
    pub trust: Trust,
    /// PEM file used if the system's store is empty (certifi's).
    pub fallback: Option<PathBuf>,
    pub identity: Option<Identity>,
    pub min_version: MinVersion,
    /// Disables session resumption, for example to measure full handshakes.
    pub never_resume: bool,
}

/// TLS configuration shared by connections, which resume each other's sessions. Equal only to itself.
pub struct ClientTls(Provider);

enum Provider {
    Rustls(Box<LazyConfig>),
    External(Box<dyn ExternalTlsContext>),
}

#[derive(Default)]
struct LazyConfig {
    settings: ClientTlsSettings,
    loaded: OnceLock<Result<Arc<ClientConfig>, String>>,
    /// Configuration for QUIC. It has tickets of its own: those of TCP are not valid for another transport.
    quic: OnceLock<Result<Arc<ClientConfig>, String>>,
    /// Tickets for QUIC.
    quic_tickets: OnceLock<Arc<ClientSessionMemoryCache>>,
    /// Loading task in progress, with the fork generation that started it.
    loading: Mutex<(u64, Weak<Task<()>>)>,
    legacy: Option<Legacy>,
}

/// An implementation for servers whose ciphers, keys or certificates rustls does not have.
struct Legacy {
    context: Box<dyn ExternalTlsContext>,
    /// Their names.
    servers: Mutex<HashSet<String>>,
}

impl ClientTls {
    /// Creates the configuration without reading files; they are read on first use, in the thread pool.
    pub fn new(settings: ClientTlsSettings) -> Self {
        Self(Provider::Rustls(Box::new(LazyConfig {
            settings,
            ..LazyConfig::default()
        })))
    }

    /// TLS by an external implementation, with its own trust and certificates.
    pub fn external(context: Box<dyn ExternalTlsContext>) -> Self {
        Self(Provider::External(context))
    }

    /// Creates the configuration with another implementation for servers with which rustls has nothing in common, as the
    /// drop-ins have it: they connect to what the replaced packages connect to.
    pub fn with_legacy(settings: ClientTlsSettings, context: Box<dyn ExternalTlsContext>) -> Self {
        Self(Provider::Rustls(Box::new(LazyConfig {
            settings,
            legacy: Some(Legacy {
                context,
                servers: Mutex::default(),
            }),
            ..LazyConfig::default()
        })))
    }

    /// After a failed handshake: whether another one, with the legacy implementation, may succeed.
    pub(crate) fn falls_back(&self, server_name: &str, error: &io::Error) -> bool {
        let Provider::Rustls(lazy) = &self.0 else {
            return false;
        };
        // Held by a thread of the parent process, if at all.
        let Some(mut servers) =
            (lazy.legacy.as_ref()).and_then(|legacy| legacy.servers.try_lock().ok())
        else {
            return false;
        };
        if servers.len() >= LEGACY_SERVERS {
            servers.clear();
        }
        is_beyond_rustls(error) && servers.insert(server_name.to_owned())
    }

    /// Reads the files now, on this thread. `Err` is a message with the file's name.
    pub fn check(&self) -> Result<(), String> {
        match &self.0 {
            Provider::Rustls(lazy) => lazy.config().map(drop),
            Provider::External(_) => Ok(()),
        }
    }

    /// Whether QUIC can use it: an external implementation cannot be carried by QUIC.
    pub(crate) fn supports_quic(&self) -> bool {
        matches!(self.0, Provider::Rustls(_))
    }

    /// Returns the configuration for QUIC: the same trust, certificate and versions. `Err` is a message.
    pub(crate) fn quic_config(&self) -> Result<Arc<ClientConfig>, String> {
        match &self.0 {
            Provider::Rustls(lazy) => lazy.quic_config(),
            Provider::External(_) => Err("QUIC needs TLS settings, not an ssl.SSLContext".into()),
        }
    }

    /// Forgets the tickets of a server, with which a connection can begin with early data.
    pub(crate) fn forget_quic_tickets(&self, server_name: &str) {
        if let (Provider::Rustls(lazy), Ok(name)) = (&self.0, identity_of(server_name)) {
            let tickets = lazy.quic_tickets();
            while tickets.take_tls13_ticket(&name).is_some() {}
        }
    }

    /// Starts to read the files in the thread pool; `None` if they have been read already.
    pub(crate) fn load(self: &Arc<Self>) -> io::Result<Option<TaskHandle<()>>> {
        let Provider::Rustls(lazy) = &self.0 else {
            return Ok(None);
        };
        if lazy.loaded.get().is_some() {
            return Ok(None);
        }
        let generation = fork::generation();
        // If the lock is held, here or by a thread of the parent process, the files are read twice.
        let mut loading = lazy.loading.try_lock().ok();
        let under_way = loading
            .as_ref()
            .filter(|loading| loading.0 == generation)
            .and_then(|loading| loading.1.upgrade());
        if let Some(task) = under_way.filter(|task| !task.is_done()) {
            return TaskHandle::new(task).map(Some);
        }
        let tls = Arc::clone(self);
        let task = FILES.spawn(move || {
            let _ = tls.check();
        })?;
        if let Some(loading) = &mut loading {
            **loading = (generation, Arc::downgrade(&task));
        }
        TaskHandle::new(task).map(Some)
    }

    /// Creates a session with `server_name`, carried by `outer` if given. `Err` is a message.
    pub(crate) fn connect(
        &self,
        server_name: &str,
        alpn: &[Vec<u8>],
        outer: Option<Box<Session>>,
    ) -> Result<Session, String> {
        let external = |context: &dyn ExternalTlsContext, outer| {
            let tls = context.connect(server_name, alpn);
            let tls = tls.map_err(|error| error.to_string())?;
            Ok(Session::external(tls, outer))
        };
        let lazy = match &self.0 {
            Provider::Rustls(lazy) => lazy,
            Provider::External(context) => return external(&**context, outer),
        };
        if let Some(legacy) = lazy.legacy_of(server_name) {
            return external(legacy, outer);
        }
        let config = lazy.config()?;
        let name = identity_of(server_name)?;
        rustls::ClientConnection::new_with_alpn(config, name, alpn.to_vec())
            .map(|tls| Session::client(tls, outer))
            .map_err(|error| error.to_string())
    }
}

impl LazyConfig {
    /// The legacy implementation, if this server needs it.
    fn legacy_of(&self, server_name: &str) -> Option<&dyn ExternalTlsContext> {
        let legacy = self.legacy.as_ref()?;
        let servers = legacy.servers.try_lock().ok()?;
        servers.contains(server_name).then_some(&*legacy.context)
    }

    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(loaded) = self.loaded.get() {
            return loaded.clone();
        }
        // Not within `get_or_init`: a child of fork would wait for ever for a thread of its parent.
        let made = self.settings.build();
        self.loaded.get_or_init(|| made).clone()
    }

    fn quic_tickets(&self) -> Arc<ClientSessionMemoryCache> {
        let cache = || Arc::new(ClientSessionMemoryCache::new(QUIC_SESSIONS));
        Arc::clone(self.quic_tickets.get_or_init(cache))
    }

    fn quic_config(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(loaded) = self.quic.get() {
            return loaded.clone();
        }
        let made = self.config().map(|config| {
            let mut config = ClientConfig::clone(&config);
            if !self.settings.never_resume {
                config.resumption = Resumption::store(self.quic_tickets());
            }
            Arc::new(config)
        });
        self.quic.get_or_init(|| made).clone()
    }
}

impl ClientTlsSettings {
    fn build(&self) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(ring::default_provider());
        let verifier = match &self.trust {
            Trust::System => Verifier::new(trust::system(self.fallback.as_deref())?, Vec::new()),
            Trust::Platform => {
                Verifier::new(trust::platform(self.fallback.as_deref())?, Vec::new())
            }
            Trust::Environment => Verifier::new(trust::environment()?, Vec::new()),
            Trust::Path(path) => {
                trust::path(path).and_then(|(roots, given)| Verifier::new(roots, given))
            }
            Trust::Insecure => Ok(Verifier::insecure()),
        }?;
        let versions: &[_] = match self.min_version {
            MinVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            MinVersion::Tls13 => &[&rustls::version::TLS13],
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key_file = identity.key_file.as_deref().unwrap_or(&identity.cert_file);
                let (chain, key) = identity.read(key_file).map_err(|error| error.to_string())?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| bad(key_file, &error).to_string())?
            }
        };
        if self.never_resume {
            config.resumption = Resumption::disabled();
        }
        Ok(Arc::new(config))
    }
}

/// Name that the certificate must have: without a trailing dot, an address without its zone.
pub(crate) fn certificate_name(server_name: &str) -> &str {
    let bare = server_name.strip_suffix('.').unwrap_or(server_name);
    match bare.split_once('%') {
        Some((address, _zone)) if address.contains(':') => address,
        _ => bare,
    }
}

fn identity_of(server_name: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(certificate_name(server_name).to_owned())
        .map_err(|_| format!("no certificate can be for the name {server_name:?}"))
}

impl Default for ClientTls {
    fn default() -> Self {
        Self::new(ClientTlsSettings::default())
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Provider::Rustls(lazy) => f.debug_tuple("ClientTls").field(&lazy.settings).finish(),
            Provider::External(_) => f.write_str("ClientTls(external)"),
        }
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for ClientTls {}

impl Hash for ClientTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::hash(self, state);
    }
}
