//! Labels and annotations of a MiniCluster for a queue (Kueue), which the operator copies to the Job, and some of them
//! to its pods. They are recognised by their domain.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::problem::Problem;

/// Domains of the queue's labels and annotations.
const DOMAINS: [&str; 2] = ["kueue.x-k8s.io", "provreq.kueue.x-k8s.io"];
/// The label with the name of the queue.
pub const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
/// The annotation with the smallest number of pods that the queue may admit.
pub const MIN_PARALLELISM: &str = "kueue.x-k8s.io/job-min-parallelism";
/// The annotation by which the queue changes an Indexed Job's completions together with its parallelism.
pub const EQUAL_PARALLELISM: &str = "kueue.x-k8s.io/job-completions-equal-parallelism";
/// The annotation that allows resizing a running Job; without it, the queue evicts a Job that is resized.
pub const ELASTIC_JOB: &str = "kueue.x-k8s.io/elastic-job";
/// Prefix of the pods' annotations for topology-aware scheduling.
const OF_PODS: &str = "kueue.x-k8s.io/podset-";
/// The pods' annotations by which the queue fixes the placement of all pods when it admits them. So no pod can be added
/// later.
const FIXES_PLACEMENT: [&str; 2] = [
    "kueue.x-k8s.io/podset-required-topology",
    "kueue.x-k8s.io/podset-preferred-topology",
];

/// Most bytes of labels and annotations for a queue (arbitrary): the operator keeps them for each MiniCluster and for
/// each Job. The Job has them twice: as its own, and in its record of them ([`Queueing::noted`]).
const MOST_BYTES: usize = 4096;

/// Labels and annotations for the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queueing {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Other fields of a MiniCluster that matter to the queue. `size` is not among them: it may change at any time, and a
/// MiniCluster that runs must stay valid.
#[derive(Debug, Clone, Copy)]
pub struct RelatedFields<'a> {
    pub min_size: Option<u32>,
    /// `maxSize` is given: the size may change while the Job runs.
    pub resizes: bool,
    pub job_labels: &'a BTreeMap<String, String>,
    pub pod_annotations: &'a BTreeMap<String, String>,
}

/// Whether a label or an annotation is for the queue.
pub fn is_of_queue(key: &str) -> bool {
    key.split_once('/')
        .is_some_and(|(domain, _)| DOMAINS.contains(&domain))
}

/// The notice for `suspend` of a MiniCluster whose Job is in a queue.
pub fn suspend_without_effect() -> Problem {
    Problem::new(
        "spec.suspend",
        "has no effect in a queue, which alone suspends and resumes what waits in it",
    )
}

impl Queueing {
    /// The labels and annotations of an object that are for the queue.
    pub fn of(
        labels: Option<&BTreeMap<String, String>>,
        annotations: Option<&BTreeMap<String, String>>,
    ) -> Queueing {
        let of_queue = |all: Option<&BTreeMap<String, String>>| {
            let found = all.into_iter().flatten().filter(|(key, _)| is_of_queue(key));
            found.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        Queueing {
            labels: of_queue(labels),
            annotations: of_queue(annotations),
        }
    }

    /// The name of the queue.
    pub fn queue(&self) -> Option<&str> {
        self.labels
            .get(QUEUE_NAME)
            .map(String::as_str)
            .filter(|name| !name.is_empty())
    }

    /// The annotations that go onto the pods.
    pub fn of_pods(&self) -> impl Iterator<Item = (&String, &String)> {
        self.annotations
            .iter()
            .filter(|(key, _)| key.starts_with(OF_PODS))
    }

    /// The smallest number of pods that the queue may admit. None: it must admit all, or there is no queue.
    pub fn least(&self, size: u32, min_size: Option<u32>, resizes: bool) -> Option<u32> {
        min_size.filter(|min| self.admits_parts(resizes) && *min < size)
    }

    /// Whether a queue may admit a part of the pods, down to `minSize`. It admits an elastic Job only as a whole. A
    /// queue that takes all Jobs of a namespace needs no name: then [`MIN_PARALLELISM`] shows that there is one.
    pub fn admits_parts(&self, resizes: bool) -> bool {
        !self.is_elastic(resizes)
            && (self.queue().is_some() || self.annotations.contains_key(MIN_PARALLELISM))
    }

    /// Whether the Job has the annotation [`ELASTIC_JOB`] with `true`. The author's annotation decides. Without it, a
    /// Job that names a queue gets one if `maxSize` is given (`resizes`).
    pub fn is_elastic(&self, resizes: bool) -> bool {
        match self.annotations.get(ELASTIC_JOB) {
            Some(value) => value == "true",
            None => resizes && self.queue().is_some(),
        }
    }

    /// Parses the annotation in which the Job records the labels and annotations of its MiniCluster
    /// ([`Queueing::without_job_labels`], as JSON). None: the text is too long or invalid, so the operator has not
    /// written it.
    pub fn noted(text: &str) -> Option<Queueing> {
        let mut noted: Queueing = serde_json::from_str(text).ok()?;
        // Others may have edited the annotation, so it may have keys that the operator would not write.
        noted.labels.retain(|key, _| is_of_queue(key));
        noted.annotations.retain(|key, _| is_of_queue(key));
        // The text may be longer, by the escapes of JSON. Kubernetes limits it to 256 KiB.
        (noted.bytes() <= MOST_BYTES).then_some(noted)
    }

    /// Without the labels that `spec.jobLabels` has too. The Job records only the others, since [`Queueing::check`] adds
    /// these from the spec again.
    pub fn without_job_labels(mut self, job_labels: &BTreeMap<String, String>) -> Queueing {
        self.labels
            .retain(|key, value| job_labels.get(key) != Some(value));
        self
    }

    /// Length in bytes of all keys and values.
    fn bytes(&self) -> usize {
        self.labels
            .iter()
            .chain(&self.annotations)
            .map(|(key, value)| key.len() + value.len())
            .sum()
    }

    /// Adds the labels for the queue in `spec.jobLabels`, and reports contradictions.
    pub fn check(mut self, related: &RelatedFields) -> (Queueing, Vec<Problem>) {
        let mut problems = Vec::new();
        for (key, value) in related.job_labels.iter().filter(|(key, _)| is_of_queue(key)) {
            let own = self.labels.entry(key.clone()).or_insert_with(|| value.clone());
            if *own != *value {
                let message = "contradicts the MiniCluster's own label: set only one";
                problems.push(Problem::new(format!("spec.jobLabels[{key}]"), message));
            }
        }
        let bytes = self.bytes();
        if bytes > MOST_BYTES {
            let message = format!(
                "those for a queue (kueue.x-k8s.io) have {bytes} bytes, and {MOST_BYTES} is the most: leave some out"
            );
            problems.push(Problem::new("metadata.labels and metadata.annotations", message));
        }
        self.check_annotations(related, &mut problems);
        (self, problems)
    }

    fn check_annotations(&self, related: &RelatedFields, problems: &mut Vec<Problem>) {
        if self.annotations.contains_key(QUEUE_NAME) {
            let message = "is a label of Kueue, not an annotation: move it to metadata.labels";
            problems.push(Problem::new(annotation(QUEUE_NAME), message));
        }
        for (key, value) in self.of_pods() {
            if related.pod_annotations.get(key).is_some_and(|own| own != value) {
                let message = "contradicts the MiniCluster's own annotation: set only one";
                problems.push(Problem::new(format!("spec.pod.annotations[{key}]"), message));
            }
        }
        self.check_part(related, problems);
        self.check_elastic(related, problems);
    }

    /// Notices about `minSize` in a queue.
    pub fn notices(&self, related: &RelatedFields) -> Vec<Problem> {
        if related.min_size.is_none() {
            return Vec::new();
        }
        let mut notices = Vec::new();
        if self.is_elastic(related.resizes) {
            let message = format!(
                "does not let the queue admit a part of a cluster that it can resize: all pods are admitted, or none. To let the queue admit a part, set the annotation {ELASTIC_JOB}: \"false\"; then the size is fixed while the cluster runs"
            );
            notices.push(Problem::new("spec.minSize", message));
        } else if self.admits_parts(related.resizes)
            && self
                .annotations
                .get(EQUAL_PARALLELISM)
                .is_some_and(|value| value != "true")
        {
            let message = "has no effect with spec.minSize: each pod is a broker, so the queue changes both numbers together; leave it out";
            notices.push(Problem::new(annotation(EQUAL_PARALLELISM), message));
        }
        notices
    }

    /// Checks the annotation for partial admission: it must agree with `minSize`, which the brokers use.
    fn check_part(&self, related: &RelatedFields, problems: &mut Vec<Problem>) {
        let Some(value) = self.annotations.get(MIN_PARALLELISM) else {
            return;
        };
        let message = if self.is_elastic(related.resizes) {
            "does not go with an elastic Job, which a queue admits only as a whole: leave it out".to_owned()
        } else if related.min_size.map(|min| min.to_string()).as_ref() != Some(value) {
            format!(
                "is `{value}`, which contradicts spec.minSize, which the brokers use: leave it out, and set spec.minSize to the number of pods (less than size) that are enough"
            )
        } else {
            return;
        };
        problems.push(Problem::new(annotation(MIN_PARALLELISM), message));
    }

    /// Checks that nothing contradicts the resizing of a running Job.
    fn check_elastic(&self, related: &RelatedFields, problems: &mut Vec<Problem>) {
        if !self.is_elastic(related.resizes) {
            return;
        }
        let (field, remedy) = if self.annotations.contains_key(ELASTIC_JOB) {
            (annotation(ELASTIC_JOB), "leave it out".to_owned())
        } else {
            (
                "spec.maxSize".to_owned(),
                format!(
                    "leave it out, or set the annotation {ELASTIC_JOB}: \"false\", so that its size is fixed while it runs"
                ),
            )
        };
        let is_given =
            |key: &&str| self.annotations.contains_key(*key) || related.pod_annotations.contains_key(*key);
        if let Some(key) = FIXES_PLACEMENT.into_iter().find(is_given) {
            let message = format!(
                "a queue cannot resize a running cluster whose topology it has fixed ({key}): {remedy}; or leave out that annotation, or take podset-unconstrained-topology"
            );
            problems.push(Problem::new(field, message));
        }
    }
}

/// Path of the field of an annotation.
fn annotation(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn queued(annotations: &[(&str, &str)]) -> Queueing {
        Queueing {
            labels: map(&[(QUEUE_NAME, "team")]),
            annotations: map(annotations),
        }
    }

    /// The fields of the problems.
    fn fields(queueing: Queueing, change: impl Fn(&mut RelatedFields)) -> Vec<String> {
        problems_and_notices(queueing, change).0
    }

    /// The fields of the problems, and those of the notices.
    fn problems_and_notices(
        queueing: Queueing,
        change: impl Fn(&mut RelatedFields),
    ) -> (Vec<String>, Vec<String>) {
        let none = BTreeMap::new();
        let mut related = RelatedFields {
            min_size: None,
            resizes: false,
            job_labels: &none,
            pod_annotations: &none,
        };
        change(&mut related);
        let fields = |found: Vec<Problem>| found.into_iter().map(|problem| problem.field).collect();
        let (queueing, problems) = queueing.check(&related);
        (fields(problems), fields(queueing.notices(&related)))
    }

    #[test]
    fn queueing_has_only_labels_and_annotations_of_kueue_domains() {
        let labels = map(&[
            (QUEUE_NAME, "team"),
            ("app", "a"),
            ("kueue.x-k8s.io.example/x", "b"),
        ]);
        let annotations = map(&[
            ("provreq.kueue.x-k8s.io/maxRunDurationSeconds", "60"),
            ("x-k8s.io/c", "d"),
        ]);
        let found = Queueing::of(Some(&labels), Some(&annotations));
        assert_eq!(found.labels.keys().collect::<Vec<_>>(), [QUEUE_NAME]);
        assert_eq!(
            found.annotations.keys().collect::<Vec<_>>(),
            ["provreq.kueue.x-k8s.io/maxRunDurationSeconds"]
        );
        assert_eq!(found.queue(), Some("team"));
        assert_eq!(Queueing::of(None, None).queue(), None);
    }

    #[test]
    fn job_record_has_only_the_miniclusters_own_queue_keys() {
        let own = queued(&[(ELASTIC_JOB, "false")]);
        let job_labels = map(&[("kueue.x-k8s.io/priority-class", "low"), ("app", "a")]);
        let none = BTreeMap::new();
        let related = RelatedFields {
            min_size: None,
            resizes: false,
            job_labels: &job_labels,
            pod_annotations: &none,
        };
        let checked = own.clone().check(&related).0;
        assert_eq!(checked.labels.len(), 2);
        let text = serde_json::to_string(&checked.without_job_labels(&job_labels)).unwrap();
        assert_eq!(Queueing::noted(&text), Some(own));
        let stranger =
            r#"{"labels":{"other":"x","kueue.x-k8s.io/queue-name":"q"},"annotations":{"mine":""}}"#;
        assert_eq!(
            Queueing::noted(stranger),
            Some(Queueing {
                labels: map(&[(QUEUE_NAME, "q")]),
                ..Queueing::default()
            })
        );
        for spoilt in [
            "",
            "{",
            "3",
            &format!(
                r#"{{"labels":{{"kueue.x-k8s.io/a":"{}"}}}}"#,
                "x".repeat(2 * MOST_BYTES)
            ),
        ] {
            assert_eq!(Queueing::noted(spoilt), None, "{:.20}", spoilt);
        }
    }

    #[test]
    fn job_record_is_read_when_escapes_double_its_size() {
        let key = "kueue.x-k8s.io/a";
        for letter in ["\"", "\u{1}"] {
            let value = letter.repeat(MOST_BYTES - key.len());
            let own = Queueing {
                annotations: map(&[(key, &value)]),
                ..Queueing::default()
            };
            assert!(fields(own.clone(), |_| {}).is_empty());
            let text = serde_json::to_string(&own).unwrap();
            assert!(text.len() > 2 * MOST_BYTES);
            assert_eq!(Queueing::noted(&text), Some(own));
        }
    }

    #[test]
    fn queue_annotations_are_limited_in_size() {
        let many = |count: usize| {
            // Each key has 20 bytes.
            let annotations = (0..count)
                .map(|number| (format!("kueue.x-k8s.io/a{number:04}"), String::new()))
                .collect();
            fields(
                Queueing {
                    annotations,
                    ..Queueing::default()
                },
                |_| {},
            )
        };
        assert!(many(200).is_empty());
        assert_eq!(many(210), ["metadata.labels and metadata.annotations"]);
    }

    #[test]
    fn only_annotations_of_pod_sets_are_for_pods() {
        let queueing = queued(&[
            (FIXES_PLACEMENT[0], "rack"),
            (ELASTIC_JOB, "false"),
            ("kueue.x-k8s.io/podset-slice-size", "2"),
        ]);
        let of_pods: Vec<&str> = queueing.of_pods().map(|(key, _)| key.as_str()).collect();
        assert_eq!(of_pods, [FIXES_PLACEMENT[0], "kueue.x-k8s.io/podset-slice-size"]);
    }

    #[test]
    fn queue_admits_a_part_of_the_pods_down_to_min_size() {
        assert_eq!(queued(&[]).least(4, Some(2), false), Some(2));
        assert_eq!(queued(&[]).least(4, Some(4), false), None);
        assert_eq!(queued(&[]).least(4, Some(2), true), None, "it is elastic");
        assert_eq!(queued(&[(ELASTIC_JOB, "false")]).least(4, Some(2), true), Some(2));
        assert_eq!(
            Queueing::default().least(4, Some(2), false),
            None,
            "there is no queue"
        );
        assert!(fields(queued(&[]), |related| related.min_size = Some(2)).is_empty());
        let value = [(MIN_PARALLELISM, "2"), (EQUAL_PARALLELISM, "true")];
        assert!(fields(queued(&value), |related| related.min_size = Some(2)).is_empty());
    }

    #[test]
    fn min_parallelism_must_agree_with_min_size() {
        let wanted = [annotation(MIN_PARALLELISM)];
        assert_eq!(
            fields(queued(&[(MIN_PARALLELISM, "2")]), |_| {}),
            wanted,
            "the brokers would wait for all"
        );
        assert_eq!(
            fields(queued(&[(MIN_PARALLELISM, "3")]), |related| related.min_size =
                Some(2)),
            wanted
        );
        let elastic = |related: &mut RelatedFields| (related.resizes, related.min_size) = (true, Some(2));
        assert_eq!(
            fields(queued(&[(MIN_PARALLELISM, "2")]), elastic),
            wanted,
            "a queue admits an elastic Job as a whole"
        );
        let apart = queued(&[(EQUAL_PARALLELISM, "false")]);
        assert_eq!(
            problems_and_notices(apart, |related| related.min_size = Some(2)),
            (vec![], vec![annotation(EQUAL_PARALLELISM)]),
            "the Job gets another value"
        );
    }

    #[test]
    fn resizable_job_is_elastic_unless_annotated_otherwise() {
        assert!(queued(&[]).is_elastic(true) && !queued(&[]).is_elastic(false));
        assert!(!queued(&[(ELASTIC_JOB, "false")]).is_elastic(true));
        assert!(queued(&[(ELASTIC_JOB, "true")]).is_elastic(false));
        assert!(!Queueing::default().is_elastic(true), "there is no queue");
    }

    #[test]
    fn elastic_cluster_notes_min_size_and_rejects_fixed_topology() {
        let both = |related: &mut RelatedFields| (related.resizes, related.min_size) = (true, Some(2));
        let noted = |annotations: &[(&str, &str)]| problems_and_notices(queued(annotations), both);
        let of_min_size = (vec![], vec!["spec.minSize".to_owned()]);
        assert_eq!(noted(&[]), of_min_size);
        assert_eq!(noted(&[(ELASTIC_JOB, "true")]), of_min_size);
        assert_eq!(noted(&[(ELASTIC_JOB, "false")]), (vec![], vec![]));
        for key in FIXES_PLACEMENT {
            assert_eq!(
                fields(queued(&[(key, "rack")]), |related| related.resizes = true),
                ["spec.maxSize"],
                "{key}"
            );
            assert!(fields(queued(&[(key, "rack")]), |_| {}).is_empty(), "{key}");
            let own = map(&[(key, "rack")]);
            let none = BTreeMap::new();
            let related = RelatedFields {
                min_size: None,
                resizes: true,
                job_labels: &none,
                pod_annotations: &own,
            };
            assert_eq!(
                queued(&[]).check(&related).1.len(),
                1,
                "{key} of spec.pod.annotations"
            );
        }
        let free = queued(&[("kueue.x-k8s.io/podset-unconstrained-topology", "true")]);
        assert!(fields(free, |related| related.resizes = true).is_empty());
    }

    #[test]
    fn queue_labels_in_two_places_must_agree() {
        let (own, other) = (map(&[(QUEUE_NAME, "team")]), map(&[(QUEUE_NAME, "other")]));
        let none = BTreeMap::new();
        let check = |queueing: Queueing, job_labels: &BTreeMap<String, String>| {
            let related = RelatedFields {
                min_size: None,
                resizes: false,
                job_labels,
                pod_annotations: &none,
            };
            queueing.check(&related)
        };
        assert_eq!(
            check(Queueing::default(), &other).0.queue(),
            Some("other"),
            "the Job's labels count as well"
        );
        assert!(check(queued(&[]), &own).1.is_empty());
        assert_eq!(
            check(queued(&[]), &other).1[0].field,
            format!("spec.jobLabels[{QUEUE_NAME}]")
        );
        let pods = map(&[(FIXES_PLACEMENT[0], "block")]);
        let related = RelatedFields {
            min_size: None,
            resizes: false,
            job_labels: &none,
            pod_annotations: &pods,
        };
        let wanted = format!("spec.pod.annotations[{}]", FIXES_PLACEMENT[0]);
        assert_eq!(
            queued(&[(FIXES_PLACEMENT[0], "rack")]).check(&related).1[0].field,
            wanted
        );
        let misplaced = Queueing {
            annotations: own,
            ..Queueing::default()
        };
        assert_eq!(check(misplaced, &none).1[0].field, annotation(QUEUE_NAME));
    }
}
