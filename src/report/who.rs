//! Who stands behind a claim, for people: the members of its record.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

use nix::unistd::{Uid, User, gethostname};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::settings::Command;
use crate::store::LONGEST_RECORD;
use crate::text::{cut, shown};

/// The host's own list of users, which nearly always has the name: only what is not in it costs a thread.
const PASSWD: &str = "/etc/passwd";

/// How long the look-up of a user's name may take: it can ask a directory server that is down.
const LOOK_UP: Duration = Duration::from_millis(300);

/// The longest part shown of a name.
const MOST_SHOWN: usize = 64;

/// Who stands behind a claim. Every part can be missing in a record of another version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Who {
    /// The host's name.
    pub host: Option<String>,
    /// rlock's process.
    pub pid: Option<u32>,
    /// The user's name, or `uid N`.
    pub user: Option<String>,
    /// The program's name, without its directory and never its arguments.
    pub cmd: Option<String>,
    /// What `--label` said.
    pub label: Option<String>,
}

impl Who {
    /// This process, which is to run `command`. It may start a thread, so it comes after the last fork.
    pub fn here(command: &Command, label: Option<&str>) -> Self {
        Self {
            host: gethostname().ok().map(|host| lossy(&host)),
            pid: Some(std::process::id()),
            user: Some(user()),
            cmd: Some(program(command)),
            label: label.map(str::to_owned),
        }
    }

    /// The members of the record, as JSON without the braces, of at most [`LONGEST_RECORD`] bytes.
    pub fn to_members(&self) -> String {
        let mut most = LONGEST_RECORD;
        loop {
            let members = self.members(most);
            if members.len() <= LONGEST_RECORD || most == 0 {
                return members;
            }
            most /= 2;
        }
    }

    /// What a record says; what is missing or not understood is left out.
    pub fn from_members(record: &str) -> Self {
        let Ok(members) = serde_json::from_str::<Map<String, Value>>(&format!("{{{record}}}")) else {
            return Self::default();
        };
        let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
        let pid = members.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
        Self { host: text("host"), pid, user: text("user"), cmd: text("cmd"), label: text("label") }
    }

    /// For people, escaped and cut: `backup@db1 pid 4121 (pg_dump, nightly)`.
    pub fn shown(&self) -> String {
        let part = |part: &Option<String>| part.as_deref().map(|text| shown(text, MOST_SHOWN));
        let mut line = part(&self.user).unwrap_or_else(|| "somebody".into());
        if let Some(host) = part(&self.host) {
            line = format!("{line}@{host}");
        }
        if let Some(pid) = self.pid {
            line = format!("{line} pid {pid}");
        }
        let about: Vec<String> = [part(&self.cmd), part(&self.label)].into_iter().flatten().collect();
        if about.is_empty() { line } else { format!("{line} ({})", about.join(", ")) }
    }

    fn members(&self, most: usize) -> String {
        let text = |text: &Option<String>| text.as_deref().map(|text| cut(text, most).to_owned());
        let parts = [
            ("host", text(&self.host).map(Value::from)),
            ("pid", self.pid.map(Value::from)),
            ("user", text(&self.user).map(Value::from)),
            ("cmd", text(&self.cmd).map(Value::from)),
            ("label", text(&self.label).map(Value::from)),
        ];
        let member = |(name, value): (&str, Option<Value>)| value.map(|value| format!("\"{name}\":{value}"));
        parts.into_iter().filter_map(member).collect::<Vec<_>>().join(",")
    }
}

fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

fn program(command: &Command) -> String {
    let word = match command {
        Command::Shell(_) => OsString::from("sh"),
        Command::Argv(words) => words.first().cloned().unwrap_or_default(),
    };
    lossy(Path::new(&word).file_name().unwrap_or(&word))
}

fn user() -> String {
    let uid = Uid::effective();
    fs::read(PASSWD).ok().and_then(|text| name_in(&text, uid)).unwrap_or_else(|| looked_up(uid))
}

/// The name that the host's own list of users gives to `uid`.
fn name_in(passwd: &[u8], uid: Uid) -> Option<String> {
    let number = uid.to_string();
    passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)? == number.as_bytes()).then(|| String::from_utf8_lossy(name).into_owned())
    })
}

/// The name that the system's other sources give to `uid`, or the number.
fn looked_up(uid: Uid) -> String {
    let (found, name) = mpsc::channel();
    // Where there can be no thread the number must do.
    let _ = Builder::new().spawn(move || {
        // Whoever asked may have given up.
        let _ = found.send(User::from_uid(uid));
    });
    match name.recv_timeout(LOOK_UP) {
        Ok(Ok(Some(user))) => user.name,
        _ => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn db1() -> Who {
        let text = |text: &str| Some(text.to_owned());
        Who { host: text("db1"), pid: Some(4121), user: text("backup"), cmd: text("pg_dump"), label: text("nightly") }
    }

    #[test]
    fn a_record_is_members_of_json_and_reads_back() {
        let text = r#""host":"db1","pid":4121,"user":"backup","cmd":"pg_dump","label":"nightly""#;
        assert_eq!(db1().to_members(), text);
        assert_eq!(Who::from_members(text), db1());
        assert_eq!(Who::default().to_members(), "");
    }

    #[test]
    fn other_records_are_taken_as_far_as_they_go() {
        for (record, shown) in [
            ("", "somebody"),
            ("no json", "somebody"),
            (r#""host":7,"pid":-1,"user":{"a":[]},"new":true"#, "somebody"),
            (r#""pid":4121,"new":{"x":1}"#, "somebody pid 4121"),
            (r#""host":"a\u001b[2J","user":"u\u202e""#, r"u\u{202e}@a\x1b[2J"),
            (r#""cmd":"c"},"x":{"#, "somebody"),
        ] {
            assert_eq!(Who::from_members(record).shown(), shown, "{record}");
        }
        assert_eq!(db1().shown(), "backup@db1 pid 4121 (pg_dump, nightly)");
    }

    #[test]
    fn this_process_is_named_by_its_program_alone() {
        let argv = Command::Argv(["/usr/bin/pg_dump", "--password=hunter2"].map(OsString::from).to_vec());
        let here = Who::here(&argv, Some("l"));
        assert_eq!((here.pid, here.cmd.as_deref()), (Some(std::process::id()), Some("pg_dump")));
        assert!(here.host.is_some_and(|host| !host.is_empty()) && here.user.is_some_and(|user| !user.is_empty()));
        assert_eq!(program(&Command::Shell("secret".into())), "sh");
        assert_eq!(program(&Command::Argv(vec!["/".into()])), "/");
    }

    #[test]
    fn a_name_is_found_by_its_number() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\n#:\n:x:7:7\n1000\nme:x:1000:0::/home/me:/bin/sh\nyou:x:1000:0";
        let name = |uid| name_in(passwd, Uid::from_raw(uid));
        assert_eq!((name(0), name(1000)), (Some("root".into()), Some("me".into())));
        assert_eq!((name(7), name(100), name_in(b"", Uid::from_raw(0))), (None, None, None));
        assert!(!looked_up(Uid::effective()).is_empty());
    }

    proptest! {
        #[test]
        fn a_record_fits_and_is_json_whatever_it_holds(host: String, user: String, cmd: String, label in "\\PC{0,2000}", control in "[\\x00-\\x1f\"]{0,1500}") {
            let who = Who { host: Some(host), pid: Some(1), user: Some(user), cmd: Some(cmd), label: Some(label + &control) };
            let members = who.to_members();
            prop_assert!(members.len() <= LONGEST_RECORD);
            let back = Who::from_members(&members);
            prop_assert_eq!(back.pid, Some(1));
            prop_assert!(who.label.unwrap().starts_with(&back.label.unwrap()));
        }

        #[test]
        fn no_record_is_too_strange(record: String) {
            let shown = Who::from_members(&record).shown();
            prop_assert!(!shown.chars().any(char::is_control));
        }
    }
}
