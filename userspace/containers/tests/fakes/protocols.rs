//! Each protocol, against a fake of its server over a real socket or TLS.

use crate::support::fake_cri::{FakeContainerd, Plain, pairs};
use crate::support::server::{Server, answer, tls};
use crate::support::{ID, LONG, SANDBOX, id, only_source, quick, running};
use strata_containers::{Kubelet, Settings};
use strata_kinds::Kinds;
use strata_metadata::Facts;

fn docker_answer(id: &str) -> String {
    format!(
        r#"{{"Id":"{id}","Created":"2026-01-01T00:00:00Z","Name":"/shop-web-1","State":{{"Pid":7}},
            "Image":"sha256:0","Config":{{"Hostname":"x","Env":["A=b"],"Image":"shop/web:7",
            "Labels":{{"com.datadoghq.tags.service":"web","com.docker.compose.project":"shop"}}}}}}"#
    )
}

#[tokio::test]
async fn docker_names_a_container_and_its_image() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let server = Server::on_socket(&socket, |_| answer(200, &[], docker_answer(ID)));
    let settings = Settings { docker: vec![socket], pace: quick(), ..Settings::default() };
    let containers = running(&settings);

    assert_eq!(containers.lookup(ID), None);
    let metadata = containers.wait(ID, LONG).await.unwrap();
    assert_eq!(metadata.container.name.as_deref(), Some("shop-web-1"));
    assert_eq!(metadata.container.image.as_deref(), Some("shop/web:7"));
    assert_eq!(metadata.container.label("com.docker.compose.project"), Some("shop"));
    assert_eq!(metadata.pod, None);
    assert_eq!(server.paths(), [format!("/containers/{ID}/json")]);
    // From now on without asking.
    assert_eq!(containers.lookup(ID), Some(metadata.clone()));

    let facts = Facts { container: Some(&metadata.container), comm: "dotnet", ..Facts::default() };
    let who = strata_metadata::identify(&facts, &Default::default(), Kinds::NONE);
    assert_eq!(who.service.value, "web");
}

#[tokio::test]
async fn the_labels_of_a_docker_container_tell_its_pod() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let body = format!(
        r#"{{"Id":"{ID}","Name":"/k8s_cart_cart-1_shop_0_0","Config":{{"Image":"sha256:{}","Labels":
           {{"io.kubernetes.pod.name":"cart-1","io.kubernetes.pod.namespace":"shop",
             "io.kubernetes.pod.uid":"u","io.kubernetes.container.name":"cart"}}}}}}"#,
        "a".repeat(64)
    );
    let _server = Server::on_socket(&socket, move |_| answer(200, &[], body.clone()));
    let settings = Settings { docker: vec![socket], pace: quick(), ..Settings::default() };
    let metadata = running(&settings).wait(ID, LONG).await.unwrap();
    let pod = metadata.pod.as_ref().unwrap();
    assert_eq!(
        [&pod.namespace, &pod.name, &pod.uid, &pod.container],
        ["shop", "cart-1", "u", "cart"]
    );
}

#[tokio::test]
async fn the_cri_tells_container_image_and_pod() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("containerd.sock");
    let fake = FakeContainerd::with_pod();
    let server = Server::on_socket(&socket, move |asked| fake.answer(asked));
    let settings = Settings { cri: vec![socket], pace: quick(), ..Settings::default() };
    let containers = running(&settings);

    let metadata = containers.wait(ID, LONG).await.unwrap();
    assert_eq!(metadata.container.name.as_deref(), Some("cart"));
    assert_eq!(metadata.container.image.as_deref(), Some("registry.example/shop/cart:7"));
    let pod = metadata.pod.as_ref().unwrap();
    assert_eq!(
        [&pod.namespace, &pod.name, &pod.uid, &pod.container],
        ["shop", "cart-1", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "cart"]
    );
    assert_eq!(pod.label("tier"), Some("front"));
    assert_eq!(pod.annotation("pyroscope.io/service_name"), Some("the-cart"));
    assert_eq!(
        server.paths(),
        ["ListContainers", "ListPodSandbox", "ContainerStatus"]
            .map(|method| format!("/runtime.v1.RuntimeService/{method}"))
    );

    let facts = Facts {
        container: Some(&metadata.container),
        pod: metadata.pod.as_ref(),
        comm: "dotnet",
        ..Facts::default()
    };
    let who = strata_metadata::identify(&facts, &Default::default(), Kinds::NONE);
    assert_eq!(who.service.value, "the-cart");
}

#[tokio::test]
async fn a_sandbox_belongs_to_its_pod() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("crio.sock");
    let fake = FakeContainerd::with_pod();
    let _server = Server::on_socket(&socket, move |asked| fake.answer(asked));
    let settings = Settings { cri: vec![socket], pace: quick(), ..Settings::default() };
    let metadata = running(&settings).wait(SANDBOX, LONG).await.unwrap();
    assert_eq!(metadata.pod.as_ref().unwrap().name, "cart-1");
}

#[tokio::test]
async fn containerd_itself_is_asked_for_what_kubernetes_did_not_start() {
    for has_no_cri in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("containerd.sock");
        let plain = Plain {
            id: id(7),
            labels: pairs(&[("nerdctl/name", "web"), ("team", "shop")]),
            image: "docker.io/shop/web:7".to_owned(),
            snapshotter: "overlayfs".to_owned(),
        };
        let elsewhere = Plain { id: id(8), ..Plain::default() };
        let fake = FakeContainerd {
            plain: vec![("moby".to_owned(), elsewhere), ("default".to_owned(), plain)],
            has_no_cri,
            ..FakeContainerd::default()
        };
        let _server = Server::on_socket(&socket, move |asked| fake.answer(asked));
        let settings = Settings { cri: vec![socket], pace: quick(), ..Settings::default() };
        let containers = running(&settings);
        let metadata = containers.wait(&id(7), LONG).await.unwrap();
        assert_eq!(metadata.container.name.as_deref(), Some("web"));
        assert_eq!(metadata.container.image.as_deref(), Some("docker.io/shop/web:7"));
        assert_eq!(metadata.container.label("team"), Some("shop"));
        assert_eq!(only_source(&containers).failed, 0);
    }
}

const PODS: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[
  {"metadata":{"name":"other-1","namespace":"shop","uid":"v"},"spec":{},"status":{}},
  {"metadata":{"name":"cart-1","namespace":"shop","uid":"u","labels":{"tier":"front"},
    "annotations":{"resource.opentelemetry.io/service.name":"the-cart"}},
   "spec":{"containers":[{"name":"cart","image":"shop/cart:7"}]},
   "status":{"phase":"Running","containerStatuses":[
     {"name":"side","image":"shop/side:1","containerID":"containerd://0000000000000000000000000000000000000000000000000000000000000001"},
     {"name":"cart","image":"shop/cart:7","containerID":"containerd://4f1d6ad20b5cf1b4a1d9a2f5f6e3f1b0aa3d7c7c8f6f8f1b0c9d8e7f6a5b4c3d"}]}}]}"#;

#[tokio::test]
async fn the_kubelet_is_asked_over_tls_with_a_token_that_may_change() {
    let folder = tempfile::tempdir().unwrap();
    let (acceptor, authority) = tls();
    let (server, address) =
        Server::on_port(acceptor, |asked| match asked.header("authorization") {
            "Bearer first" | "Bearer second" => answer(200, &[], PODS),
            _ => answer(401, &[], "Unauthorized"),
        })
        .await;
    let (token, authorities) = (folder.path().join("token"), folder.path().join("ca.crt"));
    std::fs::write(&token, "first\n").unwrap();
    std::fs::write(&authorities, authority).unwrap();
    let kubelet = Kubelet {
        url: format!("https://{address}"),
        token_file: Some(token.clone()),
        authorities_file: Some(authorities),
        verify: true,
    };
    let settings = Settings { kubelet: Some(kubelet), pace: quick(), ..Settings::default() };
    let containers = running(&settings);
    let metadata = containers.wait(ID, LONG).await.unwrap();
    let pod = metadata.pod.as_ref().unwrap();
    assert_eq!(
        [&pod.namespace, &pod.name, &pod.uid, &pod.container],
        ["shop", "cart-1", "u", "cart"]
    );
    assert_eq!(pod.label("tier"), Some("front"));
    assert_eq!(pod.annotation("resource.opentelemetry.io/service.name"), Some("the-cart"));
    assert_eq!(metadata.container.image.as_deref(), Some("shop/cart:7"));

    std::fs::write(&token, "second\n").unwrap();
    assert!(containers.wait(&id(1), LONG).await.is_some());
    let seen = server.asked();
    let tokens: Vec<&str> = seen.iter().map(|asked| asked.header("authorization")).collect();
    assert_eq!(tokens, ["Bearer first", "Bearer second"]);
    assert!(seen.iter().all(|asked| asked.path == "/pods"));
}

#[tokio::test]
async fn a_kubelet_that_signed_its_own_certificate_gets_no_token_by_default() {
    for verify in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (acceptor, _) = tls();
        let (_, stranger) = tls();
        let (server, address) = Server::on_port(acceptor, |_| answer(200, &[], PODS)).await;
        let (token, authorities) = (folder.path().join("token"), folder.path().join("ca.crt"));
        std::fs::write(&token, "secret").unwrap();
        std::fs::write(&authorities, stranger).unwrap();
        let kubelet = Kubelet {
            url: format!("https://{address}"),
            token_file: Some(token),
            authorities_file: Some(authorities),
            verify,
        };
        let settings = Settings { kubelet: Some(kubelet), pace: quick(), ..Settings::default() };
        let containers = running(&settings);
        assert_eq!(containers.wait(ID, LONG).await.is_none(), verify);
        assert_eq!(server.asked().is_empty(), verify);
        assert_eq!(only_source(&containers).failed, u64::from(verify));
    }
}

#[tokio::test]
async fn the_kubelet_adds_the_pods_labels_to_what_docker_knows() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let body = format!(
        r#"{{"Id":"{ID}","Name":"/k8s_cart_cart-1_shop_u_0","Config":{{"Image":"sha256:{}","Labels":
           {{"io.kubernetes.pod.name":"cart-1","io.kubernetes.pod.namespace":"shop",
             "io.kubernetes.container.name":"cart"}}}}}}"#,
        "a".repeat(64)
    );
    let _docker = Server::on_socket(&socket, move |_| answer(200, &[], body.clone()));
    let (acceptor, authority) = tls();
    let (_kubelet, address) = Server::on_port(acceptor, |_| answer(200, &[], PODS)).await;
    let authorities = folder.path().join("ca.crt");
    std::fs::write(&authorities, authority).unwrap();
    let kubelet = Kubelet {
        url: format!("https://{address}"),
        token_file: None,
        authorities_file: Some(authorities),
        verify: true,
    };
    let settings = Settings {
        docker: vec![socket],
        kubelet: Some(kubelet),
        pace: quick(),
        ..Settings::default()
    };
    let metadata = running(&settings).wait(ID, LONG).await.unwrap();
    assert_eq!(metadata.container.name.as_deref(), Some("k8s_cart_cart-1_shop_u_0"));
    assert_eq!(metadata.container.image.as_deref(), Some("shop/cart:7"));
    assert_eq!(metadata.pod.as_ref().unwrap().label("tier"), Some("front"));
}
