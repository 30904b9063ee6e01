"""NIXL with its UCX backend: two of these run at a time. Each writes its pattern into the other's memory, reads the
other's pattern out of it, and compares. Arguments: a directory, our name, the other's name."""

import json
import sys

import peers
from nixl._api import nixl_agent, nixl_agent_config

directory, name, other = sys.argv[1:]

agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
buffers = {
    "out": peers.Buffer(peers.SIZE, name),
    "in": peers.Buffer(peers.SIZE),
    "read": peers.Buffer(peers.SIZE),
}
registered = agent.register_memory([(it.address, it.size, 0, "") for it in buffers.values()], "DRAM")
places = {what: buffer.address for what, buffer in buffers.items()}
peers.leave(directory, f"{name}.places", json.dumps(places).encode())
peers.leave(directory, f"{name}.metadata", agent.get_agent_metadata())
there = json.loads(peers.find(directory, f"{other}.places"))
if (answered := agent.add_remote_agent(peers.find(directory, f"{other}.metadata"))) not in (other, other.encode()):
    sys.exit(f"the other is {answered!r}")


def move(operation, local, remote, seed):
    """One transfer of many pieces, with word to the other of its end."""
    cuts = list(peers.pieces(seed, peers.SIZE))
    here = agent.get_xfer_descs([(places[local] + at, length, 0) for at, length in cuts], "DRAM")
    yonder = agent.get_xfer_descs([(there[remote] + at, length, 0) for at, length in cuts], "DRAM")
    handle = agent.initialize_xfer(operation, here, yonder, other, f"{operation} of {name}".encode())
    if agent.query_xfer_backend(handle) != "UCX":
        sys.exit("another backend was taken")
    state = agent.transfer(handle)

    def done():
        nonlocal state
        state = agent.check_xfer_state(handle) if state == "PROC" else state
        return state != "PROC"

    peers.wait(operation, done)
    if state != "DONE":
        sys.exit(f"{operation}: {state}")
    agent.release_xfer_handle(handle)


heard = []


def hear(word):
    def heard_it():
        for words in agent.get_new_notifs().values():
            heard.extend(words)
        return word.encode() in heard

    peers.wait(word, heard_it)


move("WRITE", "out", "in", name)
hear(f"WRITE of {other}")
peers.compare("written by the other", buffers["in"], peers.pattern(other, peers.SIZE))
move("READ", "read", "out", other)
peers.compare("read from the other", buffers["read"], peers.pattern(other, peers.SIZE))
hear(f"READ of {other}")
# The process that ends first takes its queue pairs with it: only when both have heard.
peers.leave(directory, f"{name}.end", b"")
peers.find(directory, f"{other}.end")
agent.deregister_memory(registered)
agent.remove_remote_agent(other)
print("all is well", flush=True)
