//! `rlock ttl`: how long the lease of a key still runs.

use serde::Serialize;

use super::{Desk, json};
use crate::exit::{self, Exit};
use crate::report::{self, KeyView, aligned};
use crate::settings::Settings;
use crate::store::Key;
use crate::text::{short_ms, shown};

#[derive(Serialize)]
struct TtlView<'a> {
    v: u8,
    key: &'a str,
    store: &'a str,
    free: bool,
    left_ms: Option<u64>,
}

/// Prints what is left, one line a key; with several keys the key stands before it. 1 when one of them is free.
pub fn ttl(settings: &Settings, keys: &[Key], ms: bool) -> anyhow::Result<Exit> {
    let mut desk = Desk::open(settings)?;
    let looks = desk.looks(keys)?;
    let name = desk.name();
    let views: Vec<KeyView> =
        keys.iter().zip(&looks).map(|(key, look)| KeyView::new(key.as_str(), &name, look)).collect();
    let text = if settings.output.json {
        let view = |view: &KeyView| {
            json(&TtlView { v: 1, key: &view.key, store: &name, free: view.free, left_ms: view.left_ms })
        };
        views.iter().map(view).collect::<anyhow::Result<String>>()?
    } else if let [view] = &views[..] {
        left(view, ms) + "\n"
    } else {
        aligned(&views.iter().map(|view| vec![shown(&view.key, 120), left(view, ms)]).collect::<Vec<_>>())
    };
    report::print(&text)?;
    let one_is_free = views.iter().any(|view| view.free);
    if one_is_free {
        desk.say_where();
    }
    Ok(Exit::Code(if one_is_free { exit::NO } else { exit::OK }))
}

fn left(view: &KeyView, as_ms: bool) -> String {
    match (view.left_ms, view.free, as_ms) {
        (Some(ms), _, true) => ms.to_string(),
        (Some(ms), _, false) => short_ms(ms),
        (None, true, true) => "-2".into(),
        (None, true, false) => "free".into(),
        (None, false, true) => "-1".into(),
        (None, false, false) => "without end".into(),
    }
}
