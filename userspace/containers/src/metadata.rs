//! The metadata of one container, bounded in size.
//!
//! Invariant: nothing here exceeds its limit: texts are truncated, control and direction characters
//! are replaced, and the whole stays below [`MOST_BYTES`].

use strata_metadata::text::{self, Limits};
use strata_metadata::{Container, Pod};

/// Bytes of all texts of one container. With the cache's bound on all containers this decides how
/// many there is room for.
pub const MOST_BYTES: usize = 16 << 10;
/// Labels, and annotations, that are kept of one container or pod.
pub const MOST_PAIRS: usize = 64;
/// Bytes of the name of a label: Kubernetes allows a prefix of 253 and a name of 63.
const PAIR_NAME: usize = 320;

/// Labels and annotations by which a process may be named: they have their place before others.
const TELLING: [&str; 6] = [
    "app.kubernetes.io/",
    "com.datadoghq.tags.",
    "com.docker.compose.",
    "pyroscope.io/",
    "resource.opentelemetry.io/",
    "tags.datadoghq.com/",
];

/// The metadata of one container, in the form of `strata_metadata::Facts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    pub container: Container,
    pub pod: Option<Pod>,
    /// The user whose runtime runs it, by the owner of the socket that answered: 0 for the host's.
    pub owner: u32,
    /// Changes whenever the rest does.
    pub revision: usize,
}

impl Metadata {
    /// Bytes of its texts.
    #[must_use]
    pub fn size(&self) -> usize {
        let Self { container, pod, .. } = self;
        let texts = [&container.name, &container.image].into_iter().flatten().map(String::len);
        let of_pod = pod.iter().map(|pod| {
            pod.namespace.len()
                + pod.name.len()
                + pod.uid.len()
                + pod.container.len()
                + size_of_pairs(&pod.labels)
                + size_of_pairs(&pod.annotations)
        });
        texts.chain(of_pod).sum::<usize>() + size_of_pairs(&container.labels)
    }
}

fn size_of_pairs(pairs: &[(String, String)]) -> usize {
    pairs.iter().map(|(name, value)| name.len() + value.len() + 2 * size_of::<String>()).sum()
}

/// One source's metadata of a container; sources are merged in the order of the queries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub container: Container,
    pub pod: Option<FoundPod>,
    /// Of the first source that knows it.
    pub owner: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundPod {
    pub pod: Pod,
    /// The source answered with the pod's labels and annotations, or that there are none.
    pub is_whole: bool,
}

impl Found {
    /// Whether it is complete: no further source is needed.
    pub fn is_complete(&self) -> bool {
        let Container { name, image, .. } = &self.container;
        name.is_some()
            && image.as_deref().is_some_and(|image| !is_digest(image))
            && self.pod.as_ref().is_none_or(|pod| pod.is_whole)
    }

    /// Adds another source's metadata.
    pub fn absorb(&mut self, other: Self) {
        let Container { name, image, labels } = other.container;
        self.owner = self.owner.or(other.owner);
        let own = &mut self.container;
        own.name = own.name.take().or(name);
        own.image = match (own.image.take(), image) {
            // A digest has no meaning for a reader.
            (Some(own), Some(other)) if is_digest(&own) => Some(other),
            (own, other) => own.or(other),
        };
        // Docker's containerd has a label of its own, and none of the container's.
        for (name, value) in labels {
            if own.labels.iter().all(|(known, _)| *known != name) {
                own.labels.push((name, value));
            }
        }
        match (&mut self.pod, other.pod) {
            (own @ None, other) => *own = other,
            (Some(own), Some(other)) if other.is_whole && !own.is_whole => *own = other,
            _ => {}
        }
    }

    /// Within [`MOST_BYTES`].
    pub fn into_metadata(self) -> Metadata {
        let mut metadata = Metadata {
            container: self.container,
            pod: self.pod.map(|found| found.pod),
            owner: self.owner.unwrap_or(0),
            revision: 0,
        };
        // The least informative are at the end of their lists.
        while metadata.size() > MOST_BYTES {
            let Metadata { container, pod, .. } = &mut metadata;
            let of_pod = pod.iter_mut().flat_map(|pod| [&mut pod.annotations, &mut pod.labels]);
            let lists = of_pod.chain([&mut container.labels]);
            let largest = lists.max_by_key(|pairs| size_of_pairs(pairs));
            if largest.and_then(Vec::pop).is_none() {
                break;
            }
        }
        metadata
    }
}

/// `sha256:…`: what runtimes call an image when they know nothing better.
pub(crate) fn is_digest(image: &str) -> bool {
    let digits = image.strip_prefix("sha256:").unwrap_or(image);
    digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A text within its limit, made inert; `None` if nothing is left.
pub(crate) fn inert(text: &str) -> Option<String> {
    text::value(text, Limits::LABEL_VALUE).map(|(text, _)| text)
}

/// Labels or annotations within their limits, the informative ones first, else by name.
pub(crate) fn inert_pairs<'a>(
    pairs: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Vec<(String, String)> {
    let rank = |name: &str| !TELLING.iter().any(|prefix| name.starts_with(prefix));
    let mut pairs: Vec<(&String, &String)> = pairs.into_iter().collect();
    pairs.sort_by_key(|(name, _)| (rank(name), *name));
    pairs.truncate(MOST_PAIRS);
    let pair = |(name, value): (&String, &String)| {
        let (name, cut) = text::value(name, PAIR_NAME)?;
        // A truncated name would be another name. A label may be empty.
        (!cut).then(|| (name, inert(value).unwrap_or_default()))
    };
    pairs.into_iter().filter_map(pair).collect()
}

/// What the kubelet writes into the labels of every container that it starts.
pub(crate) fn pod_of_labels<'a>(label: impl Fn(&str) -> Option<&'a String>) -> Option<FoundPod> {
    let text = |name| label(name).and_then(|text| inert(text));
    let pod = Pod {
        namespace: text("io.kubernetes.pod.namespace")?,
        name: text("io.kubernetes.pod.name")?,
        uid: text("io.kubernetes.pod.uid").unwrap_or_default(),
        container: text("io.kubernetes.container.name").unwrap_or_default(),
        ..Pod::default()
    };
    Some(FoundPod { pod, is_whole: false })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_names_a_process_is_kept_before_other_labels() {
        let mut labels: BTreeMap<String, String> =
            (0..1000).map(|number| (format!("a{number}"), "x".repeat(10_000))).collect();
        labels.insert("tags.datadoghq.com/service".to_owned(), "shop".to_owned());
        let kept = inert_pairs(&labels);
        assert_eq!(kept.len(), MOST_PAIRS);
        assert_eq!(kept.first(), Some(&("tags.datadoghq.com/service".into(), "shop".into())));
        assert!(kept.iter().all(|(_, value)| value.len() <= Limits::LABEL_VALUE));
    }

    #[test]
    fn a_container_costs_no_more_than_its_bound() {
        let labels: BTreeMap<String, String> =
            (0..100).map(|number| (format!("a{number}"), "x".repeat(10_000))).collect();
        let pairs = inert_pairs(&labels);
        let pod = Pod { labels: pairs.clone(), annotations: pairs.clone(), ..Pod::default() };
        let found = Found {
            container: Container { labels: pairs, ..Container::default() },
            pod: Some(FoundPod { pod, is_whole: true }),
            owner: None,
        };
        let metadata = found.into_metadata();
        assert!(metadata.size() <= MOST_BYTES, "{}", metadata.size());
        assert!(!metadata.container.labels.is_empty());
    }

    #[test]
    fn labels_of_one_source_leave_room_for_those_of_the_next() {
        let labelled = |labels: &[(&str, &str)]| Found {
            container: Container {
                labels: labels
                    .iter()
                    .map(|(name, value)| ((*name).into(), (*value).into()))
                    .collect(),
                ..Container::default()
            },
            ..Found::default()
        };
        let mut found = labelled(&[("com.docker/engine.bundle.path", "/run/docker"), ("a", "1")]);
        found.absorb(labelled(&[("com.datadoghq.tags.service", "shop"), ("a", "2")]));
        let labels = &found.container.labels;
        assert!(labels.contains(&("com.datadoghq.tags.service".into(), "shop".into())));
        assert_eq!(labels.iter().filter(|(name, _)| name == "a").count(), 1);
    }

    #[test]
    fn texts_are_made_inert() {
        assert_eq!(inert("a\u{1b}[31mb\u{202e}"), Some("a_[31mb_".to_owned()));
        assert_eq!(inert(" \n "), None);
    }

    #[test]
    fn an_image_has_the_name_that_any_source_knows() {
        let image = |image: &str| Found {
            container: Container { image: Some(image.to_owned()), ..Container::default() },
            ..Found::default()
        };
        let digest = format!("sha256:{}", "a".repeat(64));
        let mut found = image(&digest);
        found.absorb(image("shop:7"));
        assert_eq!(found.container.image.as_deref(), Some("shop:7"));
        found.absorb(image("other:1"));
        assert_eq!(found.container.image.as_deref(), Some("shop:7"));
    }

    #[test]
    fn a_whole_pod_takes_the_place_of_one_without_labels() {
        let pod = |labels: &[(&str, &str)], is_whole| {
            let labels = labels.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            let pod = Pod { name: "web-1".into(), labels, ..Pod::default() };
            Found { pod: Some(FoundPod { pod, is_whole }), ..Found::default() }
        };
        let mut found = pod(&[], false);
        found.absorb(pod(&[("app", "web")], true));
        found.absorb(pod(&[("app", "other")], true));
        let kept = found.into_metadata().pod.and_then(|pod| pod.label("app").map(str::to_owned));
        assert_eq!(kept.as_deref(), Some("web"));
    }
}
