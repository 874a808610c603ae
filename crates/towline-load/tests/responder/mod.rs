//! The native responder in a process of its own, which ends with its standard input, so with the test.
#![allow(dead_code)] // every test file uses its own part

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use towline_load::{TestCertificate, agent};

pub struct Responder {
    process: Child,
    origin: String,
    folder: Option<PathBuf>,
}

impl Responder {
    pub fn plain(options: &[&str]) -> Self {
        Self::start("http", options, None)
    }

    pub fn tls() -> Self {
        Self::encrypted(&[])
    }

    pub fn http3() -> Self {
        Self::http3_with(&[])
    }

    pub fn http3_with(more: &[&str]) -> Self {
        Self::encrypted(&[&["--http3"], more].concat())
    }

    fn encrypted(more: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("responder-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let made = TestCertificate::new(&["localhost".into(), "127.0.0.1".into()]).unwrap();
        for (file, text) in [
            ("ca.pem", &made.authority),
            ("cert.pem", &made.certificate),
            ("key.pem", &made.key),
        ] {
            std::fs::write(folder.join(file), text).unwrap();
        }
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        let options = [
            "--cert",
            cert.to_str().unwrap(),
            "--key",
            key.to_str().unwrap(),
        ];
        let options = [&options, more].concat();
        Self::start("https", &options, Some(folder))
    }

    fn start(scheme: &str, options: &[&str], folder: Option<PathBuf>) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_towline-responder"))
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut address).unwrap();
        Self {
            origin: format!("{scheme}://{}", address.trim()),
            process,
            folder,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    /// The trusted authority.
    pub fn authority(&self) -> PathBuf {
        self.folder.as_ref().unwrap().join("ca.pem")
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Sends each URL once through the agent and returns the responses. `protocol`: `h2` or `h3`.
pub fn probe(urls: &[String], protocol: &str, trust: &Value) -> Vec<Value> {
    let targets: Vec<_> = urls.iter().map(|url| json!({"url": url})).collect();
    let config = json!({"targets": targets, "protocol": protocol, "trust": trust, "timeout_s": 5});
    let input = [
        json!({"op": "open", "session": "a", "config": config}),
        json!({"op": "probe", "session": "a"}),
    ];
    let mut output = Vec::new();
    let lines = input.map(|line| line.to_string()).join("\n");
    agent::serve(lines.as_bytes(), &mut output).unwrap();
    let last = output
        .trim_ascii_end()
        .split(|byte| *byte == b'\n')
        .next_back();
    let answer: Value = serde_json::from_slice(last.unwrap()).unwrap();
    answer["responses"].as_array().cloned().unwrap()
}
