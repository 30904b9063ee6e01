"""Mooncake's transfer engine by RDMA, without a metadata server: two of these run at a time. Each writes its pattern
into the other's memory, reads the other's pattern out of it, and compares. Arguments: a directory, our name, the
other's name, our address, a device."""

import json
import sys

import peers
from mooncake.engine import TransferEngine

directory, name, other, address, device = sys.argv[1:]

engine = TransferEngine()
if engine.initialize(address, "P2PHANDSHAKE", "rdma", device) != 0:
    sys.exit("the engine does not start")
buffers = {
    "out": peers.Buffer(peers.SIZE, name),
    "in": peers.Buffer(peers.SIZE),
    "read": peers.Buffer(peers.SIZE),
    "flags": peers.Buffer(4096),
}
for what, buffer in buffers.items():
    if engine.register_memory(buffer.address, buffer.size) != 0:
        sys.exit(f"{what} is not registered")
places = {what: buffer.address for what, buffer in buffers.items()}
peers.leave(directory, name, json.dumps({"at": f"{address}:{engine.get_rpc_port()}", "places": places}).encode())
there = json.loads(peers.find(directory, other))


def move(call, local, remote, at, length):
    if (answer := call(there["at"], places[local] + at, there["places"][remote] + at, length)) != 0:
        sys.exit(f"{call.__name__} of {length} bytes at {at:#x}: {answer}")


def meet(number):
    """Both have come here. The flag is written when what was written before it has arrived."""
    buffers["flags"].memory[2048 + number] = 1
    if engine.transfer_sync_write(
        there["at"], places["flags"] + 2048 + number, there["places"]["flags"] + number, 1
    ):
        sys.exit("a flag cannot be written")
    peers.wait(f"{other} at {number}", lambda: buffers["flags"].memory[number] == 1)


for at, length in peers.pieces(name, peers.SIZE):
    move(engine.transfer_sync_write, "out", "in", at, length)
meet(0)
peers.compare("written by the other", buffers["in"], peers.pattern(other, peers.SIZE))
for at, length in peers.pieces(other, peers.SIZE):
    move(engine.transfer_sync_read, "read", "out", at, length)
peers.compare("read from the other", buffers["read"], peers.pattern(other, peers.SIZE))
meet(1)
for what, buffer in buffers.items():
    if engine.unregister_memory(buffer.address) != 0:
        sys.exit(f"{what} is not unregistered")
print("all is well", flush=True)
