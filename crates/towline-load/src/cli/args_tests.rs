//! Command lines, and the job that each describes.

use super::*;

fn parsed(line: &str) -> Result<Command, String> {
    parse(line.split(' ').map(OsString::from))
}

fn job(line: &str) -> Job {
    match parsed(line) {
        Ok(Command::Run(job)) => *job,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn wrks_command_line() {
    let job = job("-t2 -c64 -d10s --latency -H X:1 --timeout 2s http://127.0.0.1:8000/a");
    let config = &job.config;
    assert_eq!((config.threads, config.connections), (2, 64));
    assert_eq!(config.until, Until::Time(Duration::from_secs(10)));
    assert_eq!(config.timeout, Duration::from_secs(2));
    assert_eq!(config.targets[0].fields[0], ("X".into(), b"1"[..].into()));
}

#[test]
fn abs_command_line() {
    let file = std::env::temp_dir().join(format!("towline-load-{}", std::process::id()));
    std::fs::write(&file, "{}").unwrap();
    let line = format!(
        "-n 1000 -c 10 -k -p {} -T application/json http://a/",
        file.display()
    );
    let job = job(&line);
    std::fs::remove_file(&file).unwrap();
    let target = &job.config.targets[0];
    assert_eq!(job.config.until, Until::Requests(1000));
    assert_eq!(job.config.pipeline, 1);
    assert_eq!(
        (&*target.method, target.body.as_deref()),
        ("POST", Some(&b"{}"[..]))
    );
    assert_eq!(target.fields[0].0, "Content-Type".into());
}

#[test]
fn rates_mixes_and_forms() {
    let job = job("-R 20k --poisson -p 16 --weights 3,1 --form a=b http://a/1 http://a/2");
    let LoopMode::Open(rate) = job.config.loop_mode else {
        panic!("not an open loop");
    };
    assert!((rate.per_s - 20_000.0).abs() < 1e-9);
    assert_eq!(
        (rate.arrivals, job.config.pipeline),
        (Arrivals::Poisson, 16)
    );
    assert_eq!(job.config.targets[0].weight, 3);
    assert_eq!(&*job.config.targets[1].method, "POST");
    assert!(job.config.check().is_ok());
}

#[test]
fn send_modes() {
    let slow = job("--slow-pieces 5,2ms --refusal-status 503,429 http://a/").config;
    let gap = Duration::from_millis(2);
    assert_eq!(
        slow.targets[0].send_mode,
        SendMode::Pieces { pieces: 5, gap }
    );
    assert_eq!(slow.refusal_statuses, [503, 429]);
    let storm = job("--storm -c 9 http://a/").config;
    assert!(storm.barrier && storm.is_fresh());
    let awaits = job("--expect-continue --body x --chunk-bytes 1 http://a/").config;
    assert_eq!(awaits.targets[0].send_mode, SendMode::AwaitContinue);
    assert_eq!(awaits.targets[0].chunk_bytes, Some(1));
    for config in [slow, storm, awaits] {
        assert!(config.check().is_ok());
    }
    let form = job("-F a=b --expect-coding gzip --expect-field X:y http://a/").config;
    let (name, kind) = &form.targets[0].fields[0];
    assert_eq!(&**name, "Content-Type");
    assert!(kind.starts_with(b"multipart/form-data; boundary="));
    assert_eq!(&*form.targets[0].method, "POST");
}

#[test]
fn mistakes_are_named() {
    for (line, part) in [
        ("-c 1", "URL is missing"),
        ("--nope http://a/", "--nope"),
        ("-Z http://a/", "-Z"),
        ("--scenario /no/such.toml", "/no/such.toml"),
        ("--scenario x.toml -m GET", "--method"),
        ("--scenario x.toml http://a/", "its own URLs"),
        ("--slow-pieces 5 http://a/", "pieces"),
        ("--slow-pieces 5,1ms --expect-continue http://a/", "exclude"),
        ("--expect-coding br http://a/", "neither"),
        ("--form a=b --body c http://a/", "exclude"),
        ("-s 3 http://a/", "--timeout"),
        ("-d 0 http://a/", "not a positive time"),
        ("--poisson http://a/", "--rate"),
        ("--weights 1,2 http://a/", "one number for each"),
        ("-p /no/such/file http://a/", "/no/such/file"),
        ("--goal-percentile 98 http://a/", "p98"),
        ("-c", "missing argument"),
    ] {
        let why = parsed(line).unwrap_err();
        assert!(why.contains(part), "{line}: {why}");
    }
    for (line, part) in [
        ("-h", "usage: "),
        ("--help requests", "--multipart"),
        ("--help=load -c 1", "--storm"),
        ("-h http://a/", "usage: "),
    ] {
        let Ok(Command::Help(text)) = parsed(line) else {
            panic!("{line}");
        };
        assert!(text.contains(part), "{line}");
    }
    assert!(parsed("--help nothing").unwrap_err().contains("requests"));
}

#[test]
fn the_parser_knows_every_option_of_the_table() {
    for option in crate::cli::options().filter(|option| option.name != "agent") {
        let value = if option.takes_value() { "=?" } else { "" };
        let why = parsed(&format!("--{}{value} x", option.name)).err();
        let is_unknown = why.is_some_and(|why| why.contains("unknown option"));
        assert!(!is_unknown, "--{}", option.name);
    }
}
