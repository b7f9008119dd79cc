//! Flux is the image's own, and only a snippet puts it on the PATH, as in images that Spack builds.

use std::fs;
use std::os::unix::fs::symlink;

use flux_shared::exit::Category;
use flux_shared::termination::Ender;

use super::{Pods, codes};
use crate::image::{AGENT, Container, Image, PATH, fake_flux, real_flux};
use crate::live::{Network, Running, eventually, run_words, termination_of};

const FLUX: &str = "/opt/view/bin/flux";
const PROFILE: &str = ". /etc/profile.d/z10_spack_environment.sh";

/// An image whose Flux is in /opt/view, and whose PATH does not have this folder.
fn spack_image(image: &Image) {
    fs::remove_dir_all(image.at("/mnt/flux/view")).unwrap();
    fs::create_dir_all(image.at("/opt/view/bin")).unwrap();
    match real_flux() {
        Some(flux) => symlink(flux, image.at(FLUX)).unwrap(),
        None => image.program(fake_flux(), FLUX),
    }
    let profile = "export PATH=/opt/view/bin:$PATH\n";
    image.file("/etc/profile.d/z10_spack_environment.sh", 0o644, profile);
}

fn pods(size: u32, container: &str) -> Pods {
    let text = format!(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc}}\nspec:\n  size: {size}\n  \
         logging: {{quiet: true}}\n  flux: {{container: {{disable: true}}}}\n  containers:\n  - {{image: app, {container}}}\n"
    );
    Pods::of(&text, spack_image)
}

#[test]
fn flux_that_a_snippet_puts_on_the_path_is_started() {
    let pre = format!("commands: {{pre: {PROFILE}}}");
    for snippets in [
        format!("commands: {{init: {PROFILE}}}"),
        format!("commands: {{brokerPre: {PROFILE}, workerPre: {PROFILE}}}"),
        format!("commands: {{pre: '{PROFILE}; $fluxpath R encode --hosts=mc-[0-1] --cores=0 >/tmp/R'}}"),
        // The user that Flux runs as. The rest of the plan is made again after `pre`.
        format!("fluxUser: {{name: flux, uid: 1000}}, {pre}"),
        pre,
    ] {
        let pods = pods(2, &format!("command: echo ran, {snippets}"));
        let ended = pods.run();
        assert_eq!(codes(&ended), [0, 0], "{snippets}: {ended:?}");
        assert_eq!(ended[0].stdout, "ran\n", "{snippets}");
        if real_flux().is_some() {
            continue;
        }
        for image in &pods.images {
            let record = image.record();
            let starts_broker = |argv: &serde_json::Value| argv[1] == "start";
            let start = record
                .iter()
                .map(|call| &call["argv"])
                .find(|argv| starts_broker(argv));
            assert_eq!(start.unwrap()[0], FLUX, "{snippets}");
        }
    }
}

#[test]
fn flux_that_no_snippet_puts_on_the_path_is_reported() {
    let pods = pods(1, "command: hostname, commands: {pre: echo before}");
    let ended = pods.run().remove(0);
    assert_eq!((ended.code, ended.stdout.as_str()), (242, ""), "{ended:?}");
    assert_eq!(Category::ViewMissing.code(), 242);
    let termination = termination_of(&pods.images[0]);
    assert_eq!(termination.by, Ender::Agent);
    let (cause, message) = (
        "find Flux: `flux` on the PATH does not exist",
        termination.message,
    );
    assert!(
        message.contains(cause) && message.contains("a snippet such as"),
        "{message}"
    );
}

#[test]
fn commands_in_the_pod_find_the_flux_of_a_snippet() {
    let pods = pods(1, &format!("commands: {{pre: {PROFILE}}}"));
    let lead = Running::pod(
        &Container::new(&pods.images[0], "mc-0", &run_words(&[])),
        &Network::new(),
    );
    let path = format!("PATH={PATH}");
    let agent = |words: &[&str]| {
        let output = lead.exec(&[&["env", "-i", &path, "HOME=/root", AGENT], words].concat());
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    };
    eventually("the broker runs", || {
        agent(&["status", "--ready"]).1.then_some(())
    });
    let size = ("1\n".to_owned(), true);
    assert_eq!(agent(&["connect", "--", "flux", "getattr", "size"]), size);
    assert_eq!(agent(&["connect", "--", "sh", "-c", "flux getattr size"]), size);
    assert!(agent(&["preflight"]).0.contains(&format!("flux    {FLUX}\n")));
    let (text, is_stopped) = agent(&["stop"]);
    assert!(is_stopped, "{text}");
    assert_eq!(lead.end().code, 0);
}
