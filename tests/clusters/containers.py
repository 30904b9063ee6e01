"""The pods of examples/kubernetes, played by podman as kubelet would start them: with the commands, the user, the
read-only root, the volumes and no capability, each pod in a network of its own. `containers.py IMAGE WORK`, as root,
who makes the networks; containers run as the manifests say. `cargo xtask clusters` calls it."""

import os
import subprocess
import sys
import time

import manifests
from hosts import Cluster

# What podman must be told on hosts where nothing is set up for it.
SETTINGS = """[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""

# Two containers of 131 MB each way need thousands of datagrams, unless they share memory.
FEW_DATAGRAMS = 200


def podman(*words, check=True):
    ended = subprocess.run(
        ["podman", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, errors="replace",
    )
    if check and ended.returncode:
        raise RuntimeError(f"podman {' '.join(words)}: exit {ended.returncode}\n{ended.stdout[-4000:]}")
    return ended.stdout


class Pod:
    """A pod on a host of the cluster."""

    def __init__(self, name, number, spec, host, image, work, known):
        self.name, self.number, self.spec, self.host, self.image = f"{name}-{number}", number, spec, host, image
        self.known, self.volumes, self.started = known, {}, []
        for volume in spec.get("volumes", []):
            # A directory that the pod's user may write to; memory is a file system in memory.
            path = os.path.join(work, "volumes", self.name, volume["name"])
            subprocess.run(["rm", "-rf", path], check=True)
            os.makedirs(path)
            os.chmod(path, 0o777)
            self.volumes[volume["name"]] = path

    def options(self, container):
        pod, own = self.spec["securityContext"], container["securityContext"]
        words = ["--network", f"ns:/proc/{self.host.process}/ns/net", "--ulimit", "host", "--pull", "never"]
        words += ["--user", f"{pod['runAsUser']}:{pod['runAsGroup']}", "--entrypoint", ""]
        for capability in own["capabilities"]["drop"]:
            words += ["--cap-drop", capability]
        if own["readOnlyRootFilesystem"]:
            words += ["--read-only", "--read-only-tmpfs=false"]
        if not own["allowPrivilegeEscalation"]:
            words += ["--security-opt", "no-new-privileges"]
        for mount in container.get("volumeMounts", []):
            mode = "ro" if mount.get("readOnly") else "rw"
            words += ["--volume", f"{self.volumes[mount['name']]}:{mount['mountPath']}:{mode}"]
        for name, address in self.known.items():
            words += ["--add-host", f"{name}:{address}"]
        for variable in container.get("env", []):
            words += ["--env", f"{variable['name']}={variable['value']}"]
        return words + ["--env", f"JOB_COMPLETION_INDEX={self.number}"]

    def start(self):
        for container in self.spec.get("initContainers", []):
            podman("run", "--rm", *self.options(container), self.image, *container["command"])
        for container in self.spec["containers"]:
            name = f"{self.name}-{container['name']}"
            podman("rm", "--force", name, check=False)
            # Containers of a pod share its network, its host name and its System V memory.
            shared = []
            if self.started:
                shared = ["--ipc", f"container:{self.started[0]}", "--uts", f"container:{self.started[0]}"]
            options = [*shared, *self.options(container)]
            podman("run", "--detach", "--name", name, *options, self.image, *container["command"])
            self.started.append(name)

    def end(self):
        """Waits for all containers, who must end well; returns what they printed."""
        texts = []
        for name in self.started:
            code, text = podman("wait", name).strip(), podman("logs", name)
            if code != "0":
                raise RuntimeError(f"{name}: exit {code}\n{text[-4000:]}")
            texts.append(text)
        return texts

    def remove(self):
        for name in self.started:
            podman("rm", "--force", "--time", "0", name, check=False)


def datagrams(host):
    lines = host.run("cat", "/proc/net/snmp").splitlines()
    names, values = [line.split() for line in lines if line.startswith("Udp:")]
    return int(values[names.index("OutDatagrams")])


def play(cluster, image, work, name):
    """Starts all pods of a manifest; returns what each container printed, and the datagrams that hosts sent."""
    made = [(document, pod) for document in manifests.read(f"{name}.yaml") for pod in manifests.pods(document)]
    known = {}
    for _, (number, spec) in made:
        if "subdomain" in spec:
            known[f"{name}-{number}.{spec['subdomain']}"] = cluster.hosts[number].address
    pods = [Pod(name, number, spec, cluster.hosts[number], image, work, known) for _, (number, spec) in made]
    before = [datagrams(host) for host in cluster.hosts]
    try:
        for pod in pods:
            pod.start()
        texts = [text for pod in pods for text in pod.end()]
        return texts, [datagrams(host) - count for host, count in zip(cluster.hosts, before)]
    finally:
        for pod in pods:
            pod.remove()


def two_pods(cluster, image, work):
    texts, sent = play(cluster, image, work, "two-pods")
    for text in texts:
        if "BW average" not in text or "65536      500" not in text:
            raise RuntimeError(f"no measurement in:\n{text}")
    if max(sent) < 500:
        raise RuntimeError(f"32 MB went between pods with {sent} datagrams")
    return f"{sent} datagrams"


def one_pod(cluster, image, work):
    texts, sent = play(cluster, image, work, "one-pod")
    for text in texts:
        if "131072000 bytes in" not in text:
            raise RuntimeError(f"not all bytes in:\n{text}")
    if sum(sent) > FEW_DATAGRAMS:
        raise RuntimeError(f"{sent} datagrams: containers of a pod did not share memory")
    return f"131 MB each way, {sum(sent)} datagrams"


def confined(cluster, image, work):
    """Nothing that the manifests promise is missing: user, capabilities, root, the way to privileges."""
    look = (
        "id -u; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; "
        "touch /here 2>/dev/null && echo writable; ls /dev/infiniband 2>/dev/null; true"
    )
    pod = manifests.read("one-pod.yaml")[0]["spec"]
    made = Pod("confined", 0, pod, cluster.hosts[0], image, work, {})
    text = podman("run", "--rm", *made.options(pod["containers"][0]), image, "sh", "-c", look)
    none = "0" * 16
    wanted = ["1000", f"CapBnd:\t{none}", f"CapEff:\t{none}", "NoNewPrivs:\t1", "Seccomp:\t2"]
    if sorted(text.split("\n")) != sorted(wanted + [""]):
        raise RuntimeError(f"not confined:\n{text}")
    return "user 1000, no capability, read-only root, seccomp"


def main():
    image, work = sys.argv[1], os.path.abspath(sys.argv[2])
    os.makedirs(work, exist_ok=True)
    os.environ["CONTAINERS_CONF"] = settings = os.path.join(work, "containers.conf")
    with open(settings, "w") as file:
        file.write(SETTINGS)
    if image.endswith(".oci.tar"):
        # It ends with the name that the archive says.
        image = podman("load", "--quiet", "--input", image).split()[-1]
    failed = passed = 0
    with Cluster(2) as cluster:
        for name, test in (("confined", confined), ("one pod", one_pod), ("two pods", two_pods)):
            begin = time.monotonic()
            try:
                told = test(cluster, image, work)
                passed += 1
                print(f"ok     containers, {name}: {time.monotonic() - begin:.1f} s, {told}", flush=True)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                failed += 1
                print(f"FAILED containers, {name}\n{error}", flush=True)
    print(f"test result: {passed} passed; {failed} failed; 0 ignored")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
