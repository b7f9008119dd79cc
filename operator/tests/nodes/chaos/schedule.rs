//! What happens when: a function of the seed alone, so that a failure can be replayed.

use fastrand::Rng;

/// The maximum number of MiniClusters at once: they share one machine.
pub const AT_ONCE: usize = 5;
const NAMES: [&str; 16] = [
    "alder", "ash", "birch", "box", "cedar", "elm", "fir", "hazel", "holly", "larch", "lime", "oak", "pine",
    "rowan", "willow", "yew",
];

/// Jobs of a MiniCluster with a maxSize are shorter, in seconds: they must end before a resize removes their node.
const LONGEST_ELASTIC_JOB: u32 = 16;

/// A random number that picks one of the objects that exist at that moment, and what is done to it.
#[derive(Debug, Clone, Copy)]
pub struct Pick(pub u64);

impl Pick {
    /// One of these, or None if there are none.
    pub fn of<T>(self, all: &[T]) -> Option<&T> {
        let count = u64::try_from(all.len()).unwrap();
        let index = self.0.checked_rem(count)?;
        all.get(usize::try_from(index).unwrap())
    }

    /// A number that hardly depends on which one is picked: the lists have far fewer than 1000 objects.
    pub fn detail(self) -> Pick {
        Pick(self.0 / 1000)
    }
}

#[derive(Debug, Clone)]
pub struct Event {
    /// Seconds after the start.
    pub at: f64,
    pub action: Action,
}

#[derive(Debug, Clone)]
pub enum Action {
    Create(Manifest),
    Delete(Pick),
    /// Deleted, and immediately applied again under the same name.
    Recreate(Pick),
    DeletePod {
        pick: Pick,
        is_forced: bool,
    },
    Evict(Pick),
    Suspend {
        pick: Pick,
        seconds: f64,
    },
    Resize(Pick),
    PowerLoss {
        worker: u8,
        seconds: f64,
    },
    Reboot {
        worker: u8,
        seconds: f64,
    },
    CutOffFromApi {
        worker: u8,
        seconds: u32,
    },
    CutOff {
        worker: u8,
        other: u8,
        seconds: u32,
    },
    KillOnNode {
        worker: u8,
        program: &'static str,
        seconds: u32,
    },
    KillOnControlPlane {
        program: &'static str,
        seconds: u32,
    },
    KillOperator(Pick),
    /// The operator's processes get SIGSTOP, and SIGCONT later.
    FreezeOperator {
        seconds: f64,
    },
    Quota {
        seconds: f64,
    },
    /// A webhook of somebody else that does not answer, so that creations of this kind are refused.
    Webhook {
        resource: &'static str,
        seconds: f64,
    },
    /// Changes a field that may change, or one whose change is rejected. Neither is a reason to restart.
    Edit(Pick),
    /// A namespace with two MiniClusters is deleted this many seconds after their creation.
    Namespace {
        seconds: f64,
    },
}

/// A random MiniCluster.
#[derive(Debug, Clone)]
pub struct Manifest {
    pub name: &'static str,
    pub size: u32,
    /// Tasks on every pod instead of one on the lead.
    pub is_across: bool,
    pub form: Form,
    pub seconds: u32,
    pub code: i32,
    /// `restartPolicy` is OnFailure.
    pub is_retried: bool,
    pub backoff_limit: Option<u32>,
    pub max_restarts: Option<u32>,
    pub max_size: Option<u32>,
    /// Created suspended. The end of a later suspension resumes it, or else the end of the run.
    pub is_suspended: bool,
    pub has_snippets: bool,
    pub has_sidecar: bool,
    pub has_archive: bool,
    pub evicted_after: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    Submit,
    Batch,
    Launcher,
    /// No program: somebody stops the instance after `seconds`.
    Interactive,
}

/// All events of this many seconds.
pub fn schedule(seed: u64, seconds: f64) -> Vec<Event> {
    let mut dice = Rng::with_seed(seed);
    let (mut events, mut at, mut node_is_busy_until) = (Vec::new(), 0.0, 0.0);
    for number in 0..AT_ONCE {
        events.push(Event {
            at: number as f64,
            action: Action::Create(manifest(&mut dice)),
        });
    }
    while at < seconds {
        at += 1.0 + 5.0 * dice.f64();
        let action = match dice.u32(0..100) {
            0..40 => Action::Create(manifest(&mut dice)),
            40..44 => Action::Delete(pick(&mut dice)),
            44..48 => Action::Recreate(pick(&mut dice)),
            48..56 => Action::DeletePod {
                pick: pick(&mut dice),
                is_forced: dice.u32(0..4) == 0,
            },
            56..62 => Action::Evict(pick(&mut dice)),
            62..66 => Action::Suspend {
                pick: pick(&mut dice),
                seconds: 5.0 + 20.0 * dice.f64(),
            },
            66..69 => Action::Resize(pick(&mut dice)),
            69..71 => Action::Edit(pick(&mut dice)),
            71..75 => operator(&mut dice),
            75..79 => neighbour(&mut dice),
            79..85 => control_plane(&mut dice),
            // At most one node is away at a time, and at least 20 s pass between two faults of nodes.
            _ if at > node_is_busy_until => {
                let (action, seconds) = node(&mut dice);
                node_is_busy_until = at + seconds + 30.0;
                action
            }
            _ => continue,
        };
        events.push(Event { at, action });
    }
    events
}

fn pick(dice: &mut Rng) -> Pick {
    Pick(dice.u64(..))
}

fn operator(dice: &mut Rng) -> Action {
    if dice.bool() {
        Action::KillOperator(pick(dice))
    } else {
        Action::FreezeOperator {
            seconds: 1.0 + 40.0 * dice.f64() * dice.f64(),
        }
    }
}

/// What others do to a namespace.
fn neighbour(dice: &mut Rng) -> Action {
    let seconds = 5.0 + 20.0 * dice.f64();
    match dice.u32(0..4) {
        0 => Action::Quota { seconds },
        1 => Action::Namespace { seconds },
        _ => Action::Webhook {
            resource: ["pods", "jobs", "secrets", "services"][dice.usize(..4)],
            seconds,
        },
    }
}

fn control_plane(dice: &mut Rng) -> Action {
    let programs = [
        "kube-apiserver",
        "etcd",
        "kube-controller-manager",
        "kube-scheduler",
    ];
    Action::KillOnControlPlane {
        program: programs[dice.usize(..programs.len())],
        seconds: dice.u32(1..15),
    }
}

/// A fault of a worker, and how long it lasts (a reboot: without its shutdown, which takes 10 s).
fn node(dice: &mut Rng) -> (Action, f64) {
    let worker = dice.u8(1..4);
    match dice.u32(0..6) {
        0 => {
            let seconds = 1.0 + 100.0 * dice.f64() * dice.f64();
            (Action::PowerLoss { worker, seconds }, seconds)
        }
        1 => {
            let seconds = 1.0 + 20.0 * dice.f64();
            (Action::Reboot { worker, seconds }, seconds)
        }
        2 => {
            let seconds = dice.u32(5..110);
            (Action::CutOffFromApi { worker, seconds }, f64::from(seconds))
        }
        3 => {
            let (other, seconds) = (1 + worker % 3, cut_between_brokers(dice));
            (
                Action::CutOff {
                    worker,
                    other,
                    seconds,
                },
                f64::from(seconds),
            )
        }
        _ => {
            let (program, seconds) = (["kubelet", "containerd"][dice.usize(..2)], dice.u32(1..25));
            (
                Action::KillOnNode {
                    worker,
                    program,
                    seconds,
                },
                f64::from(seconds),
            )
        }
    }
}

/// The seconds of a cut, but not 11 to 25: a connection whose data is unacknowledged for 20 s is closed, and a broker
/// that reconnects at once has lost messages without noticing. If a job ends during such a cut, Flux never sees its
/// end (docs/troubleshooting.md, "A job hangs").
fn cut_between_brokers(dice: &mut Rng) -> u32 {
    if dice.bool() {
        dice.u32(3..11)
    } else {
        dice.u32(26..45)
    }
}

fn manifest(dice: &mut Rng) -> Manifest {
    let one_in = |dice: &mut Rng, count: u32| dice.u32(0..count) == 0;
    let form = match dice.u32(0..9) {
        0..4 => Form::Submit,
        4..6 => Form::Batch,
        6..8 => Form::Launcher,
        _ => Form::Interactive,
    };
    let size = if one_in(dice, 10) {
        dice.u32(5..9)
    } else {
        dice.u32(1..5)
    };
    let max_size = one_in(dice, 4).then_some(size + 2);
    // Jobs on a node that is removed have 27 s to end (docs/tasks/autoscale.md, "Time limit").
    let longest = if max_size.is_some() {
        LONGEST_ELASTIC_JOB
    } else {
        60
    };
    Manifest {
        name: NAMES[dice.usize(..NAMES.len())],
        size,
        is_across: form == Form::Submit && one_in(dice, 3),
        form,
        seconds: dice.u32(2..longest),
        code: [0, 0, 0, 3][dice.usize(..4)],
        is_retried: one_in(dice, 5),
        backoff_limit: [None, None, Some(0), Some(1), Some(2)][dice.usize(..5)],
        max_restarts: [None, Some(1), Some(2)][dice.usize(..3)],
        max_size,
        is_suspended: one_in(dice, 8),
        has_snippets: one_in(dice, 3),
        has_sidecar: one_in(dice, 6),
        has_archive: form != Form::Interactive && one_in(dice, 6),
        evicted_after: [5, 30, 300][dice.usize(..3)],
    }
}

#[test]
fn schedule_is_a_function_of_its_seed() {
    let shown = |seed| format!("{:?}", schedule(seed, 600.0));
    assert_eq!(shown(7), shown(7));
    assert_ne!(shown(7), shown(8));
}
