//! TLS with an `ssl.SSLContext` of the program: an `SSLObject` between two `MemoryBIO`s.
use std::io;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict};
use towline_io::{ExternalTls, ExternalTlsContext, TlsInfo};

/// Wraps an `ssl.SSLContext` for the engine.
pub fn context(context: &Bound<'_, PyAny>) -> Box<dyn ExternalTlsContext> {
    Box::new(PythonContext(context.clone().unbind()))
}

/// A wrapper of a context that `make` creates when it is first needed.
pub fn context_of(make: Bound<'_, PyAny>) -> Box<dyn ExternalTlsContext> {
    Box::new(LazyContext {
        make: make.unbind(),
        made: PyOnceLock::new(),
    })
}

struct LazyContext {
    make: Py<PyAny>,
    made: PyOnceLock<Py<PyAny>>,
}

impl ExternalTlsContext for LazyContext {
    fn connect(&self, server_name: &str, alpn: &[Vec<u8>]) -> io::Result<Box<dyn ExternalTls>> {
        let context = Python::attach(|py| {
            let context = self.made.get_or_try_init(py, || self.make.call0(py));
            context
                .map(|context| context.clone_ref(py))
                .map_err(|error| io_error(py, &error))
        })?;
        PythonContext(context).connect(server_name, alpn)
    }
}

struct PythonContext(Py<PyAny>);

impl ExternalTlsContext for PythonContext {
    fn connect(&self, server_name: &str, alpn: &[Vec<u8>]) -> io::Result<Box<dyn ExternalTls>> {
        Python::attach(|py| {
            let session = Session::start(py, self.0.bind(py), server_name, alpn);
            let mut session = session.map_err(|error| io_error(py, &error))?;
            session.handshake(py)?;
            Ok(Box::new(session) as Box<dyn ExternalTls>)
        })
    }
}

struct Session {
    object: Py<PyAny>,
    /// Records received from the peer, and to be sent to it.
    incoming: Py<PyAny>,
    outgoing: Py<PyAny>,
    handshaking: bool,
}

impl Session {
    fn start(
        py: Python<'_>,
        context: &Bound<'_, PyAny>,
        server_name: &str,
        alpn: &[Vec<u8>],
    ) -> PyResult<Self> {
        let memory = py.import("ssl")?.getattr("MemoryBIO")?;
        let (incoming, outgoing) = (memory.call0()?, memory.call0()?);
        let names: Vec<_> = alpn
            .iter()
            .map(|name| String::from_utf8_lossy(name))
            .collect();
        context.call_method1("set_alpn_protocols", (names,))?;
        let options = PyDict::new(py);
        options.set_item("server_hostname", server_name)?;
        let object = context.call_method("wrap_bio", (&incoming, &outgoing), Some(&options))?;
        Ok(Self {
            object: object.unbind(),
            incoming: incoming.unbind(),
            outgoing: outgoing.unbind(),
            handshaking: true,
        })
    }

    fn handshake(&mut self, py: Python<'_>) -> io::Result<()> {
        match self.object.call_method0(py, intern!(py, "do_handshake")) {
            Ok(_) => self.handshaking = false,
            Err(error) if needs_more_data(py, &error) => {}
            Err(error) => return Err(io_error(py, &error)),
        }
        Ok(())
    }
}

impl Session {
    fn read_record(&self, py: Python<'_>, space: &mut [u8]) -> io::Result<usize> {
        let read = self
            .object
            .call_method1(py, intern!(py, "read"), (space.len(),));
        let read = match read {
            Err(error) if is_instance(py, &error, &ZERO_RETURN, "SSLZeroReturnError") => {
                return Ok(0);
            }
            read => read.map_err(|error| io_error(py, &error))?,
        };
        let read = read.bind(py).cast::<PyBytes>();
        let bytes = read.map_or(&b""[..], |bytes| bytes.as_bytes());
        let count = bytes.len().min(space.len());
        space[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn read_info(&self, py: Python<'_>) -> PyResult<TlsInfo> {
        let object = self.object.bind(py);
        let version: String = object.call_method0("version")?.extract()?;
        let alpn: Option<String> = object.call_method0("selected_alpn_protocol")?.extract()?;
        let certificate: Option<Vec<u8>> =
            object.call_method1("getpeercert", (true,))?.extract()?;
        Ok(TlsInfo {
            version: VERSIONS
                .iter()
                .find(|(name, _)| *name == version)
                .map_or(0, |(_, code)| *code),
            cipher_suite: self.cipher_suite(py).unwrap_or(0),
            alpn: alpn.map(String::into_bytes),
            peer_certs: certificate.into_iter().map(Into::into).collect(),
            server_name: object.getattr("server_hostname")?.extract()?,
        })
    }

    /// The number of the cipher suite, which only the list of enabled suites contains.
    fn cipher_suite(&self, py: Python<'_>) -> PyResult<u16> {
        let object = self.object.bind(py);
        let (name, _, _): (String, String, u32) = object.call_method0("cipher")?.extract()?;
        let enabled = object.getattr("context")?.call_method0("get_ciphers")?;
        for suite in enabled.try_iter()? {
            let suite = suite?;
            if suite.get_item("name")?.extract::<String>()? == name {
                return Ok((suite.get_item("id")?.extract::<u32>()? & 0xffff) as u16);
            }
        }
        Ok(0)
    }
}

impl ExternalTls for Session {
    fn received(&mut self, records: &[u8]) -> io::Result<()> {
        Python::attach(|py| {
            self.incoming
                .call_method1(py, intern!(py, "write"), (PyBytes::new(py, records),))
                .map_err(|error| io_error(py, &error))?;
            if self.handshaking {
                self.handshake(py)?;
            }
            Ok(())
        })
    }

    fn received_eof(&mut self) {
        // `write_eof` cannot fail; a truncated record is reported by the next read.
        Python::attach(|py| {
            let _ = self.incoming.call_method0(py, intern!(py, "write_eof"));
        });
    }

    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        // Python returns one record per read, but the caller takes fewer bytes than requested for the end of the data.
        let mut filled = 0;
        Python::attach(|py| {
            while filled < space.len() {
                match self.read_record(py, &mut space[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    // The error is returned by the next read again.
                    Err(_) if filled > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(filled)
        })
    }

    fn write(&mut self, plain: &[u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let plain = PyBytes::new(py, plain);
            let written = self.object.call_method1(py, intern!(py, "write"), (plain,));
            written
                .and_then(|count| count.extract(py))
                .map_err(|error| io_error(py, &error))
        })
    }

    fn take_records(&mut self, into: &mut Vec<u8>) {
        Python::attach(|py| {
            let records = self.outgoing.call_method0(py, intern!(py, "read"));
            if let Ok(records) = records
                && let Ok(records) = records.bind(py).cast::<PyBytes>()
            {
                into.extend_from_slice(records.as_bytes());
            }
        });
    }

    fn close_notify(&mut self) {
        // `unwrap` reports that the peer's alert is missing, which is not awaited here.
        Python::attach(|py| {
            let _ = self.object.call_method0(py, intern!(py, "unwrap"));
        });
    }

    fn is_handshaking(&self) -> bool {
        self.handshaking
    }

    fn alpn(&self) -> Option<Vec<u8>> {
        Python::attach(|py| {
            let chosen = self.object.call_method0(py, "selected_alpn_protocol");
            let chosen: Option<String> = chosen.ok()?.extract(py).ok()?;
            chosen.map(String::into_bytes)
        })
    }

    fn info(&self) -> Option<TlsInfo> {
        if self.handshaking {
            return None;
        }
        Python::attach(|py| self.read_info(py).ok())
    }
}

type Class = PyOnceLock<Py<PyAny>>;

static WANT_READ: Class = PyOnceLock::new();
static ZERO_RETURN: Class = PyOnceLock::new();
static EOF: Class = PyOnceLock::new();

fn is_instance(py: Python<'_>, error: &PyErr, class: &'static Class, name: &str) -> bool {
    class
        .import(py, "ssl", name)
        .is_ok_and(|class| error.is_instance(py, class))
}

fn needs_more_data(py: Python<'_>, error: &PyErr) -> bool {
    is_instance(py, error, &WANT_READ, "SSLWantReadError")
}

/// Converts an exception of `ssl` into an I/O error, with its message.
fn io_error(py: Python<'_>, error: &PyErr) -> io::Error {
    if needs_more_data(py, error) {
        return io::ErrorKind::WouldBlock.into();
    }
    if is_instance(py, error, &EOF, "SSLEOFError") {
        return io::ErrorKind::UnexpectedEof.into();
    }
    let value = error.value(py);
    let verification = value.getattr(intern!(py, "verify_message"));
    io::Error::other(match verification {
        Ok(message) => format!("certificate verification failed: {message}"),
        Err(_) => value.to_string(),
    })
}

/// Protocol version numbers by the names that Python uses.
const VERSIONS: &[(&str, u16)] = &[
    ("TLSv1", 0x0301),
    ("TLSv1.1", 0x0302),
    ("TLSv1.2", 0x0303),
    ("TLSv1.3", 0x0304),
];
