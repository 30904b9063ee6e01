"""Hosts of a cluster on one machine: each has a network, a name, processes, /tmp and /dev/shm of its own, and all are
on one switch. What runs on them thinks that it is on different machines. Needs root."""

import os
import subprocess
import time


class Host:
    """A host that lives until it is closed."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        # The holder is process 1 of the host: what runs there ends with it.
        script = (
            f"hostname {name} && mount -t proc proc /proc && mount -t tmpfs tmpfs /tmp && "
            "mount -t tmpfs tmpfs /dev/shm && mkdir -p /run/sshd && ip link set lo up && exec cat"
        )
        own = ["--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child"]
        command = ["unshare", *own, "sh", "-ec", script]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        # What is entered is the child of `unshare`: that is process 1.
        children = f"/proc/{self.holder.pid}/task/{self.holder.pid}/children"
        wait(f"{name} to start", lambda: open(children).read().strip())
        self.process = int(open(children).read())
        wait(f"{name} to be ready", lambda: open(f"/proc/{self.process}/comm").read() == "cat\n")

    def command(self, *words):
        flags = ["--net", "--uts", "--ipc", "--pid", "--mount"]
        return ["nsenter", f"--target={self.process}", *flags, "--wd=" + os.getcwd(), "--", *words]

    def run(self, *words, **more):
        """Runs a command to its end, which must be good; returns what it printed."""
        more.setdefault("timeout", 300)
        ended = subprocess.run(
            self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", **more
        )
        if ended.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(words)}: exit {ended.returncode}\n{ended.stdout[-6000:]}")
        return ended.stdout

    def start(self, log, *words):
        """Starts a command that stays."""
        with open(log, "w") as out:
            return subprocess.Popen(self.command(*words), stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def close(self):
        self.holder.kill()
        self.holder.wait()


class Cluster:
    """So many hosts, h0 with 10.99.0.1 and so on, on a switch that is in a network of its own."""

    def __init__(self, count):
        self.switch = Host("switch", None)
        self.hosts = []
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self.switch.run("ip", "link", "set", "bridge", "up")
        for number in range(count):
            host = Host(f"h{number}", f"10.99.0.{number + 1}")
            self.hosts.append(host)
            port = f"port{number}"
            ends = f"{port} netns {self.switch.process} type veth peer name eth0 netns {host.process}"
            subprocess.run(["ip", "link", "add", *ends.split()], check=True)
            self.switch.run(*f"ip link set {port} master bridge up".split())
            # No address but ours: the kernel's own come late, and would have numbers in the table.
            host.run(*"ip link set eth0 addrgenmode none".split())
            host.run(*f"ip addr add {host.address}/24 dev eth0".split())
            host.run(*"ip link set eth0 up".split())
        lines = "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        for host in self.hosts:
            host.run("sh", "-ec", f"printf '%s' '{lines}' > /tmp/hosts && mount --bind /tmp/hosts /etc/hosts")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for host in [*self.hosts, self.switch]:
            host.close()


def wait(what, is_so, seconds=60):
    """Looks until it is so."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if is_so():
                return
        except (OSError, RuntimeError):
            pass
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.02)
