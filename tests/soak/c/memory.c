/* The memory of a lane: where everything lies in a round, what it must hold in the end, and its registrations. */
#include "soak.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TAIL 4096
#define SHARED_AT 64
#define ALL_RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

uint64_t *shared_word(struct lane *lane)
{
	return (uint64_t *)(lane->pool.at + SHARED_AT);
}

void memory_open(struct lane *lane)
{
	uint8_t *all = mmap(NULL, 3 * (size_t)POOL_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED)
		trouble("no memory");
	lane->pool.at = all;
	lane->pool.shadow = all + POOL_SIZE;
	lane->pool.mask = all + 2 * (size_t)POOL_SIZE;
}

/* On-demand paging where the device says that every kind of queue pair used here can do everything with it. */
static bool can_page(void)
{
	struct ibv_device_attr_ex attr;
	uint32_t all = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
	uint32_t some = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV;

	memset(&attr, 0, sizeof attr);
	if (ibv_query_device_ex(device, NULL, &attr) || !(attr.odp_caps.general_caps & IBV_ODP_SUPPORT))
		return false;
	return (attr.odp_caps.per_transport_caps.rc_odp_caps & all) == all &&
	       (attr.odp_caps.per_transport_caps.uc_odp_caps & some) == some &&
	       (attr.odp_caps.per_transport_caps.ud_odp_caps & some) == some && (attr.xrc_odp_caps & all) == all;
}

static void change(struct lane *lane, struct ibv_mr *mr, int flags, int rights)
{
	struct pool *pool = &lane->pool;
	int error;

	/* There and back again: another domain, part of the memory, fewer rights. */
	error = ibv_rereg_mr(mr, flags, lane->other_pd, pool->at + 4096, POOL_SIZE / 2, IBV_ACCESS_LOCAL_WRITE);
	if (error)
		fail(lane, -1, 0, "ibv_rereg_mr with flags %d answered %d (errno %d)", flags, error, errno);
	error = ibv_rereg_mr(mr, flags, lane->pd, pool->at, POOL_SIZE, rights);
	if (error)
		fail(lane, -1, 0, "ibv_rereg_mr back with flags %d answered %d (errno %d)", flags, error, errno);
	if (mr->pd != lane->pd || mr->addr != pool->at || mr->length != POOL_SIZE)
		fail(lane, -1, 0, "ibv_rereg_mr with flags %d left another region", flags);
}

void memory_register(struct lane *lane)
{
	struct pool *pool = &lane->pool;
	struct dice dice = {key_of(lane->round.key, 3 + options.side)};
	enum registering how = lane->round.registering[options.side];
	int rights = ALL_RIGHTS | IBV_ACCESS_MW_BIND;

	step(lane, "registering memory");
	if (pool->whole && how == REGISTER_KEEP)
		return;
	if (pool->whole && how == REGISTER_CHANGE) {
		change(lane, pool->whole, lane->round.change_flags[options.side], rights);
		change(lane, pool->local, lane->round.change_flags[options.side], IBV_ACCESS_LOCAL_WRITE);
		return;
	}
	if (pool->whole && (ibv_dereg_mr(pool->whole) || ibv_dereg_mr(pool->local)))
		fail(lane, -1, 0, "ibv_dereg_mr failed (errno %d)", errno);
	/* No window may be bound to memory on demand with some devices, so only the second is sometimes that. */
	pool->whole = ibv_reg_mr(lane->pd, pool->at, POOL_SIZE, rights);
	pool->local = ibv_reg_mr(lane->pd, pool->at, POOL_SIZE,
				 IBV_ACCESS_LOCAL_WRITE | (can_page() && chance(&dice, 30) ? IBV_ACCESS_ON_DEMAND : 0));
	if (!pool->whole || !pool->local)
		fail(lane, -1, 0, "ibv_reg_mr failed (errno %d)", errno);
}

void memory_close(struct lane *lane)
{
	if (lane->pool.whole && (ibv_dereg_mr(lane->pool.whole) || ibv_dereg_mr(lane->pool.local)))
		fail(lane, -1, 0, "ibv_dereg_mr failed at the end (errno %d)", errno);
	munmap(lane->pool.at, 3 * (size_t)POOL_SIZE);
}

static uint32_t room(struct lane *lane, uint32_t length, uint32_t alignment)
{
	uint32_t at = (lane->pool.used + MAX_GAP + alignment - 1) / alignment * alignment;

	lane->pool.used = at + length;
	if (lane->pool.used + TAIL > POOL_SIZE)
		trouble("the plan is too large for the memory of a lane");
	return at;
}

static void plan_receives(struct lane *lane, struct receive_queue *queue, int index)
{
	struct dice dice = {key_of(key_of(lane->round.key, 7000 + index), options.side)};
	int extra = lane->round.extra[options.side];
	uint32_t used = 0, longest = 0;
	const struct stream *exact = NULL;

	queue->expected = 0;
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];

		if (qp->queue != queue)
			continue;
		queue->expected += qp->theirs[0]->consumers;
		if (qp->theirs[0]->longest > longest)
			longest = qp->theirs[0]->longest;
		if (!any_message(&lane->epoch, i, options.side))
			exact = qp->theirs[0];
	}
	/* What is left over in a shared queue would be there in the next round. */
	if (queue->shared && lane->round.ending != END_DESTROY)
		extra = 0;
	queue->total = queue->expected + extra;
	for (int i = 0; i < queue->total; i++) {
		struct receive *receive = &queue->receive[i];

		receive->capacity = longest + GRH_BYTES + below(&dice, 16);
		if (exact) {
			const struct op *op = i < exact->consumers ? &exact->op[exact->consumer[i]] : NULL;

			receive->capacity = op && op->code != OP_WRITE_IMM ? op->length + below(&dice, 16) : below(&dice, 64);
		}
		used = cut(&dice, receive->capacity, lane->epoch.sges, used, receive->piece, &receive->pieces_used);
		queue->taken[i] = false;
	}
	queue->posted = queue->done = 0;
	queue->base = room(lane, used, 1);
}

static void lay_queue(struct lane *lane, const struct receive_queue *queue)
{
	for (int i = 0; i < queue->total; i++)
		for (int p = 0; p < queue->receive[i].pieces_used; p++)
			memset(lane->pool.mask + queue->base + queue->receive[i].piece[p].at, 1, queue->receive[i].piece[p].length);
}

static void lay_stream(struct lane *lane, const struct stream *stream, uint32_t base)
{
	struct pool *pool = &lane->pool;

	for (int i = 0; i < stream->ops; i++) {
		const struct op *op = &stream->op[i];
		const uint8_t *data = op->data;

		for (int p = 0; p < op->pieces_used && !op->forwarded; data += op->piece[p++].length) {
			uint32_t at = base + op->piece[p].at, length = op->piece[p].length;

			if (fetches(op->code))
				memset(pool->mask + at, 1, length);
			else
				memcpy(pool->at + at, data, length);
			/* Nobody can tell what the shared word answers. */
			if (op->code != OP_SHARED_ADD)
				memcpy(pool->shadow + at, data, length);
		}
	}
}

static void lay_target(struct lane *lane, enum kind kind, const struct stream *stream, uint32_t base)
{
	struct pool *pool = &lane->pool;

	fill(pool->at + base, stream->target_key, 0, stream->target_used);
	if (is_reliable(kind) || options.limits.lossless)
		memcpy(pool->shadow + base, stream->target, stream->target_used);
	else
		memcpy(pool->shadow + base, pool->at + base, stream->target_used);
	for (int i = 0; i < stream->ops; i++)
		if (is_write(stream->op[i].code) || stream->op[i].code == OP_ADD || stream->op[i].code == OP_SWAP)
			memset(pool->mask + base + stream->op[i].remote, 1, stream->op[i].length);
}

static void own_target(struct lane *lane, struct queue_pair *qp, int half)
{
	struct dice dice = {key_of(lane->round.key, 9000 + qp->target_base[half])};
	uint8_t *at = lane->pool.at + qp->target_base[half];
	/* Devices with pages want the same place within a page. */
	uint64_t address = (draw(&dice) >> 20 << 12) | ((uintptr_t)at & 0xfff);

	qp->target_mr[half] = ibv_reg_mr_iova(lane->pd, at, qp->theirs[half]->target_used, address, ALL_RIGHTS);
	if (!qp->target_mr[half])
		fail(lane, (int)(qp - lane->qp), 0, "ibv_reg_mr_iova failed (errno %d)", errno);
	qp->offer.target[half] = address;
	qp->offer.key[half] = qp->target_mr[half]->rkey;
}

void memory_lay_out(struct lane *lane)
{
	struct pool *pool = &lane->pool;
	uint32_t shared = 0;

	pool->used = SHARED_AT + 8;
	for (int i = 0; i < lane->qps; i++)
		for (int half = 0; half < lane->qp[i].halves; half++) {
			struct queue_pair *qp = &lane->qp[i];

			qp->out_base[half] = room(lane, qp->mine[half]->out_used, 1);
			qp->target_base[half] = room(lane, qp->theirs[half]->target_used, 64);
			shared += qp->theirs[half]->shared_adds;
		}
	for (int i = 0; i < lane->qps; i++)
		if (lane->own_queue[i])
			plan_receives(lane, lane->own_queue[i], i);
	if (lane->shared_queue)
		plan_receives(lane, lane->shared_queue, MAX_QPS);
	if (lane->xrc_queue)
		plan_receives(lane, lane->xrc_queue, MAX_QPS + 1);
	fill(pool->at, key_of(lane->round.key, 4), 0, pool->used + TAIL);
	*shared_word(lane) = 0;
	memcpy(pool->shadow, pool->at, pool->used + TAIL);
	*(uint64_t *)(pool->shadow + SHARED_AT) = shared;
	memset(pool->mask, 0, pool->used + TAIL);
	memset(pool->mask + SHARED_AT, 1, 8);
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];

		for (int half = 0; half < qp->halves; half++) {
			lay_stream(lane, qp->mine[half], qp->out_base[half]);
			lay_target(lane, qp->kind, qp->theirs[half], qp->target_base[half]);
			qp->offer.target[half] = (uintptr_t)(pool->at + qp->target_base[half]);
			qp->offer.key[half] = pool->whole->rkey;
			if (lane->round.own_target[options.side])
				own_target(lane, qp, half);
		}
		if (lane->own_queue[i])
			lay_queue(lane, lane->own_queue[i]);
	}
	if (lane->shared_queue)
		lay_queue(lane, lane->shared_queue);
	if (lane->xrc_queue)
		lay_queue(lane, lane->xrc_queue);
}

void memory_release(struct lane *lane)
{
	for (int i = 0; i < lane->qps; i++)
		for (int half = 0; half < 2; half++) {
			struct queue_pair *qp = &lane->qp[i];

			if (qp->target_mr[half] && ibv_dereg_mr(qp->target_mr[half]))
				fail(lane, i, 0, "ibv_dereg_mr of a target failed (errno %d)", errno);
			qp->target_mr[half] = NULL;
		}
}
