//! `ubiverbs doctor`: each thing that can be wrong here is made so, and must be found. Where the fix is a command it is
//! run as it is printed, and then nothing may be wrong any more.

use crate::compiled::compile;
use crate::stage::{Ended, NOBODY_UID, Stage};
use crate::{Test, expect, host};
use std::fs;
use std::path::Path;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("doctor: a host that works", |stage| {
            let ended = doctor(stage, &stage.alone, "exec \"$0\" doctor")?;
            ends(
                &ended,
                0,
                &["ok       devices        ubi_lo", "ok       UDP port", "ok       libraries", "ok       device files"],
            )?;
            expect(&ended.text, &["ok       system calls", "ok       search path", "ok       buffers"])?;
            let ended = doctor(stage, &stage.alone, "exec \"$0\" doctor --json")?;
            ends(&ended, 0, &["\"healthy\": true", "\"check\": \"kernel\"", "\"level\": \"ok\""])
        }),
        Test::new("doctor: lo is down", |stage| {
            Ailment { code: 1, ..Ailment::new("devices", &["FAILURE  devices        none", "ip link set lo up"]) }
                .is_fixed(stage, "unshare --net sh")
        })
        .for_root(),
        Test::new("doctor: another program has the UDP port", port_is_taken).for_root(),
        Test::new("doctor: ubiverbs of another user has the UDP port, and forwards", port_is_shared).for_root(),
        Test::new("doctor: few open files", |stage| {
            let cause = "ulimit -Sn 200";
            Ailment {
                cause,
                ..Ailment::new("open files", &["warning  open files", "200 open files", "ulimit -n 1024"])
            }
            .is_fixed(stage, "sh")
        }),
        Test::new("doctor: too few open files for a NIC", |stage| {
            let wanted = ["FAILURE  network", "Too many open files", "fix: ulimit -n 1024"];
            Ailment { cause: "ulimit -Sn 16", code: 1, fixed: "devices", ..Ailment::new("network", &wanted) }
                .is_fixed(stage, "sh")
        }),
        Test::new("doctor: too few threads for a NIC", |stage| {
            let script = "ulimit -u 0; exec \"$0\" doctor";
            let mut command = stage.alone.command(Some(NOBODY_UID), Path::new("bash"));
            let ended = stage.end(command.args(["-c", script]).arg(stage.dist.join("bin/ubiverbs")))?;
            ends(&ended, 1, &["FAILURE  network", "fix: ulimit -u unlimited"])
        })
        .for_root(),
        Test::new("doctor: small files only", |stage| {
            let wanted = ["warning  file size", "64 KiB", "use UDP", "fix: ulimit -f unlimited"];
            Ailment { cause: "ulimit -Sf 64", ..Ailment::new("file size", &wanted) }.is_fixed(stage, "bash")
        }),
        Test::new("doctor: little locked memory", |stage| {
            let ended = doctor(stage, &stage.alone, "ulimit -l 64; exec \"$0\" doctor")?;
            ends(&ended, 0, &["warning  locked memory", "64 KiB", "ulimit -l unlimited"])
        }),
        Test::new("doctor: little memory for the control group", |stage| {
            let cause = "mount -t tmpfs none /sys/fs/cgroup; echo 16777216 > /sys/fs/cgroup/memory.max";
            let wanted = ["warning  memory", "16384 KiB", "fix: echo 67108864 > /sys/fs/cgroup/memory.max"];
            Ailment { cause, gone: true, ..Ailment::new("memory", &wanted) }.is_fixed(stage, "unshare --mount sh")
        })
        .for_root(),
        Test::new("doctor: no /proc", |stage| {
            let wanted = ["FAILURE  /proc", "processes find one another there", "fix: mount -t proc proc /proc"];
            let cause = "mount -t tmpfs none /proc";
            Ailment { cause, code: 1, fixed: "devices", ..Ailment::new("/proc", &wanted) }
                .is_fixed(stage, "unshare --mount sh")
        })
        .for_root(),
        Test::new("doctor: small buffers of sockets", |stage| {
            // The setting is the whole machine's: only what this program reads of it is another.
            let script =
                "echo 4096 > $1/small; mount --bind $1/small /proc/sys/net/core/rmem_max && exec \"$0\" doctor";
            let mut command = stage.alone.command(None, Path::new("unshare"));
            let ended = stage.end(
                command.args(["--mount", "sh", "-c", script]).arg(stage.dist.join("bin/ubiverbs")).arg(&stage.place),
            )?;
            let fix = "fix: sysctl -w net.core.rmem_max=212992";
            ends(&ended, 0, &["warning  buffers        net.core.rmem_max is 4096", fix])
        })
        .for_root(),
        Test::new("doctor: a sandbox refuses system calls", refused_calls),
        Test::new("doctor: no IPv6", |stage| {
            let ended = under_filter(stage, 97, "ipv6")?;
            ends(&ended, 0, &["warning  UDP port", "the system has no IPv6", "fix: boot without ipv6.disable=1"])
        }),
        Test::new("doctor: nowhere for device files", |stage| {
            let ended = doctor(stage, &stage.alone, "TMPDIR=/no/such/directory exec \"$0\" doctor")?;
            ends(&ended, 0, &["warning  device files", "/no/such/directory", "fix: set TMPDIR"])
        }),
        Test::new("doctor: another libibverbs is preloaded", |stage| {
            let cause = "export LD_PRELOAD=/no/such/libibverbs-ab12cd34.so.1";
            let wanted = ["FAILURE  preloaded", "libibverbs-ab12cd34", "fix: unset LD_PRELOAD"];
            Ailment { cause, code: 1, ..Ailment::new("preloaded", &wanted) }.is_fixed(stage, "sh")
        }),
        Test::new("doctor: another libibverbs comes first in LD_LIBRARY_PATH", |stage| {
            let cause = "mkdir -p $1/other; touch $1/other/libibverbs.so.1; \
                         export LD_LIBRARY_PATH=$1/other:$(dirname $0)/../lib";
            let wanted = ["FAILURE  search path", "other/libibverbs.so.1 before ours", "fix: export LD_LIBRARY_PATH="];
            Ailment { cause, code: 1, ..Ailment::new("search path", &wanted) }.is_fixed(stage, "sh")
        }),
        Test::new("doctor: the libraries are missing", |stage| {
            let place = stage.place.join("alone/bin");
            fs::create_dir_all(&place).map_err(|e| e.to_string())?;
            fs::copy(stage.dist.join("bin/ubiverbs"), place.join("ubiverbs")).map_err(|e| e.to_string())?;
            let ended = stage.end(stage.alone.command(None, &place.join("ubiverbs")).arg("doctor"))?;
            ends(&ended, 1, &["FAILURE  libraries", "alone/lib"])
        }),
    ]
}

/// Something that is wrong, and is right again after the printed fix.
struct Ailment {
    /// What makes it so, in a shell; `$0` is the program and `$1` a directory.
    cause: &'static str,
    check: &'static str,
    wanted: Vec<&'static str>,
    /// The exit code before the fix. After it there must be none.
    code: i32,
    /// The check that is well then.
    fixed: &'static str,
    /// It says nothing if all is well.
    gone: bool,
}

impl Ailment {
    fn new(check: &'static str, wanted: &[&'static str]) -> Ailment {
        Ailment { cause: ":", check, wanted: wanted.to_vec(), code: 0, fixed: check, gone: false }
    }

    fn is_fixed(&self, stage: &Stage, shell: &str) -> Result<(), String> {
        let Ailment { cause, check, wanted, code, fixed, gone } = self;
        let script = format!(
            "{cause}\n\
             \"$0\" doctor > \"$1/first\" 2>&1; echo \"first: $?\"; cat \"$1/first\"\n\
             fix=$(sed -n '\\: {check} :{{n;s/.*fix: //p}}' \"$1/first\")\n\
             eval \"$fix\"; echo \"then: $fix\"; exec \"$0\" doctor"
        );
        let mut words = shell.split_whitespace();
        let mut command = stage.alone.command(None, Path::new(words.next().unwrap_or("sh")));
        command.args(words).args(["-c", &script]).arg(stage.dist.join("bin/ubiverbs")).arg(&stage.place);
        let ended = stage.end(&mut command)?;
        let Some((first, then)) = ended.text.split_once("then: ") else { return Err(ended.text) };
        expect(first, &[&format!("first: {code}")])?;
        expect(first, wanted)?;
        let well = format!("ok       {fixed} ");
        if then.contains("FAILURE") || then.contains(&format!("warning  {check}")) || !gone && !then.contains(&well) {
            return Err(format!("the fix did not help:\n{}", ended.text));
        }
        if ended.status.success() { Ok(()) } else { Err(format!("{}: {}", ended.status, ended.text)) }
    }
}

/// Runs a script on a host, with the program as `$0`.
fn doctor(stage: &Stage, host: &host::Host, script: &str) -> Result<Ended, String> {
    let mut command = host.command(None, Path::new("sh"));
    stage.end(command.args(["-c", script]).arg(stage.dist.join("bin/ubiverbs")))
}

fn ends(ended: &Ended, code: i32, wanted: &[&str]) -> Result<(), String> {
    expect(&ended.text, wanted)?;
    if ended.status.code() == Some(code) { Ok(()) } else { Err(format!("{}: {}", ended.status, ended.text)) }
}

/// With that answer of the kernel's for these calls.
fn under_filter(stage: &Stage, errno: i32, calls: &str) -> Result<Ended, String> {
    let filter = compile(stage, "cc", "deny.c", &[])?;
    let mut command = stage.alone.command(None, &filter);
    stage.end(command.args([&errno.to_string(), calls]).arg(stage.dist.join("bin/ubiverbs")).arg("doctor"))
}

fn refused_calls(stage: &Stage) -> Result<(), String> {
    const EPERM: i32 = 1;
    const ENOSYS: i32 = 38;
    for (call, code, so) in [
        ("eventfd2", 1, "FAILURE  system calls   eventfd is refused"),
        ("recvmmsg", 0, "warning  system calls   recvmmsg is refused"),
        ("memfd_create", 0, "warning  system calls   memfd_create is refused"),
        ("pidfd_open", 0, "warning  system calls   pidfd_open is refused"),
        ("membarrier", 0, "warning  system calls   membarrier is refused"),
    ] {
        let ended = under_filter(stage, EPERM, call)?;
        ends(&ended, code, &[so, "Operation not permitted", "fix: allow it in the sandbox or the container"])?;
        let ended = under_filter(stage, ENOSYS, call)?;
        ends(&ended, code, &[so, "Function not implemented", "has it; a sandbox or container that hides it"])?;
    }
    // What has a substitute that is as good is not mentioned.
    let ended = under_filter(stage, EPERM, "epoll_pwait2,process_vm_readv,process_vm_writev")?;
    ends(&ended, 0, &["ok       system calls", "ok       devices"])
}

fn port_is_taken(stage: &Stage) -> Result<(), String> {
    let host = host::Host::alone()?;
    let holder = "import socket, time; s = [socket.socket(f, socket.SOCK_DGRAM) for f in (socket.AF_INET, socket.AF_INET6)]; \
                  s[1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1); [x.bind(('', 4791)) for x in s]; \
                  print('held', flush=True); time.sleep(600)";
    let running = stage.start("holder", host.command(None, Path::new("python3")).args(["-c", holder]))?;
    host::wait("the port to be held", || running.text().contains("held"))?;
    let script = "\"$0\" doctor; echo \"first: $?\"; exec \"$0\" doctor --json";
    let ended = doctor(stage, &host, script)?;
    let named = format!("4791 (IPv4, IPv6) is held by python3 (process {}), which does not share it", running.id());
    let fix = format!("kill {}", running.id());
    ends(&ended, 1, &["FAILURE  UDP port", &named, &format!("fix: {fix}\n"), "first: 1", "\"healthy\": false"])?;
    // Done as it was said. It is our child, and gone for good when it was waited for.
    let ended = stage.end(host.command(None, Path::new("sh")).args(["-c", &fix]))?;
    ends(&ended, 0, &[])?;
    host::wait("the port to be free", || {
        doctor(stage, &host, "exec \"$0\" doctor").is_ok_and(|ended| ends(&ended, 0, &["ok       UDP port"]).is_ok())
    })
}

fn port_is_shared(stage: &Stage) -> Result<(), String> {
    let host = host::Host::alone()?;
    let port = stage.next_port();
    let running = stage.start("holder", &mut stage.run_on(&host, None, &[], &format!("rping -s -p {port}")))?;
    host::wait("the holder to listen", || host::listens(running.id(), port).unwrap_or(false))?;
    let mut command = host.command(Some(NOBODY_UID), &stage.dist.join("bin/ubiverbs"));
    let ended = stage.end(command.arg("doctor"))?;
    ends(&ended, 0, &["ok       UDP port       4791 is held by ubiverbs of user 0, which forwards"])
}
