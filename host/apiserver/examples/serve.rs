//! A server in memory, without TLS, to try clients on: `kubectl --server http://127.0.0.1:8080 …`. Everybody who can reach
//! the port is an administrator, so it listens on loopback only.

use capstan_apiserver::{ApiServer, Builtins, Options, User};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| String::from("127.0.0.1:8080"));
    let builtins =
        if arguments.next().as_deref() == Some("workload") { Builtins::Workload } else { Builtins::Management };
    let server = ApiServer::new(Options { builtins, ..Options::default() })?;
    server.background(Default::default());
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("serving {builtins:?} on http://{address}");
    loop {
        let (socket, _) = listener.accept().await?;
        let service = TowerToHyperService::new(server.service(User::admin("example")));
        tokio::spawn(async move {
            let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}
