//! `rlock list`: the keys that somebody holds or waits for.

use std::collections::BTreeMap;

use super::{Desk, json};
use crate::exit::{self, Exit};
use crate::report::{self, KeyView, aligned};
use crate::settings::Settings;

/// Prints a line for each key that `pattern` matches, in order.
pub fn list(settings: &Settings, pattern: Option<&str>) -> anyhow::Result<Exit> {
    let mut desk = Desk::open(settings)?;
    // A store may show a key twice, and a try that failed half-way is begun again.
    let mut found = BTreeMap::new();
    desk.ask(|store, by| {
        store.list(pattern, by.left(), &mut |listed| {
            found.insert(listed.key, listed.look);
            true
        })
    })?;
    let name = desk.name();
    let views: Vec<KeyView> = found.iter().map(|(key, look)| KeyView::new(key.as_str(), &name, look)).collect();
    let text = if settings.output.json {
        views.iter().map(json).collect::<anyhow::Result<String>>()?
    } else if views.is_empty() {
        String::new()
    } else {
        let head = ["KEY", "HOLDER", "SINCE", "LEFT", "WAITERS"].map(str::to_owned).to_vec();
        aligned(&std::iter::once(head).chain(views.iter().map(KeyView::row)).collect::<Vec<_>>())
    };
    report::print(&text)?;
    if views.is_empty() {
        desk.say_where();
    }
    Ok(Exit::Code(exit::OK))
}
