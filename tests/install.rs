//! `install.sh`, run for real in an empty prefix, and the scripts under shellcheck.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_rlock");

fn install(prefix: &Path, words: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
    Command::new("sh").arg(script).args(words).env("PREFIX", prefix).current_dir("/").output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.append(&mut files_below(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn it_installs_replaces_and_removes() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("a prefix");
    let first = install(&prefix, &["--binary", BINARY]);
    assert!(first.status.success(), "{first:?}");
    let program = prefix.join("bin/rlock");
    let files = files_below(&prefix);
    for file in &files {
        assert!(said(&first).contains(&format!("installed {}\n", file.display())), "{file:?} in {first:?}");
    }
    for name in [
        "bin/rlock",
        "share/man/man1/rlock.1",
        "share/man/man1/rlock-run.1",
        "share/bash-completion/completions/rlock",
        "share/zsh/site-functions/_rlock",
        "share/fish/vendor_completions.d/rlock.fish",
    ] {
        assert!(files.contains(&prefix.join(name)), "{name} in {files:?}");
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&program), mode(&prefix.join("share/man/man1/rlock.1"))), (0o755, 0o644));
    assert!(Command::new(&program).arg("--version").output().unwrap().status.success());

    let before = fs::metadata(&program).unwrap().ino();
    let again = install(&prefix, &["--binary", BINARY]);
    assert!(again.status.success(), "{again:?}");
    assert_ne!(fs::metadata(&program).unwrap().ino(), before, "it is replaced by rename");
    assert_eq!(files_below(&prefix), files, "nothing is left over");

    fs::write(prefix.join("bin/other"), "").unwrap();
    let removed = install(&prefix, &["--uninstall"]);
    assert!(removed.status.success() && said(&removed).contains("removed"), "{removed:?}");
    assert_eq!(files_below(&prefix), [prefix.join("bin/other")]);
    let none = install(&prefix, &["--uninstall"]);
    assert!(!none.status.success() && said(&none).contains("nothing of rlock's is under"), "{none:?}");
}

#[test]
fn a_clean_clone_has_all_it_installs_and_man_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let (clone, prefix) = (dir.path().join("clone"), dir.path().join("prefix"));
    let cloned = Command::new("git").args(["clone", "-q", env!("CARGO_MANIFEST_DIR")]).arg(&clone).output().unwrap();
    assert!(cloned.status.success(), "{}", said(&cloned));
    let done =
        Command::new(clone.join("install.sh")).args(["--binary", BINARY]).env("PREFIX", &prefix).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    let pages = files_below(&prefix.join("share/man"));
    assert!(pages.len() > 5, "{pages:?}");
    for page in pages.iter().map(|page| page.file_stem().unwrap().to_str().unwrap()) {
        let mut man = Command::new("man");
        let shown = man.arg("-M").arg(prefix.join("share/man")).arg(page).env("MANPAGER", "cat").output().unwrap();
        assert!(shown.status.success() && said(&shown).contains(&format!("{page}(1)")), "{page}: {}", said(&shown));
    }
}

#[test]
fn it_fails_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for (words, part) in [
        (&["--frob"][..], "unknown word --frob"),
        (&["--binary"], "--binary needs a FILE"),
        (&["--binary", "/nonexistent/rlock"], "there is no program /nonexistent/rlock"),
    ] {
        let output = install(dir.path(), words);
        assert!(!output.status.success(), "{output:?}");
        assert!(said(&output).contains(part) && said(&output).lines().count() == 1, "{output:?}");
    }
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let output = install(&file, &["--binary", BINARY]);
    assert!(!output.status.success() && said(&output).contains("choose another PREFIX"), "{output:?}");
}

#[test]
fn the_scripts_are_clean() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scripts = ["install.sh", "tests/run.sh", "benches/peers.sh", ".ci/run", "src/command/completions/words.bash"];
    let checked = Command::new("shellcheck").args(scripts).current_dir(root).output();
    let checked = checked.expect("shellcheck must be installed; tests/run.sh does that");
    assert!(checked.status.success(), "{}", said(&checked));
}
