//! One frame of the live view. Pure: state in, terminal cells out.
//!
//! ```text
//! http://127.0.0.1:8000/ · 50 connections · closed loop
//! measuring ━━━━━━━━━━━━━━━━━━━━──────────────  4.2 s, 5.8 s left
//! ── requests/s: 121k now, 120k in the mean ──
//! ▁▂▅▇█▇▇█
//! ── latency ───────────────   ── percentiles ──
//!   1.02ms ██████████  62.1 %   p50     1.02ms
//! ```

use std::time::Duration;

use hdrhistogram::Histogram;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, LineGauge, Paragraph, Sparkline, Widget};

use super::state::State;
use crate::config::Until;
use crate::monitor::{AgentState, FAILURE_CLASSES};
use crate::report::percentiles::{Shown, columns};
use crate::report::{bytes, digits, time};

/// The smallest size of the full layout.
const MIN_SIZE: (u16, u16) = (60, 12);
/// Buckets of the distribution.
const BUCKETS: usize = 8;
/// The age of the oldest request in flight is shown from here on.
const LONG_WAIT: Duration = Duration::from_secs(1);

pub(super) fn draw(state: &State, area: Rect, to: &mut Buffer) {
    match (area.width, area.height) {
        (_, 0) | (0, _) => {}
        (_, 1) => one_line(state).render(area, to),
        (width, height) if width < MIN_SIZE.0 || height < MIN_SIZE.1 => small(state, area, to),
        _ => large(state, area, to),
    }
}

fn large(state: &State, area: Rect, to: &mut Buffer) {
    let agents = agent_lines(state, usize::from(area.height.saturating_sub(MIN_SIZE.1)));
    let [title, progress, above, rates, below] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(agents.len() as u16),
        Constraint::Fill(1),
        Constraint::Length(BUCKETS as u16 + 1),
    ])
    .areas(area);
    Line::styled(state.title.as_str(), bold()).render(title, to);
    progress_bar(state, progress, to);
    Paragraph::new(agents).render(above, to);
    rate_history(state, rates, to);
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(56), Constraint::Fill(1)]).areas(below);
    distribution(state, left, to);
    percentile_panel(state, right, to);
}

/// A line for each agent, as far as there is room: those in trouble first.
fn agent_lines(state: &State, room: usize) -> Vec<Line<'static>> {
    let mut agents: Vec<_> = state.agents.iter().collect();
    agents.sort_by_key(|agent| agent.trouble.is_none());
    let shown = if agents.len() > room {
        room.saturating_sub(1)
    } else {
        room
    };
    let line = |agent: &&AgentState| {
        let figures = format!(
            "{:<24} {:>8}/s {:>4.0} % busy ",
            agent.name,
            number(agent.per_s),
            agent.busy_share * 100.0
        );
        let trouble = match (&agent.trouble, agent.failed) {
            (Some(trouble), _) => Span::styled(trouble.clone(), color(state, Color::Red)),
            (None, 0) => Span::raw(""),
            (None, failed) => {
                Span::styled(format!("{failed} failed"), failure_style(state, failed))
            }
        };
        Line::from(vec![Span::raw(figures), trouble])
    };
    let mut lines: Vec<_> = agents.iter().take(shown).map(line).collect();
    if agents.len() > shown && room > 0 {
        lines.push(Line::raw(format!(
            "and {} more agents",
            agents.len() - shown
        )));
    }
    lines
}

/// The small layout: the most important lines first.
fn small(state: &State, area: Rect, to: &mut Buffer) {
    let [progress, below] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    progress_bar(state, progress, to);
    let mut lines = vec![one_line(state)];
    lines.extend(percentiles(state));
    lines.extend(status_lines(state));
    Paragraph::new(lines).render(below, to);
}

fn one_line(state: &State) -> Line<'static> {
    let failed: u64 = state.snapshot.failed.iter().sum();
    Line::from(vec![
        Span::raw(format!(
            "{}/s, {} responses, ",
            number(state.rate()),
            state.snapshot.answered
        )),
        Span::styled(format!("{failed} failed"), failure_style(state, failed)),
    ])
}

fn progress_bar(state: &State, area: Rect, to: &mut Buffer) {
    let (share, left) = state.progress();
    let elapsed = state.snapshot.elapsed.unwrap_or_default().as_secs_f64();
    let left = match left {
        Some(left) if !state.snapshot.is_draining => format!(", {:.1} s left", left.as_secs_f64()),
        _ => String::new(),
    };
    let words = format!("  {elapsed:.1} s{left}");
    let width = (words.len() as u16).min(area.width / 2).max(1);
    let [bar, text] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(width)]).areas(area);
    LineGauge::default()
        .ratio(share)
        .label(state.stage())
        .filled_symbol("━")
        .unfilled_symbol("─")
        .filled_style(color(state, Color::Green))
        .unfilled_style(color(state, Color::DarkGray))
        .render(bar, to);
    Line::raw(words).render(text, to);
}

fn rate_history(state: &State, area: Rect, to: &mut Buffer) {
    let title = format!(
        " {}/s: {} now, {} on average ",
        state.unit,
        number(state.rate()),
        number(state.mean_rate())
    );
    let block = titled_block(title);
    let width = usize::from(block.inner(area).width);
    let from = state.seconds.len().saturating_sub(width);
    // A short run fills the width too.
    let planned = match state.until {
        Until::Time(time) => time.as_secs() as usize,
        Until::Requests(_) => 0,
    };
    let columns = (width / planned.max(state.seconds.len()).max(1)).clamp(1, 6);
    let rates: Vec<u64> = (state.seconds.range(from..))
        .flat_map(|(answered, _)| std::iter::repeat_n(*answered, columns))
        .collect();
    Sparkline::default()
        .block(block)
        .data(&rates)
        .style(color(state, Color::Cyan))
        .render(area, to);
}

/// Buckets between the fastest and the slowest response, whose widths grow by a constant factor.
#[expect(clippy::cast_sign_loss, reason = "a share of a width")]
fn distribution(state: &State, area: Rect, to: &mut Buffer) {
    let block = titled_block(" latency, up to ".into());
    let inner = block.inner(area);
    block.render(area, to);
    let Some(times) = state.times.as_ref().filter(|times| !times.is_empty()) else {
        return Line::raw("after the first second").render(inner, to);
    };
    let shares = buckets(times);
    let most = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    // "  1.02ms " before the bar and " 62.1 % " after it.
    let room = f64::from(inner.width.saturating_sub(18));
    let lines: Vec<_> = (shares.iter())
        .map(|(upto_us, share)| {
            let bar = if *share > 0.0 {
                "█".repeat(((share / most * room) as usize).max(1))
            } else {
                String::new()
            };
            Line::from(vec![
                Span::raw(format!("{:>8} ", time(*upto_us))),
                Span::styled(bar, color(state, Color::Cyan)),
                Span::raw(format!(" {:.1} %", share * 100.0)),
            ])
        })
        .collect();
    Paragraph::new(lines).render(inner, to);
}

/// Upper bounds in microseconds, and the share of responses in each bucket.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "positive, and for the eye"
)]
fn buckets(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    let (least, most) = (times.min().max(1) as f64, times.max().max(1) as f64);
    let factor = (most / least).powf(1.0 / BUCKETS as f64);
    let mut before = 0;
    (1..=BUCKETS)
        .map(|n| {
            let upto = if n == BUCKETS {
                most
            } else {
                least * factor.powf(n as f64)
            };
            let count = times.count_between(0, upto as u64);
            let share = count.saturating_sub(before) as f64 / times.len() as f64;
            before = count;
            (upto / 1000.0, share)
        })
        .collect()
}

fn percentile_panel(state: &State, area: Rect, to: &mut Buffer) {
    let block = titled_block(" percentiles ".into());
    let inner = block.inner(area);
    block.render(area, to);
    let mut lines = percentiles(state);
    lines.extend(status_lines(state));
    Paragraph::new(lines).render(inner, to);
}

/// The percentiles in two columns.
fn percentiles(state: &State) -> Vec<Line<'static>> {
    #[expect(clippy::cast_precision_loss, reason = "for the eye")]
    let at = |percent: f64| {
        state.times.as_ref().map_or("-".into(), |times| {
            time(times.value_at_percentile(percent) as f64 / 1000.0)
        })
    };
    let columns: Vec<_> = columns(Shown::InTable).collect();
    let half = columns.len().div_ceil(2);
    let cell = |(column, (percent, name)): (usize, &(f64, String))| {
        let width = 6 + column.min(1);
        format!("{name:<width$}{:>8}", at(*percent))
    };
    (0..half)
        .map(|row| {
            let cells: Vec<_> = columns[row..]
                .iter()
                .step_by(half)
                .enumerate()
                .map(cell)
                .collect();
            Line::raw(cells.join("  "))
        })
        .collect()
}

fn status_lines(state: &State) -> Vec<Line<'static>> {
    let snapshot = &state.snapshot;
    #[expect(clippy::cast_precision_loss, reason = "for the eye")]
    let received = bytes(snapshot.received_bytes as f64);
    let mut lines = vec![
        Line::raw(format!("{} responses, {received}", snapshot.answered)),
        Line::raw(format!(
            "{} of {} connections, {} in flight",
            snapshot.live_connections, state.connections, snapshot.in_flight
        )),
    ];
    if snapshot.oldest >= LONG_WAIT {
        let seconds = snapshot.oldest.as_secs();
        lines.push(Line::raw(format!("the oldest waits for {seconds} s")));
    }
    if snapshot.refused > 0 {
        lines.push(Line::raw(format!("refused {}", snapshot.refused)));
    }
    let failed: u64 = snapshot.failed.iter().sum();
    let by_class = FAILURE_CLASSES
        .iter()
        .zip(snapshot.failed)
        .filter(|(_, count)| *count > 0);
    let words: Vec<_> = by_class
        .map(|(class, count)| format!("{class} {count}"))
        .collect();
    let text = if words.is_empty() {
        "no errors".into()
    } else {
        words.join(", ")
    };
    lines.push(Line::styled(text, failure_style(state, failed)));
    lines
}

fn titled_block(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn color(state: &State, color: Color) -> Style {
    if state.has_colors {
        Style::new().fg(color)
    } else {
        Style::new()
    }
}

fn failure_style(state: &State, failed: u64) -> Style {
    if failed > 0 {
        color(state, Color::Red)
    } else {
        Style::new()
    }
}

/// Three digits, in thousands or millions for large values.
fn number(value: f64) -> String {
    match value {
        value if value < 1e3 => digits(value, ""),
        value if value < 1e6 => digits(value / 1e3, "k"),
        value => digits(value / 1e6, "M"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::state::tests::sample;
    use super::*;

    fn drawn(state: &State, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw(state, area, &mut buffer);
        (0..height)
            .map(|y| {
                let cells = (0..width).map(|x| buffer[(x, y)].symbol());
                cells.collect::<String>().trim_end().to_owned()
            })
            .collect()
    }

    #[test]
    fn a_frame_of_eighty_columns() {
        let state = sample(Until::Time(Duration::from_secs(20)));
        let lines = drawn(&state, 80, 17);
        let text = lines.join("\n");
        for part in [
            "http://127.0.0.1:8000/hello · 50 connections · closed loop",
            "measuring",
            "5.0 s, 15.0 s left",
            "requests/s: 1.00k now, 1.00k on average",
            "█████",
            "p50     1.00ms  p99.9    2.01ms",
            "5000 responses",
            "50 of 50 connections",
            "reset 10",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let shares = lines.iter().filter(|line| line.contains(" %")).count();
        assert_eq!(shares, BUCKETS, "{text}");
    }

    #[test]
    fn a_request_that_hangs_is_seen_by_its_age() {
        let mut state = sample(Until::Time(Duration::from_secs(20)));
        let is_shown = |state: &State| {
            drawn(state, 80, 17)
                .join("\n")
                .contains("the oldest waits for 4 s")
        };
        assert!(!is_shown(&state));
        state.snapshot.oldest = Duration::from_millis(4100);
        assert!(is_shown(&state));
    }

    #[test]
    fn a_tiny_terminal_shows_the_most_important_lines() {
        let state = sample(Until::Requests(10_020));
        let text = drawn(&state, 30, 4).join("\n");
        assert!(text.contains("1.00k/s, 5000 responses"), "{text}");
        assert!(drawn(&state, 24, 1)[0].starts_with("1.00k/s"));
        for width in [1, 2, 19, 40, 59, 60, 61, 90] {
            for height in [1, 2, 3, 5, 11, 12, 13, 20] {
                drawn(&state, width, height);
            }
        }
    }

    #[test]
    fn agents_have_lines_and_those_in_trouble_come_first() {
        let mut state = sample(Until::Time(Duration::from_secs(20)));
        state.agents = (0..7)
            .map(|n| AgentState {
                name: format!("host{n}"),
                per_s: 5000.0,
                busy_share: 0.31,
                trouble: (n == 6).then(|| "lost: ssh: exit status: 255".into()),
                ..AgentState::default()
            })
            .collect();
        let lines = drawn(&state, 80, 17);
        assert!(lines[2].starts_with("host6"), "{lines:?}");
        assert!(lines[2].contains("lost: ssh"), "{lines:?}");
        assert!(lines[3].contains("5.00k/s   31 % busy"), "{lines:?}");
        assert_eq!(lines[6], "and 3 more agents");
        assert!(lines.join("\n").contains("requests/s: 1.00k now"));
        for height in [1, 4, 11, 12, 13, 15, 20, 40] {
            drawn(&state, 80, height);
        }
    }

    #[test]
    fn buckets_hold_everything() {
        let state = sample(Until::Requests(1));
        let shares = buckets(state.times.as_ref().unwrap());
        let sum: f64 = shares.iter().map(|(_, share)| share).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{shares:?}");
        assert!((shares[BUCKETS - 1].0 - 2000.0).abs() < 20.0, "{shares:?}");
    }
}
