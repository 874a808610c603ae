//! Report formats for other programs: CSV by second, and the `HdrHistogram` interval log.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::report::Report;
use crate::session::Outcome;

/// One line for each second of the measured time.
pub fn csv(report: &Report) -> String {
    let mut text = String::from(
        "second,answered,failed,received_bytes,live_connections,p50_us,p99_us,max_us\n",
    );
    for (number, second) in report.series.iter().enumerate() {
        let _ = writeln!(
            text,
            "{number},{},{},{},{},{:.1},{:.1},{:.1}",
            second.answered,
            second.failed,
            second.received_bytes,
            second.live_connections,
            second.p50_us,
            second.p99_us,
            second.max_us,
        );
    }
    text
}

/// The response times by second, in nanoseconds, in the format of the `HdrHistogram` tools.
pub fn hdr_log(outcome: &Outcome) -> String {
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let written = IntervalLogWriterBuilder::new()
        .add_comment("towline-load: response times from the intended start, in nanoseconds")
        .with_start_time(outcome.began)
        .with_base_time(outcome.began)
        // Writes the column of the largest value in seconds.
        .with_max_value_divisor(1e9)
        .begin_log_with(&mut bytes, &mut serializer)
        .map(|mut log| {
            for (number, times) in (0_u64..).zip(&outcome.seconds) {
                let start = Duration::from_secs(number);
                let write = log.write_histogram(times, start, Duration::from_secs(1), None);
                if let Err(error) = write {
                    debug_assert!(false, "a vector takes everything: {error:?}");
                }
            }
        });
    debug_assert!(written.is_ok(), "a vector takes everything");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Quantiles of a histogram of nanoseconds for plots: microseconds, and the share at or below them.
pub fn curve(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    times
        .iter_quantiles(5)
        .map(|step| {
            #[expect(
                clippy::cast_precision_loss,
                reason = "an hour of nanoseconds fits 2^53"
            )]
            let us = step.value_iterated_to() as f64 / 1000.0;
            (us, step.quantile_iterated_to())
        })
        .collect()
}
