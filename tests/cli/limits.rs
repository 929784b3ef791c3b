//! What a run does without that it takes: for each limit from the least to the one that is enough, it works, or ends with
//! one line and its code; and nothing of it is left, in the store or among the processes.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::geteuid;

use super::Stage;
use crate::rlock::{Cmd, Done, is_alive, until};

/// `rlock run` of a command that leaves a trace, started by `through`: words that start another program.
fn run(stage: &Stage, through: &[&str], rlock: &str) -> Cmd {
    let mut run = stage.run("job", &["--ttl", "5s", "--store-timeout", "0.4", "--", "touch", "ran"]);
    let mut other = Command::new(through[0]);
    other.args(&through[1..]).arg(rlock).args(run.0.get_args()).current_dir(stage.dir.path()).stdin(Stdio::null());
    for (name, value) in run.0.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    run.0 = other;
    run
}

/// The processes that work in the stage's directory: rlock, its keeper and its command.
fn processes(stage: &Stage) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|name| name.file_name().into_string().ok());
    let here = |pid: &String| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == stage.dir.path());
    all.filter(|pid| here(pid) && is_alive(pid)).collect()
}

/// Nothing is left of it, and what it said and did is one thing. Whether it worked.
#[track_caller]
fn is_clean(stage: &Stage, done: &Done, limit: u64) -> bool {
    until("all its processes end", || processes(stage).is_empty().then_some(()));
    let look = stage.look("job");
    assert!(look.is_free() && look.queue.is_empty(), "{limit}: {look:?} is left by {done:?}");
    let ran = fs::remove_file(stage.path("ran")).is_ok();
    assert_eq!(ran, done.status.success(), "{limit}: {done:?}");
    ran
}

/// Works, or says in one line of rlock's what it lacks.
#[track_caller]
fn works_or_says(stage: &Stage, done: Done, limit: u64) -> bool {
    // The loader of programs has had too little to start rlock.
    let is_ours = !done.stderr.contains("shared libraries");
    let worked = is_clean(stage, &done, limit);
    if worked {
        done.is(0, "");
    } else if is_ours {
        done.says(71, &["(os error "]);
    }
    worked
}

#[test]
fn out_of_descriptors() {
    let stage = Stage::new();
    let worked: Vec<u64> = (3..=20)
        .filter(|limit| {
            let limits = format!("--nofile={limit}");
            works_or_says(&stage, run(&stage, &["prlimit", &limits], env!("CARGO_BIN_EXE_rlock")).done(), *limit)
        })
        .collect();
    // Those that are enough are all above those that are not.
    assert!(worked.windows(2).all(|pair| pair[0] + 1 == pair[1]) && worked.ends_with(&[20]), "{worked:?}");
    assert!(worked[0] > 8, "the limit has not come through: {worked:?}");
}

#[test]
fn out_of_processes() {
    assert!(geteuid().is_root(), "this test must run as root: the limit is one of another user");
    let worked: Vec<u64> = (1..=8)
        .filter(|limit| {
            // Nobody else is this user, not even the run before: the kernel counts the dead a little longer.
            let user = 64_400 + u32::try_from(*limit).unwrap() + if Stage::hears_of_death() { 10 } else { 0 };
            let stage = Stage::new();
            fs::set_permissions(stage.dir.path(), Permissions::from_mode(0o777)).unwrap();
            fs::copy(env!("CARGO_BIN_EXE_rlock"), stage.path("rlock")).unwrap();
            give_store(&stage, user);
            let (id, limits) = (format!("--reuid={user}"), format!("--nproc={limit}"));
            let words = ["setpriv", &id, "--clear-groups", "prlimit", &limits];
            let done = run(&stage, &words, "./rlock").done();
            give_store(&stage, 0);
            works_or_says(&stage, done, *limit)
        })
        .collect();
    // rlock, its one thread, the keeper, the command; and for a moment a thread that looks up the user's name.
    assert!(worked.iter().all(|limit| *limit > 3) && worked.ends_with(&[8]), "{worked:?}");
}

/// Makes the directory of the store this user's, if the store is one.
fn give_store(stage: &Stage, user: u32) {
    let url = stage.url();
    let Some(directory) = url.strip_prefix("local:").map(Path::new) else { return };
    if !directory.exists() {
        DirBuilder::new().mode(0o700).create(directory).unwrap();
    }
    fs::set_permissions(directory.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    chown(directory, Some(user), None).unwrap();
}

/// What a limit of memory leaves to chance, the addresses being random: where it strikes. It may be in the C library or
/// in Rust's, before there is an rlock or while it starts a thread, and then nobody says anything.
#[test]
fn out_of_memory() {
    let stage = Stage::new();
    let kib = 1 << 10;
    // What it takes for a start, and then in small steps from where it does not work to where it does.
    let enough = (1..200)
        .map(|at| at * 1024 * kib)
        .find(|limit| is_clean(&stage, &under(&stage, "as", *limit), *limit))
        .unwrap();
    let mut told = 0;
    for step in 0..60 {
        let limit = enough - 4096 * kib + step * 100 * kib;
        for kind in ["as", "data"] {
            let limit = if kind == "as" { limit } else { step * 128 * kib };
            let done = under(&stage, kind, limit);
            if !is_clean(&stage, &done, limit) && done.status.code() == Some(71) {
                assert!(done.stderr.starts_with("rlock: ") && done.stderr.contains("ulimit"), "{done:?}");
                told += 1;
            } else {
                let is_early = done.status.code() == Some(127) || done.status.signal().is_some();
                assert!(done.status.success() || is_early, "{limit}: {done:?}");
            }
        }
    }
    assert!(told > 10, "the limits have hardly come through: {told}");
}

fn under(stage: &Stage, kind: &str, limit: u64) -> Done {
    run(stage, &["prlimit", &format!("--{kind}={limit}")], env!("CARGO_BIN_EXE_rlock")).done()
}
