//! How a program is stopped, by signals and by time: terms that all programs share, and a policy for what is special to one.

use std::pin::Pin;
use std::time::{Duration, Instant};

/// Which processes a stop signal reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The process alone: a broker, which ends its own in order.
    Process,
    /// Everything that it started.
    Group,
}

/// What a second stop signal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondStop {
    /// SIGKILL to the group.
    Kills,
    /// The same as the first.
    IsPassedOn,
    /// Nothing.
    IsIgnored,
}

/// How a program is supervised.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub target: Target,
    /// After the stop: SIGKILL to the group. None: never by time.
    pub kill_after: Option<Duration>,
    pub again: SecondStop,
}

impl Terms {
    /// For a short helper program: signals reach its whole process group, and there is no deadline.
    pub fn of_group() -> Self {
        Terms { target: Target::Group, kill_after: None, again: SecondStop::Kills }
    }
}

/// The program is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The signal that is sent.
    pub signal: i32,
    /// After this time remaining processes are killed, unless the terms say earlier.
    pub within: Option<Duration>,
}

impl Order {
    pub fn signal(signal: i32) -> Self {
        Order { signal, within: None }
    }
}

/// What the first stop signal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtStop {
    PassOn(Order),
    /// It is held back, for so long at most.
    Hold(Duration),
}

/// A wait that ends when the policy has a reason to end the program.
pub type Reason<'a> = Pin<Box<dyn Future<Output = Order> + 'a>>;
/// Something that is asked of others while signals and children are heard; whether it was of use.
pub type Request = Pin<Box<dyn Future<Output = bool>>>;

/// What is particular to one program. The defaults: a stop is passed on at once, and nothing else ends the program.
pub trait Policy {
    /// The first stop signal has come.
    fn at_stop(&mut self, signal: i32) -> AtStop {
        AtStop::PassOn(Order::signal(signal))
    }

    /// Until something ends the process `child` before a stop does, or ends the hold, which began at `held`. Dropped and called
    /// again at every event; not called any more once a stop was passed on.
    fn reason(&mut self, _child: i32, _held: Option<Instant>) -> Reason<'_> {
        Box::pin(std::future::pending())
    }

    /// A stop was held back for as long as it may be.
    fn at_hold_timeout(&mut self, _child: i32) -> Order {
        Order::signal(libc::SIGTERM)
    }

    /// What is asked in place of the stop signal, which the program is sent all the same if it was of no use.
    fn in_place_of_signal(&mut self) -> Option<Request> {
        None
    }

    /// What is killed when the time is over, so that the program ends by itself; each time that it is, until none is left.
    fn kill_first(&mut self) -> Option<Request> {
        None
    }
}

/// That of a program with nothing particular.
#[derive(Debug)]
pub struct DefaultPolicy;

impl Policy for DefaultPolicy {}
