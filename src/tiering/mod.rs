//! All decisions, and nothing but decisions: no I/O, no clock, no global
//! state. Time and randomness are passed in.

pub mod observation;
pub mod plan;
pub mod report;
pub mod settings;
pub mod tier;
