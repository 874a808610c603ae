//! `--scenario FILE`: requests and expected responses from a TOML or JSON file.

use std::path::Path;

use crate::config::Config;
use crate::spec::Spec;

pub(super) fn read(path: &str) -> Result<Config, String> {
    let named = |error: &dyn std::fmt::Display| format!("{path}: {error}");
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let is_toml = Path::new(path).extension().is_some_and(|end| end == "toml");
    let spec: Spec = if is_toml {
        toml::from_str(&text).map_err(|error| named(&error))?
    } else {
        serde_json::from_str(&text).map_err(|error| named(&error))?
    };
    spec.config().map_err(|error| named(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::SendMode;

    const TOML: &str = r#"
mix = "at_random"
connections = 4

[[targets]]
url = "http://127.0.0.1:8000/"
weight = 3
expect = { status = 200, body = { text = "alive\r\n" } }

[[targets]]
url = "http://127.0.0.1:8000/echo"
method = "POST"
fields = [["Content-Type", "application/octet-stream"]]
body = { repeat = "x", count = 256 }
send_mode = { pieces = 2, gap_ms = 1.5 }
"#;

    #[test]
    fn toml_and_json_are_equivalent() {
        let folder = std::env::temp_dir();
        let path = |end: &str| folder.join(format!("towline-load-{}.{end}", std::process::id()));
        let (one, other) = (path("toml"), path("json"));
        std::fs::write(&one, TOML).unwrap();
        let value: toml::Value = toml::from_str(TOML).unwrap();
        std::fs::write(&other, serde_json::to_string(&value).unwrap()).unwrap();
        let from_toml = read(one.to_str().unwrap()).unwrap();
        let from_json = read(other.to_str().unwrap()).unwrap();
        assert_eq!(from_toml.targets, from_json.targets);
        assert_eq!(from_toml.connections, 4);
        assert!(matches!(
            from_toml.targets[1].send_mode,
            SendMode::Pieces { pieces: 2, .. }
        ));
        std::fs::write(&one, "conections = 3").unwrap();
        assert!(
            read(one.to_str().unwrap())
                .unwrap_err()
                .contains("conections")
        );
        for path in [one, other] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
