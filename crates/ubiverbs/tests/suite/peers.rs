//! Two processes with a connection between them, over shared memory and over UDP. A test that asks for them runs itself
//! again as each of the two.

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use ubiverbs::cm::{self, Connection};

pub type Outcome = Result<(), Box<dyn Error>>;

const ROLE: &str = "UBIVERBS_TEST_ROLE";
const ADDRESS: &str = "UBIVERBS_TEST_ADDRESS";
/// What the server says before its address. The test harness writes to the same stream.
const LISTENING: &str = "listening at ";

/// Runs `server` and `client`, each in a process of its own, once per link. `test` is the name of the test that calls
/// this.
pub fn on_both_links(
    test: &str,
    server: impl FnOnce(Connection) -> Outcome,
    client: impl FnOnce(Connection) -> Outcome,
) {
    match std::env::var(ROLE).as_deref() {
        Ok("server") => {
            let listener = cm::Listener::bind("127.0.0.1:0").unwrap();
            println!("{LISTENING}{}", listener.local_addr());
            let connection = listener.accept().wait().unwrap();
            assert_eq!(connection.link(), std::env::var("UBIVERBS_TEST_LINK").unwrap());
            server(connection).unwrap();
        }
        Ok(_) => client(cm::connect(std::env::var(ADDRESS).unwrap()).wait().unwrap()).unwrap(),
        Err(_) => {
            for (variable, link) in [("", "shared memory"), ("udp", "UDP")] {
                let mut server = spawn(test, variable, link, "server", "");
                let address = address_of(&mut server);
                let client = spawn(test, variable, link, "client", &address);
                finish(client, &format!("client over {link}"));
                finish(server, &format!("server over {link}"));
            }
        }
    }
}

fn spawn(test: &str, variable: &str, link: &str, role: &str, address: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(ADDRESS, address).env("UBIVERBS_TEST_LINK", link);
    if !variable.is_empty() {
        command.env("UBIVERBS_LINK", variable);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Where the server listens.
fn address_of(server: &mut Child) -> String {
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).unwrap() == 0 {
            let mut words = String::new();
            server.stderr.take().unwrap().read_to_string(&mut words).unwrap();
            panic!("the server never listened: {words}");
        }
        if let Some((_, address)) = line.split_once(LISTENING) {
            // What else it writes is read, so that it never waits for a reader.
            let address = address.trim().to_owned();
            std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
            return address;
        }
    }
}

fn finish(mut child: Child, who: &str) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut words = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut words).unwrap();
    }
    assert!(status.success(), "{who}: {status}\n{words}");
}
