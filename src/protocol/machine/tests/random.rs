//! Random outcomes for every effect, foreign opens and dead sessions in between: no trace breaks a
//! rule of `Rig::feed`, and the world keeps G1, G2 and G4.

use super::*;

/// A seeded source of choices.
pub(super) struct Chance {
    state: u64,
    /// Of 1,000 effects, how many go wrong.
    faults: u64,
}

impl Chance {
    fn new(seed: u64, faults: u64) -> Self {
        Self { state: seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15), faults }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.state >> 33) % n
    }

    pub(super) fn fault(&mut self, name: &str) -> Option<Fault> {
        if self.below(1_000) >= self.faults {
            return None;
        }
        let kinds: &[Fault] = match name {
            "Send" => &[Fault::Fail, Fault::Fenced, Fault::Record(0), Fault::Denied],
            "SendLedger" => &[Fault::Fail, Fault::Fenced],
            "EndTxn" | "WriteState" => {
                &[Fault::Fail, Fault::Lost, Fault::Late, Fault::Dirty, Fault::Dirty, Fault::Fenced]
            }
            "WriteBarrier" => &[Fault::Fail, Fault::Dirty, Fault::Fenced],
            "OpenProducer" => &[Fault::Fail, Fault::Lost],
            name if name.starts_with("Commit") => &[Fault::Fail, Fault::Lost, Fault::Denied],
            _ => &[Fault::Fail],
        };
        let at = usize::try_from(self.below(kinds.len() as u64)).unwrap();
        kinds.get(at).copied()
    }
}

/// What others do before an effect is performed.
pub(super) fn foreign(world: &mut World) {
    let Some(mut chance) = world.chance.take() else { return };
    match chance.below(60) {
        0 | 1 => world.arrive(),
        2 => world.kill_session(),
        3 if !world.is_locked() => world.opened_elsewhere(),
        4 if !world.is_locked() && chance.below(4) == 0 => world.burnt_elsewhere(),
        5 if !world.is_locked() && chance.below(2) == 0 => world.expire(),
        _ => {}
    }
    world.chance = Some(chance);
}

/// One command out of all there are.
fn command(rig: &mut Rig, chance: &mut Chance, credentials: &[Credential]) {
    match chance.below(12) {
        0 => drop(rig.acquire(acquire("w"))),
        1 => drop(rig.acquire(asking("w", "r"))),
        2 => drop(rig.acquire(Acquire { replace: true, ..acquire("x") })),
        3 if chance.below(3) == 0 => drop(rig.release()),
        4 => drop(rig.settle()),
        5 => drop(rig.run(Event::Idle)),
        6 => rig.world.expire(),
        7 => rig.at += 700,
        _ => {
            for _ in 0..=chance.below(3) {
                let id = format!("op{}", chance.below(6));
                let at = usize::try_from(chance.below(credentials.len() as u64)).unwrap();
                let newest = chance.below(4) > 0;
                let credential = if newest { credentials.last() } else { credentials.get(at) };
                rig.queue_as(&id, credential.unwrap().clone());
            }
            drop(rig.run(Event::Go));
        }
    }
}

fn run(seed: u64, faults: u64) -> (usize, usize) {
    let mut rig = Rig::new();
    let mut chance = Chance::new(seed, 0);
    rig.acquire(acquire("w"));
    rig.world.chance = Some(Chance::new(seed.wrapping_add(7), faults));
    let mut credentials = vec![rig.world.credential()];
    for _ in 0..40 {
        if rig.world.rows.fence.quarantine.is_some() {
            break;
        }
        command(&mut rig, &mut chance, &credentials);
        let newest = rig.world.credential();
        if credentials.last().map(|c| c.token) != Some(newest.token) {
            credentials.push(newest);
        }
        if let Some(at) = rig.machine.resume_at() {
            rig.at = rig.at.max(at);
            drop(rig.run(Event::Go));
        }
    }
    // Nothing was lost, so nothing may have been quarantined.
    assert_eq!(rig.world.rows.fence.quarantine, None, "seed {seed}: {:?}", rig.alerts);
    // Undisturbed, the lease heals: a takeover, and every operation is decided.
    rig.world.chance = None;
    rig.world.arrive();
    rig.at += 60_000;
    drop(rig.run(Event::Go));
    rig.world.expire();
    let token = rig.world.sequence + 1;
    let (ticket, trace) = rig.acquire(acquire("z"));
    assert!(trace.ends_with("Reply:Granted"), "seed {seed}: {trace}");
    rig.assert_granted(ticket, token);
    for n in 0..6 {
        let (ticket, trace) = rig.produce(&format!("op{n}"));
        let produced = matches!(rig.replies[&ticket], Reply::Produced { .. });
        assert!(produced, "seed {seed}: {trace}");
    }
    rig.world.assert_promises();
    assert_eq!(rig.world.data.len(), 6, "seed {seed}");
    (rig.replies.len(), rig.world.rows.fence.token.0 as usize)
}

#[test]
fn no_run_of_faults_breaks_a_trace_rule_or_a_promise() {
    let (mut replies, mut tokens) = (0, 0);
    for seed in 0..6_000 {
        let (more, top) = run(seed, [0, 30, 100, 300][(seed % 4) as usize]);
        replies += more;
        tokens += top;
    }
    // The runs did something.
    assert!(replies > 100_000 && tokens > 20_000, "{replies} {tokens}");
}
