//! Decides how the view (the image with Flux) gets into the pods.

use flux_shared::validate::{ValidMiniCluster, ViewSource};

use super::{Options, RenderFacts};
use crate::labels;

/// How the containers get the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewFrom {
    /// The view is disabled.
    Nowhere,
    /// Every container runs the view's own image, so links are enough.
    OwnImage,
    /// The view's image is mounted as a volume and linked to.
    ImageVolume,
    /// An init container copies the view.
    Copy,
}

impl ViewFrom {
    /// How the containers of this cluster get the view.
    pub(super) fn of(cluster: &ValidMiniCluster, options: &Options, facts: &RenderFacts) -> ViewFrom {
        if !cluster.view.enabled {
            return ViewFrom::Nowhere;
        }
        // Containers of the view's own image need neither a mount nor a copy, unless the spec asks for a copy. The
        // installation's `copy` does not count here: it only says what to do instead of mounting.
        let spec_asks_for_copy = cluster.view.source == Some(ViewSource::Copy);
        if !spec_asks_for_copy && is_image_of_all_containers(cluster, options) {
            return ViewFrom::OwnImage;
        }
        // The spec's `imageVolume` does not count either, since the mount has failed.
        if facts.image_volume_failed {
            return ViewFrom::Copy;
        }
        match cluster.view.source.unwrap_or(options.view_source) {
            ViewSource::ImageVolume => ViewFrom::ImageVolume,
            ViewSource::Auto if facts.nodes_mount_images => ViewFrom::ImageVolume,
            ViewSource::Auto | ViewSource::Copy => ViewFrom::Copy,
        }
    }

    /// Value of the Job's annotation [`labels::VIEW`].
    pub fn name(self) -> &'static str {
        match self {
            ViewFrom::Nowhere => "none",
            ViewFrom::OwnImage => "ownImage",
            ViewFrom::ImageVolume => labels::VIEW_IS_MOUNTED,
            ViewFrom::Copy => "copy",
        }
    }
}

/// Whether the nodes decide how the view gets into the pods: it is mounted if all of them can mount images.
pub fn depends_on_nodes(cluster: &ValidMiniCluster, options: &Options) -> bool {
    let view_if = |nodes_mount_images| {
        ViewFrom::of(
            cluster,
            options,
            &RenderFacts {
                nodes_mount_images,
                ..RenderFacts::default()
            },
        )
    };
    view_if(true) != view_if(false)
}

/// Whether every container with the view (the runner and the sidecars) runs the view's image.
fn is_image_of_all_containers(cluster: &ValidMiniCluster, options: &Options) -> bool {
    let view_image = image(cluster, options);
    let sidecars = cluster.sidecars.iter().map(|sidecar| &sidecar.container);
    [&cluster.runner.container]
        .into_iter()
        .chain(sidecars)
        .all(|container| container.image == view_image)
}

/// The view's image.
pub fn image<'a>(cluster: &'a ValidMiniCluster, options: &'a Options) -> &'a str {
    cluster.view.image.as_deref().unwrap_or(&options.view_image)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(spec: &str, source: ViewSource, facts: &RenderFacts) -> ViewFrom {
        let options = Options {
            view_source: source,
            view_image: "view:1".into(),
            ..Options::default()
        };
        ViewFrom::of(&crate::testing::cluster(spec), &options, facts)
    }

    #[test]
    fn view_source_of_cluster_wins_and_auto_depends_on_nodes() {
        let new_nodes = RenderFacts {
            nodes_mount_images: true,
            ..RenderFacts::default()
        };
        let old_nodes = RenderFacts::default();
        let of = |own: &str, source, facts: &RenderFacts| {
            from(&format!("flux: {{container: {{{own}}}}}"), source, facts)
        };
        assert_eq!(of("", ViewSource::Auto, &new_nodes), ViewFrom::ImageVolume);
        assert_eq!(of("", ViewSource::Auto, &old_nodes), ViewFrom::Copy);
        assert_eq!(of("", ViewSource::Copy, &new_nodes), ViewFrom::Copy);
        assert_eq!(of("", ViewSource::ImageVolume, &old_nodes), ViewFrom::ImageVolume);
        assert_eq!(
            of("source: copy", ViewSource::ImageVolume, &new_nodes),
            ViewFrom::Copy
        );
        assert_eq!(
            of("source: imageVolume", ViewSource::Copy, &old_nodes),
            ViewFrom::ImageVolume
        );
        assert_eq!(
            of("source: auto", ViewSource::Copy, &new_nodes),
            ViewFrom::ImageVolume
        );
        assert_eq!(
            of("disable: true", ViewSource::ImageVolume, &new_nodes),
            ViewFrom::Nowhere
        );
    }

    #[test]
    fn view_is_copied_after_an_image_volume_failed() {
        let failed = RenderFacts {
            nodes_mount_images: true,
            image_volume_failed: true,
            ..RenderFacts::default()
        };
        assert_eq!(
            from(
                "flux: {container: {source: imageVolume}}",
                ViewSource::Auto,
                &failed
            ),
            ViewFrom::Copy
        );
    }

    #[test]
    fn views_own_image_gets_links_unless_spec_asks_for_copy() {
        let facts = RenderFacts::default();
        let one = "containers: [{image: 'view:1'}]";
        for of_installation in [ViewSource::Auto, ViewSource::ImageVolume, ViewSource::Copy] {
            assert_eq!(from(one, of_installation, &facts), ViewFrom::OwnImage);
        }
        let copied = format!("{one}\nflux: {{container: {{source: copy}}}}");
        assert_eq!(from(&copied, ViewSource::Auto, &facts), ViewFrom::Copy);
        let other = "containers: [{image: 'view:1', runFlux: true}, {image: 'other:1', name: other}]";
        assert_eq!(from(other, ViewSource::Auto, &facts), ViewFrom::Copy);
    }
}
