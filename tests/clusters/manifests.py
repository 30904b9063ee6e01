"""The manifests of examples/kubernetes: judged by Kubernetes' own schemas, and read for containers.py. `manifests.py`
judges all of them. Runs in an environment with kubernetes-validate; `cargo xtask clusters` makes it."""

import glob
import os
import sys

import kubernetes_validate
import yaml

PLACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "kubernetes")

# The oldest release with all that they use that still is in the field, and the newest that is known.
RELEASES = ["1.31", "1.37"]


def read(name):
    with open(os.path.join(PLACE, name), encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def pods(document):
    """The template of each pod that a document makes, with its number."""
    if document["kind"] == "Pod":
        return [(0, document["spec"])]
    if document["kind"] not in ("Job", "DaemonSet"):
        return []
    spec = document["spec"]
    return [(number, spec["template"]["spec"]) for number in range(spec.get("completions", 1))]


def complaints(pod):
    """What the pod security standard `restricted` would say, and what ours want beyond it."""
    wrong = []
    context = pod.get("securityContext", {})
    if not context.get("runAsNonRoot") or not context.get("runAsUser"):
        wrong.append("runs as root")
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        wrong.append("no seccomp profile")
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            wrong.append(key)
    for volume in pod.get("volumes", []):
        if set(volume) - {"name", "emptyDir"}:
            wrong.append(f"volume {volume['name']} is of the node")
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("readOnlyRootFilesystem") is not True:
            wrong.append(f"{container['name']} may write to its root or gain privileges")
        if own.get("capabilities") != {"drop": ["ALL"]} or own.get("privileged"):
            wrong.append(f"{container['name']} has capabilities")
    return wrong


def main():
    failed = passed = 0
    for path in sorted(glob.glob(os.path.join(PLACE, "*.yaml"))):
        name = os.path.basename(path)
        # Kind's own file: Kubernetes has no schema for it.
        if name == "kind.yaml":
            assert [node["role"] for node in read(name)[0]["nodes"]].count("worker") == 2
            continue
        for document in read(name):
            title = f"{name}: {document['kind']} {document['metadata']['name']}"
            try:
                for release in RELEASES:
                    kubernetes_validate.validate(document, release, strict=True)
                wrong = [what for _, pod in pods(document) for what in complaints(pod)]
                if wrong:
                    raise ValueError("; ".join(wrong))
                passed += 1
                print(f"ok     {title}")
            except (kubernetes_validate.ValidationError, ValueError) as error:
                failed += 1
                print(f"FAILED {title}\n{error}")
    print(f"test result: {passed} passed; {failed} failed; 0 ignored")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
