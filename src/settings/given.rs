//! A value, and where it came from.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::duration;
use super::file::File;
use crate::error::Error;

/// Where a value came from: it names the value in errors and decides their code.
pub(super) enum Origin {
    Option(String),
    Environment(&'static str),
    File(String),
}

impl Origin {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Option(name) | Self::File(name) => name.clone(),
            Self::Environment(name) => (*name).into(),
        }
    }

    /// The error that begins with the value's name.
    pub(super) fn wrong(&self, why: &str) -> Error {
        let text = format!("{}{why}", self.name());
        if matches!(self, Self::Option(_)) { Error::Usage(text) } else { Error::Config(text) }
    }
}

/// Values of the command line, else of the file.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// The file.
    pub(super) file: &'a File,
}

impl Given<'_> {
    pub(super) fn text(self, name: &str, typed: Option<&str>) -> Option<(String, Origin)> {
        match typed {
            Some(text) => Some((text.to_owned(), Origin::Option(format!("--{name}")))),
            None => self.file.get(name).map(|(text, place)| (text.to_owned(), Origin::File(place))),
        }
    }

    pub(super) fn duration(
        self,
        name: &str,
        typed: Option<&str>,
        range: &RangeInclusive<Duration>,
    ) -> Result<Option<(Duration, Origin)>, Error> {
        let Some((text, from)) = self.text(name, typed) else { return Ok(None) };
        let value = duration::parse(&text, range).map_err(|why| from.wrong(&format!(" {why}")))?;
        Ok(Some((value, from)))
    }
}
