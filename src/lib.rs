//! hmkeeper.
#![deny(unsafe_code)]

pub mod config;
pub mod demo;
pub mod epoch;
pub mod ports;
pub mod sim;
pub mod sys;
pub mod tiering;
pub mod units;
