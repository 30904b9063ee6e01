/* An MPI program that looks at every byte: messages of sizes around the limits at which libraries change their
 * protocol, sums, exchanges of all with all, and one-sided work. The first argument says how many times to do it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Around the limits of eager and rendezvous protocols, of inline data and of the path MTU. */
static const int sizes[] = {0, 1, 7, 64, 255, 1024, 4096, 8191, 8192, 8257, 16384, 65536, 65537, 262144, 1048576};

enum { SIZES = sizeof sizes / sizeof sizes[0], LARGEST = 1048576, PART = 3000, SUMS = 10000, BLOCK = 4096 };

static int rank, ranks;

static void fail(const char *what, long at, long got, long wanted)
{
	printf("rank %d: %s: at %ld there is %ld, not %ld\n", rank, what, at, got, wanted);
	fflush(stdout);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

/* What a sender puts at a place of a message. No two messages of a run look alike. */
static unsigned char pattern(int from, int round, int size, int at)
{
	unsigned x = (unsigned)at * 2654435761u + (unsigned)from * 40503u + (unsigned)round * 977u + (unsigned)size;
	return (unsigned char)(x >> 16 ^ x >> 5 ^ x);
}

static void fill(unsigned char *bytes, int from, int round, int size)
{
	for (int at = 0; at < size; at++)
		bytes[at] = pattern(from, round, size, at);
}

static void check(const char *what, const unsigned char *bytes, int from, int round, int size)
{
	for (int at = 0; at < size; at++)
		if (bytes[at] != pattern(from, round, size, at))
			fail(what, at, bytes[at], pattern(from, round, size, at));
}

/* Each sends to the next and receives from the one before, blocking and not. The byte after the message must stay. */
static void messages(int round, unsigned char *out, unsigned char *in)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	for (int i = 0; i < SIZES; i++) {
		int size = sizes[i], got = -1;
		MPI_Status status;
		fill(out, rank, round, size);
		memset(in, 0xa5, (size_t)size + 1);
		MPI_Sendrecv(out, size, MPI_BYTE, next, i, in, size, MPI_BYTE, before, i, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &got);
		if (got != size)
			fail("length of a message", i, got, size);
		check("message", in, before, round, size);
		if (in[size] != 0xa5)
			fail("after a message", size, in[size], 0xa5);
	}
	/* Many at once, received in the other order. */
	enum { MANY = 32 };
	MPI_Request requests[2 * MANY];
	for (int i = 0; i < MANY; i++)
		MPI_Irecv(in + (MANY - 1 - i) * PART, PART, MPI_BYTE, before, 1000 + MANY - 1 - i, MPI_COMM_WORLD,
			  &requests[i]);
	for (int i = 0; i < MANY; i++) {
		fill(out + i * PART, rank, round + i, PART);
		MPI_Isend(out + i * PART, PART, MPI_BYTE, next, 1000 + i, MPI_COMM_WORLD, &requests[MANY + i]);
	}
	MPI_Status statuses[2 * MANY];
	MPI_Waitall(2 * MANY, requests, statuses);
	for (int i = 0; i < MANY; i++)
		check("one of many messages", in + i * PART, before, round + i, PART);
	/* Synchronous: it ends only when it is received. */
	if (rank % 2 == 0 && rank + 1 < ranks) {
		fill(out, rank, round, 100000);
		MPI_Ssend(out, 100000, MPI_BYTE, rank + 1, 7, MPI_COMM_WORLD);
	} else if (rank % 2 == 1) {
		MPI_Recv(in, 100000, MPI_BYTE, rank - 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		check("synchronous message", in, rank - 1, round, 100000);
	}
}

static void collectives(int round, unsigned char *out, unsigned char *in)
{
	static long mine[SUMS], sums[SUMS];
	for (int at = 0; at < SUMS; at++)
		mine[at] = (long)(rank + 1) * (at + round);
	MPI_Allreduce(mine, sums, SUMS, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int at = 0; at < SUMS; at++) {
		long wanted = (long)ranks * (ranks + 1) / 2 * (at + round);
		if (sums[at] != wanted)
			fail("sum", at, sums[at], wanted);
	}
	for (int to = 0; to < ranks; to++)
		fill(out + to * BLOCK, rank * 100 + to, round, BLOCK);
	MPI_Alltoall(out, BLOCK, MPI_BYTE, in, BLOCK, MPI_BYTE, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++)
		check("exchange", in + from * BLOCK, from * 100 + rank, round, BLOCK);
	for (int root = 0; root < ranks; root++) {
		if (rank == root)
			fill(out, root, round, 50000);
		MPI_Bcast(out, 50000, MPI_BYTE, root, MPI_COMM_WORLD);
		check("broadcast", out, root, round, 50000);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

/* Each writes to the next, reads from the one before, and all add to the same numbers of rank 0. */
static void one_sided(int round, unsigned char *out, unsigned char *in)
{
	enum { NUMBERS = 16 };
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	unsigned char *window_bytes;
	long *numbers, ones[NUMBERS];
	MPI_Win bytes, counters;
	MPI_Win_allocate(2 * LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window_bytes, &bytes);
	MPI_Win_allocate(sizeof(long) * NUMBERS, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &numbers, &counters);
	memset(window_bytes, 0, 2 * LARGEST);
	fill(window_bytes + LARGEST, rank, round + 1, LARGEST);
	for (int i = 0; i < NUMBERS; i++) {
		numbers[i] = 0;
		ones[i] = i + rank;
	}
	fill(out, rank, round, LARGEST);
	MPI_Win_fence(0, bytes);
	MPI_Put(out, LARGEST, MPI_BYTE, next, 0, LARGEST, MPI_BYTE, bytes);
	MPI_Get(in, LARGEST, MPI_BYTE, before, LARGEST, LARGEST, MPI_BYTE, bytes);
	MPI_Win_fence(0, bytes);
	check("put", window_bytes, before, round, LARGEST);
	check("get", in, before, round + 1, LARGEST);
	MPI_Win_fence(0, counters);
	MPI_Accumulate(ones, NUMBERS, MPI_LONG, 0, 0, NUMBERS, MPI_LONG, MPI_SUM, counters);
	MPI_Win_fence(0, counters);
	for (int i = 0; rank == 0 && i < NUMBERS; i++) {
		long wanted = (long)ranks * i + (long)ranks * (ranks - 1) / 2;
		if (numbers[i] != wanted)
			fail("accumulated", i, numbers[i], wanted);
	}
	/* A lock, and an atomic addition that answers what was there: together they are a counter. */
	enum { ADDITIONS = 20 };
	long one = 1, old, last = -1;
	MPI_Win_fence(0, counters);
	if (rank == 0)
		numbers[0] = 0;
	MPI_Win_fence(0, counters);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < ADDITIONS; i++) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, counters);
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, counters);
		MPI_Win_unlock(0, counters);
		if (old <= last || old >= (long)ADDITIONS * ranks)
			fail("fetched", i, old, last);
		last = old;
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, counters);
		old = numbers[0];
		MPI_Win_unlock(0, counters);
		if (old != (long)ADDITIONS * ranks)
			fail("counted", 0, old, (long)ADDITIONS * ranks);
	}
	MPI_Win_free(&counters);
	MPI_Win_free(&bytes);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	unsigned char *out = malloc(LARGEST + 1), *in = malloc(LARGEST + 1);
	if (!out || !in || ranks < 2)
		return 1;
	for (int round = 0; round < rounds; round++) {
		messages(round, out, in);
		collectives(round, out, in);
		one_sided(round, out, in);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks, %d rounds: every byte and every sum is right\n", ranks, rounds);
	free(out);
	free(in);
	return MPI_Finalize();
}
