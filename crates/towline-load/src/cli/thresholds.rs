//! `--fail-if CONDITION`: conditions on the figures of the report that make a run fail.

use crate::report::{Latency, Report};

/// The percentiles of the report.
pub(super) const PERCENTS: [f64; 10] =
    [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// A condition under which a run fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    metric: Metric,
    comparison: Comparison,
    /// In the unit of the metric: microseconds, a share, or a number.
    limit: f64,
}

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
        let (metric, limit) = Metric::parse(name, value)
            .ok_or_else(wrong)?
            .map_err(|why| format!("{text:?}: {why}"))?;
        Ok(Self {
            text: text.into(),
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

    /// Whether the condition is about failed requests, which then do not fail the run by themselves.
    pub(super) fn judges_errors(&self) -> bool {
        matches!(self.metric, Metric::Count(Outcome::Errors, _))
    }

    /// Describes the condition if it holds.
    pub(super) fn failure(&self, report: &Report) -> Option<String> {
        let value = self.metric.value(report);
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
    fn parse(name: &str, value: &str) -> Option<Result<(Self, f64), String>> {
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
                let percent: f64 = figure.strip_prefix('p')?.parse().ok()?;
                if !PERCENTS.contains(&percent) {
                    return Some(Err(format!(
                        "{figure} is not reported; p10 p25 p50 p75 p90 p95 p99 p99.9 p99.99 p100 are"
                    )));
                }
                Figure::Percentile(percent)
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
                let latency = match which {
                    Which::Response => &report.response,
                    Which::Service => &report.service,
                    Which::FirstByte => &report.first_byte,
                    Which::Connect => &report.connect,
                };
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

    fn shown(self, value: f64) -> String {
        match self {
            Self::Latency(..) => crate::report::time(value),
            Self::Rate => format!("{value:.0}/s"),
            Self::Count(_, Unit::Number) => format!("{value:.0}"),
            Self::Count(_, Unit::Share) | Self::Achieved => format!("{:.3} %", value * 100.0),
        }
    }
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
    use crate::report::sample;

    #[test]
    fn conditions_are_judged_with_the_figures_of_the_report() {
        // 1,000 responses of 1 to 1,000 us in a second, and one failure.
        let report = sample(500);
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
        ] {
            let threshold = Threshold::parse(text).unwrap();
            assert_eq!(threshold.failure(&report).is_some(), fails, "{text}");
        }
        let failure = Threshold::parse("errors>0.05%").unwrap().failure(&report);
        assert_eq!(failure.unwrap(), "errors>0.05%: it is 0.100 %");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("p98>10ms", "p98 is not reported"),
            ("p99>10", "give a unit"),
            ("p99>x", "not a time"),
            ("latency>10ms", "such as 'p99>10ms'"),
            ("achieved<0.9", "percentage"),
            ("rate<", "positive number"),
            ("errors", "condition"),
        ] {
            let why = Threshold::parse(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
