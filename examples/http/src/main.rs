//! HTTP over RDMA: hyper serves and asks over streams of ubiverbs.
//!
//! | command | does |
//! |---|---|
//! | `cargo run -p ubiverbs-example-http` | both ends in one process: serves, and asks itself |
//! | `… -- serve 127.0.0.1:8080` | serves until it is stopped |
//! | `… -- get 127.0.0.1:8080 /path` | asks |
//!
//! The server also answers `ubiverbs run --sockets -- curl http://127.0.0.1:8080/path`.

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, service::service_fn};
use hyper_util::rt::TokioIo;
use ubiverbs::stream::{RdmaListener, RdmaStream};

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Failure> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(format!("{} bytes came over RDMA for {path}\n", body.len()).into()))
}

async fn serve(listener: RdmaListener) -> Result<(), Failure> {
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service_fn(answer)));
    }
}

async fn get(address: &str, path: &str) -> Result<String, Failure> {
    let stream = RdmaStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path).header("host", address).body(Empty::<Bytes>::new())?;
    let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec())?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["get", address, path] => print!("{}", get(address, path).await?),
        ["serve", address] => {
            let listener = RdmaListener::bind(address).await?;
            println!("serving at {}", listener.local_addr()?);
            serve(listener).await?;
        }
        _ => {
            let listener = RdmaListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?.to_string();
            tokio::spawn(serve(listener));
            print!("{}", get(&address, "/hello").await?);
        }
    }
    Ok(())
}
