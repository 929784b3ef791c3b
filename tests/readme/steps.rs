//! What is run for each kind of block and table.

use std::fmt::Write as _;

use crate::page::{Block, Section};
use crate::world::Step;

/// Blocks that cannot be run here, and why. They are lines of `.ci/run`.
pub(crate) const ELSEWHERE: [(&str, &str); 1] = [("tests/run.sh", "it runs this test")];

/// A lock is taken, waited for, looked at and taken away, with what is configured.
const EVERYTHING: &str = "
rlock list
rlock run -q -k job:all -- sleep 600 &
soon rlock inspect job:all
rlock run -q -k job:all -- echo waiter ran &
soon sh -c 'rlock list | grep -q [1-9]$'
rlock ttl job:all
rlock force-release --yes job:all
wait $!
";

/// Everything that a section shows, in its order.
pub(crate) fn of(section: &Section) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for block in &section.blocks {
        let line = block.line;
        match block.language.as_str() {
            "sh" if ELSEWHERE.iter().any(|(text, _)| *text == block.text.trim()) => {}
            "sh" => steps.push(shell(block)),
            "console" => steps.push(console(block)),
            "toml" => steps.push(Step::new(line, written(block)? + EVERYTHING).checked(ran(1))),
            "crontab" => steps.push(crontab(block)?),
            "ini" => steps.extend(unit(block)?),
            "yaml" => steps.push(yaml(block)?),
            // Made from the program; tests/docs.rs holds it.
            "text" if section.title == "Reference" => {}
            other => return Err(format!("line {line}: no test runs a block of {other:?}")),
        }
    }
    let pairs = section.rows.iter().skip_while(|(_, cells)| cells[0] != "with flock").skip(2);
    steps.extend(pairs.map(|(line, cells)| pair(*line, cells)));
    Ok(steps)
}

/// `redis-cli` ends with 0 also when the server refuses. What is echoed at the end is seen.
fn shell(block: &Block) -> Step {
    let is_error = |line: &str| ["ERR ", "NOPERM ", "WRONGPASS ", "(error)"].iter().any(|word| line.starts_with(word));
    let echoed = block.text.rsplit_once("-- echo ").map(|(_, word)| word.trim_end().to_owned());
    Step::new(block.line, block.text.clone()).checked(move |out| match out.lines().find(|line| is_error(line)) {
        Some(_) => Err("an error of Redis".into()),
        None => match &echoed {
            Some(word) if out.lines().all(|line| line != word) => Err(format!("it prints no {word}")),
            _ => Ok(()),
        },
    })
}

/// The scripts of the world say so when they run.
fn ran(times: usize) -> impl Fn(&str) -> Result<(), String> {
    move |out| {
        let found = out.matches(" ran\n").count();
        if found == times { Ok(()) } else { Err(format!("{found} of {times} commands ran")) }
    }
}

/// What a person sees who types the lines with a `$`. After one that ends in `&` its lock is waited for.
fn console(block: &Block) -> Step {
    let mut script = "set +eu\nlast=0\n".to_owned();
    for line in block.text.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let shown = line.replace('\'', "'\\''");
        let _ = writeln!(script, "printf '%s\\n' '$ {shown}'\n(exit $last)\n{line}\nlast=$?");
        if line.ends_with('&') {
            script.push_str("soon sh -c 'rlock list | grep -q pid'\n");
        }
    }
    let page = plain(&block.text);
    Step::new(block.line, script).checked(move |out| {
        let out = plain(out);
        if out == page { Ok(()) } else { Err(format!("the page says otherwise:\n{page}--- but it is\n{out}")) }
    })
}

/// Without what differs from run to run: numbers, their units, claims, the width of columns.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let words = line.split_whitespace().map(|word| {
            let inner = word.trim_matches(|c: char| !c.is_alphanumeric());
            let has_digit = inner.contains(|c: char| c.is_ascii_digit());
            let is_varying = inner.chars().all(|c| c.is_ascii_hexdigit() || "TZhms.:-".contains(c));
            if has_digit && is_varying { word.replace(inner, "#") } else { word.to_owned() }
        });
        out.extend([words.collect::<Vec<_>>().join(" "), "\n".into()]);
    }
    out
}

/// The block becomes its file.
fn written(block: &Block) -> Result<String, String> {
    let file = &block.file;
    let (folder, _) = file.rsplit_once('/').ok_or(format!("line {}: the file has no name", block.line))?;
    Ok(format!("mkdir -p {folder}\ncat > {file} <<'END OF FILE'\n{}END OF FILE\n", block.text))
}

/// Every job, run as cron does.
fn crontab(block: &Block) -> Result<Step, String> {
    let is_field = |word: &str| word.chars().all(|c| c.is_ascii_digit() || "*/,-".contains(c));
    let (mut settings, mut script, mut jobs) = (String::new(), String::new(), 0);
    for line in block.text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let fields = words.iter().take_while(|word| is_field(word)).count();
        if fields == 5 && !line.contains('%') {
            jobs += 1;
            let at = line.find(words[5]).ok_or("a job")?;
            let job = line[at..].replace('\'', "'\\''");
            let _ = writeln!(
                script,
                "env -i HOME=/root LOGNAME=root SHELL=/bin/sh PATH=/usr/bin:/bin{settings} /bin/sh -c '{job}'"
            );
        } else if words.len() == 1 && line.contains('=') {
            let _ = write!(settings, " {line}");
        } else {
            return Err(format!("line {}: neither a setting nor five fields and a command: {line}", block.line));
        }
    }
    Ok(Step::new(block.line, script).checked(ran(jobs)))
}

/// Verified by systemd; a service is also started by hand.
fn unit(block: &Block) -> Result<Vec<Step>, String> {
    let verify = format!("{}systemd-analyze verify {}\n", written(block)?, block.file);
    let silent = |out: &str| if out.is_empty() { Ok(()) } else { Err("systemd is not content".to_owned()) };
    let mut steps = vec![Step::new(block.line, verify).checked(silent)];
    if let Some(start) = block.text.lines().find_map(|line| line.strip_prefix("ExecStart=")) {
        steps.push(Step::new(block.line, format!("{start}\n")).checked(ran(1)));
    }
    Ok(steps)
}

/// The steps of a CI job, with its environment.
fn yaml(block: &Block) -> Result<Step, String> {
    let mut script = "export GITHUB_RUN_ID=42\n".to_owned();
    let variables = block.text.lines().skip_while(|line| line.trim() != "env:").skip(1);
    for (name, value) in
        variables.map_while(|line| line.trim().split_once(": ")).filter(|(name, _)| !name.starts_with('-'))
    {
        let _ = writeln!(script, "export {name}='{value}'");
    }
    let runs: Vec<&str> = block.text.lines().filter_map(|line| line.trim().strip_prefix("- run: ")).collect();
    if runs.is_empty() {
        return Err(format!("line {}: the job runs nothing", block.line));
    }
    let count = runs.len();
    script.extend(runs.iter().flat_map(|run| [run, "\n"]));
    Ok(Step::new(block.line, script).checked(ran(count)))
}

/// A row of the table: both commands while the lock is free, then while it is held.
fn pair(line: usize, cells: &[String]) -> Step {
    let [flock, rlock, held] = cells else { panic!("line {line}: {cells:?}") };
    let (most, codes) = if held == "waits" { (1, "124 124".to_owned()) } else { (60, held.replace(" → ", " ")) };
    let script = format!(
        r"export RLOCK_URL=local:
cat > flock.sh <<'END'
#!/bin/sh
{flock}
END
cat > rlock.sh <<'END'
#!/bin/sh
{rlock}
END
chmod +x flock.sh rlock.sh
./flock.sh > flock.out
./rlock.sh > rlock.out
grep -q 'cmd ran' flock.out
cmp flock.out rlock.out
flock -F /run/lock/job sleep 600 & left=$!
rlock run -k job -- sleep 600 & right=$!
mkdir /run/lock/job.d
soon sh -c '! flock -n /run/lock/job true && rlock inspect job' > looked
set +e
timeout {most} ./flock.sh > /dev/null 2>&1; printf '%s ' $? > codes
timeout {most} ./rlock.sh > /dev/null 2>&1; echo $? >> codes
kill $left $right; wait
rmdir /run/lock/job.d
cat codes
"
    );
    Step::new(line, script).checked(move |out| {
        if out == format!("{codes}\n") { Ok(()) } else { Err(format!("held, they are to end with {codes}")) }
    })
}
