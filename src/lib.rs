//! hmkeeper.
#![deny(unsafe_code)]

pub mod config;
pub mod epoch;
pub mod ports;
pub mod sys;
pub mod tiering;
pub mod units;
