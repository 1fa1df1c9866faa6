//! Why the daemon did not start or did not go on, with the exit code.

use super::process::NoTarget;
use crate::config::ConfigError;
use crate::control::server::BindError;
use crate::ports::PortError;

/// Exit codes of design §3.
pub mod code {
    /// Something failed.
    pub const FAILED: u8 = 1;
    /// Wrong usage or configuration.
    pub const USAGE: u8 = 2;
    /// The host lacks something required.
    pub const HOST: u8 = 3;
    /// No such target.
    pub const NO_TARGET: u8 = 4;
}

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It says something that this machine contradicts.
    #[error("{0}; correct [[tiers]], or leave it out to have tiers discovered")]
    Tiers(PortError),
    /// The environment says something that cannot be read.
    #[error("{0}")]
    Environment(String),
    /// A process that cannot be watched was named.
    #[error(transparent)]
    Target(#[from] NoTarget),
    /// This host cannot run it.
    #[error("{0}")]
    Host(String),
    /// A port of the loop failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The control socket.
    #[error(transparent)]
    Control(#[from] BindError),
    /// Anything else.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

impl DaemonError {
    /// The exit code that goes with it.
    pub fn code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Tiers(_) | Self::Environment(_) => code::USAGE,
            Self::Target(NoTarget::Unreadable(..))
            | Self::Host(_)
            | Self::Port(
                PortError::Missing { .. } | PortError::Forbidden { .. } | PortError::Busy { .. },
            ) => code::HOST,
            Self::Target(_) => code::NO_TARGET,
            Self::Port(_) | Self::Control(_) | Self::Failed(_) => code::FAILED,
        }
    }
}
