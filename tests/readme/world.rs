//! A fresh host to follow a page on: a host name, a network, processes, a `/run`, an `/etc` and a `/usr/local/bin` of
//! its own, with a Redis server called db1. Everything in it ends with it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Nothing in a world may take longer, in seconds: a build is the longest.
const PATIENCE: &str = "1200";

/// Before the first step. `$AT` is the world's directory.
const SET_UP: &str = r#"
hostname web1
ip link set lo up
mount -t tmpfs -o mode=755 none /run
mkdir /run/etc /run/lock
cp -a /etc/. /run/etc
rm -rf /run/etc/rlock
mount --bind /run/etc /etc
mount --bind $AT/bin /usr/local/bin
echo "127.0.0.1 localhost web1 db1" > /etc/hosts
redis-server --port 6379 --save '' --dir $AT/redis > $AT/redis/log 2>&1 < /dev/null &
PATH="/usr/local/bin:$PATH"
soon redis-cli -h db1 PING > $AT/ping
"#;

/// Waits for a fact.
const SOON: &str = "end=$(($(date +%s) + 60))
until \"$@\" 2>&1; do [ \"$(date +%s)\" -lt $end ] || exit 1; sleep 0.05; done";

/// What is wrong with what a step printed, if anything is.
type Check = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// A command to follow, and where it stands on the page.
pub(crate) struct Step {
    pub(crate) line: usize,
    /// For sh, that stops at the first failure.
    pub(crate) script: String,
    /// Whether what it printed is as the page says.
    pub(crate) check: Check,
}

impl Step {
    pub(crate) fn new(line: usize, script: String) -> Self {
        Self { line, script, check: Box::new(|_| Ok(())) }
    }

    pub(crate) fn checked(self, check: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { check: Box::new(check), ..self }
    }
}

/// Where a world begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A folder with the scripts that a page speaks of.
    Work,
    /// This checkout.
    Checkout,
}

/// Follows the steps in a new world; the first that fails, with its line. None where no world can be made.
pub(crate) fn follow(place: Place, steps: &[Step]) -> Option<Result<(), String>> {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let here = place_in(at, place);
    let mut driver = format!("set -e\nAT={}\n{SET_UP}\ncd {}\n", at.display(), here.display());
    for (number, step) in steps.iter().enumerate() {
        fs::write(at.join(format!("{number}.sh")), &step.script).unwrap();
        let _ = writeln!(driver, "echo {number} > $AT/now\nsh -eu $AT/{number}.sh > $AT/{number}.out 2>&1");
    }
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", PATIENCE, "unshare", "--mount", "--net", "--pid", "--uts", "--fork"]);
    command.args(["--kill-child", "--mount-proc", "--propagation", "private", "sh", "-c", &driver]);
    let output = environment(&mut command, at).stdin(Stdio::null()).output().unwrap();
    let read = |name: String| fs::read_to_string(at.join(name)).unwrap_or_default();
    let now = read("now".into());
    let Ok(now) = now.trim().parse::<usize>() else {
        println!("no world can be made: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    };
    for (number, step) in steps.iter().enumerate().take(now + 1) {
        let out = read(format!("{number}.out"));
        let failed = number == now && !output.status.success();
        let checked = if failed { Err(format!("it failed, {}", output.status)) } else { (step.check)(&out) };
        if let Err(why) = checked {
            return Some(Err(format!("line {}: {why}\n--- run\n{}--- printed\n{out}", step.line, step.script)));
        }
    }
    Some(Ok(()))
}

/// The programs that pages speak of, and the folder to stand in.
fn place_in(at: &Path, place: Place) -> PathBuf {
    for folder in ["bin", "home", "redis", "work"] {
        fs::create_dir(at.join(folder)).unwrap();
    }
    fs::copy(env!("CARGO_BIN_EXE_rlock"), at.join("bin/rlock")).unwrap();
    program(&at.join("bin/soon"), SOON);
    for name in ["bin/cmd", "bin/report", "bin/backup", "work/deploy.sh", "work/report.sh", "work/dump.sh"] {
        program(&at.join(name), "echo \"${0##*/} ran\"");
    }
    match place {
        Place::Work => at.join("work"),
        Place::Checkout => env!("CARGO_MANIFEST_DIR").into(),
    }
}

fn program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Nothing of the user's, but the tools.
fn environment<'a>(command: &'a mut Command, at: &Path) -> &'a mut Command {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        command.env(name, std::env::var_os(name).unwrap_or_else(|| home.join(folder).into()));
    }
    for name in ["RLOCK_URL", "RLOCK_CONFIG", "RLOCK_KEY", "RLOCK_TOKEN", "RLOCK_CLAIM"] {
        command.env_remove(name);
    }
    command.env("HOME", at.join("home")).env("PREFIX", at.join("prefix")).env("CARGO_NET_OFFLINE", "true")
}
