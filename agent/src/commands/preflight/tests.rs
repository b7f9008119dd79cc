use super::*;
use flux_agent_plan::plan::PlanError;
use flux_shared::agent_spec::AgentSpec;

/// The findings in a good pod of four.
fn good_findings<'a>(instance: &'a Instance, facts: &'a Facts) -> Findings<'a> {
    Findings {
        instance,
        facts,
        declared_cores: None,
        cpu_limit: facts.cpu_quota,
        has_users_config: false,
        lacks_kill: false,
        places: vec![("/mnt/flux".into(), true), ("/root".into(), true)],
        shared_memory: Some(1 << 30),
        huge_pages: vec![HugePages {
            kibibytes: 2048,
            pages: 64,
            limit: Some(64 << 21),
        }],
        numa: Some(Numa {
            nodes: 2,
            allowed: 1,
            largest: 8,
        }),
        mig_parts: 1,
        rdma: 2,
        memory_lock: None,
        certificate: Ok("ABCDEFGH".into()),
        resources: Some(ResourceTotals { hosts: 4, cores: 4 }),
        libc: Some(Libc {
            machine: std::env::consts::ARCH,
            loader: "/lib64/ld.so".into(),
            has_loader: true,
            wanted: Some(34),
            offered: Some(36),
        }),
        bash_trouble: None,
        clock_behind: false,
        own_name: Some(Ok(vec!["10.0.0.5".parse().unwrap()])),
        other_names: Some(Names {
            asked: 3,
            left: 0,
            missing: Vec::new(),
            failure: None,
        }),
        parent: Some(("mc-0.flux.", Ok(()))),
    }
}

/// The checks that do not pass for a good pod changed by `change`.
fn troubles(facts: Facts, change: impl FnOnce(&mut Findings)) -> Vec<(Level, &'static str, String)> {
    let spec = AgentSpec::from_toml("name='mc'\nsize=4").unwrap();
    let facts = Facts {
        index: Some(1),
        ..facts
    };
    let instance = Instance::of(&spec, &facts).unwrap();
    let mut findings = good_findings(&instance, &facts);
    change(&mut findings);
    let checks = judge(&findings);
    checks
        .into_iter()
        .filter(|check| check.level != Pass)
        .map(|check| (check.level, check.topic, check.text))
        .collect()
}

fn only(level: Level, topic: &str, text: &str, change: impl FnOnce(&mut Findings)) {
    let found = troubles(Facts::default(), change);
    assert_eq!(found.len(), 1, "{topic}: {found:?}");
    assert_eq!((found[0].0, found[0].1), (level, topic), "{found:?}");
    assert!(found[0].2.contains(text), "{found:?}");
}

#[test]
fn a_good_pod_passes() {
    assert_eq!(troubles(Facts::default(), |_| {}), []);
}

#[test]
fn each_trouble_is_found_alone_with_its_text() {
    only(Fail, "user", "DAC_OVERRIDE and KILL", |f| f.lacks_kill = true);
    only(Fail, "dns", "Does the cluster's DNS run", |f| {
        f.own_name = Some(Err(NameError::NoServer))
    });
    only(Fail, "parent", "network policy", |f| {
        let missing = Missing::Route {
            address: "10.0.0.1".parse().unwrap(),
            why: "no answer".into(),
        };
        f.parent = Some(("mc-0.flux.", Err(missing)));
    });
    only(Fail, "cert", "Secret", |f| {
        f.certificate = Err("there is no certificate".into())
    });
    only(Warn, "cpus", "8 are declared", |f| {
        f.declared_cores = Some(8);
    });
    only(Fail, "R", "5 nodes", |f| {
        f.resources = Some(ResourceTotals { hosts: 5, cores: 4 })
    });
    only(Fail, "R", "noverify", |f| {
        f.has_users_config = true;
        f.resources = Some(ResourceTotals { hosts: 4, cores: 64 })
    });
    only(Warn, "R", "share", |f| {
        f.resources = Some(ResourceTotals { hosts: 4, cores: 64 })
    });
    only(Warn, "gpus", "one slice per pod", |f| f.mig_parts = 2);
    only(Warn, "mpi", "IPC_LOCK", |f| f.memory_lock = Some(8 << 20));
    only(Warn, "shm", "64 MiB", |f| f.shared_memory = Some(64 << 20));
    only(
        Warn,
        "shm",
        "there is no /dev/shm: MPI programs need it. Mount an emptyDir",
        |f| f.shared_memory = None,
    );
    only(Warn, "huge", "hugepages-2Mi", |f| f.huge_pages[0].limit = Some(0));
    only(Warn, "huge", "hugepages-1Gi", |f| {
        (f.huge_pages[0].kibibytes, f.huge_pages[0].limit) = (1 << 20, Some(0));
    });
    let remedy = "of 64 KiB, this container may use none: programs that map them are killed by SIGBUS. \
                  Set limits.hugepages-64Ki";
    only(Warn, "huge", remedy, |f| {
        f.huge_pages[0].kibibytes = 64;
        f.huge_pages[0].limit = Some(0);
    });
    only(Warn, "names", "1 of 3 other hosts have no address: mc-2", |f| {
        f.other_names.as_mut().unwrap().missing.push("mc-2".into());
    });
    only(Fail, "write", "fsGroup", |f| f.places[0].1 = false);
    only(Warn, "write", "/root", |f| f.places[1].1 = false);
    only(Fail, "clock", "NTP", |f| f.clock_behind = true);
    only(Fail, "arch", "nodeSelector", |f| {
        f.libc.as_mut().unwrap().machine = "riscv64"
    });
    only(Fail, "libc", "Alpine", |f| {
        f.libc.as_mut().unwrap().has_loader = false
    });
    only(Fail, "libc", "2.38", |f| {
        f.libc.as_mut().unwrap().wanted = Some(38)
    });
}

#[test]
fn preflight_warns_about_the_pods_own_conditions() {
    let nameless = troubles(
        Facts {
            uid: 1000,
            ..Facts::default()
        },
        |_| {},
    );
    assert!(
        matches!(&nameless[..], [(Warn, "user", text)] if text.contains("1000")),
        "{nameless:?}"
    );
    let starved = troubles(
        Facts {
            cpu_quota: Some(0.5),
            ..Facts::default()
        },
        |_| {},
    );
    assert!(
        matches!(&starved[..], [(Warn, "cpus", text)] if text.contains("one core")),
        "{starved:?}"
    );
    let cramped = troubles(
        Facts {
            cores: 128,
            ..Facts::default()
        },
        |f| f.shared_memory = Some(128 << 20),
    );
    let wanted = "512 MiB for 128 tasks";
    assert!(
        matches!(&cramped[..], [(Warn, "shm", text)] if text.contains(wanted)),
        "{cramped:?}"
    );
    let throttled = Facts {
        cpuset: Some(8),
        cpu_quota: Some(4.0),
        ..Facts::default()
    };
    let throttled = troubles(throttled, |_| {});
    assert!(
        matches!(&throttled[..], [(Warn, "cpus", text)] if text.contains("8 CPUs of its own")),
        "{throttled:?}"
    );
    let spread = Facts {
        cpuset: Some(8),
        ..Facts::default()
    };
    let spread = troubles(spread, |f| {
        f.numa = Some(Numa {
            nodes: 2,
            allowed: 2,
            largest: 8,
        })
    });
    assert!(
        matches!(&spread[..], [(Warn, "numa", text)] if text.contains("topologyManagerPolicy")),
        "{spread:?}"
    );
    // With IPv4 and IPv6, DNS may list the other address first.
    let second = troubles(
        Facts {
            address: Some("fd00::5".into()),
            ..Facts::default()
        },
        |f| f.own_name = Some(Ok(vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()])),
    );
    assert_eq!(second, []);
    let stale = troubles(
        Facts {
            address: Some("10.0.0.9".into()),
            ..Facts::default()
        },
        |_| {},
    );
    assert!(
        matches!(&stale[..], [(Warn, "dns", text)] if text.contains("older pod")),
        "{stale:?}"
    );
}

#[test]
fn missing_own_name_fails_only_on_the_lead() {
    let spec = AgentSpec::from_toml("name='mc'\nsize=4").unwrap();
    let server = "10.96.0.10".parse().unwrap();
    for error in [NameError::NoSuchName(server), NameError::NoAddress(server)] {
        for (index, level) in [(0, Fail), (1, Warn)] {
            let facts = Facts {
                index: Some(index),
                ..Facts::default()
            };
            let instance = Instance::of(&spec, &facts).unwrap();
            let mut findings = good_findings(&instance, &facts);
            findings.own_name = Some(Err(error.clone()));
            let checks = judge(&findings);
            let dns = checks.iter().find(|check| check.topic == "dns").unwrap();
            assert_eq!(dns.level, level, "{dns:?}");
            assert_eq!(dns.text.contains("minimalService"), level == Warn, "{dns:?}");
        }
    }
}

#[test]
fn preflight_lists_only_the_first_missing_names() {
    let missing = (0..7).map(|number| format!("mc-{number}")).collect();
    let (level, text) = other_names(&Names {
        asked: 40,
        left: 9,
        missing,
        failure: None,
    });
    assert_eq!(level, Warn);
    assert!(
        text.starts_with("7 of 40 other hosts have no address (9 more were not looked up in time): "),
        "{text}"
    );
    assert!(text.contains("mc-4 and 2 more."), "{text}");
}

/// A pod whose name could not be looked up may run.
#[test]
fn preflight_blames_dns_for_names_without_an_answer() {
    let silent = NameError::Silent([127, 0, 0, 53].into());
    let (level, text) = other_names(&Names {
        asked: 0,
        left: 3,
        missing: Vec::new(),
        failure: Some(silent),
    });
    assert_eq!(
        (level, text.as_str()),
        (
            Warn,
            "0 other hosts have an address (3 more could not be looked up: the DNS server 127.0.0.53 does not \
             answer). Does the cluster's DNS run, and does /etc/resolv.conf name it?"
        )
    );
}

#[test]
fn missing_flux_fails_with_the_planners_message() {
    let facts = Facts {
        flux_on_path: None,
        ..Facts::default()
    };
    let spec = AgentSpec::from_toml("name='mc'\n[view]\nenabled=false").unwrap();
    let instance = Instance::of(&spec, &facts).unwrap();
    let Err(error @ PlanError::FluxMissing(_)) = &instance.flux else {
        panic!("{:?}", instance.flux)
    };
    let flux_check = Check {
        level: Fail,
        topic: "flux",
        text: format!("{error}: {}", error.hint()),
    };
    assert_eq!(judge(&good_findings(&instance, &facts))[0], flux_check);
}

#[test]
fn preflight_warns_when_flux_finds_no_bash() {
    let found = troubles(Facts::default(), |findings| {
        findings.bash_trouble = Some("no bash".into());
    });
    assert_eq!(found, [(Warn, "bash", "no bash".to_owned())]);
}
