//! All decisions, and nothing but decisions: no I/O, no clock, no global
//! state. Time and randomness are passed in.

pub mod bounds;
pub mod engine;
pub mod estimates;
pub mod governor;
pub mod hotness;
pub mod looks;
pub mod moving;
pub mod observation;
pub mod page_cache;
pub mod pageout;
pub mod plan;
pub mod policy;
pub mod pressure;
pub mod region;
pub mod report;
mod rest;
pub mod rng;
pub mod sampling;
pub mod settings;
pub mod shortage;
pub mod tier;
pub mod windows;
pub mod writes;
