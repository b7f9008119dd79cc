//! The spec, combined with the facts of the host. Every step is planned from it.

use flux_shared::agent_spec::AgentSpec;
use flux_shared::names::DEFAULT_GRACE_PERIOD;
use flux_shared::paths::{CURVE_FILE, DEFAULT_LOGS, PodPaths};
use flux_shared::topology;

use super::hosts::{self, Hosts};
use super::identity::Identity;
use super::{Binding, FluxLookup, Owner, PlanError};
use crate::facts::Facts;
use crate::known_paths::{DEFAULT_PATH, FLUX, flux_below};

/// The input of planning: the spec, the facts, and values that follow from both.
pub struct Resolved<'a> {
    pub spec: &'a AgentSpec,
    pub facts: &'a Facts,
    /// Flux's paths, below the spec's mount path.
    pub paths: PodPaths,
    /// All hosts of the instance, in rank order.
    pub hosts: Hosts,
    /// The pod's name in the hostlist: its host name or, with hostNetwork, the name for its index.
    pub hostname: String,
    /// The broker's rank: its position in the hostlist.
    pub rank: u32,
    /// The user that Flux runs as.
    pub identity: Identity,
    /// Directory for the output of a batch's jobs.
    pub logs: String,
    /// The cluster's domain.
    pub domain: String,
    /// Whether tasks are bound to cores.
    pub binding: Binding,
}

impl<'a> Resolved<'a> {
    /// Fails if the hostlist, the topology or the quorum is invalid, or if this pod's place in the hostlist is unknown.
    pub fn new(spec: &'a AgentSpec, facts: &'a Facts) -> Result<Resolved<'a>, PlanError> {
        let hosts = Hosts::of(spec)?;
        let hostname = hostname(spec, facts)?;
        let rank = hosts.rank_of(&hostname)?;
        if let Some(quorum) = spec.quorum
            && (quorum == 0 || quorum > hosts.size())
        {
            return Err(PlanError::Quorum {
                quorum,
                hosts: hosts.names.len(),
            });
        }
        // The result is not used: the call rejects an invalid topology. The lead has no parent, so its call is for
        // rank 1.
        topology::parent(spec.flux.topology.as_deref(), rank.max(1), hosts.size())?;
        Ok(Resolved {
            spec,
            facts,
            paths: spec.paths(),
            logs: logs(spec, facts),
            hostname,
            rank,
            identity: Identity::of(spec.runner.user.as_ref(), facts),
            domain: hosts::domain(spec, facts.cluster_domain.as_deref()),
            binding: Binding::of(&spec.runner, facts),
            hosts,
        })
    }

    /// Changes the identity for a sidecar, which runs as its own user.
    pub fn use_sidecar_identity(&mut self) {
        self.identity = Identity::of(None, self.facts);
    }

    /// Number of cores of each node in R: those that the spec declares or, without, those that the container may use.
    pub fn cores(&self) -> u32 {
        let runner = &self.spec.runner;
        runner
            .declared_cores()
            .unwrap_or_else(|| self.facts.usable_cores(runner))
    }

    /// The agent's own user: the owner of what Flux's user must not change.
    pub fn agent_owner(&self) -> Owner {
        Owner {
            uid: self.facts.uid,
            gid: self.facts.gid,
        }
    }

    /// Whether a snippet runs before the lead's broker. Any such snippet may write R.
    pub fn may_write_resources(&self) -> bool {
        self.has_snippet_before_broker(true)
    }

    /// Whether a snippet runs before the broker of the lead, or of a follower.
    fn has_snippet_before_broker(&self, of_lead: bool) -> bool {
        let mut snippets = self.spec.runner.snippets.before_broker(of_lead);
        snippets.any(|source| !source.trim().is_empty())
    }

    /// Whether the instance is set up like the system instance of a machine: Flux is the image's own, and the spec
    /// names a user for it.
    pub fn is_system_instance(&self) -> bool {
        !self.spec.view.enabled && self.spec.runner.user.is_some()
    }

    /// Whether this pod has the lead broker: rank 0, unless the lead is in another cluster.
    pub fn is_lead(&self) -> bool {
        self.rank == 0 && self.spec.network.lead.is_none()
    }

    /// The completion index, else the number at the end of the host name, else the rank.
    pub fn index(&self) -> u32 {
        index(&self.hostname, self.facts).unwrap_or(self.rank)
    }

    /// Path of the `flux` program: the view's. Without a view, it is the one below the spec's install root, else the
    /// one on the PATH. If only a snippet can put it there, its name.
    pub fn flux(&self) -> Result<String, PlanError> {
        let view = &self.spec.view;
        let in_view = format!("{}/bin/flux", self.paths.view());
        if view.enabled {
            return if self.facts.view.flux {
                Ok(in_view)
            } else {
                Err(PlanError::FluxMissing(in_view))
            };
        }
        let found = self
            .flux_in_install_root()
            .or_else(|| self.facts.flux_on_path.clone())
            .or_else(|| self.is_flux_looked_up().then(|| FLUX.to_owned()));
        found.ok_or_else(|| match view.install_root.as_deref() {
            Some(root) => PlanError::FluxMissing(flux_below(root)),
            None => PlanError::flux_not_on_path(),
        })
    }

    /// Whether the broker is started by the `flux` that is on the PATH after the snippets, one of which may change the
    /// PATH (Spack's profiles do).
    fn is_flux_looked_up(&self) -> bool {
        !self.spec.view.enabled
            && self.flux_in_install_root().is_none()
            && self.has_snippet_before_broker(self.is_lead())
    }

    /// How the executor finds `flux`, which is this word of the broker's command line. None: [`Self::flux`] is its path.
    pub fn flux_lookup(&self, word: usize) -> Option<FluxLookup> {
        let link = self.paths.flux_link();
        self.is_flux_looked_up().then_some(FluxLookup { word, link })
    }

    /// The folder of the image's `flux` to append to PATH: the one below the spec's install root, or one that a snippet
    /// has put on the PATH and the container's own PATH lacks.
    pub fn flux_folder_beside_path(&self) -> Option<String> {
        let folder_of = |flux: &str| flux.strip_suffix("/flux").map(str::to_owned);
        if let Some(flux) = self.flux_in_install_root() {
            return folder_of(&flux);
        }
        let folder = folder_of(self.facts.flux_on_path.as_deref()?)?;
        let environment = &self.facts.environment;
        let path = environment.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        let is_listed = path
            .split(':')
            .any(|listed| listed.trim_end_matches('/') == folder);
        (!is_listed).then_some(folder)
    }

    /// Path of the `flux` below the spec's install root, if there is one.
    pub fn flux_in_install_root(&self) -> Option<String> {
        let flux = flux_below(self.spec.view.install_root.as_deref()?);
        self.facts.is_present(&flux).then_some(flux)
    }

    /// The image's shell. `what` needs it: the error names it.
    pub fn shell(&self, what: &str) -> Result<&str, PlanError> {
        self.facts
            .shell
            .as_deref()
            .ok_or_else(|| PlanError::ShellMissing(what.to_owned()))
    }

    /// The `#!` line for a script that has none, with the image's shell.
    pub fn shebang(&self, what: &str) -> Result<String, PlanError> {
        Ok(format!("#!{}\n", self.shell(what)?))
    }

    /// Path of the broker's socket: the documented one or, with `disable_socket`, Flux's default in the run directory.
    pub fn socket(&self) -> String {
        if self.spec.flux.disable_socket {
            format!("{}/local-{}", self.paths.run_dir(), self.rank)
        } else {
            self.paths.socket()
        }
    }

    /// Whether the broker gets a curve certificate. Several brokers need one. A single broker gets one only if
    /// a certificate is mounted or can be derived.
    pub fn needs_curve(&self) -> bool {
        self.hosts.size() > 1 || self.facts.is_present(CURVE_FILE) || self.facts.key.is_some()
    }

    /// Folder of the view's Python modules, for PYTHONPATH. The spec may name another. None without a view or Python.
    pub fn python_path(&self) -> Option<String> {
        if !self.spec.view.enabled {
            return None;
        }
        let in_view = || {
            let python = self.facts.view.python.as_ref()?;
            Some(format!("{}/lib/{python}/site-packages", self.paths.view()))
        };
        self.spec.view.python_path.clone().or_else(in_view)
    }
}

/// The folder for the output of a batch's jobs: the spec's. If that is the default, which is in /tmp, and it cannot be
/// written to, a folder below the mount path.
fn logs(spec: &AgentSpec, facts: &Facts) -> String {
    let wanted = &spec.runner.logs;
    if wanted == DEFAULT_LOGS && !facts.can_create(wanted) {
        format!("{}/fluxout", spec.paths().config_root())
    } else {
        wanted.clone()
    }
}

/// How long the program, or its jobs, may take to end at a stop, in seconds: the grace period without a reserve for the
/// end of the instance.
pub fn time_to_end(resolved: &Resolved) -> f64 {
    let grace = resolved.facts.grace_period.unwrap_or(DEFAULT_GRACE_PERIOD) as f64;
    // The instance shuts down in two seconds, on a busy node in four: the reserve is a quarter of the grace period, but
    // at least 4 seconds, and at most 10. With an archive, it is half: how long the dump takes is not known. The program
    // gets at least half of the grace period.
    let reserve = if resolved.spec.archive.is_some() {
        grace / 2.0
    } else {
        (grace / 4.0).clamp(4.0, 10.0)
    };
    grace - reserve.min(grace / 2.0)
}

/// The longest time that a follower delays a stop, in seconds, so that the lead can end the instance: nine tenths of
/// the grace period, and from 40 seconds on all but 4. It is longer than the lead gives its program ([`time_to_end`]).
pub fn hold_stop(facts: &Facts) -> f64 {
    let grace = facts.grace_period.unwrap_or(DEFAULT_GRACE_PERIOD);
    (grace as f64 - 4.0).max(share(grace, 0.9))
}

/// Seconds from a stop until the agent kills what still runs, shortly before the kubelet would kill everything: 5 % of
/// the grace period before its end, but at most 2 seconds. It is longer than [`hold_stop`]. None: the grace period is
/// unknown.
pub fn kill_after(facts: &Facts) -> Option<f64> {
    let after = |grace: u64| (grace as f64 - 2.0).max(share(grace, 0.95));
    facts.grace_period.map(after)
}

/// A fraction (0 to 1) of the pod's grace period, in seconds. If the grace period is unknown, of Kubernetes' default.
pub fn grace_share(facts: &Facts, fraction: f64) -> f64 {
    share(facts.grace_period.unwrap_or(DEFAULT_GRACE_PERIOD), fraction)
}

/// A fraction of `grace` seconds, rounded to whole milliseconds.
fn share(grace: u64, fraction: f64) -> f64 {
    (grace as f64 * fraction * 1e3).round() / 1e3
}

/// The pod's name in the hostlist: its host name. It is made from the completion index with hostNetwork, where the host
/// name is the node's, and for assumed facts without a host name.
fn hostname(spec: &AgentSpec, facts: &Facts) -> Result<String, PlanError> {
    let host = |index| Ok(flux_shared::names::host(&spec.name, index));
    match (facts.index, facts.hostname.is_empty()) {
        (Some(index), _) if spec.network.host_network => host(index),
        (None, false) if spec.network.host_network => Err(PlanError::NoIndex {
            host: facts.hostname.clone(),
        }),
        (index, true) => host(index.unwrap_or(0)),
        (_, false) => Ok(facts.hostname.clone()),
    }
}

/// The completion index, else the number at the end of the host name.
fn index(hostname: &str, facts: &Facts) -> Option<u32> {
    facts.index.or_else(|| hostname.rsplit('-').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_the_nodes_network_a_pod_is_known_by_its_index_alone() {
        let of = |spec: &str, hostname: &str, index| {
            let spec = AgentSpec::from_toml(&format!("name = 'mc'\nsize = 3\n{spec}")).unwrap();
            let facts = Facts {
                hostname: hostname.into(),
                index,
                ..Facts::default()
            };
            Resolved::new(&spec, &facts)
                .map(|resolved| (resolved.hostname.clone(), resolved.rank, resolved.index()))
        };
        let nodes = "[network]\nhost_network = true";
        assert_eq!(of(nodes, "node-7", Some(2)), Ok(("mc-2".into(), 2, 2)));
        assert_eq!(of(nodes, "", Some(1)), Ok(("mc-1".into(), 1, 1)), "dry-run");
        // A node may be called as a pod is.
        assert_eq!(of(nodes, "mc-0", Some(1)), Ok(("mc-1".into(), 1, 1)));
        let burst = format!("{nodes}\nhostlist = 'other-[0-3],mc-[0-2]'");
        assert_eq!(
            of(&burst, "node-7", Some(1)),
            Ok(("mc-1".into(), 5, 1)),
            "the rank is its place in the list"
        );
        let error = of(nodes, "node-7", None).unwrap_err();
        assert!(
            error.to_string().contains("`node-7`") && error.hint().contains("JOB_COMPLETION_INDEX"),
            "{error}"
        );
        assert!(
            matches!(of(nodes, "node-7", Some(3)), Err(PlanError::NotInHostlist { host, .. }) if host == "mc-3")
        );
        let error = of("", "mc-1.flux-service.default.svc.cluster.local", Some(1)).unwrap_err();
        assert!(
            matches!(error, PlanError::NotInHostlist { .. }),
            "names of pods are not guessed: {error}"
        );
    }

    /// If a follower left before the lead has ended its program, the program would lose its nodes. If the agent killed
    /// the program earlier, the program would not get all of [`time_to_end`].
    #[test]
    fn a_stop_of_any_grace_period_has_its_steps_in_order() {
        for grace in [1, 2, 5, 10, 30, 39, 40, 41, 60, 100, 200, 300, 3600, 86_400] {
            for archive in ["", "archive = '/state.tgz'"] {
                let spec = AgentSpec::from_toml(&format!("name = 'mc'\n{archive}")).unwrap();
                let facts = Facts {
                    hostname: "mc-0".into(),
                    grace_period: Some(grace),
                    ..Facts::default()
                };
                let program = time_to_end(&Resolved::new(&spec, &facts).unwrap());
                let (hold, kill) = (hold_stop(&facts), kill_after(&facts).unwrap());
                let ordered = program < hold && hold < kill && kill < grace as f64;
                assert!(ordered, "of {grace} s: {program} < {hold} < {kill}");
            }
        }
        let at_30 = Facts {
            grace_period: Some(30),
            ..Facts::default()
        };
        assert_eq!((hold_stop(&at_30), kill_after(&at_30)), (27.0, Some(28.5)));
    }

    #[test]
    fn logs_default_to_tmp_when_writable_and_own_path_stays() {
        let spec = |text: &str| AgentSpec::from_toml(&format!("name = 'mc'\n{text}")).unwrap();
        let usual = Facts::default();
        assert_eq!(logs(&spec(""), &usual), "/tmp/fluxout");
        let mut bare = Facts {
            present: ["/".to_owned()].into(),
            writable: [].into(),
            ..Facts::default()
        };
        assert_eq!(logs(&spec(""), &bare), "/mnt/flux/config/fluxout");
        assert_eq!(logs(&spec("[runner]\nlogs = '/data/out'"), &bare), "/data/out");
        bare.present.insert("/tmp".into());
        assert_eq!(logs(&spec(""), &bare), "/mnt/flux/config/fluxout");
        bare.writable.insert("/tmp".into());
        assert_eq!(logs(&spec(""), &bare), "/tmp/fluxout");
    }
}
