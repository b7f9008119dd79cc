//! How a program is stopped, by signals and deadlines: terms that every program has, and a policy for the special
//! rules of one program.

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
    /// Signals reach the program's whole process group, and a second stop signal kills the group.
    pub fn of_group() -> Self {
        Terms {
            target: SignalTarget::Group,
            second_stop: SecondStop::Kills,
        }
    }
}

/// How a program is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The signal that is sent; 0: none.
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
    /// The signal is held back for this time at most.
    Hold(Duration),
}

/// A wait that ends when the policy has a reason to end the program.
pub type EndReason<'a> = Pin<Box<dyn Future<Output = Order> + 'a>>;
/// A request to another process, awaited while signals and children are handled. Its result: whether it helped.
pub type PolicyRequest = Pin<Box<dyn Future<Output = bool>>>;

/// The special rules of one program. By default, a stop is forwarded at once, and nothing else ends the program.
pub trait Policy {
    /// The first stop signal has come.
    fn at_stop(&mut self, signal: i32) -> AtStop {
        AtStop::PassOn(Order::signal(signal))
    }

    /// Waits for a reason to end the process `child` without a stop, or to end the hold of a stop that came at `held`.
    /// Dropped and called again at every event; not awaited any more once an order was passed on.
    fn reason(&mut self, _child: i32, _held: Option<Instant>) -> EndReason<'_> {
        Box::pin(std::future::pending())
    }

    /// The longest time to hold a stop back is over: how the program is ended now.
    fn at_hold_timeout(&mut self, _child: i32) -> Order {
        Order::signal(libc::SIGTERM)
    }

    /// A request in place of the stop signal. If it did not help, the program still gets the signal.
    fn in_place_of_signal(&mut self) -> Option<PolicyRequest> {
        None
    }

    /// A request to kill what the program waits for, so that it ends by itself. Called each time it is time to
    /// kill, until it returns None.
    fn kill_first(&mut self) -> Option<PolicyRequest> {
        None
    }
}

/// Default policy: every stop is passed on at once.
#[derive(Debug)]
pub struct DefaultPolicy;

impl Policy for DefaultPolicy {}
