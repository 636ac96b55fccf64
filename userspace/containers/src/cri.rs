//! The Container Runtime Interface, `runtime.v1`: gRPC over the socket of containerd or CRI-O.
//!
//! Queried for one container at a time, so that one container's annotations cannot make the answer
//! for others too large. Numbers of fields are those of Kubernetes'
//! `cri-api/pkg/apis/runtime/v1/api.proto`.

use std::collections::HashMap;

use http::HeaderMap;
use prost::Message;
use strata_metadata::Pod;

use crate::metadata::{Found, FoundPod, inert, inert_pairs, is_digest};
use crate::transport::{Failure, Transport};

/// Kubernetes bounds the annotations of a pod by 256 KiB.
const MOST: usize = 1 << 20;

/// The same numbers in `ContainerFilter` and `PodSandboxFilter`.
#[derive(Clone, PartialEq, Message)]
struct Filter {
    #[prost(string, tag = "1")]
    id: String,
}

/// `ListContainersRequest` and `ListPodSandboxRequest`.
#[derive(Clone, PartialEq, Message)]
struct ListRequest {
    #[prost(message, optional, tag = "1")]
    filter: Option<Filter>,
}

#[derive(Clone, PartialEq, Message)]
struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    image: Option<ImageSpec>,
    #[prost(map = "string, string", tag = "8")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMetadata {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
    #[prost(string, tag = "18")]
    user_specified_image: String,
}

#[derive(Clone, PartialEq, Message)]
struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandbox {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    metadata: Option<PodSandboxMetadata>,
    #[prost(map = "string, string", tag = "5")]
    labels: HashMap<String, String>,
    #[prost(map = "string, string", tag = "6")]
    annotations: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatusRequest {
    #[prost(string, tag = "1")]
    container_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatus {
    #[prost(message, optional, tag = "8")]
    image: Option<ImageSpec>,
}

pub(crate) async fn ask(transport: &Transport, id: &str) -> Result<Option<Found>, Failure> {
    let listed: ListContainersResponse =
        call(transport, "ListContainers", &ListRequest::of(id)).await?;
    let Some(container) = listed.containers.into_iter().find(|container| container.id == id) else {
        // The sandbox itself is a container too: the one that holds the pod's namespaces.
        return Ok(sandbox(transport, id)
            .await?
            .map(|pod| Found { pod: Some(pod), ..Found::default() }));
    };
    let mut pod = sandbox(transport, &container.pod_sandbox_id).await?;
    let name = container.metadata.and_then(|metadata| inert(&metadata.name));
    if let Some(found) = &mut pod {
        found.pod.container = name.clone().unwrap_or_default();
    }
    let mut image = container.image.and_then(ImageSpec::name);
    if image.as_deref().is_none_or(is_digest) {
        let asked = ContainerStatusRequest { container_id: id.to_owned() };
        // The image's name is not worth losing the rest: it may be gone meanwhile.
        let answer: Result<ContainerStatusResponse, Failure> =
            call(transport, "ContainerStatus", &asked).await;
        let status = answer.ok().and_then(|answer| answer.status);
        image = status.and_then(|status| status.image).and_then(ImageSpec::name).or(image);
    }
    let labels = inert_pairs(&container.labels);
    let container = strata_metadata::Container { name, image, labels };
    Ok(Some(Found { container, pod, owner: None }))
}

async fn sandbox(transport: &Transport, id: &str) -> Result<Option<FoundPod>, Failure> {
    if id.is_empty() {
        return Ok(None);
    }
    let listed: ListPodSandboxResponse =
        call(transport, "ListPodSandbox", &ListRequest::of(id)).await?;
    let sandbox = listed.items.into_iter().find(|sandbox| sandbox.id == id);
    Ok(sandbox.and_then(|sandbox| {
        let metadata = sandbox.metadata?;
        let pod = Pod {
            namespace: inert(&metadata.namespace)?,
            name: inert(&metadata.name)?,
            uid: inert(&metadata.uid).unwrap_or_default(),
            container: String::new(),
            labels: inert_pairs(&sandbox.labels),
            annotations: inert_pairs(&sandbox.annotations),
        };
        Some(FoundPod { pod, is_whole: true })
    }))
}

async fn call<Answer: Message + Default>(
    transport: &Transport,
    method: &str,
    question: &impl Message,
) -> Result<Answer, Failure> {
    let method = format!("/runtime.v1.RuntimeService/{method}");
    transport.call(&method, &HeaderMap::new(), question, MOST).await
}

impl ListRequest {
    fn of(id: &str) -> Self {
        Self { filter: Some(Filter { id: id.to_owned() }) }
    }
}

impl ImageSpec {
    /// As written by the container's creator, where that is known.
    fn name(self) -> Option<String> {
        inert(&self.user_specified_image).or_else(|| inert(&self.image))
    }
}
