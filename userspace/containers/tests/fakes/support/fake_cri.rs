//! A fake of containerd: `runtime.v1` and containerd's own containers and namespaces, written
//! from the published descriptions and without the product's messages. Fields that strata does
//! not read are sent too.

use http::Response;
use prost::Message;

use super::server::{Asked, Body, grpc_answer, grpc_failure};
use super::{ID, SANDBOX};

#[derive(Clone, PartialEq, Message)]
pub struct Pair {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

pub fn pairs(pairs: &[(&str, &str)]) -> Vec<Pair> {
    pairs
        .iter()
        .map(|(key, value)| Pair { key: (*key).to_owned(), value: (*value).to_owned() })
        .collect()
}

#[derive(Clone, PartialEq, Message)]
pub struct ListRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: Option<Filter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Filter {
    #[prost(string, tag = "1")]
    pub id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Containers {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Attempt>,
    #[prost(message, optional, tag = "4")]
    pub image: Option<Image>,
    #[prost(string, tag = "5")]
    pub image_ref: String,
    #[prost(int32, tag = "6")]
    pub state: i32,
    #[prost(int64, tag = "7")]
    pub created_at: i64,
    #[prost(message, repeated, tag = "8")]
    pub labels: Vec<Pair>,
    #[prost(message, repeated, tag = "9")]
    pub annotations: Vec<Pair>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Attempt {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Image {
    #[prost(string, tag = "1")]
    pub image: String,
    #[prost(string, tag = "18")]
    pub user_specified_image: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sandboxes {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Sandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sandbox {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<SandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub state: i32,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(message, repeated, tag = "5")]
    pub labels: Vec<Pair>,
    #[prost(message, repeated, tag = "6")]
    pub annotations: Vec<Pair>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {
    #[prost(string, tag = "1")]
    pub container_id: String,
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "8")]
    pub image: Option<Image>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Namespaces {
    #[prost(message, repeated, tag = "1")]
    pub namespaces: Vec<Pair>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PlainResponse {
    #[prost(message, optional, tag = "1")]
    pub container: Option<Plain>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Plain {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, repeated, tag = "2")]
    pub labels: Vec<Pair>,
    #[prost(string, tag = "3")]
    pub image: String,
    #[prost(string, tag = "6")]
    pub snapshotter: String,
}

/// What the fake has.
#[derive(Clone, Default)]
pub struct FakeContainerd {
    pub containers: Vec<Container>,
    pub sandboxes: Vec<Sandbox>,
    /// The image in `ContainerStatus`.
    pub image: String,
    /// Containers by namespace.
    pub plain: Vec<(String, Plain)>,
    pub has_no_cri: bool,
}

impl FakeContainerd {
    /// One container of one pod.
    pub fn with_pod() -> Self {
        let container = Container {
            id: ID.to_owned(),
            pod_sandbox_id: SANDBOX.to_owned(),
            metadata: Some(Attempt { name: "cart".to_owned(), attempt: 3 }),
            image: Some(Image {
                image: format!("sha256:{}", "b".repeat(64)),
                user_specified_image: String::new(),
            }),
            image_ref: "whatever".to_owned(),
            state: 1,
            created_at: 1_700_000_000_000_000_000,
            labels: pairs(&[
                ("io.kubernetes.container.name", "cart"),
                ("io.kubernetes.pod.name", "cart-1"),
                ("io.kubernetes.pod.namespace", "shop"),
            ]),
            annotations: pairs(&[("io.kubernetes.container.hash", "1")]),
        };
        let sandbox = Sandbox {
            id: SANDBOX.to_owned(),
            metadata: Some(SandboxMetadata {
                name: "cart-1".to_owned(),
                uid: "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0".to_owned(),
                namespace: "shop".to_owned(),
                attempt: 1,
            }),
            state: 0,
            created_at: 1,
            labels: pairs(&[("app.kubernetes.io/name", "cart"), ("tier", "front")]),
            annotations: pairs(&[("pyroscope.io/service_name", "the-cart")]),
        };
        Self {
            containers: vec![container],
            sandboxes: vec![sandbox],
            image: "registry.example/shop/cart:7".to_owned(),
            ..Self::default()
        }
    }

    pub fn answer(&self, asked: &Asked) -> Response<Body> {
        assert_eq!(asked.header("content-type"), "application/grpc");
        assert_eq!(asked.header("te"), "trailers");
        let message = asked.body.get(5..).unwrap();
        let wanted = || ListRequest::decode(message).unwrap().filter.unwrap().id;
        match asked.path.as_str() {
            path if path.starts_with("/runtime.v1.") && self.has_no_cri => {
                grpc_failure(12, "unknown service runtime.v1.RuntimeService")
            }
            "/runtime.v1.RuntimeService/ListContainers" => {
                let (all, id) = (self.containers.iter(), wanted());
                let containers = all.filter(|found| found.id == id).cloned().collect();
                grpc_answer(&Containers { containers }.encode_to_vec())
            }
            "/runtime.v1.RuntimeService/ListPodSandbox" => {
                let (all, id) = (self.sandboxes.iter(), wanted());
                let items = all.filter(|found| found.id == id).cloned().collect();
                grpc_answer(&Sandboxes { items }.encode_to_vec())
            }
            "/runtime.v1.RuntimeService/ContainerStatus" => {
                let id = StatusRequest::decode(message).unwrap().container_id;
                let image =
                    Image { image: self.image.clone(), user_specified_image: String::new() };
                let status = Some(Status { id, image: Some(image) });
                grpc_answer(&StatusResponse { status }.encode_to_vec())
            }
            "/containerd.services.namespaces.v1.Namespaces/List" => {
                let names = self.plain.iter().map(|(name, _)| (name.as_str(), ""));
                let namespaces = pairs(&names.collect::<Vec<_>>());
                grpc_answer(&Namespaces { namespaces }.encode_to_vec())
            }
            "/containerd.services.containers.v1.Containers/Get" => {
                let id = Filter::decode(message).unwrap().id;
                let namespace = asked.header("containerd-namespace");
                let mut all = self.plain.iter();
                match all.find(|(name, found)| name == namespace && found.id == id) {
                    Some((_, found)) => grpc_answer(
                        &PlainResponse { container: Some(found.clone()) }.encode_to_vec(),
                    ),
                    None => grpc_failure(5, "not found"),
                }
            }
            other => panic!("the fake has no {other}"),
        }
    }
}
