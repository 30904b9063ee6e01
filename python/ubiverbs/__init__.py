"""RDMA verbs without an RDMA NIC: the program `ubiverbs`, its libraries, and where they are.

On the command line `ubiverbs run -- PROGRAM` starts a program on our libraries. From Python there are two ways:

    subprocess.run(["ibv_devinfo"], env=ubiverbs.environment())     # another program

    ubiverbs.load()                                                 # this process; before pyverbs is imported
    import pyverbs.device
"""

import ctypes
import os
import signal
import sys

__version__ = "@VERSION@"

__all__ = ["environment", "library_directory", "load", "program"]

# The second jumps into the first.
_LIBRARIES = ("libibverbs.so.1", "librdmacm.so.1")


def program():
    """The path of the program `ubiverbs`. It finds its libraries by its own place."""
    return os.path.join(_here(), "bin", "ubiverbs")


def library_directory():
    """The directory with libibverbs.so.1 and librdmacm.so.1."""
    return os.path.join(_here(), "lib")


def environment(base=None):
    """The environment in which a subprocess gets our libraries; `base` is os.environ unless given.

    It is what `ubiverbs run --no-files` would set. Programs that look for files in /sys/class/infiniband, as UCX and
    NCCL do, want `ubiverbs run` itself.
    """
    result = dict(os.environ if base is None else base)
    directory = library_directory()
    if any(character in directory for character in ":;$"):
        raise RuntimeError(f"the dynamic linker cannot be told of {directory}: it has a colon, semicolon or dollar")
    search = result.get("LD_LIBRARY_PATH")
    result["LD_LIBRARY_PATH"] = f"{directory}:{search}" if search else directory
    # What the user preloads stays in front, but for other copies of ours.
    preload = result.get("LD_PRELOAD", "").replace(" ", ":").split(":")
    preload = [entry for entry in preload if entry and os.path.basename(entry) not in _LIBRARIES]
    # A path with a space cannot be written there; a bare name is searched for.
    ours = [name if " " in directory else os.path.join(directory, name) for name in _LIBRARIES]
    result["LD_PRELOAD"] = ":".join(preload + ours)
    return result


def load():
    """Loads our libraries into this process, so that modules imported later use them instead of the system's.

    Raises RuntimeError if other libraries of these names are here already: what is loaded first stays.
    """
    directory = library_directory()
    ours = [os.path.realpath(os.path.join(directory, name)) for name in _LIBRARIES]
    with open("/proc/self/maps") as maps:
        mapped = {line.split(None, 5)[5].rstrip("\n") for line in maps if len(line.split(None, 5)) == 6}
    for path in mapped:
        if os.path.basename(path).startswith(("libibverbs.so.1", "librdmacm.so.1")) and path not in ours:
            raise RuntimeError(f"{path} is loaded already; call ubiverbs.load() before importing what needs it")
    for path in ours:
        ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_NOW)


def main():
    """Becomes the program `ubiverbs`, with its arguments, process number, signals and exit code."""
    path = program()
    # Python ignores these; a program that is started should find them as they mostly are.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execv(path, ["ubiverbs"] + sys.argv[1:])
    except OSError as error:
        sys.exit(f"ubiverbs: {path} cannot be started: {error.strerror}")


def _here():
    return os.path.dirname(os.path.abspath(__file__))
