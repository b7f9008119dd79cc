//! `status`: what an instance waits for, judged from the observations. Pure.

use flux_agent_plan::plan::Instance;
use flux_shared::printable::printable;
use serde_json::{Value, json};

use crate::flux_rpc::message::AskError;
use crate::flux_rpc::states;
use crate::report::activity::Activity;
use crate::wait::Missing;

/// The job state DEPEND, as a bit (RFC 21).
const DEPEND: u64 = 2;
/// The job states before a job runs: DEPEND, PRIORITY, SCHED.
const WAITING: u64 = DEPEND | 4 | 8;
/// Version of the JSON report. It changes when a reader of the older one would misread it.
const STATUS_VERSION: u32 = 1;
/// Seconds in one state after which a broker counts as stuck.
const STUCK: u64 = 10;

/// A broker's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerState {
    pub name: String,
    /// How long it has been in this state.
    pub seconds: u64,
}

impl BrokerState {
    /// Whether the parent has admitted it, so that requests reach the lead.
    pub fn has_joined(&self) -> bool {
        !matches!(self.name.as_str(), "none" | "load-builtins" | "join")
    }

    /// Whether nodes and jobs are known: its start-up script (rc1) has run, and rc3 does not run yet.
    pub fn has_resources(&self) -> bool {
        matches!(self.name.as_str(), "quorum" | "run" | "cleanup")
    }

    /// Whether it shuts down.
    pub fn is_ending(&self) -> bool {
        states::is_ending(&self.name)
    }
}

/// The connection to a parent whose port answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A connection persists.
    Steady,
    /// There is no connection, or the parent closes each new one.
    Broken,
}

/// A host whose broker is not online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    pub rank: u32,
    pub host: String,
    /// Why it cannot be reached; none: its port answers.
    pub why: Option<Missing>,
}

/// The results of `observe`.
#[derive(Debug)]
pub struct Observations<'a> {
    pub instance: &'a Instance,
    pub state: Result<BrokerState, AskError>,
    /// What the pod's entrypoint is doing.
    pub activity: Option<Activity>,
    /// Whether the lead's program and its broker have ended: the steps after them run, or this container starts again.
    pub has_ended: bool,
    /// Ranks whose brokers are online; none: this is not known.
    pub online: Option<Vec<u32>>,
    /// Ranks that are online but have been silent for a while (Flux's group `broker.torpid`).
    pub torpid: Vec<u32>,
    /// `drain` of `resource.status`: ranks, and the reasons.
    pub drained: Value,
    /// `job_states` of `job-list.job-stats`: the number of jobs in each state.
    pub jobs: Value,
    /// `jobs` of `job-list.list`: its first jobs, of which the pending ones come first.
    pub recent: Value,
    /// The parent's host and the connection to it; none: no parent is known, or this broker has joined.
    pub parent: Option<(String, Result<Link, Missing>)>,
    /// Hosts that are offline, as many as were probed. A spare host without a pod is left out.
    pub absent: Vec<Absent>,
}

impl<'a> Observations<'a> {
    pub fn new(instance: &'a Instance, state: Result<BrokerState, AskError>) -> Observations<'a> {
        let (drained, jobs, recent) = (Value::Null, Value::Null, Value::Null);
        Observations {
            instance,
            state,
            activity: None,
            has_ended: false,
            online: None,
            torpid: Vec::new(),
            drained,
            jobs,
            recent,
            parent: None,
            absent: Vec::new(),
        }
    }

    /// What the entrypoint does while there is no broker.
    fn activity(&self) -> Option<&Activity> {
        if is_absent(&self.state) {
            self.activity.as_ref()
        } else {
            None
        }
    }

    /// The snippet that runs while there is no broker.
    fn snippet(&self) -> Option<&str> {
        match self.activity()? {
            Activity::Snippet(name) => Some(name),
            Activity::Retrying(_) => None,
        }
    }

    /// Ranks of other brokers that are not online. Empty if the online ranks are not known.
    pub fn offline(&self) -> Vec<u32> {
        let Some(online) = &self.online else {
            return Vec::new();
        };
        let others = (0..self.instance.hosts.len() as u32).filter(|rank| *rank != self.instance.rank);
        others.filter(|rank| !online.contains(rank)).collect()
    }

    /// Ranks of other brokers that should be online and are not.
    fn missing(&self) -> Vec<u32> {
        self.offline()
            .into_iter()
            .filter(|rank| !self.is_idle_spare(*rank))
            .collect()
    }

    /// Spare ranks that are offline, perhaps because the cluster is not that large: a pod does not know the
    /// current size.
    fn idle_spares(&self) -> Vec<u32> {
        self.offline()
            .into_iter()
            .filter(|rank| self.is_idle_spare(*rank))
            .collect()
    }

    /// Whether `rank`, which is offline, is a spare host of which no pod was found.
    fn is_idle_spare(&self, rank: u32) -> bool {
        // The spare ranks are in ascending order.
        self.instance.spare.binary_search(&rank).is_ok()
            && !self.absent.iter().any(|absent| absent.rank == rank)
    }
}

/// Whether there is no broker: before it has started, or after its end.
pub fn is_absent(state: &Result<BrokerState, AskError>) -> bool {
    matches!(state, Err(AskError::NoSocket(_) | AskError::Ended))
}

/// Checks that the pod's broker is in its running state; the error says why not.
pub fn ready(state: &Result<BrokerState, AskError>, activity: Option<&Activity>) -> Result<(), String> {
    match state {
        Ok(state) if state.name == "run" => Ok(()),
        // Without the time: Kubernetes counts equal messages as one event.
        Ok(state) => Err(format!("the broker is in state {}{}", state.name, meaning(state))),
        Err(error) => Err(match activity {
            Some(activity) if is_absent(state) => activity.to_string(),
            _ => format!("the broker does not answer: {error}"),
        }),
    }
}

/// `why` with up to three causes from the report, in one line.
pub fn with_causes(why: String, observed: &Observations) -> String {
    let lines = report(observed).lines;
    let causes = lines
        .iter()
        .filter(|(topic, _)| matches!(*topic, "parent" | "missing" | "silent"))
        .take(3);
    causes.fold(why, |why, (topic, line)| format!("{why}; {topic}: {line}"))
}

/// The lines for people, each with its topic.
#[derive(Debug)]
pub struct StatusReport<'a> {
    observed: &'a Observations<'a>,
    lines: Vec<(&'static str, String)>,
}

/// Judges the observations. The lines have no terminal codes: a user chooses the reason of a drain, for example.
pub fn report<'a>(observed: &'a Observations<'a>) -> StatusReport<'a> {
    let mut lines = vec![("broker", broker(observed))];
    lines.extend(
        observed
            .parent
            .as_ref()
            .map(|(host, link)| ("parent", parent(observed, host.trim_end_matches('.'), link))),
    );
    let missing = observed.missing();
    if let Some(online) = &observed.online {
        lines.push(("online", online_line(online.len(), observed.instance)));
    }
    lines.extend(observed.absent.iter().map(|absent| ("missing", absence(absent))));
    if missing.len() > observed.absent.len() {
        lines.push((
            "missing",
            format!("and {} more", missing.len() - observed.absent.len()),
        ));
    }
    let idle_spares = observed.idle_spares();
    if !idle_spares.is_empty() {
        lines.push(("spare", spare_line(idle_spares.len())));
    }
    if observed.state.is_ok() {
        lines.push(("binding", observed.instance.binding.line()));
    }
    let host = |rank: u32| {
        observed
            .instance
            .hosts
            .get(rank as usize)
            .map_or("", String::as_str)
    };
    lines.extend(
        observed
            .torpid
            .iter()
            .map(|rank| ("silent", format!("{} (rank {rank}): {TORPID}", host(*rank)))),
    );
    lines.extend(
        fields(&observed.drained).map(|(ranks, why)| ("drained", drained(observed.instance, ranks, why))),
    );
    let count = |name: &str| observed.jobs[name].as_u64().unwrap_or_default();
    if observed.jobs.is_object() {
        let waiting = count("depend") + count("priority") + count("sched");
        let (run, ended) = (count("run") + count("cleanup"), count("inactive"));
        lines.push(("jobs", format!("{run} running, {waiting} waiting, {ended} ended")));
    }
    lines.extend(
        observed
            .recent
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|found| Some(("job", job(found)?))),
    );
    for (_, line) in &mut lines {
        *line = printable(line).into_owned();
    }
    StatusReport { observed, lines }
}

impl StatusReport<'_> {
    pub fn text(&self) -> String {
        self.lines
            .iter()
            .map(|(topic, line)| format!("{topic:<8} {line}\n"))
            .collect()
    }

    /// Most observations as fields, and the lines for people.
    pub fn json(&self) -> String {
        let Observations {
            instance,
            state,
            online,
            drained,
            jobs,
            recent,
            ..
        } = self.observed;
        let state = state.as_ref().ok();
        let lines = self
            .lines
            .iter()
            .map(|(topic, line)| json!([topic, line]))
            .collect::<Vec<Value>>();
        let report = json!({
            "status": STATUS_VERSION, "host": instance.hostname, "rank": instance.rank, "size": instance.hosts.len(),
            "has_broker": !is_absent(&self.observed.state), "has_ended": self.observed.has_ended,
            "state": state.map(|state| &state.name), "seconds": state.map(|state| state.seconds),
            "snippet": self.observed.snippet(),
            "online": online, "missing": online.is_some().then(|| self.observed.missing()),
            "spare": online.is_some().then(|| self.observed.idle_spares()),
            "binding": instance.binding, "drained": drained, "jobs": jobs, "recent": recent, "lines": lines,
        });
        format!("{report}\n")
    }
}

fn broker(observed: &Observations) -> String {
    let Instance { hostname, rank, .. } = observed.instance;
    if let Some(activity) = observed.activity() {
        return format!("{hostname} (rank {rank}) is not up: {activity}. See the pod's log");
    }
    match &observed.state {
        Ok(state) => {
            format!(
                "{hostname} (rank {rank}) is in state {} for {} s{}",
                state.name,
                state.seconds,
                meaning(state)
            )
        }
        Err(error) => {
            let remedy = if matches!(error, AskError::NoSocket(_)) {
                ". See the pod's log"
            } else {
                ""
            };
            format!("{hostname} (rank {rank}) does not answer: {error}{remedy}")
        }
    }
}

fn online_line(online: usize, instance: &Instance) -> String {
    let (size, most) = (instance.least_brokers(), instance.hosts.len());
    if size == most {
        format!("{online} of {most} brokers")
    } else {
        format!("{online} brokers: the cluster started with {size} and may have {most}")
    }
}

fn spare_line(count: usize) -> String {
    format!(
        "{count} more, up to maxSize, are not online: if the size (kubectl get miniclusters) \
         includes them, check their pods"
    )
}

/// The meaning of a broker's state, as the end of a line; empty for `run`.
fn meaning(state: &BrokerState) -> &'static str {
    match state.name.as_str() {
        "join" => ": it waits for its parent broker",
        "config-sync" | "init" => ": it runs its start-up script",
        "quorum" => ": it waits until enough brokers are online",
        _ if state.is_ending() => ": it is shutting down",
        _ => "",
    }
}

fn parent(observed: &Observations, host: &str, link: &Result<Link, Missing>) -> String {
    let stuck = observed.state.as_ref().is_ok_and(|state| state.seconds >= STUCK);
    match link {
        Err(missing) => format!("{host}: {missing}. {}", remedy(missing)),
        // This pod has no broker now that could be connected.
        Ok(_) if observed.activity().is_some() => format!("{host} answers"),
        Ok(Link::Broken) if matches!(observed.state, Err(AskError::NoSocket(_))) => format!(
            "{host} answers, but this broker is not connected: it has not started, or the certificates differ \
             (`flux-agent preflight` on both shows them)"
        ),
        Ok(Link::Broken) if stuck || observed.state.is_err() => format!(
            "{host} answers, but this broker is not connected: do the certificates differ? (`flux-agent preflight` \
             on both shows them)"
        ),
        Ok(Link::Broken) => format!("{host} answers; not connected yet"),
        // This broker does not answer, so it is unknown whether the parent has admitted it.
        Ok(Link::Steady) if observed.state.is_err() => format!("{host} is connected"),
        Ok(Link::Steady) => {
            format!(
                "{host} is connected, but has not admitted this broker yet: `flux-agent status` there says why"
            )
        }
    }
}

fn absence(absent: &Absent) -> String {
    let Absent { rank, host, why } = absent;
    let why = match why {
        Some(missing @ (Missing::Name(_) | Missing::Route { .. })) => {
            format!("{missing}. {}", remedy(missing))
        }
        // Only a broker with children of its own listens.
        Some(Missing::Port(_)) | None => JOINING.into(),
    };
    format!("{host} (rank {rank}): {why}")
}

const JOINING: &str = "its pod is there, its broker has not joined: `flux-agent status` there says why";

const TORPID: &str = "its broker is suspended, very busy or cut off, and gets no work: delete its pod, or run `flux-agent status` in it";

/// Advice for what is missing.
pub fn remedy(missing: &Missing) -> &'static str {
    match missing {
        Missing::Name(_) if missing.is_name_gone() => {
            "Does its pod run (kubectl get pod), and does the headless Service exist?"
        }
        Missing::Name(_) => "Does the cluster's DNS run, and does /etc/resolv.conf name it?",
        Missing::Route { .. } => "Is there a network policy or a firewall between the pods?",
        Missing::Port(_) => "Its pod is there: look at its log, or ask `flux-agent status` there",
    }
}

fn drained(instance: &Instance, ranks: &str, why: &Value) -> String {
    let host = ranks
        .parse()
        .ok()
        .and_then(|rank: usize| instance.hosts.get(rank))
        .map_or("", String::as_str);
    let reason = why["reason"]
        .as_str()
        .filter(|reason| !reason.is_empty())
        .unwrap_or("no reason given");
    // With several ranks (`1-2`) there is no host, and the line begins with the ranks.
    format!("{host} (rank {ranks}): {reason}. `flux resource undrain {ranks}` returns it to service")
        .trim_start()
        .to_owned()
}

/// A line that says why a job waits or has failed. None for other jobs.
fn job(job: &Value) -> Option<String> {
    let id = f58(job["id"].as_u64()?);
    let nodes = job["nnodes"]
        .as_u64()
        .map_or(String::new(), |nodes| format!(" ({nodes} nodes)"));
    if let Some(note) = job["exception_note"].as_str() {
        let kind = job["exception_type"].as_str().unwrap_or_default();
        return Some(format!("{id}{nodes} failed ({kind}): {note}"));
    }
    let state = job["state"].as_u64()?;
    if state & WAITING == 0 {
        return None;
    }
    let why = match job["annotations"]["sched"]["reason_pending"].as_str() {
        Some(reason) => format!(": {reason}"),
        None if state == DEPEND => " for its dependencies".to_owned(),
        None => " for nodes that are up, free and not drained".to_owned(),
    };
    Some(format!("{id}{nodes} waits{why}"))
}

/// A job's id as Flux writes it (RFC 19, F58): base 58 of a number. Written by hand: base58 crates encode bytes, with
/// a digit for each leading zero.
fn f58(mut id: u64) -> String {
    const DIGITS: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let mut text = Vec::new();
    while id > 0 || text.is_empty() {
        text.push(char::from(DIGITS[(id % 58) as usize]));
        id /= 58;
    }
    text.push('ƒ');
    text.into_iter().rev().collect()
}

/// The fields of a JSON object; empty for any other value.
fn fields(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    object
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), value))
}

#[cfg(test)]
mod tests;
