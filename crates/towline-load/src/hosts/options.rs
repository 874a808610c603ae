//! The agents of a load, and what happens when one is lost.

use std::os::fd::RawFd;
use std::path::PathBuf;

/// Limit of agents of one load: each has threads in the controller.
const MAX_AGENTS: usize = 1000;

/// The agents that share a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostOptions {
    pub agents: Vec<AgentAddress>,
    /// The program and first arguments of OpenSSH's client.
    pub ssh: Vec<String>,
    /// The command that runs an agent on a host; `None`: found on its PATH.
    pub agent_command: Option<String>,
    /// A `towline-load` program to copy to each host.
    pub agent_binary: Option<PathBuf>,
    pub on_lost: OnLostAgent,
}

/// An agent, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentAddress {
    pub name: String,
    /// `None`: as many as the load has on one machine.
    pub threads: Option<usize>,
    /// A connected socket; `None`: the name is a destination of ssh.
    pub descriptor: Option<RawFd>,
}

/// The rest of a run in which an agent is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLostAgent {
    /// The others go on: their measurements stay valid for the load that they send, and a run that was cut short cannot
    /// be continued. The report names what is missing, and the status is 1.
    #[default]
    Continue,
    /// All others stop: the load is no longer the asked one.
    Stop,
}

impl HostOptions {
    /// `HOST,USER@HOST,HOST=THREADS...`
    pub(crate) fn add_hosts(&mut self, text: &str) -> Result<(), String> {
        for part in text.split(',') {
            let (host, digits) = match part.rsplit_once('=') {
                None => (part, None),
                Some((host, digits)) => (host, Some(digits)),
            };
            // ssh would take it as an option.
            let is_option = host.starts_with('-');
            if host.is_empty() || is_option || !host.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!("{part:?} is not HOST, USER@HOST or HOST=THREADS"));
            }
            let threads = digits.map(threads).transpose()?;
            self.add(host, threads, None)?;
        }
        Ok(())
    }

    /// `NAME=DESCRIPTOR,NAME=DESCRIPTOR...`
    pub(crate) fn add_descriptors(&mut self, text: &str) -> Result<(), String> {
        for part in text.split(',') {
            let pair = part.rsplit_once('=');
            let found = pair.and_then(|(name, digits)| Some((name, digits.parse().ok()?)));
            let Some((name, descriptor)) = found.filter(|(_, descriptor)| *descriptor > 2) else {
                return Err(format!("{part:?} is not NAME=DESCRIPTOR, a number above 2"));
            };
            self.add(name, None, Some(descriptor))?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        name: &str,
        threads: Option<usize>,
        descriptor: Option<RawFd>,
    ) -> Result<(), String> {
        if self.agents.len() == MAX_AGENTS {
            return Err(format!("more than {MAX_AGENTS} agents"));
        }
        self.agents.push(AgentAddress {
            name: name.into(),
            threads,
            descriptor,
        });
        Ok(())
    }

    /// The threads of each agent; `usual` where nothing else is given.
    pub(crate) fn threads(&self, usual: usize) -> Vec<usize> {
        let threads = |agent: &AgentAddress| agent.threads.unwrap_or(usual);
        self.agents.iter().map(threads).collect()
    }

    /// Names, with a number where one comes again.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |(index, agent): (usize, &AgentAddress)| {
            let before = &self.agents[..index];
            match before.iter().filter(|one| one.name == agent.name).count() {
                0 => agent.name.clone(),
                n => format!("{} ({})", agent.name, n + 1),
            }
        };
        self.agents.iter().enumerate().map(name).collect()
    }
}

fn threads(digits: &str) -> Result<usize, String> {
    let number = digits.parse::<usize>().ok();
    number
        .filter(|number| (1..=1024).contains(number))
        .ok_or_else(|| format!("{digits:?} is not a number of threads, 1 to 1024"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_users_and_threads() {
        let mut options = HostOptions::default();
        options
            .add_hosts("a,me@b.example=4,ssh://c:2222,a")
            .unwrap();
        options.add_descriptors("node=7").unwrap();
        assert_eq!(options.threads(2), [2, 4, 2, 2, 2]);
        assert_eq!(
            options.names(),
            ["a", "me@b.example", "ssh://c:2222", "a (2)", "node"]
        );
        assert_eq!(options.agents[4].descriptor, Some(7));
        for text in ["", "a,", "-oProxyCommand=x", "a b", "a=0", "a=x", "=2"] {
            assert!(HostOptions::default().add_hosts(text).is_err(), "{text}");
        }
        for text in ["", "a", "a=-1", "a=2"] {
            assert!(
                HostOptions::default().add_descriptors(text).is_err(),
                "{text}"
            );
        }
    }
}
