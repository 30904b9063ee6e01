"""What the two processes of a test have in common: buffers with patterns, and a directory where each leaves what the
other must know."""

import ctypes
import mmap
import os
import random
import sys
import time

SIZE = 24 << 20
LIMIT = 200.0


class Buffer:
    """Memory with an address."""

    def __init__(self, size, seed=None):
        self.size = size
        self.memory = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if seed is not None:
            self.memory[:] = pattern(seed, size)

    def differs_from(self, expected):
        """The first place where it does, or None."""
        have = self.memory[: len(expected)]
        if have == expected:
            return None
        return next(at for at, (one, other) in enumerate(zip(have, expected)) if one != other)


def pattern(seed, size):
    return random.Random(seed).randbytes(size)


def pieces(seed, size):
    """Cuts a buffer into pieces of all sizes: from a byte to some megabytes, at odd places."""
    choice = random.Random(seed)
    at = 0
    while at < size:
        length = min(choice.choice([1, 17, 4096, 65537, 1 << 20, 5000011]), size - at)
        yield at, length
        at += length


def compare(what, buffer, expected):
    at = buffer.differs_from(expected)
    if at is not None:
        sys.exit(f"{what} differs at {at:#x}: {buffer.memory[at]:#x}, not {expected[at]:#x}")
    print(f"{what}: {len(expected)} bytes are right", flush=True)


def wait(what, is_so):
    deadline = time.monotonic() + LIMIT
    while not (answer := is_so()):
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {LIMIT:.0f} seconds")
        time.sleep(0.002)
    return answer


def leave(directory, name, content):
    """A process that sees the file sees all of it."""
    path = os.path.join(directory, name)
    with open(path + ".part", "wb") as file:
        file.write(content)
    os.rename(path + ".part", path)


def find(directory, name):
    path = os.path.join(directory, name)
    wait(name, lambda: os.path.exists(path))
    with open(path, "rb") as file:
        return file.read()
