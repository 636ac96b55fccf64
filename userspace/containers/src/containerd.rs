//! containerd's own services, for containers that Kubernetes did not start (`nerdctl`, Docker on
//! top of containerd): gRPC over the socket that the CRI is on too.
//!
//! Numbers of fields are those of containerd's `api/services/containers/v1` and
//! `api/services/namespaces/v1`.

use std::collections::HashMap;

use http::header::{HeaderMap, HeaderValue};
use prost::Message;

use crate::metadata::{Found, inert, inert_pairs, pod_of_labels};
use crate::transport::{Failure, Transport};

/// A container's record holds its whole OCI configuration.
const MOST: usize = 1 << 20;
/// The most namespaces queried.
const MOST_NAMESPACES: usize = 16;
/// What a container is called, for want of a name in containerd itself.
const NERDCTL_NAME: &str = "nerdctl/name";

#[derive(Clone, PartialEq, Message)]
struct ListNamespacesRequest {}

#[derive(Clone, PartialEq, Message)]
struct ListNamespacesResponse {
    #[prost(message, repeated, tag = "1")]
    namespaces: Vec<Namespace>,
}

#[derive(Clone, PartialEq, Message)]
struct Namespace {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct GetContainerRequest {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct GetContainerResponse {
    #[prost(message, optional, tag = "1")]
    container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(map = "string, string", tag = "2")]
    labels: HashMap<String, String>,
    #[prost(string, tag = "3")]
    image: String,
}

/// Namespaces are few and change rarely: listed once a round.
pub(crate) async fn namespaces(transport: &Transport) -> Result<Vec<String>, Failure> {
    let method = "/containerd.services.namespaces.v1.Namespaces/List";
    let none = HeaderMap::new();
    let listed: ListNamespacesResponse =
        match transport.call(method, &none, &ListNamespacesRequest {}, MOST).await {
            // Another runtime.
            Err(failure) if failure.is_unimplemented() => return Ok(Vec::new()),
            listed => listed?,
        };
    let names = listed.namespaces.into_iter().map(|namespace| namespace.name);
    Ok(names.take(MOST_NAMESPACES).collect())
}

pub(crate) async fn ask(
    transport: &Transport,
    namespaces: &[String],
    id: &str,
) -> Result<Option<Found>, Failure> {
    for namespace in namespaces {
        let Ok(value) = HeaderValue::from_str(namespace) else { continue };
        let headers =
            HeaderMap::from_iter([(http::HeaderName::from_static("containerd-namespace"), value)]);
        let method = "/containerd.services.containers.v1.Containers/Get";
        let asked = GetContainerRequest { id: id.to_owned() };
        let answer: GetContainerResponse =
            match transport.call(method, &headers, &asked, MOST).await {
                Err(failure) if failure.is_no() => continue,
                answer => answer?,
            };
        let Some(found) = answer.container.filter(|found| found.id == id) else { continue };
        let container = strata_metadata::Container {
            name: found.labels.get(NERDCTL_NAME).and_then(|name| inert(name)),
            image: inert(&found.image),
            labels: inert_pairs(&found.labels),
        };
        let pod = pod_of_labels(|name| found.labels.get(name));
        return Ok(Some(Found { container, pod, owner: None }));
    }
    Ok(None)
}
