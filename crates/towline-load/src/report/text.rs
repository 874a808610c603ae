//! The report as plain text, for terminals and files.

use std::fmt;

use super::percentiles::{Shown, columns};
use super::types::{Latency, Report};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.setup_lines(f)?;
        self.rates(f)?;
        self.latency_table(f)?;
        self.step_table(f)?;
        self.failures(f)?;
        self.generator_cost(f)?;
        self.agent_table(f)?;
        for warning in &self.warnings {
            writeln!(f, "! {warning}")?;
        }
        Ok(())
    }
}

impl Report {
    /// The counted unit.
    fn unit(&self) -> &'static str {
        match self.setup.protocol.as_str() {
            "ws" => "messages",
            _ => "requests",
        }
    }

    fn setup_lines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setup = &self.setup;
        match setup.targets.as_slice() {
            [one] => write!(f, "{one}")?,
            [first, ..] => write!(f, "{first} and {} more", setup.targets.len() - 1)?,
            [] => {}
        }
        write!(
            f,
            "\n{} on {}, ",
            counted(setup.connections, "connection"),
            counted(setup.threads, "thread")
        )?;
        if setup.pipeline > 1 {
            write!(f, "{} {} ahead, ", setup.pipeline, self.unit())?;
        }
        if let Some(version) = setup.multiplexed_version() {
            write!(f, "{version}, {} streams on each, ", setup.streams)?;
        }
        match setup.requests_per_connection {
            Some(1) => write!(f, "fresh ones, ")?,
            Some(n) => write!(f, "{n} {} each, ", self.unit())?,
            None => {}
        }
        match (setup.rate_per_s, setup.poisson) {
            (None, _) => write!(f, "closed loop")?,
            (Some(rate), _) if setup.stages.is_some() => {
                write!(f, "open loop, on average {rate:.1}/s")?;
            }
            (Some(rate), false) => write!(f, "open loop at {rate}/s")?,
            (Some(rate), true) => write!(f, "open loop at {rate}/s, Poisson")?,
        }
        if let Some(stages) = &setup.stages {
            write!(f, ", stages {stages}")?;
        }
        writeln!(f, ", {:.2} s measured\n", self.measured_s)
    }

    fn rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_least = if self.generator.limit.is_some() {
            "at least "
        } else {
            ""
        };
        writeln!(
            f,
            "{:<13}{at_least}{:.0} ({})",
            format!("{}/s", self.unit()),
            self.requests_per_s,
            counted(self.answered, "response")
        )?;
        writeln!(f, "received/s   {}", bytes(self.received_bytes_per_s))?;
        if let Some(open) = &self.open_loop {
            writeln!(
                f,
                "achieved     {:.2} % of the requests due",
                open.achieved_share * 100.0
            )?;
        }
        Ok(())
    }

    fn latency_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{:<13}{:>9}", "latency", "mean")?;
        for (_, name) in columns(Shown::InTable) {
            write!(f, "{name:>9}")?;
        }
        writeln!(f)?;
        if let Some(open) = &self.open_loop {
            row(f, "response", &self.response)?;
            if let Some(all) = &self.with_timeouts {
                row(f, "with timeouts", &all.response)?;
            }
            row(f, "service", &self.service)?;
            row(f, "first byte", &self.first_byte)?;
            row(f, "lag", &open.lag)?;
            row(f, "no connection", &open.connection_wait)?;
        } else {
            row(f, "service", &self.service)?;
            if let Some(all) = &self.with_timeouts {
                row(f, "with timeouts", &all.service)?;
            }
            row(f, "first byte", &self.first_byte)?;
        }
        row(f, "connect", &self.connect)
    }

    /// A line for each target; a long name has a line of its own.
    fn step_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAME: usize = 22;
        if self.steps.is_empty() {
            return Ok(());
        }
        let (by, figures) = ("by request", "responses  errors");
        write!(f, "\n{by:<NAME$}{figures:>18}")?;
        write!(f, "{:>8}", "mean")?;
        for (_, name) in columns(Shown::Always) {
            write!(f, "{name:>8}")?;
        }
        writeln!(f)?;
        for step in &self.steps {
            if step.name.chars().count() < NAME {
                write!(f, "{:<NAME$}", step.name)?;
            } else {
                write!(f, "{}\n{:NAME$}", step.name, "")?;
            }
            write!(f, "{:>10}{:>8}", step.answered, step.failed)?;
            let latency = &step.response;
            if latency.count > 0 {
                let percentiles = columns(Shown::Always).map(|(percent, _)| latency.at(percent));
                for us in [latency.mean_us].into_iter().chain(percentiles) {
                    write!(f, "{:>8}", time(us))?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\nstatuses    ")?;
        for counted in &self.statuses {
            write!(f, " {}: {}", counted.status, counted.count)?;
        }
        let errors = &self.errors;
        write!(
            f,
            "\nerrors       connect {}, timeout {}, reset {}, protocol {}, status {}, content {}",
            errors.connect,
            errors.timeout,
            errors.reset,
            errors.protocol,
            errors.status,
            errors.content
        )?;
        if self.setup.multiplexed_version().is_some() {
            let (reset, unprocessed) = (errors.stream_reset, errors.unprocessed);
            write!(f, ", streams reset {reset}, unprocessed {unprocessed}")?;
        }
        if errors.invalid > 0 {
            write!(f, ", invalid {}", errors.invalid)?;
        }
        writeln!(f)?;
        let (in_flight, age) = (&self.in_flight, &self.in_flight.age);
        if age.count + in_flight.connections > 0 {
            writeln!(
                f,
                "in flight    {} at the end for up to {}, {} opening, {} overdue",
                counted(age.count, self.unit().trim_end_matches('s')),
                time(age.max_us),
                counted(in_flight.connections, "connection"),
                in_flight.overdue
            )?;
        }
        let live = &self.live_connections;
        writeln!(
            f,
            "connections  {} wanted, {} at least, {} at the end, {} reopened",
            live.wanted, live.fewest, live.at_end, self.reconnects
        )?;
        if let Some(quic) = &self.quic {
            writeln!(
                f,
                "QUIC         {} packets sent, {} of them lost, {} datagrams received",
                quic.sent_packets, quic.lost_packets, quic.received_datagrams
            )?;
            if quic.early_sent > 0 {
                writeln!(
                    f,
                    "early data   accepted in {:.1} % of {} connections, refused in {}",
                    quic.early_share() * 100.0,
                    quic.connections,
                    quic.early_sent - quic.early_accepted
                )?;
            }
        }
        Ok(())
    }

    /// A line for each agent; a long name has a line of its own.
    fn agent_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAME: usize = 15;
        if self.agents.is_empty() {
            return Ok(());
        }
        write!(
            f,
            "\n{:<NAME$}{:>8}{:>10}{:>7}",
            "by agent", "threads", "responses", "errors"
        )?;
        for name in ["p50", "p99", "lag p99", "busy", "clock"] {
            write!(f, "{name:>8}")?;
        }
        writeln!(f)?;
        for agent in &self.agents {
            if agent.name.chars().count() < NAME {
                write!(f, "{:<NAME$}", agent.name)?;
            } else {
                write!(f, "{}\n{:NAME$}", agent.name, "")?;
            }
            let (answered, errors) = (agent.answered, agent.errors.total());
            write!(f, "{:>8}{answered:>10}{errors:>7}", agent.threads)?;
            if agent.is_lost() {
                writeln!(f, "    lost")?;
                continue;
            }
            let lag = agent.open_loop.as_ref().map(|open| open.lag.at(99.0));
            let busy = agent.generator.busiest_share * 100.0;
            for figure in [
                time(agent.response.at(50.0)),
                time(agent.response.at(99.0)),
                lag.map_or("-".into(), time),
                format!("{busy:.0} %"),
                time(agent.clock_error_us),
            ] {
                write!(f, "{figure:>8}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn generator_cost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = &self.generator;
        #[expect(clippy::cast_precision_loss, reason = "for reading")]
        let memory = bytes(own.peak_memory_bytes as f64);
        writeln!(
            f,
            "generator    {:.*} us of CPU per {}, busiest thread {:.0} %, {memory} of memory",
            // In 80 columns.
            if own.cpu_us_per_request < 100.0 { 2 } else { 0 },
            own.cpu_us_per_request,
            self.unit().trim_end_matches('s'),
            own.busiest_share * 100.0,
        )
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, latency: &Latency) -> fmt::Result {
    if latency.count == 0 {
        return Ok(());
    }
    write!(f, "{name:<13}{:>9}", time(latency.mean_us))?;
    for (percent, _) in columns(Shown::InTable) {
        write!(f, "{:>9}", time(latency.at(percent)))?;
    }
    writeln!(f)
}

/// Three digits and a unit.
pub(crate) fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1000.0 => (us, "us"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    digits(value, unit)
}

pub(crate) fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    digits(value, &format!(" {}", units[unit]))
}

pub(crate) fn digits(value: f64, unit: &str) -> String {
    let places = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.places$}{unit}")
}

/// A number with its noun.
fn counted(number: impl fmt::Display, noun: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::build::tests::sample;

    #[test]
    fn units_keep_three_digits() {
        assert_eq!(
            [9.994, 34.0, 810.0, 12_345.0, 2e6].map(time),
            ["9.99us", "34.0us", "810us", "12.3ms", "2.00s"]
        );
        assert_eq!(
            [512.0, 1536.0, 5e9].map(bytes),
            ["512 B", "1.50 KiB", "4.66 GiB"]
        );
    }

    #[test]
    fn each_agent_has_a_line() {
        let mut report = sample(500);
        let agent = |name: &str| crate::report::AgentFigures {
            name: name.into(),
            threads: 2,
            share: 0.5,
            answered: 20_000,
            clock_error_us: 30.0,
            ..crate::report::AgentFigures::default()
        };
        let long = "a-rather-long-name.of-a-host.example";
        report.agents = vec![agent("a"), agent(long)];
        report.agents[1].lost = Some("ssh: exit status: 255".into());
        report.agents[1].lost_after_s = Some(3.24);
        report.warnings = crate::report::warnings(&report);
        let text = report.to_string();
        for part in [
            "by agent",
            "a                     2     20000      0",
            &format!("{long}\n                      2     20000      0    lost"),
            "! a-rather-long-name.of-a-host.example was lost after 3.2 s: ssh: exit status: 255; 50.0 % of the load",
            "at least 20000 responses",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let table = text
            .lines()
            .skip_while(|line| !line.starts_with("by agent"));
        assert!(table.take(4).all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn the_text_has_the_figures_and_the_warnings() {
        let text = sample(950).to_string();
        for thread_result in [
            "at least 1000 (1000 responses)",
            "200: 1000",
            "reset 1",
            "! the generator was the limit",
        ] {
            assert!(text.contains(thread_result), "{thread_result} in\n{text}");
        }
    }
}
