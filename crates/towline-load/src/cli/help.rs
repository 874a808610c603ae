//! The help: one screen per topic, from the table of options.

use super::options::{COMMON, Opt, TOPICS, Topic, by_name};

/// Width of a screen, and where the descriptions begin.
const WIDTH: usize = 80;
const INDENT: usize = 28;

/// The text of `--help TOPIC`; `None` if there is no such topic.
pub fn of(topic: &str) -> Option<String> {
    match topic {
        "" => Some(main()),
        "all" => {
            let screens = TOPICS.iter().map(screen);
            let all: Vec<_> = std::iter::once(main()).chain(screens).collect();
            Some(all.join("\n"))
        }
        _ => TOPICS.iter().find(|known| known.name == topic).map(screen),
    }
}

/// The topics, for the error about an unknown one.
pub(super) fn names() -> String {
    let names: Vec<_> = TOPICS.iter().map(|topic| topic.name).collect();
    format!("{} and all", names.join(", "))
}

/// The help without a topic.
fn main() -> String {
    let common: String = COMMON
        .iter()
        .copied()
        .filter_map(by_name)
        .map(row)
        .collect();
    let topics: Vec<_> = (TOPICS.iter())
        .map(|topic| format!("  {:<12}{}\n", topic.name, topic.title))
        .collect();
    let topics = topics.concat();
    format!(
        "usage: towline-load [OPTIONS] URL...     (`towline load` is the same program)\n\
         Sends load, verifies every response, and reports rates and latencies.\n{common}  \
         -V, --version; -h, --help [TOPIC], or all:\n{topics}"
    )
}

fn screen(topic: &Topic) -> String {
    let &Topic {
        title,
        name,
        before,
        options,
        after,
    } = topic;
    let command = format!("(--help {name})");
    let rows: String = options.iter().map(row).collect();
    format!(
        "{title}{command:>0$}\n\n{before}{rows}{after}",
        WIDTH - 2 - title.len()
    )
}

/// An option with its description, in as many lines as it needs.
fn row(option: &Opt) -> String {
    let mut row = match option.short {
        Some(letter) => format!("  -{letter}, --{}", option.name),
        None => format!("      --{}", option.name),
    };
    if option.takes_value() {
        row.push(' ');
        row += option.value;
    }
    let mut column = row.len();
    if column + 2 > INDENT {
        row.push('\n');
        column = 0;
    }
    let help = option.description();
    for (at, word) in help.split(' ').enumerate() {
        if at > 0 && column + 1 + word.len() > WIDTH {
            row.push('\n');
            column = 0;
        }
        if column < INDENT {
            row.extend(std::iter::repeat_n(' ', INDENT - column));
            column = INDENT;
        } else {
            row.push(' ');
            column += 1;
        }
        row += word;
        column += word.len();
    }
    row.push('\n');
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::percentiles;

    #[test]
    fn each_topic_fits_a_screen() {
        for name in TOPICS.iter().map(|topic| topic.name).chain([""]) {
            let text = of(name).unwrap();
            assert!(text.lines().count() <= 24, "{text}");
            for line in text.lines() {
                assert!(line.len() <= WIDTH, "{line}");
            }
        }
    }

    #[test]
    fn the_first_screen_names_all_topics_and_known_options() {
        let main = of("").unwrap();
        assert!(
            TOPICS.iter().all(|topic| main.contains(topic.title)),
            "{main}"
        );
        assert!(COMMON.iter().all(|name| by_name(name).is_some()));
    }

    #[test]
    fn percentiles_are_those_of_the_report() {
        let runs = of("runs").unwrap();
        assert!(
            percentiles::all().all(|percent| runs.contains(&format!(" {percent}"))),
            "{runs}"
        );
    }
}
