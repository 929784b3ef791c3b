//! Random histories give the same answers, and leave the same behind, from `claim.rs` and from `claim.lua`.
//!
//! The script runs on a real server with its clock replaced by the test's. After each operation the answer is
//! compared and everything that stands in the server: holders, queue, number, traces, log, wake lists, and the end of
//! every key. Of faults planted in the script one at a time it found each within seconds, among them: a holder's own
//! limit ignored, stale holders not purged, the wake list of an earlier place kept, and nine holders shown for eight.
//! `RLOCK_SEED` repeats a history, `RLOCK_OPS` sets how many operations are made.

pub(crate) mod history;
mod look;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Cmd, Value};
use rlock::claim::{Answer, ClaimId, Renewal};
use rlock::store::redis::script;

use crate::servers::Server;
use history::{Place, Reply, Rng, Step};

/// The operations that are made where `RLOCK_OPS` does not say.
const OPERATIONS: u64 = 100_000;
/// After so many the server is emptied and other limits are played.
const ONE_GAME: u64 = 2_000;
/// So many go to the server at once.
const BATCH: u64 = 50;
/// Where the test's clock begins, far ahead of any server's: nothing runs out by the server's own clock.
const BEGINNING_US: u64 = 4_102_444_800_000_000;
/// How far the server's clock may go on between an operation and the look after it.
const SLOW_MS: u64 = 2_000;

const KEYS: [&str; 3] = ["job:backup", "job:{a b}:x", "it's \"ü\""];
const LIMITS: [&[u32]; 7] = [&[1], &[1, 0], &[1, 2, 3, 0], &[2, 3], &[0], &[1, 1, 3], &[9, 9, 10, 0]];

#[test]
fn the_rule_and_the_script_agree() {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos();
    let seed = number_of("RLOCK_SEED").unwrap_or_else(|| u64::try_from(clock % 1_000_000_000_000).expect("in range"));
    let operations = number_of("RLOCK_OPS").unwrap_or(OPERATIONS);
    println!("RLOCK_SEED={seed}");
    let server = Server::start();
    let mut player = Player::new(&server, seed);
    let mut done = 0;
    while done < operations {
        if done % ONE_GAME == 0 {
            player.new_game();
        }
        player.batch();
        done += BATCH;
    }
    println!("{done} operations, of which {:?}", player.counts);
    assert!(done < OPERATIONS || player.counts.len() == history::WORDS, "some answer never came");
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// One operation that was sent, and the wake lists that are looked at after it.
struct Sent {
    place: usize,
    now_us: u64,
    step: Step,
    ids: Vec<ClaimId>,
    /// Where its answer stands among those of the batch; the look's follows.
    at: usize,
}

struct Player {
    seed: u64,
    rng: Rng,
    connection: redis::Connection,
    /// The script with the test's clock, the look, and what the server itself would remove.
    scripts: [String; 3],
    now_us: u64,
    /// Whether in this game the clock hardly moves and few leave.
    calm: bool,
    places: Vec<Place>,
    /// What was done in this game, for the report of a failure.
    told: Vec<(usize, String)>,
    counts: BTreeMap<&'static str, u64>,
}

impl Player {
    fn new(server: &Server, seed: u64) -> Self {
        let mut connection = server.connect();
        let clock = "local clock = redis.call('TIME')";
        assert_eq!(script::SOURCE.matches(clock).count(), 1, "the script reads its clock in one line");
        let source = script::SOURCE.replace(clock, "local clock = { ARGV[#ARGV - 1], ARGV[#ARGV] }");
        let scripts = [source.as_str(), look::LOOK, look::RUN_OUT].map(|text| {
            let name: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).expect("SCRIPT LOAD");
            name
        });
        Self {
            seed,
            rng: Rng(seed),
            connection,
            scripts,
            now_us: BEGINNING_US,
            calm: false,
            places: vec![],
            told: vec![],
            counts: BTreeMap::new(),
        }
    }

    fn new_game(&mut self) {
        redis::cmd("FLUSHDB").exec(&mut self.connection).expect("FLUSHDB");
        self.now_us = BEGINNING_US;
        self.told.clear();
        self.calm = self.rng.percent(25);
        let limits = self.rng.pick(&LIMITS);
        self.places = KEYS.iter().map(|key| Place::new(key, limits, self.calm, &mut self.rng)).collect();
    }

    /// Makes a batch of operations, sends it, and compares.
    fn batch(&mut self) {
        let mut pipe = redis::pipe();
        let mut answers = 0;
        let mut sent = vec![];
        for _ in 0..BATCH {
            let place = self.rng.index(KEYS.len());
            self.advance(place);
            let step = self.places[place].step(self.now_us, &mut self.rng);
            let (commands, ids) = self.commands(place, &step);
            answers += commands.len();
            for command in commands {
                pipe.add_command(command);
            }
            self.told.push((place, step.label.clone()));
            sent.push(Sent { place, now_us: self.now_us, step, ids, at: answers - 2 });
        }
        let answers: Vec<Value> = match pipe.query(&mut self.connection) {
            Ok(answers) => answers,
            Err(error) => panic!("RLOCK_SEED={}: {error}\n{}", self.seed, self.story(0, 60)),
        };
        let told = self.told.len() - sent.len();
        for (nth, sent) in sent.into_iter().enumerate() {
            let (seed, at) = (self.seed, sent.at);
            if let Err(what) = self.compare(&sent, &answers[at], answers[at + 1].clone()) {
                self.told.truncate(told + nth + 1);
                panic!("RLOCK_SEED={seed}, after\n{}\n{what}", self.story(sent.place, 25));
            }
        }
    }

    /// Moves the clock: a little, to the edge of what runs out next, or beyond everything.
    fn advance(&mut self, place: usize) {
        let now_ms = self.now_us / 1000;
        let to_end = self.places[place].next_end(now_ms).unwrap_or(now_ms) - now_ms;
        let rng = &mut self.rng;
        self.now_us += match rng.below(100) {
            0..95 if self.calm => rng.below(3) * 500,
            0..45 => 0,
            45..65 => rng.below(2_000),
            65..82 => rng.below(600_000),
            82..93 => (to_end * 1000).saturating_sub(self.now_us % 1000 + rng.pick(&[0, 1, 1000])),
            93..97 => 2_500_000 + rng.below(1_000_000),
            97..99 => 9_500_000 + rng.below(1_000_000),
            _ => rng.below(100_000_000),
        };
    }

    fn commands(&mut self, place: usize, step: &Step) -> (Vec<Cmd>, Vec<ClaimId>) {
        let key = self.places[place].key.clone();
        let side = |name| script::side_key(&key, name);
        let mut commands = vec![];
        if step.run_out {
            let mut run_out = redis::cmd("EVALSHA");
            run_out.arg(&self.scripts[2]).arg(4).arg(key.as_str());
            run_out.arg(&[side("waiters"), side("holders"), side("gone")]).arg(self.now_us / 1000);
            commands.push(run_out);
        }
        commands.extend(step.before.iter().cloned());
        let timed = step.call.clone().with(&(self.now_us / 1_000_000)).with(&(self.now_us % 1_000_000));
        commands.push(timed.command("EVALSHA", &self.scripts[0]));
        let mut ids = self.places[place].ids();
        ids.extend(step.fresh.iter().filter(|id| !ids.contains(id)).copied().collect::<Vec<_>>());
        let mut look = redis::cmd("EVALSHA");
        look.arg(&self.scripts[1]).arg(7 + ids.len()).arg(key.as_str());
        for name in ["queue", "waiters", "holders", "token", "gone", "log"] {
            look.arg(side(name));
        }
        for id in &ids {
            look.arg(script::wake_key(&key, *id));
        }
        for id in &ids {
            let taken = self.rng.percent(30);
            look.arg(u8::from(taken));
            if taken {
                self.places[place].take_wake(*id);
            }
        }
        commands.push(look);
        (commands, ids)
    }

    fn compare(&mut self, sent: &Sent, answer: &Value, look: Value) -> Result<(), String> {
        let step = &sent.step;
        let looked = look::read(look, &sent.ids, &step.fresh)?;
        let (mut reply, now_ms) = match &step.reply {
            Reply::Ask(_) => script::read_answer(answer).map(|told| (Reply::Ask(told.answer), told.now_ms)),
            Reply::Renew(_) => script::read_renewal(answer).map(|told| (Reply::Renew(told.answer), told.now_ms)),
            Reply::Drop(_) => script::read_dropped(answer).map(|told| (Reply::Drop(told.answer), told.now_ms)),
            Reply::Condemn(_) => {
                script::read_condemnation(answer).map(|told| (Reply::Condemn(told.answer), told.now_ms))
            }
        }?;
        if now_ms != sent.now_us / 1000 {
            return Err(format!("it answers at {now_ms}"));
        }
        by_the_tests_clock(&mut reply, &step.reply, looked.real_ms, now_ms, step.seen.foreign);
        *self.counts.entry(reply.word()).or_default() += 1;
        if reply != step.reply {
            return Err(format!("the rule answers  {:?}\nthe script answers {reply:?}", step.reply));
        }
        let stands = match &step.reply {
            Reply::Ask(answer) => matches!(answer, Answer::Granted { .. } | Answer::Waiting { .. }),
            Reply::Renew(answer) => matches!(answer, Renewal::Renewed { .. }) && !step.is_finish(),
            _ => false,
        };
        if stands && !looked.listed {
            return Err("the claim stands and would not be listed".into());
        }
        if looked.seen != step.seen {
            return Err(format!("the rule leaves  {:#?}\nthe script leaves {:#?}", step.seen, looked.seen));
        }
        Ok(())
    }

    fn story(&self, place: usize, most: usize) -> String {
        let of_place: Vec<_> =
            self.told.iter().filter(|(at, _)| *at == place).map(|(_, label)| label.as_str()).collect();
        of_place[of_place.len().saturating_sub(most)..].join("\n")
    }
}

/// The end of what is not rlock's goes by the server's clock: taken as the expected one where it is near it.
fn by_the_tests_clock(reply: &mut Reply, expected: &Reply, real_ms: u64, now_ms: u64, foreign: bool) {
    let (
        Reply::Ask(Answer::Waiting { lapse_ms: Some(lapse), .. }),
        Reply::Ask(Answer::Waiting { lapse_ms: Some(right), .. }),
    ) = (reply, expected)
    else {
        return;
    };
    if foreign && (*lapse + real_ms).abs_diff(*right + now_ms) < SLOW_MS {
        *lapse = *right;
    }
}
