//! Names of images in messages. The kubelet passes on a name as it is in the pod. The container runtime writes it in
//! full, with the registry and the tag.

/// Whether a message of the kubelet or the container runtime names this image.
pub(crate) fn is_named(message: &str, image: &str) -> bool {
    let image = canonical(image);
    possible_names(message).any(|name| canonical(name) == image)
}

/// The texts in a message that may be names of images: those between quotes, and those after `docker://`.
fn possible_names(message: &str) -> impl Iterator<Item = &str> {
    let quoted = message.split('"');
    let addresses = message
        .split("docker://")
        .skip(1)
        .filter_map(|rest| rest.split_whitespace().next());
    // A message within another one has its quotes escaped.
    quoted
        .chain(addresses)
        .map(|name| name.trim_end_matches(['\\', ':', ',', '"']))
}

/// The name in full, as container runtimes write it. A tag beside a digest is left out, since it has no effect.
fn canonical(name: &str) -> String {
    let (name, digest) = match name.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (name, None),
    };
    let (name, tag) = match name.rsplit_once(':') {
        // Otherwise the colon is that of the registry's port.
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (name, "latest"),
    };
    let (registry, path) = match name.split_once('/') {
        Some(("index.docker.io", path)) => ("docker.io", path),
        Some((registry, path)) if registry.contains(['.', ':']) || registry == "localhost" => {
            (registry, path)
        }
        _ => ("docker.io", name),
    };
    let library = if registry == "docker.io" && !path.contains('/') {
        "library/"
    } else {
        ""
    };
    let version = match digest {
        Some(digest) => format!("@{digest}"),
        None => format!(":{tag}"),
    };
    format!("{registry}/{library}{path}{version}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_recognized_in_each_way_to_write_it() {
        for (image, in_full) in [
            ("app", "docker.io/library/app:latest"),
            ("app:1", "docker.io/library/app:1"),
            ("library/app:1", "docker.io/library/app:1"),
            ("docker.io/app:1", "docker.io/library/app:1"),
            ("index.docker.io/team/app", "docker.io/team/app:latest"),
            ("ghcr.io/team/app", "ghcr.io/team/app:latest"),
            ("registry:5000/app", "registry:5000/app:latest"),
            ("localhost/app:1", "localhost/app:1"),
            ("app@sha256:0a", "docker.io/library/app@sha256:0a"),
            ("registry:5000/app:1@sha256:0a", "registry:5000/app@sha256:0a"),
        ] {
            for message in [
                format!("Back-off pulling image \"{image}\""),
                format!(
                    "rpc error: code = NotFound desc = failed to pull and unpack image \"{in_full}\": not found"
                ),
                format!("ErrImagePull: \"failed to pull: \\\"{in_full}\\\": not found\""),
                format!("initializing source docker://{image}: reading manifest"),
            ] {
                assert!(is_named(&message, image), "{image}: {message}");
                assert!(!is_named(&message, "app:2"), "{message}");
            }
        }
    }

    #[test]
    fn image_with_a_similar_name_is_not_recognized() {
        let message = "failed to pull and unpack image \"docker.io/library/my-app:1\"";
        for image in [
            "app:1",
            "my-app",
            "my-app:10",
            "team/my-app:1",
            "ghcr.io/my-app:1",
        ] {
            assert!(!is_named(message, image), "{image}");
        }
    }
}
