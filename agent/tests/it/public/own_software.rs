//! An image with its own programs below /opt/software, as made by Spack, and the view next to them. The
//! containers of a pod run one after the other, with the operator's mounts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use flux_shared::validate::validate;
use flux_shared::{derive, manifest};

use crate::image::{AGENT, Container, Ended, Image, fake_flux, real_flux, run};

const SPEC: &str = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: mc}\nspec:\n  size: 1\n  tasks: 1\n  \
    logging: {quiet: true}\n  containers:\n  - image: app\n    command: app -x 1\n    \
    commands: {pre: . /etc/profile.d/z10_spack_environment.sh}\n";

/// An image with a program `app`, and a link to it in /opt/view. `with_own`: the program is below /opt/software.
/// Otherwise /opt/software is empty.
fn spack_image(with_own: bool) -> Image {
    let image = Image::usual();
    // Its view is ready. Here the pod's containers prepare one.
    fs::remove_dir_all(image.at("/mnt/flux")).unwrap();
    let app = "/opt/software/linux-x86_64/app-1/bin/app";
    if with_own {
        image.file(app, 0o755, "#!/bin/sh\necho app \"$@\"\n");
    } else {
        image.file("/opt/app", 0o755, "#!/bin/sh\necho app \"$@\"\n");
    }
    fs::create_dir_all(image.at("/opt/view/bin")).unwrap();
    symlink(
        if with_own { app } else { "/opt/app" },
        image.at("/opt/view/bin/app"),
    )
    .unwrap();
    image.file(
        "/etc/profile.d/z10_spack_environment.sh",
        0o644,
        "export PATH=/opt/view/bin:$PATH\n",
    );
    let valid = validate(&manifest::parse(SPEC).unwrap()).unwrap();
    let spec = derive::agent_spec(&valid);
    image.file(flux_shared::paths::SPEC_FILE, 0o644, &spec.to_toml().unwrap());
    image.hosts(&spec.name, &spec.network.service, spec.size);
    image.file("/dev/termination-log", 0o666, "");
    for folder in [
        "/mnt/flux",
        "/mnt/flux-view",
        "/mnt/flux-software",
        "/mnt/flux-image",
        "/opt/software",
    ] {
        fs::create_dir_all(image.at(folder)).unwrap();
    }
    image
}

fn view_image() -> Image {
    let image = Image::empty();
    // As Spack makes it: a view is a folder below `._view`, with a hash as its name.
    let package = image.at("/opt/software/linux-x86_64/flux-1");
    fs::create_dir_all(image.at("/opt/views/._view/abc/bin")).unwrap();
    if let Some(flux) = real_flux() {
        let prefix = flux.ancestors().nth(2).unwrap();
        fs::create_dir_all(package.join("bin")).unwrap();
        symlink(flux, package.join("bin/flux")).unwrap();
        for folder in ["lib", "libexec"] {
            symlink(prefix.join(folder), package.join(folder)).unwrap();
            let link = image.at("/opt/views/._view/abc").join(folder);
            symlink(Path::new("/opt/software/linux-x86_64/flux-1").join(folder), link).unwrap();
        }
    } else {
        image.program(fake_flux(), "/opt/software/linux-x86_64/flux-1/bin/flux");
    }
    symlink(
        "/opt/software/linux-x86_64/flux-1/bin/flux",
        image.at("/opt/views/._view/abc/bin/flux"),
    )
    .unwrap();
    for folder in ["/mnt/flux-view", "/mnt/flux-software", "/mnt/flux-image"] {
        fs::create_dir_all(image.at(folder)).unwrap();
    }
    image
}

fn bind(from: &Path, to: &str) -> String {
    format!(
        "mkdir -p \"$root{to}\"; mount --rbind {} \"$root{to}\"\n",
        from.display()
    )
}

/// Runs a pod's containers as `uid`. Returns the runner's end. The view is `mounted` or copied.
fn pod(app: &Image, mounted: bool, uid: u32) -> Ended {
    let (view, volumes) = (view_image(), Image::empty());
    for volume in ["/view", "/software", "/config"] {
        fs::create_dir(volumes.at(volume)).unwrap();
        volumes.mode(volume, 0o777);
    }
    app.certificate((uid, uid));
    let image_mount = if mounted {
        bind(view.top(), "/mnt/flux-image")
    } else {
        String::new()
    };
    let staging =
        bind(&volumes.at("/view"), "/mnt/flux-view") + &bind(&volumes.at("/software"), "/mnt/flux-software");
    let run_container = |image: &Image, uid: u32, words: &[&str], mounts: String| {
        let mut container = Container::new(image, "mc-0", &[&[AGENT], words].concat());
        container.ids = (uid, uid);
        container.before = mounts;
        container.set("JOB_COMPLETION_INDEX", "0");
        let ended = run(&[container]).remove(0);
        let is_runner = words == ["run"];
        assert!(is_runner || ended.code == 0, "{words:?}: {ended:?}");
        ended
    };
    let to = ["--to", "/mnt/flux-view/flux"];
    if mounted {
        let agent = Image::empty();
        let images = [
            "--link-view",
            "/mnt/flux-image",
            "--runner-image",
            "/mnt/flux-runner-image",
        ];
        let words = [
            &["install", "--binary", "/etc/flux-agent/bin", to[0], to[1]],
            images.as_slice(),
        ]
        .concat();
        let runner_image = bind(app.top(), "/mnt/flux-runner-image");
        // The user of the agent's image.
        run_container(
            &agent,
            63617,
            &words,
            format!("{staging}{image_mount}{runner_image}"),
        );
    } else {
        let packages = "/mnt/flux-software/packages";
        run_container(
            &view,
            uid,
            &["view", to[0], to[1], "--software", packages],
            staging.clone(),
        );
        let words = [
            "software",
            "--packages",
            packages,
            "--to",
            "/mnt/flux-software/software",
        ];
        run_container(app, uid, &words, staging);
    }
    let mounts = [
        ("/view/flux", "/mnt/flux"),
        ("/config", "/mnt/flux/config"),
        ("/software/software", "/opt/software"),
        ("/software/packages", "/mnt/flux-software/packages"),
    ];
    // With a mounted view, no init container makes the folder of packages.
    let mounts = mounts.iter().filter(|(from, _)| volumes.at(from).exists());
    let mounts: String = mounts.map(|(from, to)| bind(&volumes.at(from), to)).collect();
    run_container(app, uid, &["run"], format!("{mounts}{image_mount}"))
}

#[test]
fn image_keeps_its_own_software_beside_the_views() {
    for (mounted, uid, with_own) in [
        (false, 0, true),
        (true, 0, true),
        (false, 1000, true),
        (true, 1000, true),
        (false, 0, false),
        (true, 0, false),
    ] {
        let app = spack_image(with_own);
        let ended = pod(&app, mounted, uid);
        let case = format!("mounted {mounted}, uid {uid}, own {with_own}: {ended:?}");
        assert_eq!((ended.code, ended.stdout.as_str()), (0, "app -x 1\n"), "{case}");
    }
}
