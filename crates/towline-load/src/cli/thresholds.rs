//! `--fail-if CONDITION`: conditions on the figures of the report that make a run fail.

use crate::report::{Latency, Report, Step, percentiles};

/// A condition under which a run fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    /// The name of a target; `None`: all together.
    step: Option<String>,
    metric: Metric,
    comparison: Comparison,
    /// In the unit of the metric: microseconds, a share, or a number.
    limit: f64,
}

/// A metric and its limit, or what is wrong with it.
type Limit = Result<(Metric, f64), String>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    Latency(Which, Figure),
    /// Successful responses per second.
    Rate,
    /// Failed, refused and changed responses: as a number, or as a share of all.
    Count(Outcome, Unit),
    /// Open loop: the share of requests that were sent in time and succeeded.
    Achieved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Response,
    Service,
    FirstByte,
    Connect,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    Percentile(f64),
    Mean,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Errors,
    Refused,
    Changed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Number,
    Share,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// Whether an argument is a condition: URLs contain neither `<` nor `>`.
pub(super) fn is_condition(text: &str) -> bool {
    text.contains(['<', '>'])
}

impl Threshold {
    /// `p99>10ms`, `first_byte.mean>=2ms`, `errors>0.1%`, `rate<1000`, `achieved<99%`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is not a condition such as 'p99>10ms', 'errors>0.1%' or 'rate<1000'")
        };
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (name, rest) = text.split_at(at);
        let (operator, value) = rest.split_at(if rest[1..].starts_with('=') { 2 } else { 1 });
        let (name, value) = (name.trim(), value.trim());
        let (step, found) = match Metric::parse(name, value) {
            Some(found) => (None, found),
            None => of_step(name, value).ok_or_else(wrong)?,
        };
        let (metric, limit) = found.map_err(|why| format!("{text:?}: {why}"))?;
        Ok(Self {
            text: text.into(),
            step,
            metric,
            comparison: match operator {
                ">" => Comparison::Above,
                ">=" => Comparison::AtLeast,
                "<" => Comparison::Below,
                _ => Comparison::AtMost,
            },
            limit,
        })
    }

    /// `Err`: the condition is about a target that is not among `steps`.
    pub(super) fn check(&self, steps: &[String]) -> Result<(), String> {
        let text = &self.text;
        match &self.step {
            None => Ok(()),
            Some(step) if steps.contains(step) => Ok(()),
            Some(step) if steps.is_empty() => Err(format!(
                "{text:?}: there is no request {step:?}: only several requests have figures of their own"
            )),
            Some(step) => {
                let names = steps.join(", ");
                Err(format!(
                    "{text:?}: there is no request {step:?}; there are: {names}"
                ))
            }
        }
    }

    /// Whether the condition is about failed requests, which then do not fail the run by themselves.
    pub(super) fn judges_errors(&self) -> bool {
        self.step.is_none() && matches!(self.metric, Metric::Count(Outcome::Errors, _))
    }

    /// Describes the condition if it holds.
    pub(super) fn failure(&self, report: &Report) -> Option<String> {
        let value = match &self.step {
            None => self.metric.value(report),
            Some(name) => {
                let step = report.steps.iter().find(|step| step.name == *name)?;
                self.metric.value_of(step)
            }
        };
        let holds = match self.comparison {
            Comparison::Above => value > self.limit,
            Comparison::AtLeast => value >= self.limit,
            Comparison::Below => value < self.limit,
            Comparison::AtMost => value <= self.limit,
        };
        holds.then(|| format!("{}: it is {}", self.text, self.metric.shown(value)))
    }
}

impl Metric {
    /// `None`: not a name, or a name without a value.
    fn parse(name: &str, value: &str) -> Option<Limit> {
        let outcome = match name {
            "rate" => return Some(super::values::rate(value).map(|rate| (Self::Rate, rate))),
            "achieved" => return Some(share(value).map(|share| (Self::Achieved, share))),
            "errors" => Some(Outcome::Errors),
            "refused" => Some(Outcome::Refused),
            "changed" => Some(Outcome::Changed),
            _ => None,
        };
        if let Some(outcome) = outcome {
            return Some(if value.ends_with('%') {
                share(value).map(|share| (Self::Count(outcome, Unit::Share), share))
            } else {
                let number = super::values::number(value);
                number.map(|number| (Self::Count(outcome, Unit::Number), number))
            });
        }
        let (which, figure) = name.split_once('.').unwrap_or(("response", name));
        // p99.9 has a point of its own.
        let (which, figure) = match which {
            "response" => (Which::Response, figure),
            "service" => (Which::Service, figure),
            "first_byte" => (Which::FirstByte, figure),
            "connect" => (Which::Connect, figure),
            _ => (Which::Response, name),
        };
        let figure = match figure {
            "mean" => Figure::Mean,
            "min" => Figure::Min,
            "max" => Figure::Max,
            _ => {
                let percent = figure.strip_prefix('p')?.parse().ok()?;
                match percentiles::check(percent) {
                    Ok(percent) => Figure::Percentile(percent),
                    Err(why) => return Some(Err(why)),
                }
            }
        };
        if value
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
        {
            return Some(Err(format!(
                "give a unit: {value}ms, {value}us or {value}s"
            )));
        }
        let time = super::values::duration(value);
        Some(time.map(|time| (Self::Latency(which, figure), time.as_secs_f64() * 1e6)))
    }

    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    fn value(self, report: &Report) -> f64 {
        match self {
            Self::Latency(which, figure) => {
                let all = report.with_timeouts.as_ref();
                let latency = match which {
                    Which::Response => all.map_or(&report.response, |all| &all.response),
                    Which::Service => all.map_or(&report.service, |all| &all.service),
                    Which::FirstByte => all.map_or(&report.first_byte, |all| &all.first_byte),
                    Which::Connect => &report.connect,
                };
                // A request in flight at the end takes at least as long as it has waited.
                let is_of_requests = matches!(which, Which::Response | Which::Service);
                if figure == Figure::Max && is_of_requests {
                    return latency.max_us.max(report.in_flight.age.max_us);
                }
                figure.of(latency)
            }
            Self::Rate => report.requests_per_s,
            Self::Achieved => (report.open_loop.as_ref()).map_or(1.0, |open| open.achieved_share),
            Self::Count(outcome, unit) => {
                let errors = report.errors.total();
                let count = match outcome {
                    Outcome::Errors => errors,
                    Outcome::Refused => report.refused,
                    Outcome::Changed => report.changed,
                };
                let all = report.answered + errors + report.refused;
                match unit {
                    Unit::Number => count as f64,
                    Unit::Share if all == 0 => 0.0,
                    Unit::Share => count as f64 / all as f64,
                }
            }
        }
    }

    /// The figure of one target, for the metrics that `of_step` admits.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    fn value_of(self, step: &Step) -> f64 {
        if let Self::Latency(which, figure) = self {
            let all = step.with_timeouts.as_ref();
            return figure.of(match which {
                Which::FirstByte => all.map_or(&step.first_byte, |all| &all.first_byte),
                _ => all.map_or(&step.response, |all| &all.response),
            });
        }
        let (failed, all) = (step.failed as f64, (step.answered + step.failed) as f64);
        match self {
            Self::Count(_, Unit::Share) if all > 0.0 => failed / all,
            _ => failed,
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::Latency(..) => crate::report::time(value),
            Self::Rate => format!("{value:.0}/s"),
            Self::Count(_, Unit::Number) => format!("{value:.0}"),
            Self::Count(_, Unit::Share) | Self::Achieved => format!("{:.3} %", value * 100.0),
        }
    }
}

/// A figure of one target: its name, a point, and the figure. The name may have points too.
fn of_step(name: &str, value: &str) -> Option<(Option<String>, Limit)> {
    name.match_indices('.').find_map(|(at, _)| {
        let found = Metric::parse(&name[at + 1..], value)?;
        let admitted = match &found {
            Ok((Metric::Latency(which, _), _)) => {
                matches!(which, Which::Response | Which::FirstByte)
            }
            Ok((Metric::Count(outcome, _), _)) => *outcome == Outcome::Errors,
            Ok(_) => false,
            Err(_) => true,
        };
        admitted.then(|| (Some(name[..at].to_owned()), found))
    })
}

impl Figure {
    fn of(self, latency: &Latency) -> f64 {
        match self {
            Self::Percentile(percent) => latency.at(percent),
            Self::Mean => latency.mean_us,
            Self::Min => latency.min_us,
            Self::Max => latency.max_us,
        }
    }
}

/// A percentage as a share.
fn share(value: &str) -> Result<f64, String> {
    let percent = value.strip_suffix('%').map(str::trim_end);
    let percent = percent.ok_or_else(|| format!("{value:?} is not a percentage"))?;
    super::values::number(percent).map(|percent| percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Latencies, Percentile, sample};

    fn constant(us: f64) -> Latency {
        Latency {
            count: 3,
            mean_us: us,
            stdev_us: 0.0,
            min_us: us,
            max_us: us,
            percentiles: percentiles::all()
                .map(|percent| Percentile { percent, us })
                .collect(),
        }
    }

    #[test]
    fn conditions_on_a_target_need_it() {
        let threshold = Threshold::parse("login.p99>1ms").unwrap();
        let names = ["login".to_owned(), "GET /".to_owned()];
        assert!(threshold.check(&names).is_ok());
        let why = threshold.check(&names[1..]).unwrap_err();
        assert!(why.contains("there are: GET /"), "{why}");
        assert!(threshold.check(&[]).unwrap_err().contains("several"));
        assert!(Threshold::parse("p99>1ms").unwrap().check(&[]).is_ok());
    }

    #[test]
    fn conditions_are_judged_with_the_figures_of_the_report() {
        // 1,000 responses of 1 to 1,000 us in a second, and one failure.
        let mut report = sample(500);
        let step = |name: &str, failed, us| Step {
            name: name.into(),
            answered: 3,
            failed,
            response: constant(us),
            first_byte: constant(us / 2.0),
            with_timeouts: None,
        };
        report.steps = vec![step("login", 1, 1500.0), step("GET /a.html", 0, 500.0)];
        for (text, fails) in [
            ("p99>900us", true),
            ("p99>1ms", false),
            ("p99.9>=0.99ms", true),
            ("response.p50>490us", true),
            ("service.mean < 400us", false),
            ("first_byte.max<=1.1ms", true),
            ("connect.p50>1us", false),
            ("rate<1001", true),
            ("rate<1k", false),
            ("errors>0", true),
            ("errors>1", false),
            ("errors>0.05%", true),
            ("errors>0.1%", false),
            ("changed>0", false),
            ("refused>0%", false),
            ("achieved<99%", false),
            ("login.p99>1ms", true),
            ("login.first_byte.p99.9>1ms", false),
            ("GET /a.html.mean<1ms", true),
            ("GET /a.html.errors>0", false),
            ("login.errors>24%", true),
            ("login.errors>25%", false),
        ] {
            let threshold = Threshold::parse(text).unwrap();
            assert_eq!(threshold.failure(&report).is_some(), fails, "{text}");
        }
        let failure = Threshold::parse("errors>0.05%").unwrap().failure(&report);
        assert_eq!(failure.unwrap(), "errors>0.05%: it is 0.100 %");
    }

    #[test]
    fn latencies_include_what_was_never_answered() {
        let holds = |text: &str, report: &Report| {
            let threshold = Threshold::parse(text).unwrap();
            threshold.failure(report).is_some()
        };
        // The slowest response took 1 ms; a request in flight at the end had waited for 2 ms.
        let mut report = sample(500);
        report.in_flight.age = constant(2000.0);
        assert!(holds("max>1.9ms", &report) && holds("service.max>1.9ms", &report));
        assert!(!holds("max>2ms", &report) && !holds("first_byte.max>1.1ms", &report));
        report.with_timeouts = Some(Latencies {
            response: constant(3000.0),
            service: constant(3000.0),
            first_byte: constant(3000.0),
        });
        for figure in ["p99", "service.p99", "first_byte.p99", "mean", "max"] {
            assert!(holds(&format!("{figure}>2ms"), &report), "{figure}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("p98>10ms", "p98 is not reported"),
            ("p99>10", "give a unit"),
            ("p99>x", "not a time"),
            ("latency>10ms", "such as 'p99>10ms'"),
            ("achieved<0.9", "percentage"),
            ("login.rate<9", "such as"),
            ("login.p98>1ms", "p98 is not reported"),
            ("rate<", "positive number"),
            ("errors", "condition"),
        ] {
            let why = Threshold::parse(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
