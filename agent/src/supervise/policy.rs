//! How a program is stopped, by signals and by time: terms that all programs share, and a policy for what is
//! special to one.

use std::pin::Pin;
use std::time::{Duration, Instant};

use flux_agent_plan::plan::SignalTarget;

/// What a second stop signal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondStop {
    /// It sends SIGKILL to the group.
    Kills,
    /// It is passed on like the first.
    IsPassedOn,
    /// It does nothing.
    IsIgnored,
}

/// How a program is supervised.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub target: SignalTarget,
    pub second_stop: SecondStop,
}

impl Terms {
    /// For a short helper program: signals reach its whole process group.
    pub fn of_group() -> Self {
        Terms {
            target: SignalTarget::Group,
            second_stop: SecondStop::Kills,
        }
    }
}

/// How the program is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The signal that is sent.
    pub signal: i32,
    /// After this time remaining processes are killed, unless the supervisor's deadline is earlier.
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
    /// It is held back for this time at most.
    Hold(Duration),
}

/// A wait that ends when the policy has a reason to end the program.
pub type EndReason<'a> = Pin<Box<dyn Future<Output = Order> + 'a>>;
/// A request to others, awaited while signals and children are handled; whether it was of use.
pub type PolicyRequest = Pin<Box<dyn Future<Output = bool>>>;

/// What is particular to one program. The defaults: a stop is passed on at once, and nothing else ends the
/// program.
pub trait Policy {
    /// The first stop signal has come.
    fn at_stop(&mut self, signal: i32) -> AtStop {
        AtStop::PassOn(Order::signal(signal))
    }

    /// Waits for a reason to end the process `child` without a stop, or to end the hold, which began at
    /// `held`. Dropped and called again at every event; not called any more once a stop was passed on.
    fn reason(&mut self, _child: i32, _held: Option<Instant>) -> EndReason<'_> {
        Box::pin(std::future::pending())
    }

    /// A stop was held back for as long as it may be: how the program is told to end now.
    fn at_hold_timeout(&mut self, _child: i32) -> Order {
        Order::signal(libc::SIGTERM)
    }

    /// A request in place of the stop signal, which the program is still sent if the request was of no use.
    fn in_place_of_signal(&mut self) -> Option<PolicyRequest> {
        None
    }

    /// A request, when the time is over, to kill what the program waits for, so that it ends by itself.
    /// Called each time that the time is over, until there is none.
    fn kill_first(&mut self) -> Option<PolicyRequest> {
        None
    }
}

/// Default policy: every stop is passed on at once.
#[derive(Debug)]
pub struct DefaultPolicy;

impl Policy for DefaultPolicy {}
