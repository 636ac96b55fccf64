//! The Docker Engine API: `GET /containers/ID/json` over a socket.
//!
//! Podman imitates it. Written from the Engine API's reference; of the answer only what is used
//! is read.

use std::collections::BTreeMap;

use serde::Deserialize;
use strata_metadata::Container;

use crate::metadata::{Found, inert, inert_pairs, pod_of_labels};
use crate::transport::{Failure, Transport};

/// An answer has the whole configuration of the container, environment and mounts included.
const MOST: usize = 1 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    name: Option<String>,
    config: Option<Config>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    image: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

pub(crate) async fn ask(transport: &Transport, id: &str) -> Result<Option<Found>, Failure> {
    let body = match transport.get(&format!("/containers/{id}/json"), None, MOST).await {
        Ok(body) => body,
        Err(failure) if failure.is_no() => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let inspected: Inspected =
        serde_json::from_slice(&body).map_err(|error| Failure::malformed(&error))?;
    // A container may have the id of another as its name.
    if inspected.id != id {
        return Ok(None);
    }
    let config = inspected.config.unwrap_or(Config { image: None, labels: None });
    let labels = config.labels.unwrap_or_default();
    let container = Container {
        name: inspected.name.and_then(|name| inert(name.trim_start_matches('/'))),
        image: config.image.and_then(|image| inert(&image)),
        labels: inert_pairs(&labels),
    };
    Ok(Some(Found { container, pod: pod_of_labels(|name| labels.get(name)), owner: None }))
}
