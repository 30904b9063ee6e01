"""Packs a directory into a wheel: `pack.py TREE NAME VERSION TAG OUT`. `cargo xtask wheel` calls it.

The tree has what the wheel is to have, but for the list of files with their checksums (RECORD), which is made here. The
same tree gives the same bytes: entries are sorted, and have no time.
"""

import base64
import hashlib
import os
import sys
import zipfile

# The first that a zip file can say.
TIME = (1980, 1, 1, 0, 0, 0)


def files(tree):
    """Every file, with the path that it has in the wheel."""
    for directory, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(directory, name)
            yield os.path.relpath(path, tree), path


def add(wheel, name, content, executable):
    entry = zipfile.ZipInfo(name, TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    wheel.writestr(entry, content, compresslevel=9)


def main():
    tree, name, version, tag, out = sys.argv[1:]
    record = f"{name}-{version}.dist-info/RECORD"
    path = os.path.join(out, f"{name}-{version}-{tag}.whl")
    lines = []
    with zipfile.ZipFile(path + ".fresh", "w") as wheel:
        for inside, outside in sorted(files(tree)):
            if os.path.islink(outside):
                sys.exit(f"{outside} is a link, and wheels have none")
            with open(outside, "rb") as file:
                content = file.read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{inside},sha256={digest},{len(content)}\n")
            add(wheel, inside, content, os.access(outside, os.X_OK))
        lines.append(f"{record},,\n")
        add(wheel, record, "".join(lines).encode(), False)
    os.replace(path + ".fresh", path)
    print(path)


main()
