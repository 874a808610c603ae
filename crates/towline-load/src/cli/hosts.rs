//! Options of a load that several agents share.

use crate::config::Config;
use crate::hosts::{HostOptions, OnLostAgent};

/// Applies an option; false if it is another one.
pub(super) fn option(hosts: &mut HostOptions, name: &str, value: &str) -> Result<bool, String> {
    match name {
        "hosts" => hosts.add_hosts(value)?,
        "agent-sockets" => hosts.add_descriptors(value)?,
        "ssh" => {
            hosts.ssh = value.split_whitespace().map(str::to_owned).collect();
            if hosts.ssh.is_empty() {
                return Err("--ssh takes a command such as 'ssh -F FILE'".into());
            }
        }
        "agent-command" => hosts.agent_command = Some(value.into()),
        "agent-binary" => hosts.agent_binary = Some(value.into()),
        "on-lost-agent" => {
            hosts.on_lost = match value {
                "continue" => OnLostAgent::Continue,
                "stop" => OnLostAgent::Stop,
                _ => return Err(format!("{value:?} is neither continue nor stop")),
            };
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The agents of a load, if it has any.
pub(super) fn of_job(hosts: HostOptions, config: &Config) -> Result<Option<HostOptions>, String> {
    if !hosts.agents.is_empty() && config.barrier {
        return Err("a barrier is within one thread: --hosts has several".into());
    }
    checked(hosts)
}

/// The agents, if there are any; the options are consistent.
pub(super) fn checked(hosts: HostOptions) -> Result<Option<HostOptions>, String> {
    if hosts.agents.is_empty() {
        return if hosts == HostOptions::default() {
            Ok(None)
        } else {
            Err("--ssh, --agent-command, --agent-binary and --on-lost-agent need --hosts".into())
        };
    }
    if hosts.agent_command.is_some() && hosts.agent_binary.is_some() {
        return Err("--agent-command and --agent-binary exclude each other".into());
    }
    Ok(Some(hosts))
}
