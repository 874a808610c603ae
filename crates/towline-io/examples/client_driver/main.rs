//! GETs in a loop through the native half of the client: what a call costs without Python.
//!
//! `client_driver [-c CONCURRENCY] [-n REQUESTS] [--flush once|turn|together] HOST:PORT [TARGET]` prints
//! requests per second and CPU microseconds per request.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_io::EngineConfig;
use towline_io::client::{
    Body, CallEvent, CallId, CallOptions, CallRead, ClientDriver, ClientDriverConfig, FlushPolicy,
    OutgoingRequest, RequestText, Route,
};

fn main() -> io::Result<()> {
    let options = Options::parse()?;
    let mut driver = ClientDriver::new(ClientDriverConfig {
        engine: EngineConfig {
            max_ready_per_turn: 256,
            turn_time: Duration::from_millis(5),
            ..EngineConfig::default()
        },
        flush: options.flush,
        ..ClientDriverConfig::default()
    })?;
    let mut load = Load {
        route: Arc::new(Route::plain(&options.host, options.port)),
        target: options.target,
        host: format!("{}:{}", options.host, options.port),
        left: options.requests,
        answered: 0,
        failed: 0,
        bytes: 0,
    };
    // Connections and caches are there when the measure begins.
    load.left = options.concurrency.min(options.requests);
    load.run(&mut driver, options.concurrency)?;
    (load.left, load.answered) = (options.requests, 0);
    let (start, cpu) = (Instant::now(), cpu_time());
    load.run(&mut driver, options.concurrency)?;
    let (wall, cpu) = (start.elapsed(), cpu_time().saturating_sub(cpu));
    #[expect(clippy::cast_precision_loss, reason = "for printing")]
    let answered = load.answered as f64;
    println!(
        "{} requests ({} failed, {} body bytes) in {:.3} s: {:.0} requests/s, {:.2} us of CPU each",
        load.answered,
        load.failed,
        load.bytes,
        wall.as_secs_f64(),
        answered / wall.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / answered,
    );
    Ok(())
}

struct Load {
    route: Arc<Route>,
    target: String,
    host: String,
    left: usize,
    answered: usize,
    failed: usize,
    bytes: usize,
}

impl Load {
    fn run(&mut self, driver: &mut ClientDriver, concurrency: usize) -> io::Result<()> {
        for _ in 0..concurrency {
            self.begin(driver);
        }
        while driver.calls() > 0 {
            driver.flush();
            driver.turn(None)?;
            while let Some((call, event)) = driver.next_event() {
                self.handle(driver, call, &event);
            }
        }
        Ok(())
    }

    fn begin(&mut self, driver: &mut ClientDriver) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let mut head = RequestText::new(b"GET", self.target.as_bytes());
        head.push(b"host", self.host.as_bytes());
        head.push(b"accept", b"*/*");
        head.push(b"user-agent", b"towline-client-driver");
        let request = OutgoingRequest {
            route: Arc::clone(&self.route),
            head: head.into(),
            body: Body::Empty,
            idempotent: true,
        };
        if let Err(error) = driver.begin(request, CallOptions::default()) {
            eprintln!("{error}");
            self.failed += 1;
        }
    }

    fn handle(&mut self, driver: &mut ClientDriver, call: CallId, event: &CallEvent) {
        match event {
            CallEvent::Failed(error) => {
                eprintln!("{error}");
                self.failed += 1;
                driver.cancel(call);
                return self.begin(driver);
            }
            CallEvent::Head { .. } => drop(driver.take_head(call)),
            _ => {}
        }
        loop {
            match driver.read(call, usize::MAX) {
                CallRead::Data(data) => self.bytes += data.len(),
                CallRead::Pending | CallRead::Failed(_) => return,
                CallRead::End => break,
            }
        }
        self.answered += 1;
        driver.cancel(call);
        self.begin(driver);
    }
}

struct Options {
    concurrency: usize,
    requests: usize,
    flush: FlushPolicy,
    host: String,
    port: u16,
    target: String,
}

impl Options {
    fn parse() -> io::Result<Self> {
        let mut options = Self {
            concurrency: 20,
            requests: 200_000,
            flush: FlushPolicy::default(),
            host: String::new(),
            port: 0,
            target: "/".into(),
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(usage);
            match arg.as_str() {
                "-c" => options.concurrency = value()?.parse().map_err(|_| usage())?,
                "-n" => options.requests = value()?.parse().map_err(|_| usage())?,
                "--flush" => {
                    options.flush = match value()?.as_str() {
                        "once" => FlushPolicy::Immediate,
                        "turn" => FlushPolicy::TurnEnd,
                        "together" => FlushPolicy::Manual,
                        _ => return Err(usage()),
                    };
                }
                target if options.port != 0 => options.target = target.into(),
                origin => {
                    let (host, port) = origin.rsplit_once(':').ok_or_else(usage)?;
                    options.host = host.into();
                    options.port = port.parse().map_err(|_| usage())?;
                }
            }
        }
        if options.port == 0 {
            return Err(usage());
        }
        Ok(options)
    }
}

fn usage() -> io::Error {
    let text = "use: client_driver [-c CONCURRENCY] [-n REQUESTS] [--flush once|turn|together] HOST:PORT [TARGET]";
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    // SAFETY: all zeroes is a valid rusage, and the kernel fills a whole one that outlives the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |value: libc::timeval| {
        Duration::from_secs(value.tv_sec.unsigned_abs())
            + Duration::from_micros(value.tv_usec.unsigned_abs())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}
