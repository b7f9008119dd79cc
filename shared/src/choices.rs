//! The values of fields that accept only certain words, for the CRD and the validation.

/// `spec.pod.dnsPolicy`. Not `None`: Kubernetes rejects such a pod unless it names DNS servers, and `spec.pod`
/// cannot name any.
pub(crate) const DNS_POLICIES: &[&str] = &["ClusterFirst", "ClusterFirstWithHostNet", "Default"];

/// `spec.flux.scheduler.queuePolicy`: the policies that Fluxion knows.
pub(crate) const QUEUE_POLICIES: &[&str] = &["fcfs", "easy", "conservative", "hybrid"];

/// How the view gets into the pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ViewSource {
    /// An image volume if every node can mount one, else a copy.
    #[default]
    Auto,
    /// The image is mounted as a volume.
    ImageVolume,
    /// An init container copies the view.
    Copy,
}

impl ViewSource {
    const ALL: [ViewSource; 3] = [ViewSource::Auto, ViewSource::ImageVolume, ViewSource::Copy];
    pub const NAMES: &'static [&'static str] =
        &[Self::ALL[0].name(), Self::ALL[1].name(), Self::ALL[2].name()];

    pub const fn name(self) -> &'static str {
        match self {
            ViewSource::Auto => "auto",
            ViewSource::ImageVolume => "imageVolume",
            ViewSource::Copy => "copy",
        }
    }
}

impl std::str::FromStr for ViewSource {
    type Err = String;

    fn from_str(name: &str) -> Result<ViewSource, String> {
        let found = ViewSource::ALL.into_iter().find(|source| source.name() == name);
        // This is an option's error, too: clap prints the value before it.
        found.ok_or_else(|| format!("must be one of {}", ViewSource::NAMES.join(", ")))
    }
}

/// Whether all pods start or none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Gang {
    /// Each pod starts as soon as there is room for it, which is Kubernetes' default.
    Off,
    /// All or none. If no API of the cluster can do this, no pod is created.
    On,
    /// All or none if an API of the cluster can do this.
    #[default]
    Auto,
}

impl Gang {
    const ALL: [Gang; 3] = [Gang::On, Gang::Off, Gang::Auto];
    pub const NAMES: &'static [&'static str] =
        &[Self::ALL[0].name(), Self::ALL[1].name(), Self::ALL[2].name()];

    pub const fn name(self) -> &'static str {
        match self {
            Gang::Off => "off",
            Gang::On => "on",
            Gang::Auto => "auto",
        }
    }
}

impl std::str::FromStr for Gang {
    type Err = String;

    fn from_str(name: &str) -> Result<Gang, String> {
        // Only the validation parses this, and puts nothing but the field's path before the message.
        let found = Gang::ALL.into_iter().find(|gang| gang.name() == name);
        found.ok_or_else(|| format!("is `{name}`, must be one of {}", Gang::NAMES.join(", ")))
    }
}
