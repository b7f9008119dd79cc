//! Runs each distinct published manifest in the agent to its end. For comparison, one bash runs the same
//! snippets, as the Go operator's entrypoint pasted them. Both must leave the same variables, directory, R and
//! program calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use flux_shared::agent_spec::{AgentSpec, Program};
use flux_shared::command_words::Word;
use flux_shared::validate::validate;
use flux_shared::{derive, manifest};
use test_support::upstream_manifests::manifests;

use crate::image::{AGENT, Container, Ended, Image, RECORD, fake_flux, real_flux, run};

/// Programs that only record their call here: they use the network, come with these images, or take long.
const STUBS: [&str; 19] = [
    "apt-get",
    "yum",
    "dnf",
    "curl",
    "git",
    "oras",
    "pip",
    "pip3",
    "python3",
    "make",
    "hwloc-ls",
    "lscpu",
    "hwinfo",
    "compspec",
    "sshd",
    "sudo",
    "spack",
    "singularity",
    "sleep",
];
const STUB: &str = "#!/bin/sh\necho \"${0##*/} $*\" >>/record/calls\n";
/// Creates the requested file.
const WGET: &str = "#!/bin/sh\necho \"${0##*/} $*\" >>/record/calls\nwhile [ $# -gt 0 ]; do [ \"$1\" = -O ] && : >\"$2\"; shift; done\nexit 0\n";
/// The program at the end of a run. It records what the snippets have left.
const PROGRAM: &str = "#!/bin/sh\npwd >/record/directory\nexec env >/record/environment\n";
/// Like third-party scripts, it reads variables that are not set.
const PROFILE: &str = "[ -z \"$SPACK_ROOT\" ] && SPACK_ROOT=/opt/spack\nexport SPACK_ENV=/opt/env \"MANPATH=/opt/env/man:$MANPATH\"\n\
    export PATH=\"/opt/env/bin:$PATH\"\n";
const SETUP: &str =
    "spack() { [ -n \"$SPACK_SHELL\" ] || export SPACK_SHELL=bash; command spack \"$@\"; }\n: \"$PS1\"\n";
const SCRIPTS: [(&str, &str); 4] = [
    ("/etc/profile.d/z10_spack_environment.sh", PROFILE),
    ("/opt/spack-environment/activate.sh", PROFILE),
    ("/opt/intel/mpi/latest/env/vars.sh", PROFILE),
    ("/opt/spack-environment/spack/share/spack/setup-env.sh", SETUP),
];
const FOLDERS: [&str; 5] = [
    "/home/flux/examples/reaxff/HNS",
    "/opt/lammps/examples/reaxff/HNS",
    "/opt/info",
    "/opt/compspec-go/bin",
    "/mnt/flux/config/etc/flux/system",
];

fn image(spec: &AgentSpec) -> Image {
    let image = Image::usual();
    image.with_programs(&["cat", "ls", "mkdir", "chmod", "touch", "seq", "cp", "nproc"]);
    for name in STUBS {
        // The file may be a hard link to the host's, which must not be changed.
        let _ = fs::remove_file(image.at(&format!("/usr/bin/{name}")));
        image.file(&format!("/usr/bin/{name}"), 0o755, STUB);
    }
    image.file("/usr/bin/wget", 0o755, WGET);
    image.file("/usr/sbin/sshd", 0o755, STUB);
    image.file("/usr/bin/program", 0o755, PROGRAM);
    image.file("/opt/compspec-go/bin/compspec", 0o755, STUB);
    SCRIPTS
        .iter()
        .for_each(|(path, text)| image.file(path, 0o644, text));
    FOLDERS
        .iter()
        .for_each(|path| fs::create_dir_all(image.at(path)).unwrap());
    for folder in ["/usr/local/bin", "/code"] {
        fs::create_dir_all(image.at(folder)).unwrap();
    }
    // A published snippet copies this file.
    image.file("/sys/fs/cgroup/cpuset.cpus", 0o644, "0-3\n");
    if !spec.view.enabled {
        // Spack's profile puts the folder of its Flux on the PATH.
        let flux = if sources_profile(spec) {
            "/opt/env/bin/flux"
        } else {
            "/usr/bin/flux"
        };
        image.program(fake_flux(), flux);
        // Real Flux puts its own folder first into the PATH. The fake Flux does not, so it is in both folders.
        if let Some(root) = &spec.view.install_root {
            image.program(fake_flux(), &format!("{root}/bin/flux"));
        }
    }
    image.file(flux_shared::paths::SPEC_FILE, 0o644, &spec.to_toml().unwrap());
    image.certificate((0, 0));
    image.hosts(&spec.name, &spec.network.service, spec.size);
    image.file("/dev/termination-log", 0o666, "");
    image
}

/// Whether a snippet in all pods sources the profile.
fn sources_profile(spec: &AgentSpec) -> bool {
    let snippets = &spec.runner.snippets;
    let before = [&snippets.init, &snippets.pre_command, &snippets.pre];
    let profiles = || SCRIPTS.iter().filter(|(_, text)| *text == PROFILE);
    let mut sources = before.into_iter().flatten();
    sources.any(|source| profiles().any(|(path, _)| source.contains(path)))
}

/// The spec of a document, with the program, the sizes and external parts replaced.
fn reduced(document: &serde_json::Value) -> Option<AgentSpec> {
    let valid = validate(&manifest::from_value(document).ok()?).ok()?;
    let mut spec = derive::agent_spec(&valid);
    spec.size = spec.size.min(2);
    // The namespace in the images' host names.
    spec.namespace = "default".into();
    (spec.max_size, spec.quorum, spec.elastic) = (None, None, false);
    // The lead would be in another cluster.
    (spec.network.lead, spec.network.hostlist) = (None, None);
    // The API is fetched from the network, and an interactive cluster would not end.
    (spec.runner.restful, spec.runner.interactive) = (None, false);
    // These are other containers, and passwords from a Secret.
    spec.sidecars.clear();
    spec.users.clear();
    // These are programs of the image.
    spec.runner.prefix.clear();
    spec.flux.wrap = None;
    let program = || vec![Word::literal("program")];
    spec.runner.program = match spec.runner.program {
        Program::Submit { .. } => Program::Submit { words: program() },
        _ => Program::Launcher { words: program() },
    };
    Some(spec)
}

/// An image and a script with the lead's snippets unchanged, for one bash.
fn in_one_bash(spec: &AgentSpec) -> (Image, String) {
    let snippets = spec.runner.snippets.before_broker(true);
    let text: Vec<&str> = snippets.map(String::as_str).collect();
    let prelude = format!(
        "export PATH=\"$PATH:/mnt/flux/view/bin\"\nhosts={} viewroot=/mnt/flux/view configroot=/mnt/flux/config\n",
        spec.hostlist()
    );
    // `wait`, because background programs record their calls, too.
    (
        image(spec),
        format!(
            "{prelude}{}\nwait\n/usr/bin/program\n{}\n",
            text.join("\n"),
            spec.runner.snippets.post.as_deref().unwrap_or_default()
        ),
    )
}

fn read(image: &Image, path: &str) -> String {
    fs::read_to_string(image.at(path)).unwrap_or_default()
}

/// What the snippets left. Of the variables, only those with these names.
fn left(image: &Image, names: &BTreeSet<String>) -> BTreeMap<String, String> {
    let text = read(image, &format!("{RECORD}/environment"));
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let mut all: BTreeMap<String, String> = pairs
        .filter(|(name, _)| names.contains(*name))
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    all.insert("(directory)".into(), read(image, &format!("{RECORD}/directory")));
    all.insert("(R)".into(), read(image, "/mnt/flux/config/etc/flux/system/R"));
    // The order of background programs varies.
    let calls = read(image, &format!("{RECORD}/calls"));
    let calls: BTreeSet<&str> = calls.lines().collect();
    all.insert("(calls)".into(), calls.into_iter().collect::<Vec<_>>().join("\n"));
    all
}

/// The names of the program's variables, without those that shells, Flux or the agent set.
fn names_in(image: &Image) -> BTreeSet<String> {
    let text = read(image, &format!("{RECORD}/environment"));
    let names = text
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.0.to_owned()));
    names
        .filter(|name| !["_", "SHLVL", "OLDPWD", "PWD", "PATH", "HOME"].contains(&name.as_str()))
        .collect()
}

fn check(name: &str, spec: &AgentSpec) -> Result<(), String> {
    let (reference, script) = in_one_bash(spec);
    run(&[Container::new(
        &reference,
        &format!("{}-0", spec.name),
        &["/bin/bash", "-c", &script],
    )]);
    let pods: Vec<Image> = (0..spec.size).map(|_| image(spec)).collect();
    let containers = pods.iter().enumerate().map(|(index, image)| {
        let mut container = Container::new(image, &format!("{}-{index}", spec.name), &[AGENT, "run"]);
        container.set("JOB_COMPLETION_INDEX", &index.to_string());
        container
    });
    let ended: Vec<Ended> = run(&containers.collect::<Vec<_>>());
    if ended.iter().any(|ended| ended.code != 0) {
        return Err(format!("{name}: {ended:#?}"));
    }
    let names = names_in(&reference);
    let (mut want, have) = (left(&reference, &names), left(&pods[0], &names));
    // The bash has an R only if a snippet writes one. If none does, the agent's R is not compared.
    if want["(R)"].is_empty() {
        want.insert("(R)".into(), have["(R)"].clone());
    }
    if want == have {
        Ok(())
    } else {
        Err(format!("{name}:\nin one bash {want:#?}\nhere {have:#?}"))
    }
}

/// The reduced specs of all documents, with a name for messages. Specs that differ only in their name count once.
fn distinct(folder: &Path) -> BTreeMap<String, (String, AgentSpec)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut all = BTreeMap::new();
    for file in files {
        for (number, document) in manifest::documents(&fs::read_to_string(&file).unwrap())
            .unwrap()
            .iter()
            .enumerate()
        {
            let Some(spec) = reduced(document) else { continue };
            let shape = format!(
                "{:?}",
                AgentSpec {
                    name: "mc".into(),
                    ..spec.clone()
                }
            );
            let name = format!("{}#{number}", file.file_name().unwrap().to_string_lossy());
            all.entry(shape).or_insert((name, spec));
        }
    }
    all
}

#[test]
fn published_snippets_leave_what_they_leave_in_one_bash() {
    if real_flux().is_some() {
        eprintln!("LEFT OUT with FLUX: these snippets run with stubs of programs, and with the fake Flux");
        return;
    }
    let Some(folder) = manifests("public") else { return };
    let all = distinct(&folder);
    assert!(
        all.len() >= 80,
        "{} distinct documents in {}",
        all.len(),
        folder.display()
    );
    let waiting = Mutex::new(all.into_values().collect::<Vec<_>>());
    let failures = Mutex::new(Vec::new());
    let check_all = || {
        while let Some((name, spec)) = { waiting.lock().unwrap().pop() } {
            failures.lock().unwrap().extend(check(&name, &spec).err());
        }
    };
    std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(check_all))));
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
