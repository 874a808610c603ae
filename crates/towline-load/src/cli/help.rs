//! The help, one screen per topic.

/// The help without a topic.
pub const MAIN: &str = include_str!("help/main.txt");

const TOPICS: [(&str, &str); 8] = [
    ("load", include_str!("help/load.txt")),
    ("requests", include_str!("help/requests.txt")),
    ("responses", include_str!("help/responses.txt")),
    ("websocket", include_str!("help/websocket.txt")),
    ("runs", include_str!("help/runs.txt")),
    ("hosts", include_str!("help/hosts.txt")),
    ("output", include_str!("help/output.txt")),
    ("ab-wrk", include_str!("help/ab-wrk.txt")),
];

/// The text of `--help TOPIC`; `None` if there is no such topic.
pub fn of(topic: &str) -> Option<String> {
    match topic {
        "" => Some(MAIN.into()),
        "all" => {
            let screens = TOPICS.iter().map(|(_, text)| *text);
            let all: Vec<_> = std::iter::once(MAIN).chain(screens).collect();
            Some(all.join("\n"))
        }
        _ => TOPICS
            .iter()
            .find(|(name, _)| *name == topic)
            .map(|(_, text)| (*text).into()),
    }
}

/// The topics, for the error about an unknown one.
pub(super) fn names() -> String {
    let names: Vec<_> = TOPICS.iter().map(|(name, _)| *name).collect();
    format!("{} and all", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::options::OPTIONS;

    #[test]
    fn each_topic_fits_a_screen() {
        for (name, text) in TOPICS.iter().chain(&[("main", MAIN)]) {
            assert!(text.lines().count() <= 24, "{name}");
            for line in text.lines() {
                assert!(line.len() <= 80, "{name}: {line}");
            }
        }
    }

    #[test]
    fn every_option_is_named_in_a_topic() {
        let all = of("all").unwrap();
        for option in OPTIONS {
            let long = format!("--{}", option.name);
            let short = option
                .short
                .map_or(String::new(), |short| format!("-{short}"));
            let is_there = all.contains(&long) || !short.is_empty() && all.contains(&short);
            assert!(is_there, "{long}");
        }
        for (name, _) in TOPICS {
            assert!(MAIN.contains(name), "{name}");
        }
    }
}
