/* Whether memory holds in the end of a round what it must, every byte of it. */
#include "soak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes at a place of the pool are as they should be from now on. */
static void accept_bytes(struct lane *lane, uint32_t at, uint32_t length)
{
	memcpy(lane->pool.shadow + at, lane->pool.at + at, length);
}

/* A WRITE of an unreliable connection came whole, or up to a lost packet, or not at all. */
static void check_partial(struct lane *lane, int number)
{
	struct queue_pair *qp = &lane->qp[number];
	const struct stream *stream = qp->theirs[0];

	for (int i = 0; i < stream->ops; i++) {
		const struct op *op = &stream->op[i];
		uint32_t base = qp->target_base[0] + op->remote, came = 0;

		if (!is_write(op->code))
			continue;
		while (came < op->length && lane->pool.at[base + came] == op->data[came])
			came++;
		if (came < op->length)
			came -= came % options.limits.mtu;
		if (memcmp(lane->pool.at + base + came, lane->pool.shadow + base + came, op->length - came))
			fail(lane, number, work_id(lane, number, 0, false, i),
			     "a %s of %u bytes, lost or not, left bytes after %u that are neither new nor old", code_names[op->code],
			     op->length, came);
		accept_bytes(lane, base, op->length);
	}
}

static int compare_words(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* All that was added to the peer's shared word was one, so the answers are all numbers below the count, each once. */
static void check_shared(struct lane *lane)
{
	static _Thread_local uint64_t answer[MAX_QPS * 2 * MAX_OPS];
	int answers = 0;

	for (int i = 0; i < lane->qps; i++)
		for (int half = 0; half < lane->qp[i].halves; half++) {
			const struct stream *stream = lane->qp[i].mine[half];
			uint64_t last = 0;
			bool first = true;

			for (int n = 0; n < stream->ops; n++) {
				const struct op *op = &stream->op[n];
				uint32_t at = lane->qp[i].out_base[half] + op->piece[0].at;

				if (op->code != OP_SHARED_ADD)
					continue;
				memcpy(&answer[answers], lane->pool.at + at, 8);
				if (!first && answer[answers] <= last)
					fail(lane, i, work_id(lane, i, half, false, n), "the shared word answered %lu after %lu",
					     answer[answers], last);
				first = false;
				last = answer[answers++];
				accept_bytes(lane, at, 8);
			}
		}
	qsort(answer, answers, sizeof *answer, compare_words);
	for (int i = 0; i < answers; i++)
		if (answer[i] != (uint64_t)i)
			fail(lane, -1, 0, "of %d additions to the shared word one should have answered %d, but the next is %lu", answers, i,
			     answer[i]);
}

/* Says what a place in the pool is, for who has to find out why it is wrong. */
static void describe(struct lane *lane, uint32_t at, char *text, size_t size, int *number)
{
	snprintf(text, size, "a guard zone");
	for (int i = 0; i < lane->qps; i++)
		for (int half = 0; half < lane->qp[i].halves; half++) {
			struct queue_pair *qp = &lane->qp[i];
			uint32_t out = at - qp->out_base[half], target = at - qp->target_base[half];

			*number = i;
			for (int n = 0; n < qp->mine[half]->ops; n++)
				for (int p = 0; p < qp->mine[half]->op[n].pieces_used; p++)
					if (out - qp->mine[half]->op[n].piece[p].at < qp->mine[half]->op[n].piece[p].length) {
						snprintf(text, size, "local memory of %s number %d (%s, list %d, piece %d)",
							 code_names[qp->mine[half]->op[n].code], n, kind_names[qp->kind], half, p);
						return;
					}
			for (int n = qp->theirs[half]->ops - 1; n >= 0; n--)
				if (is_write(qp->theirs[half]->op[n].code) &&
				    target - qp->theirs[half]->op[n].remote < qp->theirs[half]->op[n].length) {
					snprintf(text, size, "the target of the peer's %s number %d (%s, list %d, length %u, byte %u)",
						 code_names[qp->theirs[half]->op[n].code], n, kind_names[qp->kind], half,
						 qp->theirs[half]->op[n].length, target - qp->theirs[half]->op[n].remote);
					return;
				}
			if (at >= qp->target_base[half] && target < qp->theirs[half]->target_used) {
				snprintf(text, size, "byte %u of a target (%s, list %d)", target, kind_names[qp->kind], half);
				return;
			}
		}
	*number = -1;
	if (lane->pool.mask[at])
		snprintf(text, size, "a receive buffer or the shared word");
}

static void accept_queue(struct lane *lane, const struct receive_queue *queue)
{
	for (int i = 0; queue && i < queue->total; i++)
		for (int p = 0; p < queue->receive[i].pieces_used; p++)
			accept_bytes(lane, queue->base + queue->receive[i].piece[p].at, queue->receive[i].piece[p].length);
}

void memory_verify(struct lane *lane)
{
	struct pool *pool = &lane->pool;
	bool loose = lane->round.aborted || lane->gone;
	uint32_t all = pool->used + 4096;
	char text[200];
	int number = -1;

	step(lane, "comparing memory");
	if (!loose) {
		check_shared(lane);
		for (int i = 0; i < lane->qps && !options.limits.lossless; i++) {
			if (lane->qp[i].kind == KIND_UC)
				check_partial(lane, i);
			/* A message of which something got lost has left bytes in the buffer that the next one used. */
			if (lane->qp[i].kind == KIND_UC || lane->qp[i].kind == KIND_UD)
				accept_queue(lane, lane->qp[i].queue);
		}
		if (!memcmp(pool->at, pool->shadow, all))
			return;
	}
	for (uint32_t i = 0; i < all; i++) {
		if (pool->at[i] == pool->shadow[i] || (loose && pool->mask[i]))
			continue;
		describe(lane, i, text, sizeof text, &number);
		fail(lane, number, 0, "byte %u of %u of the memory, in %s, is 0x%02x and not 0x%02x", i, all, text, pool->at[i], pool->shadow[i]);
	}
}
