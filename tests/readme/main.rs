//! Every command in the README does what the README says. Each section is followed from its top to its end, as it stands,
//! on a fresh host. A block that is no test's is not allowed.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "what was left out")]

mod page;
mod steps;
mod world;

use std::path::Path;
use std::thread;

use rlock::cli::{self, Stop};

use page::{Section, inline_code, sections};
use world::{Place, follow};

/// Sections that begin in a checkout.
const IN_CHECKOUT: &str = "Try it";

fn file(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// What is wrong with a page; None where no world can be made to see it.
fn wrong(page: &str) -> Option<Vec<String>> {
    let sections = sections(page);
    let try_out = |section: &Section| {
        let place = if section.title == IN_CHECKOUT { Place::Checkout } else { Place::Work };
        match steps::of(section) {
            Ok(steps) if steps.is_empty() => Some(Ok(())),
            Ok(steps) => follow(place, &steps),
            Err(why) => Some(Err(why)),
        }
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = sections.iter().map(|section| scope.spawn(move || try_out(section))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    if results.contains(&None) {
        assert!(std::env::var_os("CI").is_none(), "CI must run as root, where namespaces are allowed");
        println!("left out: the README is followed by root, where namespaces are allowed");
        return None;
    }
    Some(results.into_iter().flatten().filter_map(Result::err).collect())
}

#[test]
fn every_command_does_what_the_page_says() {
    let wrong = wrong(&file("README.md")).unwrap_or_default();
    assert!(wrong.is_empty(), "README.md, {}", wrong.join("\nREADME.md, "));
}

#[test]
fn what_is_not_run_here_is_run_elsewhere() {
    let ci = file(".ci/run");
    for (line, reason) in steps::ELSEWHERE {
        assert!(ci.lines().any(|own| own == line), "{line} ({reason}) is not a line of .ci/run");
    }
}

#[test]
fn every_rlock_in_the_text_can_be_typed() {
    let page = file("README.md");
    // The parser takes no quotes; what has some stands in the table, which is run.
    let is_whole = |code: &str| code.starts_with("rlock ") && !code.contains(['…', '\'']);
    let commands = inline_code(&page).into_iter().filter(|(_, code)| is_whole(code));
    let mut count = 0;
    for (line, code) in commands {
        count += 1;
        let parsed = cli::parse(code.split_whitespace());
        assert!(!matches!(parsed, Err(Stop::Usage(_))), "README.md, line {line}: {code}: {parsed:?}");
    }
    assert!(count > 5, "only {count} were found");
}

#[test]
fn a_slip_anywhere_is_seen() {
    for (slip, part) in [
        ("```sh\nrlock rnu -k job -- true\n```", "rlock rnu"),
        ("```sh\ntrue\nrlock run -k job -- echo $UNSET\n```", "UNSET"),
        ("```sh\nredis-cli -h db1 CONFIG STE appendonly yes\n```", "an error of Redis"),
        ("```console\n$ rlock ttl job\nheld\n```", "the page says otherwise"),
        ("```console\n$ echo one\n```", "the page says otherwise"),
        ("```toml /etc/rlock/config.toml\nurll = \"redis://db1\"\n```", "urll"),
        ("```crontab\n*/5 * * *  rlock run -k job -- report\n```", "five fields"),
        ("```crontab\n* * * * *  /usr/bin/rlock run -k job -- report\n```", "it failed"),
        ("```ini /etc/systemd/system/x.service\n[Service]\nType=oneshot\nExecStart=/usr/bin/rlok\n```", "it failed"),
        ("```ini /etc/systemd/system/x.service\n[Service]\nTipe=oneshot\nExecStart=/usr/bin/true\n```", "Tipe"),
        ("```yaml\nsteps:\n  - run: rlock run -k job -- ./deploy\n```", "it failed"),
        ("```text\nnobody makes this\n```", "no test"),
        ("```python\nprint()\n```", "no test"),
        (
            "| with flock | with rlock |\n|---|---|\n| `flock -n -E 0 /run/lock/job cmd` | `rlock run -n -k job -- cmd` | 0 → 0 |",
            "0 75",
        ),
        (
            "| with flock | with rlock |\n|---|---|\n| `flock /run/lock/job cmd` | `rlock run -k job -- cdm` | waits |",
            "it failed",
        ),
    ] {
        let Some(found) = wrong(&format!("# Page\n\n## Section\n\n{slip}\n")) else { return };
        assert!(found.len() == 1 && found[0].contains(part) && found[0].starts_with("line "), "{slip}: {found:?}");
    }
}
