//! Kills, stops and signals at random instants. `RLOCK_KILLS=1000` makes more of them, `RLOCK_SEED=7` the same again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlock::clock::Boot;

use super::Stage;
use crate::rlock::{PATIENCE, Running, children, is_alive, until, within};

/// As many as take a few seconds.
const FEW: usize = 24;
/// Side by side: most of the time of a run is waiting.
const LANES: usize = 6;
/// When everybody who was stopped goes on and who is left is told to end: after the lease's end.
const OVER: Duration = Duration::from_secs(3);

const BEAT: &str = "while :; do sleep 0.02; done";

/// Numbers that look random (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()].clone()
    }

    fn ms(&mut self, end: u64) -> Duration {
        Duration::from_micros(self.below(end * 1000))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Whom {
    Rlock,
    Keeper,
    Both,
    Tree,
    Group,
}

/// One thing that is done to a run.
#[derive(Debug)]
struct Blow {
    after: Duration,
    whom: Whom,
    signal: Signal,
}

/// A run and what becomes of it.
#[derive(Debug)]
struct Case {
    tag: String,
    line: String,
    args: Vec<&'static str>,
    /// In order of time.
    blows: Vec<Blow>,
}

impl Case {
    fn new(dice: &mut Dice, tag: String) -> Self {
        let family = format!("sh -c '{BEAT}' & setsid sh -c '{BEAT}' & {BEAT}");
        let ignoring = format!("trap '' TERM INT HUP QUIT; {family}");
        let alone = "exec sleep 100".to_owned();
        let lines = [family, ignoring, alone.clone(), "sleep 0.3 & sleep 0.2; wait; exit 3".to_owned()];
        let line = dice.one(&lines);
        let end = dice.one(&[10, 50, 2500]);
        let first = Blow {
            after: dice.ms(end),
            whom: dice.one(&[Whom::Rlock, Whom::Keeper, Whom::Both, Whom::Tree, Whom::Group]),
            signal: dice.one(&[Signal::SIGKILL, Signal::SIGSTOP, Signal::SIGSTOP, Signal::SIGTERM]),
        };
        let second = Blow {
            after: first.after + dice.ms(2500),
            whom: dice.one(&[Whom::Rlock, Whom::Keeper, Whom::Group]),
            signal: dice.one(&[Signal::SIGCONT, Signal::SIGKILL, Signal::SIGTERM]),
        };
        let mut blows = vec![first, second];
        // Where rlock and its keeper are both killed only the first process is promised to die.
        if line != alone {
            let mut has_killed = false;
            for blow in blows.iter_mut().filter(|blow| blow.signal == Signal::SIGKILL) {
                if has_killed || !matches!(blow.whom, Whom::Rlock | Whom::Keeper) {
                    blow.signal = Signal::SIGSTOP;
                }
                has_killed = true;
            }
            // Nor is more promised where rlock is stopped and its keeper is killed: one of them must get to run.
            let [first, second] = &mut blows[..] else { unreachable!() };
            let is_rlock_stopped =
                first.signal == Signal::SIGSTOP && first.whom != Whom::Keeper && first.whom != Whom::Tree;
            if is_rlock_stopped && (second.whom, second.signal) == (Whom::Keeper, Signal::SIGKILL) {
                second.signal = Signal::SIGTERM;
            }
        }
        Self { tag, line, args: dice.one(&[vec![], vec!["--on-lost", "kill"]]), blows }
    }

    /// The command's live processes with the claim that each runs under; not the keeper, which has no tag.
    fn tree(&self) -> BTreeMap<String, String> {
        let tag = format!("RLOCK_TEST_TAG={}", self.tag);
        let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|name| name.file_name().into_string().ok());
        let tagged = all.filter_map(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let words: Vec<_> = environ.split(|byte| *byte == 0).filter_map(|word| str::from_utf8(word).ok()).collect();
            let claim = words.iter().find_map(|word| word.strip_prefix("RLOCK_CLAIM="))?.split('@').next()?;
            words.contains(&tag.as_str()).then(|| (pid, claim.to_owned()))
        });
        tagged.filter(|(pid, _)| is_alive(pid)).collect()
    }

    /// Only while rlock is not reaped: its number, or the group's, may be a stranger's after that.
    fn strike(&self, run: &Running, keeper: &[String], blow: &Blow) {
        let rlock = run.pid();
        let keepers = || keeper.iter().filter(|pid| is_keeper(pid)).map(|pid| Pid::from_raw(pid.parse().unwrap()));
        let whom: Vec<Pid> = match blow.whom {
            Whom::Rlock => vec![rlock],
            Whom::Keeper => keepers().collect(),
            Whom::Both => [rlock].into_iter().chain(keepers()).collect(),
            Whom::Group => vec![Pid::from_raw(-rlock.as_raw())],
            Whom::Tree => {
                let tree = self.tree().into_keys().map(|pid| Pid::from_raw(pid.parse().unwrap()));
                [rlock].into_iter().chain(keepers()).chain(tree).collect()
            }
        };
        for pid in whom {
            // Some have ended by then.
            let _ = kill(pid, blow.signal);
        }
    }

    fn play(&self, stage: &Stage) {
        let key = self.tag.as_str();
        let tagged = format!("RLOCK_TEST_TAG={key}");
        let command = ["--ttl", "2s", "--", "env", &tagged, "sh", "-c", &self.line];
        let mut run = stage.run(key, &[&self.args[..], &command].concat());
        run.0.process_group(0);
        let began = Boot::now();
        let mut run = run.start();
        let mut keeper = Vec::new();
        let mut blows = self.blows.iter().peekable();
        let mut is_swept = false;
        until("everything has ended", || {
            keeper.extend(children(&run.pid().to_string()).into_iter().take(usize::from(keeper.is_empty())));
            let (before, value) = (self.tree(), stage.redis::<Option<String>>(&["GET", key]));
            for (pid, claim) in &before {
                let is_held = value.as_ref().is_some_and(|value| value.contains(claim));
                if !is_held && is_alive(pid) {
                    let seen = Boot::now();
                    let dies = within(PATIENCE, || (!is_alive(pid)).then_some(())).map(|()| Boot::now().since(seen));
                    panic!("{pid} runs under {claim} (and dies after {dies:?}), the key is {value:?}: {self:?}");
                }
            }
            let at = Boot::now().since(began);
            let is_over = run.is_over();
            if let Some(blow) = blows.next_if(|blow| is_over || at >= blow.after)
                && !is_over
            {
                self.strike(&run, &keeper, blow);
            }
            if !is_over && !is_swept && at >= OVER + self.blows[1].after {
                is_swept = true;
                for signal in [Signal::SIGCONT, Signal::SIGTERM] {
                    self.strike(&run, &keeper, &Blow { after: at, whom: Whom::Both, signal });
                }
                for pid in self.tree().keys() {
                    let _ = kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL);
                }
            }
            (is_over && before.is_empty() && blows.peek().is_none()).then_some(())
        });
        let rests = within(PATIENCE, || (!keeper.iter().any(|pid| is_alive(pid) && is_keeper(pid))).then_some(()));
        assert!(rests.is_some(), "the keeper {keeper:?} is still there: {self:?}");
        let done = run.done();
        let code = done.status.code();
        // 3 is the command's own; 71 a keeper that was killed or stopped before it was ready.
        assert!(matches!(code, None | Some(3 | 70 | 71 | 79)), "{done:?}");
        let left: Option<String> = stage.redis(&["GET", key]);
        assert!(left.is_none() || code != Some(3), "it ended by itself, and the key is {left:?}");
        assert!(!done.stderr.contains("internal error"), "{done:?}");
    }
}

fn is_keeper(pid: &str) -> bool {
    fs::read(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == b"rlock-keeper\n")
}

#[test]
fn whatever_is_killed_or_stopped_and_when_the_tree_is_dead_before_the_key_passes() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("RLOCK_SEED").unwrap_or_else(|| u64::from(std::process::id()) ^ rlock::clock::wall_ms());
    let count = number("RLOCK_KILLS").map_or(FEW, |count| usize::try_from(count).unwrap());
    println!("RLOCK_SEED={seed} RLOCK_KILLS={count}");
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || {
                let stage = Stage::new();
                for at in (lane..count).step_by(LANES) {
                    // Each case is a world of its own: the same whatever the number of lanes.
                    let mut dice = Dice(seed.wrapping_add(at as u64).wrapping_mul(0x2545_f491_4f6c_dd1d));
                    let case = Case::new(&mut dice, format!("chance:{seed}:{at}"));
                    case.play(&stage);
                }
            });
        }
    });
}
