use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use super::Stage;

/// Runs a script as root in a mount namespace of its own, with a /run of its own and a user with a home, called tom.
/// None where that is not allowed.
fn in_a_world_of_its_own(script: &str) -> Option<(i32, String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_rlock"), dir.path().join("rlock")).unwrap();
    let mut users = fs::read_to_string("/etc/passwd").unwrap();
    let _ = writeln!(users, "tom:x:54321:54321::{at}/tom:/bin/sh");
    fs::write(dir.path().join("passwd"), users).unwrap();
    let set_up = format!(
        "set -e; mount -t tmpfs -o mode=755 none /run; mount --bind {at}/passwd /etc/passwd; mkdir {at}/tom; \
         chown 54321:54321 {at}/tom; cd {at}; echo ready > ready; set +e; \
         as_tom() {{ setpriv --reuid=54321 --regid=54321 --clear-groups -- \"$@\"; }}; "
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &(set_up + script)]);
    command.env_remove("RLOCK_URL").env("RLOCK_CONFIG", "/dev/null").stdin(Stdio::null());
    let output = command.output().unwrap();
    if !dir.path().join("ready").exists() {
        println!("left out: only root can mount another /run, where mounts are allowed");
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(&at.to_string(), "");
    Some((output.status.code().unwrap(), text(&output.stdout), text(&output.stderr)))
}

const NOTICE: &str = "rlock: no store is configured: locking on this host alone, in local:";

#[test]
fn with_nothing_configured_it_locks_in_the_users_own_directory_and_says_so() {
    let script = "./rlock run -k job -- echo hi; HOME=/elsewhere as_tom ./rlock run -k job -- echo ho; \
                  stat -c '%a %U' /run/rlock tom/.local/state/rlock; find . -name elsewhere; \
                  RLOCK_URL=local: ./rlock run -k job -- echo silent; ./rlock run -q -k job -- true; \
                  ./rlock run --skip -k job -- true; ./rlock list";
    let Some((code, out, err)) = in_a_world_of_its_own(script) else { return };
    assert_eq!((code, out.as_str()), (0, "hi\nho\n700 root\n700 tom\nsilent\n"), "{err}");
    let lines: Vec<_> = err.lines().collect();
    // -q silences the lines about waiting, and nothing else.
    let [root, tom, quiet, skip, list] = lines[..] else { panic!("{err}") };
    assert!([quiet, skip, list].iter().all(|line| *line == root), "{err}");
    for (line, directory) in [(root, "/run/rlock;"), (tom, "/tom/.local/state/rlock;")] {
        assert!(line.starts_with(&format!("{NOTICE}{directory}")) && line.contains("RLOCK_URL=local:"), "{line}");
    }
}

#[test]
fn two_users_do_not_meet_and_neither_gets_into_the_others_directory() {
    let script = "export RLOCK_URL=local:; \
        ./rlock run -k job -- setpriv --reuid=54321 --regid=54321 --clear-groups ./rlock run -k job -n -- echo both; \
        as_tom ./rlock run --url local:/run/rlock -k job -- echo WRONG; echo $?; \
        ./rlock run --url local:$PWD/tom/.local/state/rlock -k job -- echo WRONG; echo $?; \
        as_tom ./rlock list; as_tom ./rlock inspect job; echo $?";
    let Some((_, out, err)) = in_a_world_of_its_own(script) else { return };
    assert_eq!(out, "both\n78\n78\njob\n  free\n1\n", "{err}");
    let lines: Vec<_> = err.lines().collect();
    let [tom, root] = lines[..] else { panic!("{err}") };
    assert!(tom.starts_with("rlock: local:/run/rlock: "), "{tom}");
    assert!(root.contains("belongs to tom, not to root"), "{root}");
}

#[test]
fn a_user_without_a_home_is_told_what_to_write() {
    let script = "sed -i '/^tom/d' passwd; umount /etc/passwd; mount --bind passwd /etc/passwd; \
                  RLOCK_URL=local: as_tom ./rlock run -k job -- echo WRONG; echo $?; \
                  mkdir -m 700 own; chown 54321 own; RLOCK_URL=local:$PWD/own as_tom ./rlock run -k job -- echo hi";
    let Some((_, out, err)) = in_a_world_of_its_own(script) else { return };
    assert_eq!(out, "78\nhi\n", "{err}");
    assert!(
        err.starts_with("rlock: local: user 54321 is in no password database") && err.contains("local:/path"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn a_user_whose_home_is_missing_or_empty_is_told_so_in_one_line() {
    for (home, words) in [("/nohome", "the home /nohome cannot be used"), ("", "user 54321 has no home")] {
        let script = format!(
            "sed -i 's#^tom:.*#tom:x:54321:54321::{home}:/bin/sh#' passwd; umount /etc/passwd; \
             mount --bind passwd /etc/passwd; as_tom ./rlock run -k job -- echo WRONG; echo $?; as_tom ./rlock list; echo $?"
        );
        let Some((_, out, err)) = in_a_world_of_its_own(&script) else { return };
        assert_eq!(out, "78\n78\n", "{err}");
        // Nothing is locked on this host either, so that is not said.
        assert_eq!(err.lines().filter(|line| line.contains(words) && line.contains("local:/path")).count(), 2, "{err}");
        assert_eq!(err.lines().count(), 2, "{err}");
    }
}

#[test]
fn what_stands_in_the_place_of_the_own_directory_is_never_used() {
    let script = "mkdir -m 700 elsewhere; ln -s $PWD/elsewhere /run/rlock; ./rlock run -k job -- echo WRONG; echo $?; \
                  rm /run/rlock; mkdir -m 700 /run/rlock; chown 54321 /run/rlock; \
                  ./rlock run -k job -- echo WRONG; echo $?; ls elsewhere /run/rlock";
    let Some((_, out, err)) = in_a_world_of_its_own(script) else { return };
    assert_eq!(out, "78\n78\n/run/rlock:\n\nelsewhere:\n", "{err}");
    assert!(err.contains("`rlock` is a symbolic link") && err.contains("belongs to tom, not to root"), "{err}");
}

#[test]
fn after_a_reboot_what_was_held_is_free() {
    let script = "export RLOCK_URL=local:$PWD/locks; n() { ./rlock run -q -n -k job -- echo $1; echo $?; }; \
                  ./rlock run -k job --ttl 24h -- sh -c 'touch in; exec sleep 100' & \
                  until [ -e in ]; do sleep 0.01; done; n WRONG; \
                  uuidgen > boot 2> /dev/null || echo another > boot; mount --bind boot /proc/sys/kernel/random/boot_id; \
                  ./rlock inspect job; n next; umount /proc/sys/kernel/random/boot_id; kill -9 $!";
    let Some((_, out, err)) = in_a_world_of_its_own(script) else { return };
    assert_eq!(out, "75\njob\n  free\nnext\n0\n", "{err}");
}

#[test]
fn a_path_may_have_anything_in_it_but_must_be_whole() {
    let stage = Stage::new();
    let at = stage.dir.path().display();
    for (written, made) in
        [("a b", "a b"), ("c%20d", "c d"), ("e%25f", "e%f"), ("%C3%BC/g", "ü/g"), ("h;$(i)'", "h;$(i)'")]
    {
        let url = format!("local:{at}/{written}");
        let run = |key: &str, args: &[&str]| stage.run(key, args).env("RLOCK_URL", &url);
        run("job", &["--", "echo", "hi"]).done().is(0, "hi\n");
        assert!(stage.path(made).join("keys/job").is_dir(), "{written}");
    }
    for wrong in ["local:locks", "local:./locks", "local:/", "local:/x/../y", "local:/%zz", "local://x/y", "local"] {
        stage.rlock(["run", "--url", wrong, "-k", "job", "--", "touch", "ran"]).done().says(64, &["--url: the URL"]);
        stage.run("job", &["--", "touch", "ran"]).env("RLOCK_URL", wrong).done().says(78, &["RLOCK_URL: the URL"]);
    }
    stage.rlock(["run", "--url", "local:locks", "-k", "job", "--", "true"]).done().says(64, &["the whole path, as in"]);
    assert!(!stage.path("ran").exists());
}
