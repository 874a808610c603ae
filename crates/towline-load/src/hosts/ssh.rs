//! Command lines that start an agent on a host by OpenSSH's client. Keys, users, jump hosts and all else are the user's.

use std::process::Command;

use super::options::HostOptions;

/// Written by the host when the program has been copied.
pub(super) const COPIED: &str = "towline-agent-copied";

/// Finds an agent. In single quotes it is the same for every shell that a user may have.
const FIND: &str = "sh -c 'PATH=\"$PATH:$HOME/.local/bin:/usr/local/bin\"; \
    if command -v towline-load >/dev/null 2>&1; then exec towline-load --agent; fi; \
    if command -v towline >/dev/null 2>&1; then exec towline load --agent; fi; \
    echo \"neither towline nor towline-load is on its PATH: --agent-command names it, --agent-binary copies it\" >&2; \
    exit 127'";

/// The client's command line for a host. `copied_bytes`: the size of a program that is sent first.
pub(super) fn command(options: &HostOptions, host: &str, copied_bytes: Option<u64>) -> Command {
    let usual = ["ssh".to_owned()];
    let client = if options.ssh.is_empty() {
        &usual[..]
    } else {
        &options.ssh
    };
    let mut command = Command::new(&client[0]);
    command.args(&client[1..]);
    // Passwords cannot be entered: the client is not in the terminal's foreground, so that Ctrl-C does not end it
    // before the agent has sent its result.
    command.args(["-T", "-o", "BatchMode=yes", "--", host]);
    command.arg(match copied_bytes {
        Some(bytes) => copy(bytes),
        None => options.agent_command.clone().unwrap_or_else(|| FIND.into()),
    });
    command
}

/// Takes the program from its input into a folder of its own, runs it, and removes it in the end.
fn copy(bytes: u64) -> String {
    format!(
        "sh -c 'umask 077; d=$(mktemp -d) || exit 1; trap \"rm -rf $d\" EXIT; trap \"exit 1\" HUP INT TERM; \
         head -c {bytes} > $d/towline-load && chmod 700 $d/towline-load && echo {COPIED} && $d/towline-load --agent'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(options: &HostOptions, copied_bytes: Option<u64>) -> Vec<String> {
        let command = command(options, "me@a", copied_bytes);
        let all = std::iter::once(command.get_program()).chain(command.get_args());
        all.map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_users_client_gets_host_and_command() {
        let mut options = HostOptions::default();
        let all = arguments(&options, None);
        assert_eq!(
            &all[..6],
            ["ssh", "-T", "-o", "BatchMode=yes", "--", "me@a"]
        );
        assert!(all[6].contains("exec towline load --agent"));
        options.ssh = vec!["ssh".into(), "-F".into(), "config".into()];
        options.agent_command = Some("nice towline-load --agent".into());
        let all = arguments(&options, None);
        assert_eq!(&all[..3], ["ssh", "-F", "config"]);
        assert_eq!(all[8], "nice towline-load --agent");
        assert!(arguments(&options, Some(77))[8].contains("head -c 77 >"));
    }
}
