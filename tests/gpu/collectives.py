"""All collectives of torch.distributed over NCCL, every element verified. One process per rank; see `cargo xtask gpu`."""
import ctypes
import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def pattern(count, rank, round_number):
    """Small integers, so that sums are exact."""
    return ((torch.arange(count, device="cuda") * 7 + rank * 13 + round_number) % 31).float()


def expect(what, got, wanted):
    if not torch.equal(got, wanted):
        wrong = (got != wanted).nonzero().flatten()
        sys.exit(f"{what}: {len(wrong)} of {got.numel()} elements are wrong, the first is {wrong[0].item()}")


def verify(size, round_number, rank, ranks):
    count = max(1, size // 4)
    mine = [pattern(count, r, round_number) for r in range(ranks)]
    total = torch.stack(mine).sum(0)

    tensor = mine[rank].clone()
    dist.all_reduce(tensor)
    expect("all_reduce", tensor, total)

    # The copy to the host waits inside the driver, for the kernel that waits for the NIC.
    tensor, wanted = mine[rank].clone(), total.cpu()
    dist.all_reduce(tensor)
    expect("all_reduce and a copy to the host", tensor.cpu(), wanted)

    out = torch.empty(count * ranks, device="cuda")
    dist.all_gather_into_tensor(out, mine[rank])
    expect("all_gather", out, torch.cat(mine))

    pieces = [pattern(count * ranks, r, round_number) for r in range(ranks)]
    out = torch.empty(count, device="cuda")
    dist.reduce_scatter_tensor(out, pieces[rank])
    expect("reduce_scatter", out, torch.stack(pieces).sum(0)[rank * count:(rank + 1) * count])

    out = torch.empty(count * ranks, device="cuda")
    dist.all_to_all_single(out, pieces[rank])
    expect("all_to_all", out, torch.cat([piece[rank * count:(rank + 1) * count] for piece in pieces]))

    for root in range(ranks):
        tensor = mine[rank].clone()
        dist.broadcast(tensor, root)
        expect("broadcast", tensor, mine[root])

    tensor = torch.empty(count, device="cuda")
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    work = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine[rank], right), dist.P2POp(dist.irecv, tensor, left)])
    for item in work:
        item.wait()
    expect("send/recv", tensor, mine[left])


def speed(size):
    tensor = torch.ones(size // 4, device="cuda")
    for _ in range(3):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    rounds = 20 if size < 1 << 26 else 6
    begin, processor = time.monotonic(), time.process_time()
    for _ in range(rounds):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    taken, processor = time.monotonic() - begin, time.process_time() - processor
    return size * rounds / taken / 2**30, size * rounds / max(processor, 1e-9) / 2**30


def fails(rank, begin, work):
    """Waits for work that must fail, and says how long that took: NCCL's error is asked for, since a thread that waits for
    the GPU does not return, and torch ends the process a minute after it has heard."""
    while not work.is_completed():
        time.sleep(0.01)
    try:
        work.wait()
        return False
    except Exception as thrown:
        text = str(thrown)
    names = [line for line in text.splitlines() if line.startswith("nccl")] or [text]
    print(f"rank {rank} heard after {time.monotonic() - begin:.1f} s: {names[0]}", flush=True)
    return True


def lose_a_rank(rank, victim):
    """A rank is killed between two collectives: the others hear of it."""
    # The connections that these need are made before.
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    dist.barrier()
    torch.cuda.synchronize()
    if rank == victim:
        # When the others wait for it.
        time.sleep(1)
        os.kill(os.getpid(), 9)
    begin = time.monotonic()
    while time.monotonic() - begin < 60:
        if fails(rank, begin, dist.all_reduce(torch.ones(1 << 20, device="cuda"), async_op=True)):
            os._exit(0)
    sys.exit("nothing was heard")


def call_meanwhile(rank, call):
    """One rank calls CUDA while its kernel waits for the others, and the call waits inside the driver for that kernel:
    frees GPU memory, or launches a kernel that must be loaded first. The NIC copies all the same. Nothing hangs."""
    driver = ctypes.CDLL("libcuda.so.1")
    memory = ctypes.c_uint64()
    if driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)):
        sys.exit("no memory")
    tensor, small = torch.ones(1 << 24, device="cuda"), torch.full((64,), 0.5, device="cuda")
    dist.barrier()
    torch.cuda.synchronize()
    begin = time.monotonic()

    def meanwhile():
        torch.cuda.set_device(0)
        if call == "free":
            driver.cuMemFree_v2(memory)
        else:
            with torch.cuda.stream(torch.cuda.Stream()):
                for kernel in (torch.special.bessel_j0, torch.erfinv, torch.lgamma, torch.special.ndtri):
                    kernel(small)
        print(f"{call}: returned after {time.monotonic() - begin:.1f} s", flush=True)

    if rank != 0:
        time.sleep(3)
    work = dist.all_reduce(tensor, async_op=True)
    calling = threading.Thread(target=meanwhile)
    if rank == 0:
        # When the kernel runs.
        time.sleep(1)
        calling.start()
    failed = fails(rank, begin, work)
    if not failed:
        print(f"rank {rank}: the collective ended after {time.monotonic() - begin:.1f} s", flush=True)
    if rank == 0:
        calling.join(20)
    os._exit(1 if failed or calling.is_alive() else 0)


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    largest = int(os.environ.get("LARGEST", 256 << 20))
    torch.cuda.set_device(0)
    patience = timedelta(seconds=int(os.environ.get("PATIENCE", 600)))
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"), timeout=patience)
    dist.all_reduce(torch.ones(1024, device="cuda"))
    torch.cuda.synchronize()
    if os.environ.get("VICTIM") is not None:
        lose_a_rank(rank, int(os.environ["VICTIM"]))
    if os.environ.get("MEANWHILE") is not None:
        call_meanwhile(rank, os.environ["MEANWHILE"])
    begin = time.monotonic()
    size = 8
    while size <= largest and os.environ.get("UNVERIFIED") is None:
        verify(size, size % 97, rank, ranks)
        if rank == 0:
            print(f"{size} bytes: all verified, {time.monotonic() - begin:.1f} s", flush=True)
        size = size * 8 if size * 8 <= largest or size == largest else largest
    for size in [s for s in (8, 64 << 10, 1 << 20, 16 << 20, 64 << 20) if s <= largest]:
        rate, per_processor = speed(size)
        if rank == 0:
            print(f"all_reduce {size} bytes: {rate:.4f} GiB/s, {per_processor:.3f} GiB per second of a processor", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("done", flush=True)


main()
