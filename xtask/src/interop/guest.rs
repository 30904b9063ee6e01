//! The virtual machine: started, told what to do over its second serial port, and killed at the end.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::image;

/// How long it may take to boot, on a busy machine that has to emulate it.
const BOOT: Duration = Duration::from_secs(180);

/// How much longer than its own limit a command may take to be answered.
const SLACK: Duration = Duration::from_secs(30);

/// What the guest's network card is given.
pub struct Card<'a> {
    pub tap: &'a str,
    pub mtu: u32,
    pub v4: &'a str,
    pub v6: &'a str,
}

/// A running machine.
pub struct Guest {
    machine: Child,
    orders: BufReader<UnixStream>,
    console: std::path::PathBuf,
    /// The release of its kernel.
    pub kernel: String,
}

/// What a command said and how it ended.
#[derive(Debug)]
pub struct CommandResult {
    pub status: i32,
    pub said: String,
}

/// Who computes the guest: the processor, where it can, or an emulation of it.
pub fn accelerator() -> &'static str {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let able = processor.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    if able && fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok() { "kvm" } else { "tcg" }
}

impl Guest {
    /// Boots it and waits until it obeys.
    pub fn boot(place: &Path, card: &Card<'_>) -> Result<Guest, String> {
        let path = place.join("orders");
        let console = place.join("console.txt");
        for file in [&path, &console] {
            let _ = fs::remove_file(file);
        }
        let listener = UnixListener::bind(&path).map_err(|e| format!("cannot bind {}: {e}", path.display()))?;
        listener.set_nonblocking(true).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut machine = machine(place, card, &path, &console)
            .spawn()
            .map_err(|e| format!("qemu-system-x86_64 did not start: {e}"))?;
        let end = Instant::now() + BOOT;
        let stream = loop {
            if let Ok((stream, _)) = listener.accept() {
                break stream;
            }
            if Instant::now() > end || !matches!(machine.try_wait(), Ok(None)) {
                let _ = machine.kill();
                return Err(format!("the virtual machine did not start; see {}", place.join("qemu.txt").display()));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // The machine has its own copy of the socket now.
        let _ = fs::remove_file(&path);
        let ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(BOOT)));
        let mut guest = Guest { machine, orders: BufReader::new(stream), console, kernel: String::new() };
        ready.map_err(|e| format!("the serial port: {e}"))?;
        let line = guest.line()?;
        guest.kernel = line.strip_prefix("ready ").ok_or_else(|| guest.broken(&line))?.to_string();
        Ok(guest)
    }

    /// Runs a line of shell that ends within so many seconds.
    pub fn run(&mut self, line: &str, limit: Duration) -> Result<CommandResult, String> {
        let stream = self.orders.get_mut();
        let sent = stream
            .set_read_timeout(Some(limit + SLACK))
            .and_then(|()| stream.write_all(format!("{line}\n").as_bytes()));
        sent.map_err(|e| self.broken(&e.to_string()))?;
        let mut said = String::new();
        loop {
            let line = self.line()?;
            if let Some(text) = line.strip_prefix('|') {
                said.push_str(text);
                said.push('\n');
            } else if let Some(status) = line.strip_prefix('=').and_then(|status| status.parse().ok()) {
                return Ok(CommandResult { status, said });
            } else {
                return Err(self.broken(&line));
            }
        }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut bytes = Vec::new();
        match self.orders.read_until(b'\n', &mut bytes) {
            Ok(0) => Err(self.broken("it has ended")),
            Ok(_) => Ok(String::from_utf8_lossy(&bytes).trim_end().to_string()),
            Err(e) => Err(self.broken(&e.to_string())),
        }
    }

    /// Why nothing more can be asked of it.
    fn broken(&self, why: &str) -> String {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().collect();
        let last = lines[lines.len().saturating_sub(10)..].join("\n");
        format!("the virtual machine does not answer: {why}; the end of {}:\n{last}", self.console.display())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // If it is gone already there is nothing to do.
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}

fn machine(place: &Path, card: &Card<'_>, orders: &Path, console: &Path) -> Command {
    let Card { tap, mtu, v4, v6 } = card;
    let accelerator = accelerator();
    // Emulation with more of a processor's features is only slower.
    let processor = if accelerator == "kvm" { "host" } else { "qemu64" };
    let mut machine = Command::new("qemu-system-x86_64");
    machine
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        // Two processors: an emulated guest with one leaves out the barriers that its network card needs.
        .args(["-accel", accelerator, "-cpu", processor, "-smp", "2", "-m", "768"])
        .arg("-kernel")
        .arg(image::kernel(place))
        .arg("-initrd")
        .arg(image::file_system(place))
        .arg("-append")
        .arg(format!("console=ttyS0 quiet panic=-1 mitigations=off interop.mtu={mtu} interop.v4={v4} interop.v6={v6}"))
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-chardev")
        .arg(format!("socket,id=orders,path={}", orders.display()))
        .args(["-serial", "chardev:orders"])
        .arg("-netdev")
        .arg(format!("tap,id=cable,ifname={tap},script=no,downscript=no"))
        .args(["-device", "virtio-net-pci,netdev=cable,mac=52:54:00:00:00:02,romfile="])
        .stdin(Stdio::null());
    let log = fs::File::create(place.join("qemu.txt"));
    if let Ok((out, err)) = log.and_then(|log| Ok((log.try_clone()?, log))) {
        machine.stdout(out).stderr(err);
    }
    machine
}
