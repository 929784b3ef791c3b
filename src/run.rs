//! Stand-in.
use crate::error::Error;
use crate::exit::Exit;
use crate::settings::{RunSettings, Settings};

/// Stand-in.
pub fn run(_settings: &Settings, _run: &RunSettings) -> anyhow::Result<Exit> {
    Err(Error::Software("`run` is not there yet".into()).into())
}
