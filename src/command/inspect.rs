//! `rlock inspect`: who holds a key, and who waits for it.

use super::{Desk, json};
use crate::exit::{self, Exit};
use crate::report::{self, KeyView};
use crate::settings::Settings;
use crate::store::Key;

/// Prints what is known of each key. 1 when one of them is free.
pub fn inspect(settings: &Settings, keys: &[Key]) -> anyhow::Result<Exit> {
    let mut desk = Desk::open(settings)?;
    let looks = desk.looks(keys)?;
    let name = desk.name();
    let views: Vec<KeyView> =
        keys.iter().zip(&looks).map(|(key, look)| KeyView::new(key.as_str(), &name, look)).collect();
    let text = if settings.output.json {
        views.iter().map(json).collect::<anyhow::Result<String>>()?
    } else {
        views.iter().map(KeyView::block).collect::<Vec<_>>().join("\n")
    };
    report::print(&text)?;
    let one_is_free = views.iter().any(|view| view.free);
    if one_is_free {
        desk.say_where();
    }
    Ok(Exit::Code(if one_is_free { exit::NO } else { exit::OK }))
}
