//! The client's side: what is trusted, what is shown, and what is asked for.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;

use super::config::{bad, certificates, read};
use super::external::ExternalTlsContext;
use super::key::{Password, private_key};
use super::session::Session;
use super::trust;
use super::verify::Verifier;
use crate::fork;
use crate::thread_pool::{FILES, Task, TaskHandle};

/// Whom a client believes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The system's store, loaded once per process when it is first needed.
    #[default]
    System,
    /// The same, and neither `SSL_CERT_FILE` nor `SSL_CERT_DIR` can stand in for it.
    Platform,
    /// A PEM file, or a directory of such files.
    Path(PathBuf),
    /// Everybody: the peer's certificate is not verified.
    Insecure,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    #[default]
    Tls12,
    Tls13,
}

/// A client certificate.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The chain, leaf first; the key may stand in the same file.
    pub cert_file: PathBuf,
    pub key_file: Option<PathBuf>,
    pub key_password: Option<Password>,
}

#[derive(Clone, Debug, Default)]
pub struct ClientTlsSettings {
    pub trust: Trust,
    /// A PEM file that stands in for the system's store where that is empty (certifi's).
    pub fallback: Option<PathBuf>,
    pub identity: Option<Identity>,
    pub min_version: MinVersion,
    /// Every connection makes a whole handshake: what is to be measured, say.
    pub never_resume: bool,
}

/// Built once and shared by all connections on the same terms; sessions are resumed within it. Equal
/// only to itself.
pub struct ClientTls(Provider);

enum Provider {
    Rustls(LazyConfig),
    External(Box<dyn ExternalTlsContext>),
}

#[derive(Default)]
struct LazyConfig {
    settings: ClientTlsSettings,
    loaded: OnceLock<Result<Arc<ClientConfig>, String>>,
    /// Under way, in the generation of the process that started it.
    loading: Mutex<(u64, Weak<Task<()>>)>,
}

impl ClientTls {
    /// Cheap: files are read when a connection needs them, on a helper thread.
    pub fn new(settings: ClientTlsSettings) -> Self {
        Self(Provider::Rustls(LazyConfig {
            settings,
            ..LazyConfig::default()
        }))
    }

    /// TLS by somebody else, with their own trust and certificates.
    pub fn external(context: Box<dyn ExternalTlsContext>) -> Self {
        Self(Provider::External(context))
    }

    /// Reads the files now and on this thread. `Err` is a message which names the file.
    pub fn check(&self) -> Result<(), String> {
        match &self.0 {
            Provider::Rustls(lazy) => lazy.config().map(drop),
            Provider::External(_) => Ok(()),
        }
    }

    /// Begins to read the files on a helper thread; `None` when there is nothing to read any more.
    pub(crate) fn load(self: &Arc<Self>) -> io::Result<Option<TaskHandle<()>>> {
        let Provider::Rustls(lazy) = &self.0 else {
            return Ok(None);
        };
        if lazy.loaded.get().is_some() {
            return Ok(None);
        }
        let generation = fork::generation();
        // A lock that is taken, here or by a thread that fork left behind, costs a second reading.
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

    /// A session with `server_name`, carried by `outer` where that is given. `Err` is a message.
    pub(crate) fn connect(
        &self,
        server_name: &str,
        alpn: &[Vec<u8>],
        outer: Option<Box<Session>>,
    ) -> Result<Session, String> {
        let lazy = match &self.0 {
            Provider::Rustls(lazy) => lazy,
            Provider::External(context) => {
                let tls = context.connect(server_name, alpn);
                let tls = tls.map_err(|error| error.to_string())?;
                return Ok(Session::external(tls, outer));
            }
        };
        let config = lazy.config()?;
        let name = identity_of(server_name)?;
        rustls::ClientConnection::new_with_alpn(config, name, alpn.to_vec())
            .map(|tls| Session::client(tls, outer))
            .map_err(|error| error.to_string())
    }
}

impl LazyConfig {
    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(loaded) = self.loaded.get() {
            return loaded.clone();
        }
        // Not `get_or_init`: a child of fork would wait for ever for a thread of its parent.
        let made = self.settings.build();
        self.loaded.get_or_init(|| made).clone()
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

type ChainAndKey = (
    Vec<rustls::pki_types::CertificateDer<'static>>,
    rustls::pki_types::PrivateKeyDer<'static>,
);

impl Identity {
    fn read(&self, key_file: &Path) -> io::Result<ChainAndKey> {
        let chain = certificates(&self.cert_file)?;
        let key = private_key(&read(key_file)?, self.key_password.as_ref())
            .map_err(|error| bad(key_file, &error))?;
        Ok((chain, key))
    }
}

/// What the certificate must be for: a name without its last dot, an address without its zone.
fn identity_of(server_name: &str) -> Result<ServerName<'static>, String> {
    let bare = server_name.strip_suffix('.').unwrap_or(server_name);
    let bare = match bare.split_once('%') {
        Some((address, _zone)) if address.contains(':') => address,
        _ => bare,
    };
    ServerName::try_from(bare.to_owned())
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
