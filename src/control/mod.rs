//! The control socket: one JSON object per line, request and reply in turn.
//!
//! `docs/control.md` documents the protocol. [`server`] turns connections into
//! [`Call`]s on a channel and knows nothing of the daemon; [`client`] is what
//! the command line uses.

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::telemetry::status::Status;

pub mod client;
pub mod server;

/// The longest request, in bytes.
pub const LINE_MAX: usize = 4096;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The daemon's [`Status`].
    Status,
    /// Watch this process.
    Attach {
        /// Its id.
        pid: i32,
    },
    /// Stop watching a process that was attached.
    Detach {
        /// Its id.
        pid: i32,
    },
    /// Observe and plan, but move nothing.
    Pause,
    /// Move again.
    Resume,
    /// Apply the configuration file.
    Reload,
}

/// The answer. What does not apply is left out of the JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Whether it was done.
    pub ok: bool,
    /// What was done, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Why it was not done, with the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The exit code that goes with the error (design: 1 failed, 2 wrong
    /// configuration, 4 no such target).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    /// All faults of a configuration, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Changed keys that only a restart applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restart_needed: Vec<String>,
    /// The answer to [`Request::Status`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Box<Status>>,
}

impl Reply {
    /// It was done.
    pub fn done(message: impl Into<String>) -> Self {
        Self {
            ok: true,
            message: Some(message.into()),
            ..Self::default()
        }
    }

    /// It was not done.
    pub fn failed(code: u8, error: impl Into<String>) -> Self {
        Self {
            error: Some(error.into()),
            code: Some(code),
            ..Self::default()
        }
    }
}

/// A request, and where its answer goes.
#[derive(Debug)]
pub struct Call {
    /// What is asked for.
    pub request: Request,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Reply>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_the_manual_says() {
        let manual = include_str!("../../docs/control.md");
        for request in [
            Request::Status,
            Request::Attach { pid: 4711 },
            Request::Detach { pid: 4711 },
            Request::Pause,
            Request::Resume,
            Request::Reload,
        ] {
            let json = serde_json::to_string(&request).unwrap();
            assert!(manual.contains(&json), "{json}");
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        for text in [
            r#"{"command":"attach"}"#,
            r#"{"command":"attach","pid":"1"}"#,
            r#"{"command":"explode"}"#,
            r#"{"command":"attach","pid":1,"force":true}"#,
        ] {
            assert!(serde_json::from_str::<Request>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_reply_leaves_out_what_does_not_apply() {
        let json = serde_json::to_string(&Reply::done("paused")).unwrap();
        assert_eq!(json, r#"{"ok":true,"message":"paused"}"#);
        let json = serde_json::to_string(&Reply::failed(4, "no such process")).unwrap();
        assert_eq!(json, r#"{"ok":false,"error":"no such process","code":4}"#);
    }
}
