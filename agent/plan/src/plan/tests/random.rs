//! Random specs and facts.

use super::*;

fn word() -> impl Strategy<Value = Word> {
    "[ -~]{0,12}".prop_map(|text| {
        command_words::split(&text)
            .ok()
            .and_then(|split| split.words.first().cloned())
            .unwrap_or(Word::literal(text))
    })
}

fn program() -> impl Strategy<Value = Program> {
    let words = || proptest::collection::vec(word(), 0..4);
    let line = (0u32..9, ".{0,20}").prop_map(|(number, text)| BatchLine { number, text });
    prop_oneof![
        Just(Program::Persistent),
        Just(Program::Diagnostics),
        words().prop_map(|words| Program::Submit { words }),
        words().prop_map(|words| Program::Launcher { words }),
        (".{0,30}", any::<bool>()).prop_map(|(text, launch)| Program::Script { text, launch }),
        proptest::collection::vec(line, 0..4).prop_map(|lines| Program::Batch { lines }),
        ".{0,30}".prop_map(|text| Program::BatchRaw { text }),
    ]
}

prop_compose! {
    fn any_spec()(
        (size, extra, quorum, tasks) in (1u32..40, proptest::option::of(0u32..40), proptest::option::of(1u32..60), 0u32..90),
        (elastic, enabled, quiet, timed, interactive, disable_socket, host_network) in any::<(bool, bool, bool, bool, bool, bool, bool)>(),
        (archive, hostlist, topology, mount) in (
            proptest::option::of(".{0,12}"), proptest::option::of("[a-z0-9\\[\\]\\-,]{0,16}"),
            proptest::option::of("(kary|mincrit|binomial|custom)?:?[0-9]{0,3}"), "/?[a-z /]{0,12}",
        ),
        (lead, cores, wrap, flag) in (
            proptest::option::of(".{0,8}"), proptest::option::of(0u32..200), proptest::option::of(".{0,8}"), ".{0,8}",
        ),
        (program, prefix, snippet, user) in (
            program(), proptest::collection::vec(word(), 0..3), proptest::option::of(".{0,20}"),
            proptest::option::of(("[a-z]{0,5}", any::<u32>(), any::<bool>())),
        ),
    ) -> AgentSpec {
        let mut spec = spec("");
        spec.size = size;
        spec.max_size = extra.map(|extra| size + extra);
        (spec.quorum, spec.tasks, spec.elastic, spec.archive, spec.mount_path) = (quorum, tasks, elastic, archive, mount);
        spec.view.enabled = enabled;
        (spec.network.hostlist, spec.network.host_network) = (hostlist, host_network);
        spec.network.lead = lead.map(|address| RemoteLead { address, port: 8050 });
        (spec.flux.topology, spec.flux.wrap, spec.flux.disable_socket) = (topology, wrap, disable_socket);
        spec.flux.option_flags = vec![flag];
        (spec.logging.quiet, spec.logging.timed) = (quiet, timed);
        spec.runner = Runner { interactive, prefix, cores, program, ..Runner::default() };
        spec.runner.user = user.map(|(name, uid, run_flux_as_root)| RunnerUser { name, uid, run_flux_as_root });
        spec.runner.snippets = Snippets { init: snippet.clone(), post: snippet.clone(), ..Snippets::default() };
        spec.sidecars.insert("side".into(), Sidecar { command: snippet.clone(), script: snippet, ..Sidecar::default() });
        spec
    }
}

prop_compose! {
    fn any_facts()(
        (index, uid, cores, gpus) in (proptest::option::of(0u32..80), 0u32..3, 0u32..300, 0u32..9),
        (quota, hostname, passwd, address) in (
            proptest::option::of(any::<f64>()), prop_oneof![Just(String::new()), Just("mc-1".into()), ".{0,8}"],
            ".{0,40}", proptest::option::of(".{0,12}"),
        ),
        (shell, flux, terminal, cwd) in (proptest::option::of(Just("/bin/sh".to_owned())), any::<bool>(), any::<bool>(), ".{0,9}"),
    ) -> Facts {
        let mut facts = Facts { index, uid, gid: uid, cores, gpus, cpu_quota: quota, hostname, passwd, address, shell, terminal, ..Facts::default() };
        facts.working_directory = cwd;
        facts.view.flux = flux;
        facts
    }
}

proptest! {
    #[test]
    fn random_spec_is_planned_or_rejected_with_a_reason(spec in any_spec(), facts in any_facts()) {
        for role in [PodContainer::Runner, PodContainer::Sidecar("side".into()), PodContainer::Sidecar("none".into())] {
            match build(&spec, &facts, &role) {
                Ok(plan) => {
                    let again = crate::plan::build(&spec, &facts, &role);
                    prop_assert_eq!(again.as_ref(), Ok(&plan), "the same input, the same plan");
                    prop_assert!(serde_json::to_string(&plan).is_ok());
                }
                Err(error) => prop_assert!(!error.to_string().is_empty() && !error.hint().is_empty()),
            }
        }
    }
}
