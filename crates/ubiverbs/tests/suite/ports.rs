//! Connections over a NIC of several ports: each is on the port whose address it has. Which NICs there are is settled
//! for a process, so the test runs itself again as the program.

use std::process::Command;
use ubiverbs::Error;
use ubiverbs::cm::{self, Listener};
use wire::Gid;

const PROGRAM_VARIABLE: &str = "UBIVERBS_TEST_PROGRAM";

fn program() -> Result<(), Error> {
    let names: Vec<_> = ubiverbs::devices()?.iter().map(|device| device.name().to_owned()).collect();
    assert_eq!(names, ["ubi_0", "ubi_1"]);
    // The second port of the second NIC; the peer is on the first port of the first.
    let listener = Listener::bind("127.0.0.4:0")?;
    let client = cm::connect(listener.local_addr());
    let server = listener.accept().wait()?;
    let client = client.wait()?;
    let ends = [&client, &server].map(|end| (end.attributes().port, end.attributes().av.port, end.endpoint().gid()));
    let gid = |last| Gid::from_ipv4([127, 0, 0, last].into());
    assert_eq!(ends, [(1, 1, gid(1)), (2, 2, gid(4))]);
    let receiving = client.recv(client.pd().allocate(8)?)?;
    server.send_inline(b"hello")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"hello");
    println!("> done");
    Ok(())
}

#[test]
fn a_connection_is_on_the_port_of_its_address() {
    if std::env::var_os(PROGRAM_VARIABLE).is_some() {
        return program().unwrap();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "ports::a_connection_is_on_the_port_of_its_address";
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(PROGRAM_VARIABLE, "1")
        .env("UBIVERBS_NICS", "2x2");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("> done"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
