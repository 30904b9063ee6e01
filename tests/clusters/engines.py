"""Jobs of several hosts, started by what people start them with: Open MPI and MPICH by ssh, Slurm by PMIx and PMI-2.
`engines.py DIST WORK [WORD...]` runs those whose names contain a word. The program is tests/programs/c/mpi.c, which
looks at every byte; every rank is started with `ubiverbs run`. Needs root; `cargo xtask clusters` calls it."""

import os
import re
import subprocess
import sys
import time

from hosts import Cluster, wait

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "programs", "c", "mpi.c")

# Nothing but verbs, between ranks of one host, too.
UCX = {"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "ubi_eth0:1"}
OPEN_MPI = "--mca pml ucx --mca osc ucx --mca btl self --mca coll ^sm"
OPEN_MPI_VARIABLES = {
    "OMPI_MCA_pml": "ucx", "OMPI_MCA_osc": "ucx", "OMPI_MCA_btl": "self", "OMPI_MCA_coll": "^sm",
}
MPICH_VARIABLES = {"MPIR_CVAR_NOLOCAL": "1"}

# Bytes that a rank sends to others at least; a datagram has less than 64 KiB.
SENT_PER_RANK = 3 << 20


class Place:
    """Files that all hosts see, as a home directory on a file server."""

    def __init__(self, dist, work):
        self.work, self.ubiverbs = work, os.path.join(dist, "bin", "ubiverbs")
        os.makedirs(work, exist_ok=True)
        self.programs = {}
        for kind in ("openmpi", "mpich"):
            self.programs[kind] = os.path.join(work, f"mpi-{kind}")
            subprocess.run([f"mpicc.{kind}", "-std=c11", "-O1", "-o", self.programs[kind], SOURCE], check=True)

    def path(self, name):
        return os.path.join(self.work, name)

    def rank(self, kind):
        return [self.ubiverbs, "run", "--", self.programs[kind], "1"]


def start_ssh(cluster, place):
    """A server on each host, and a client that knows its key."""
    for name in ("host-key", "user-key"):
        path = place.path(name)
        if not os.path.exists(path):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    os.chmod(place.work, 0o755)
    server = (
        f"HostKey {place.path('host-key')}\nAuthorizedKeysFile {place.path('user-key.pub')}\nPidFile none\n"
        "PermitRootLogin yes\nPasswordAuthentication no\nStrictModes no\nUsePAM no\nPort 22\n"
    )
    with open(place.path("sshd_config"), "w") as file:
        file.write(server)
    with open(place.path("known_hosts"), "w") as file:
        key = open(place.path("host-key.pub")).read()
        file.writelines(f"{host.name} {key}" for host in cluster.hosts)
    with open(place.path("ssh_config"), "w") as file:
        file.write(
            f"IdentityFile {place.path('user-key')}\nIdentitiesOnly yes\nBatchMode yes\n"
            f"UserKnownHostsFile {place.path('known_hosts')}\nGlobalKnownHostsFile /dev/null\n"
        )
    for host in cluster.hosts:
        host.start(place.path(f"sshd-{host.name}.log"), "/usr/sbin/sshd", "-D", "-e", "-f", place.path("sshd_config"))
    first = cluster.hosts[0]
    for host in cluster.hosts:
        answered = lambda: first.run("ssh", "-F", place.path("ssh_config"), host.name, "hostname").strip() == host.name
        wait(f"ssh to {host.name}", answered)


def start_slurm(cluster, place):
    """A controller on the first host, and a daemon on each."""
    munge = place.path("munge")
    os.makedirs(munge, mode=0o755, exist_ok=True)
    key = os.path.join(munge, "key")
    with open(key, "wb") as file:
        file.write(os.urandom(1024))
    os.chmod(key, 0o600)
    names = [host.name for host in cluster.hosts]
    for name in ["state", *names]:
        os.makedirs(place.path(f"slurm-{name}"), exist_ok=True)
    lines = [
        "ClusterName=ubiverbs", f"SlurmctldHost={names[0]}", "SlurmUser=root", "AuthType=auth/munge",
        "CryptoType=crypto/munge", f"AuthInfo=socket={munge}/socket", "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "ReturnToService=2",
        f"StateSaveLocation={place.path('slurm-state')}", f"SlurmdSpoolDir={place.path('slurm-%n')}",
        f"SlurmctldPidFile={place.path('slurmctld.pid')}", f"SlurmdPidFile={place.path('slurmd-%n.pid')}",
        f"SlurmctldLogFile={place.path('slurmctld.log')}", f"SlurmdLogFile={place.path('slurmd-%n.log')}",
        "JobAcctGatherType=jobacct_gather/none", "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/none", "MailProg=/bin/true", "SlurmctldParameters=enable_configless",
    ]
    # Two ranks fit on each, whatever this machine has.
    for host in cluster.hosts:
        lines += [f"NodeName={host.name} NodeAddr={host.address} CPUs=2 RealMemory=200 State=UNKNOWN"]
    lines += [f"PartitionName=all Nodes={','.join(names)} Default=YES MaxTime=INFINITE State=UP"]
    lines += ["SlurmdParameters=config_overrides"]
    configuration = place.path("slurm.conf")
    with open(configuration, "w") as file:
        file.write("\n".join(lines) + "\n")
    os.environ["SLURM_CONF"] = configuration
    for host in cluster.hosts:
        # Each host has a daemon that vouches for its users, with one key for all.
        socket, log = f"{munge}/socket", place.path(f"munged-{host.name}.log")
        own = place.path(f"munge-{host.name}")
        os.makedirs(own, exist_ok=True)
        host.run("sh", "-ec", f"cp {key} {own}/key && chmod 600 {own}/key && mount --bind {own} {munge}")
        host.start(
            log, "/usr/sbin/munged", "--foreground", "--force", f"--socket={socket}", f"--key-file={munge}/key",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
        )
        proof = f"echo x | munge --socket={socket} | unmunge --socket={socket}"
        wait(f"munge on {host.name}", lambda: host.run("sh", "-c", proof))
    cluster.hosts[0].start(place.path("slurmctld.out"), "/usr/sbin/slurmctld", "-D", "-i", "-f", configuration)
    for host in cluster.hosts:
        log = place.path(f"slurmd-{host.name}.out")
        host.start(log, "/usr/sbin/slurmd", "-D", "-N", host.name, "-f", configuration)
    idle = lambda: cluster.hosts[0].run("sinfo", "--noheader", "--Node", "--format=%t").split() == ["idle"] * len(names)
    wait("all nodes of Slurm to be idle", idle)


def ssh_open_mpi(cluster, place, hosts, per_host):
    exports = " ".join(f"-x {name}={value}" for name, value in UCX.items())
    where = ",".join(f"{host.name}:{per_host}" for host in cluster.hosts[:hosts])
    agent = f"ssh -F {place.path('ssh_config')}"
    words = f"mpirun.openmpi --allow-run-as-root --host {where} -n {hosts * per_host} {OPEN_MPI} {exports}".split()
    words += ["--mca", "plm_rsh_agent", agent, "--mca", "plm", "rsh", "--mca", "oob_tcp_if_include", "eth0"]
    return cluster.hosts[0].run(*words, *place.rank("openmpi"))


def ssh_mpich(cluster, place, hosts, per_host):
    wrapper = place.path("ssh")
    with open(wrapper, "w") as file:
        file.write(f"#!/bin/sh\nexec ssh -F {place.path('ssh_config')} \"$@\"\n")
    os.chmod(wrapper, 0o755)
    where = ",".join(f"{host.name}:{per_host}" for host in cluster.hosts[:hosts])
    words = f"mpiexec.mpich -launcher ssh -launcher-exec {wrapper} -iface eth0 -hosts {where}".split()
    for name, value in {**UCX, **MPICH_VARIABLES}.items():
        words += ["-genv", name, value]
    return cluster.hosts[0].run(*words, "-n", str(hosts * per_host), *place.rank("mpich"))


def srun(cluster, place, hosts, per_host, kind, interface, variables):
    words = f"srun --mpi={interface} --nodes={hosts} --ntasks-per-node={per_host} --overcommit".split()
    environment = {**os.environ, **UCX, **variables}
    return cluster.hosts[0].run(*words, *place.rank(kind), env=environment)


def sbatch(cluster, place, hosts, per_host):
    """A job as people write it: a script with `srun` in it."""
    script, output = place.path("job.sh"), place.path("job.out")
    lines = [
        "#!/bin/sh", f"#SBATCH --nodes={hosts}", f"#SBATCH --ntasks-per-node={per_host}", f"#SBATCH --output={output}",
        *(f"export {name}={value}" for name, value in {**UCX, **OPEN_MPI_VARIABLES}.items()),
        "exec srun --mpi=pmix " + " ".join(place.rank("openmpi")),
    ]
    with open(script, "w") as file:
        file.write("\n".join(lines) + "\n")
    cluster.hosts[0].run("sbatch", "--wait", script, cwd=place.work)
    return open(output).read()


JOBS = {
    "Open MPI by ssh": (ssh_open_mpi, start_ssh, ()),
    "MPICH by ssh": (ssh_mpich, start_ssh, ()),
    "Open MPI by Slurm, PMIx": (srun, start_slurm, ("openmpi", "pmix", OPEN_MPI_VARIABLES)),
    "MPICH by Slurm, PMI-2": (srun, start_slurm, ("mpich", "pmi2", MPICH_VARIABLES)),
    "Open MPI by sbatch": (sbatch, start_slurm, ()),
}
SIZES = [(2, 1), (4, 1), (4, 2)]


def datagrams(host):
    """How many UDP datagrams the host has sent: that is what goes between hosts."""
    lines = host.run("cat", "/proc/net/snmp").splitlines()
    names, values = [line.split() for line in lines if line.startswith("Udp:")]
    return int(values[names.index("OutDatagrams")])


def main():
    dist, work, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    place = Place(dist, work)
    failed, passed, started = 0, 0, set()
    with Cluster(4) as cluster:
        for name, (run, start, more) in JOBS.items():
            if words and not any(word in name for word in words):
                continue
            for hosts, per_host in SIZES:
                title = f"{name}, {hosts} hosts, {hosts * per_host} ranks"
                begin = time.monotonic()
                try:
                    if start not in started:
                        start(cluster, place)
                        started.add(start)
                    before = [datagrams(host) for host in cluster.hosts]
                    text = run(cluster, place, hosts, per_host, *more)
                    wanted = f"{hosts * per_host} ranks, 1 rounds: every byte and every sum is right"
                    if wanted not in text:
                        raise RuntimeError(f"no `{wanted}` in:\n{text[-6000:]}")
                    sent = [datagrams(host) - count for host, count in zip(cluster.hosts, before)]
                    if min(sent[:hosts]) < SENT_PER_RANK // 65536:
                        raise RuntimeError(f"too few datagrams for what was sent: {sent}")
                    passed += 1
                    print(f"ok     {title}: {time.monotonic() - begin:.1f} s, {sum(sent)} datagrams", flush=True)
                except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                    failed += 1
                    print(f"FAILED {title}\n{error}", flush=True)
    print(f"test result: {passed} passed; {failed} failed; 0 ignored")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
