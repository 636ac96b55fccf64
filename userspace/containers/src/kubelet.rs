//! The kubelet of this node: `GET /pods`, all pods in one answer.
//!
//! Written from the Kubernetes API's reference (`core/v1`, PodList); of the answer only what is
//! used is read. The token is read before every use, because Kubernetes renews it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use strata_metadata::Container;
use tokio::io::AsyncReadExt;

use crate::metadata::{Found, FoundPod, inert, inert_pairs};
use crate::settings::Kubelet;
use crate::transport::{Failure, Transport};
use crate::trust::Trust;

/// Some hundred pods of some ten KB each.
const MOST: usize = 16 << 20;
/// Bytes of a token, or of a file of authorities.
const MOST_FILE: u64 = 256 << 10;

#[derive(Deserialize)]
struct PodList {
    items: Option<Vec<Pod>>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: ObjectMeta,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
struct ObjectMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
    ephemeral_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Deserialize)]
struct ContainerStatus {
    name: Option<String>,
    image: Option<String>,
    /// `containerd://<id>`
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

pub(crate) async fn connect(settings: &Kubelet, timeout: Duration) -> Result<Transport, Failure> {
    let is_tls = settings.url.starts_with("https://");
    let authorities = match &settings.authorities_file {
        Some(file) if is_tls && settings.verify => Some(read(file).await?),
        _ => None,
    };
    let trust = match &authorities {
        Some(pem) => Trust::Authorities(pem),
        None if is_tls && !settings.verify => Trust::Everybody,
        None if is_tls => {
            let why = "the kubelet's certificate needs a file of authorities to be verified by";
            return Err(Failure::Setup(why.to_owned()));
        }
        None => Trust::Nobody,
    };
    Transport::on_network(&settings.url, &trust, timeout)
}

/// The kubelet's metadata of these containers.
pub(crate) async fn ask(
    transport: &Transport,
    settings: &Kubelet,
    ids: &[String],
) -> Result<HashMap<String, Found>, Failure> {
    let token = match &settings.token_file {
        Some(file) if settings.url.starts_with("https://") => Some(read(file).await?),
        _ => None,
    };
    let token = token.as_deref().map(str::from_utf8).transpose();
    let token = token.map_err(|_| Failure::Setup("the file of the token is no text".to_owned()))?;
    let body = match transport.get("/pods", token.map(str::trim), MOST).await {
        Err(Failure::Status(status @ (401 | 403))) => return Err(Failure::Forbidden(status)),
        body => body?,
    };
    let wanted: HashSet<String> = ids.iter().cloned().collect();
    // Parsing some MB of JSON belongs on a thread that no task waits for.
    let parsed = tokio::task::spawn_blocking(move || parse(&body, &wanted)).await;
    parsed.map_err(|error| Failure::malformed(&error))?
}

fn parse(body: &[u8], wanted: &HashSet<String>) -> Result<HashMap<String, Found>, Failure> {
    let list: PodList = serde_json::from_slice(body).map_err(|error| Failure::malformed(&error))?;
    let mut found = HashMap::new();
    for Pod { metadata, status } in list.items.unwrap_or_default() {
        let statuses = [
            status.container_statuses,
            status.init_container_statuses,
            status.ephemeral_container_statuses,
        ];
        for container in statuses.into_iter().flatten().flatten() {
            let id = container.container_id.as_deref().and_then(|id| id.split_once("://"));
            let Some(id) = id.map(|(_, id)| id).filter(|id| wanted.contains(*id)) else {
                continue;
            };
            if let Some(known) = of_container(&metadata, &container) {
                found.insert(id.to_owned(), known);
            }
        }
    }
    Ok(found)
}

fn of_container(metadata: &ObjectMeta, status: &ContainerStatus) -> Option<Found> {
    let text = |text: &Option<String>| text.as_deref().and_then(inert);
    let pairs = |pairs: &Option<BTreeMap<String, String>>| {
        pairs.as_ref().map(inert_pairs).unwrap_or_default()
    };
    let pod = strata_metadata::Pod {
        namespace: text(&metadata.namespace)?,
        name: text(&metadata.name)?,
        uid: text(&metadata.uid).unwrap_or_default(),
        container: text(&status.name).unwrap_or_default(),
        labels: pairs(&metadata.labels),
        annotations: pairs(&metadata.annotations),
    };
    let container =
        Container { name: text(&status.name), image: text(&status.image), labels: Vec::new() };
    Some(Found { container, pod: Some(FoundPod { pod, is_whole: true }), owner: None })
}

async fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| Failure::Setup(format!("{}: {error}", file.display()));
    let mut bytes = Vec::new();
    let opened = tokio::fs::File::open(file).await.map_err(failed)?;
    opened.take(MOST_FILE).read_to_end(&mut bytes).await.map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_makes_it_fail() {
        let wanted = HashSet::from(["a".to_owned()]);
        for (body, count) in [
            (r#"{"items":null}"#, Some(0)),
            (r#"{}"#, Some(0)),
            (r#"{"items":[{"metadata":{}}]}"#, Some(0)),
            (
                r#"{"items":[{"metadata":{"name":"p","namespace":"n","labels":null},"status":{
                "containerStatuses":[{"containerID":"containerd://a"},{"containerID":"a"},{}]}}]}"#,
                Some(1),
            ),
            (r#"{"items":[{"metadata":{"name":7}}]}"#, None),
            ("[]", None),
            ("", None),
        ] {
            let found = parse(body.as_bytes(), &wanted);
            assert_eq!(found.ok().map(|found| found.len()), count, "{body}");
        }
    }
}
