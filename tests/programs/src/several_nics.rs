//! Programs on several NICs of one host (`ubiverbs run --nics`): what they see, what goes from one NIC to another, by
//! the connection manager too, and libraries that spread their traffic over two; and NICs of two ports.

use crate::stage::{Link, Scene, Stage};
use crate::{Test, expect};

/// Server, client, and what the client prints when all is well. `PORT` stands for a port.
const LINES: [[&str; 3]; 5] = [
    [
        "ib_write_bw -d ubi_1 -x 0 -F -u 18 -n 50 -p PORT",
        "ib_write_bw -d ubi_3 -x 0 -F -u 18 -n 50 -p PORT 127.0.0.1",
        "65536",
    ],
    ["ib_send_bw -R -F -n 50 -p PORT", "ib_send_bw -R -F -n 50 -p PORT 127.0.0.3", "65536"],
    [
        "rping -s -a 127.0.0.3 -p PORT -V -C 20",
        "rping -c -I 127.0.0.2 -a 127.0.0.3 -p PORT -V -C 20 -v",
        "rdma-ping-19",
    ],
    [
        "ibv_ud_pingpong -d ubi_0 -g 0 -n 100 -p PORT",
        "ibv_ud_pingpong -d ubi_3 -g 0 -n 100 -p PORT 127.0.0.1",
        "bytes in",
    ],
    [TWO_RAILS, TWO_RAILS, "Final:"],
];

/// The same for two NICs of two ports: 127.0.0.1 and 127.0.0.2 are the ports of the first. Both have port 2 in use.
const PORT_LINES: [[&str; 3]; 4] = [
    [
        "ib_write_bw -d ubi_1 -i 2 -x 0 -F -u 18 -n 50 -p PORT",
        "ib_write_bw -d ubi_0 -i 2 -x 0 -F -u 18 -n 50 -p PORT 127.0.0.1",
        "65536",
    ],
    [
        "ib_write_bw -d ubi_1 --dualport -F -u 18 -n 50 -p PORT",
        "ib_write_bw -d ubi_0 --dualport -F -u 18 -n 50 -p PORT 127.0.0.1",
        "65536      100",
    ],
    [
        "rping -s -a 127.0.0.4 -p PORT -V -C 20",
        "rping -c -I 127.0.0.2 -a 127.0.0.4 -p PORT -V -C 20 -v",
        "rdma-ping-19",
    ],
    [
        "ibv_ud_pingpong -d ubi_1 -i 2 -g 0 -n 100 -p PORT",
        "ibv_ud_pingpong -d ubi_0 -i 2 -g 0 -n 100 -p PORT 127.0.0.1",
        "bytes in",
    ],
];

/// UCX with large messages over two NICs at a time; the client's address is added.
const TWO_RAILS: &str = "env UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=ubi_1:1,ubi_2:1 UCX_MAX_RNDV_RAILS=2 \
    ucx_perftest -t tag_bw -s 4000000 -n 20 -w 2 -p PORT";

pub fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("several NICs: programs that look see them", look),
        Test::new("NICs of two ports: programs that look see them", look_at_ports),
    ];
    for link in Link::BOTH {
        for [server, client, says] in LINES {
            let name = format!("several NICs: {}, {}", client.replace(" -p PORT", ""), link.name());
            tests.push(Test::new(name, move |stage| play(stage, link, [server, client, says])));
        }
        for [server, client, says] in PORT_LINES {
            let name = format!("NICs of two ports: {}, {}", client.replace(" -p PORT", ""), link.name());
            tests.push(Test::new(name, move |stage| play_on_ports(stage, link, [server, client, says])));
        }
    }
    tests
}

fn nics() -> Vec<String> {
    ["--nics", "4"].map(str::to_owned).to_vec()
}

fn nics_of_two_ports() -> Vec<String> {
    ["--nics", "2x2"].map(str::to_owned).to_vec()
}

fn look(stage: &Stage) -> Result<(), String> {
    let all = ["ubi_0", "ubi_1", "ubi_2", "ubi_3"];
    expect(&stage.run(None, &nics(), "ibv_devices")?, &all)?;
    expect(&stage.run(None, &nics(), "ibv_devinfo -v -d ubi_3")?, &["PORT_ACTIVE (4)", "::ffff:127.0.0.4"])?;
    expect(&stage.run(None, &nics(), "ibstat ubi_2")?, &["CA 'ubi_2'", "State: Active"])?;
    let links = all.map(|name| format!("link {name}/1 state ACTIVE physical_state LINK_UP netdev lo"));
    expect(&stage.run(None, &nics(), "rdma link")?, &links.each_ref().map(String::as_str))
}

fn look_at_ports(stage: &Stage) -> Result<(), String> {
    let run = |line: &str| stage.run(None, &nics_of_two_ports(), line);
    let wanted = ["::ffff:127.0.0.3", "port:\t2", "::ffff:127.0.0.4"];
    expect(&run("ibv_devinfo -v -d ubi_1")?, &wanted)?;
    expect(&run("ibstat ubi_1")?, &["Number of ports: 2", "Port 1:", "Port 2:"])?;
    let links = ["ubi_0/1", "ubi_0/2", "ubi_1/1", "ubi_1/2"];
    let links = links.map(|name| format!("link {name} state ACTIVE physical_state LINK_UP netdev lo"));
    expect(&run("rdma link")?, &links.each_ref().map(String::as_str))?;
    expect(&run("rdma statistic show link ubi_1/2")?, &["link ubi_1/2 ", "sent_pkts"])?;
    expect(&run("cat /sys/class/infiniband/ubi_1/ports/2/gids/0")?, &["0000:0000:0000:0000:0000:ffff:7f00:0004"])
}

fn play_on_ports(stage: &Stage, link: Link, [server, client, says]: [&str; 3]) -> Result<(), String> {
    let port = stage.next_port();
    let with_port = |line: &str| line.replace("PORT", &port.to_string());
    let received = || -> Result<Vec<u64>, String> {
        let files = ["ubi_0", "ubi_1"]
            .map(|nic| format!("/sys/class/infiniband/{nic}/ports/2/counters/port_rcv_packets"))
            .join(" ");
        let text = stage.run(None, &nics_of_two_ports(), &format!("cat {files}"))?;
        text.lines().map(|line| line.parse().map_err(|_| text.clone())).collect()
    };
    let before = received()?;
    let host = &stage.alone;
    let text = stage.play(&Scene {
        hosts: [host; 2],
        user: None,
        options: &[nics_of_two_ports(), link.options()].concat(),
        server: with_port(server),
        port,
        clients: vec![with_port(client)],
        stays: false,
    })?;
    let text = text.join("\n");
    expect(&text, &[says])?;
    let packets: Vec<u64> = received()?.into_iter().zip(before).map(|(now, before)| now - before).collect();
    match packets.iter().all(|packets| *packets > 0) {
        true => Ok(()),
        false => Err(format!("the second ports of ubi_0 and ubi_1 received {packets:?} packets:\n{text}")),
    }
}

fn play(stage: &Stage, link: Link, [server, client, says]: [&str; 3]) -> Result<(), String> {
    let port = stage.next_port();
    let with_port = |line: &str| line.replace("PORT", &port.to_string());
    let mut client = with_port(client);
    let two_rails = server == TWO_RAILS;
    if two_rails {
        client.push_str(" 127.0.0.1");
    }
    let before = received(stage)?;
    let options = [nics(), link.options()].concat();
    let host = &stage.alone;
    let text = stage.play(&Scene {
        hosts: [host; 2],
        user: None,
        options: &options,
        server: with_port(server),
        port,
        clients: vec![client],
        stays: false,
    })?;
    expect(&text.join("\n"), &[says])?;
    let bytes: Vec<u64> = received(stage)?.into_iter().zip(before).map(|(now, before)| 4 * (now - before)).collect();
    // Both rails have carried a good part of the 80 MB.
    if two_rails && bytes.iter().any(|bytes| *bytes < 20_000_000) {
        return Err(format!("ubi_1 and ubi_2 received {bytes:?} bytes:\n{}", text.join("\n")));
    }
    Ok(())
}

/// What the second and the third NIC have received, in words of four bytes: programs that have ended, too.
fn received(stage: &Stage) -> Result<Vec<u64>, String> {
    let counter = |nic: &str| format!("/sys/class/infiniband/{nic}/ports/1/counters/port_rcv_data");
    let text = stage.run(None, &nics(), &format!("cat {} {}", counter("ubi_1"), counter("ubi_2")))?;
    text.lines().map(|line| line.parse().map_err(|_| text.clone())).collect()
}
