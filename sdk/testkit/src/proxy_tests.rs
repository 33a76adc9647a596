use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::fault;

/// A server that answers a GET with how many other requests it has had.
async fn counter() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let shared = count.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let count = shared.clone();
            let service = service_fn(move |request: Request<Body>| {
                let reads = request.method() == http::Method::GET;
                let seen = if reads { count.load(Ordering::SeqCst) } else { count.fetch_add(1, Ordering::SeqCst) };
                async move { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(seen.to_string())))) }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (origin, count)
}

async fn ask(proxy: &FaultProxy, method: &str) -> Option<(u16, String)> {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.request(method.parse().unwrap(), format!("{}/x", proxy.url()));
    let response = request.send().await.ok()?;
    let status = response.status().as_u16();
    Some((status, response.text().await.ok()?))
}

#[tokio::test]
async fn what_is_late_arrives_and_the_past_ends_as_its_own_time_passes() {
    let (origin, count) = counter().await;
    let proxy = FaultProxy::in_own_time(&origin).await.unwrap();
    proxy.schedule(Schedule { late: Duration::from_secs(30), stale: Duration::from_secs(5) });

    proxy.set(fault::at(0, Fault::Late));
    assert_eq!(ask(&proxy, "POST").await, None);
    proxy.pass(Duration::from_millis(29_999)).await;
    assert_eq!((count.load(Ordering::SeqCst), proxy.late()), (0, 1));
    proxy.clock().sleep_until(proxy.clock().now() + Duration::from_millis(1)).await;
    assert_eq!((count.load(Ordering::SeqCst), proxy.late()), (1, 0));
    assert_eq!(proxy.passed(), Duration::from_secs(30));

    assert_eq!(ask(&proxy, "GET").await, Some((200, "1".to_owned())));
    proxy.set(fault::at(0, Fault::Stale));
    assert_eq!(ask(&proxy, "POST").await, Some((200, "1".to_owned())));
    assert_eq!(ask(&proxy, "GET").await, Some((200, "1".to_owned())), "from before the change");
    proxy.pass(Duration::from_secs(5)).await;
    assert_eq!(ask(&proxy, "GET").await, Some((200, "2".to_owned())));
}

#[tokio::test]
async fn each_fault_does_what_it_says() {
    let (origin, count) = counter().await;
    let proxy = FaultProxy::in_own_time(&origin).await.unwrap();
    for (fault, status, acted) in [
        (Fault::DropRequest, None, false),
        (Fault::DropResponse, None, true),
        (Fault::Throttle(2), Some(429), false),
        (Fault::Busy(2), Some(503), false),
        (Fault::FailBefore(500), Some(500), false),
        (Fault::FailAfter(502), Some(502), true),
        (Fault::Delay(Duration::from_secs(6)), Some(200), true),
    ] {
        let (before, began) = (count.load(Ordering::SeqCst), proxy.passed());
        proxy.set(fault::at(0, fault));
        assert_eq!(ask(&proxy, "POST").await.map(|(status, _)| status), status, "{fault}");
        assert_eq!(count.load(Ordering::SeqCst) > before, acted, "{fault}");
        let waited = if let Fault::Delay(by) = fault { by } else { Duration::ZERO };
        assert_eq!(proxy.passed() - began, waited, "{fault}");
    }
}

#[test]
fn an_action_is_read_from_what_is_signed_for_aws_only() {
    let mut headers = HeaderMap::new();
    assert_eq!(action(&headers, b"Action=DescribeVpcs&Version=1"), None);
    headers.insert("authorization", HeaderValue::from_static("AWS4-HMAC-SHA256 Credential=x"));
    assert_eq!(action(&headers, b"Version=1&Action=CreateVpc").as_deref(), Some("CreateVpc"));
    headers.insert("x-amz-target", HeaderValue::from_static("AWSSecrets.ListSecrets"));
    assert_eq!(action(&headers, b"").as_deref(), Some("ListSecrets"));
}
