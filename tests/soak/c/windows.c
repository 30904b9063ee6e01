/* Memory windows in front of targets: bound before a round, gone after it. */
#include "soak.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#define WINDOW_RIGHTS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* Waits for the completion; late datagrams may come before it. */
static bool finished(struct lane *lane, int number, uint64_t id, enum ibv_wc_opcode opcode)
{
	struct completion_queue *queue = &lane->completion_queue[lane->qp[number].send_queue];
	struct completion completion;

	for (;;) {
		if (!poll_queue(lane, queue, &completion, 1))
			sched_yield();
		else if (completion.wr_id == id)
			break;
		else
			verify(lane, &completion);
	}
	if (completion.status) {
		if (options.peer_may_die && completion.status == IBV_WC_WR_FLUSH_ERR) {
			lost(lane, "a bind was flushed");
			return false;
		}
		fail(lane, number, id, "a bind or invalidation ended with %s", status_name(completion.status));
	}
	if (completion.opcode != opcode)
		fail(lane, number, id, "a bind or invalidation has opcode %d and not %d", completion.opcode, opcode);
	step(lane, NULL);
	return true;
}

static bool bind_window(struct lane *lane, int number, int half, int kind, uint32_t length)
{
	struct queue_pair *qp = &lane->qp[number];
	uint8_t *at = lane->pool.at + qp->target_base[half];
	struct ibv_mw_bind_info info = {.mr = lane->pool.whole, .addr = (uintptr_t)at, .length = length,
					.mw_access_flags = length ? WINDOW_RIGHTS : 0};
	uint64_t id = work_id(lane, number, half, false, 0xffff);
	int error;

	if (kind == 1) {
		struct ibv_mw_bind bind = {.wr_id = id, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};

		error = ibv_bind_mw(qp->sends, qp->window[half], &bind);
	} else {
		struct ibv_send_wr wr = {.wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

		wr.bind_mw.mw = qp->window[half];
		wr.bind_mw.rkey = ibv_inc_rkey(qp->window[half]->rkey);
		wr.bind_mw.bind_info = info;
		error = ibv_post_send(qp->sends, &wr, &bad);
		qp->window[half]->rkey = wr.bind_mw.rkey;
	}
	if (error)
		fail(lane, number, id, "binding a window of type %d answered %d", kind, error);
	return finished(lane, number, id, IBV_WC_BIND_MW);
}

bool windows_open(struct lane *lane)
{
	step(lane, "binding windows");
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];
		int kind = lane->round.window[options.side][i];

		for (int half = 0; kind && half < qp->halves; half++) {
			qp->window[half] = ibv_alloc_mw(lane->pd, kind == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
			if (!qp->window[half])
				fail(lane, i, 0, "no memory window of type %d (errno %d)", kind, errno);
			if (!bind_window(lane, i, half, kind, qp->theirs[half]->target_used))
				return false;
			qp->offer.window_at[half] = (uintptr_t)(lane->pool.at + qp->target_base[half]);
			qp->offer.window_key[half] = qp->window[half]->rkey;
		}
	}
	return true;
}

/* What is still bound is sometimes taken back before it goes, so that this happens as well. */
void windows_close(struct lane *lane)
{
	struct dice dice = {key_of(lane->round.key, 11)};

	step(lane, "closing windows");
	for (int i = 0; i < lane->qps; i++)
		for (int half = 0; half < 2; half++) {
			struct queue_pair *qp = &lane->qp[i];
			const struct stream *theirs = qp->theirs[half];
			bool bound;

			if (!qp->window[half])
				continue;
			bound = theirs->op[theirs->ops - 1].code != OP_SEND_INV;
			if (bound && !lane->stopped && !lane->gone && chance(&dice, 60)) {
				if (lane->round.window[options.side][i] == 1) {
					bind_window(lane, i, half, 1, 0);
				} else {
					struct ibv_send_wr wr = {.wr_id = work_id(lane, i, half, false, 0xfffe), .opcode = IBV_WR_LOCAL_INV,
								 .send_flags = IBV_SEND_SIGNALED}, *bad;

					wr.invalidate_rkey = qp->window[half]->rkey;
					if (ibv_post_send(qp->sends, &wr, &bad))
						fail(lane, i, wr.wr_id, "posting an invalidation failed");
					finished(lane, i, wr.wr_id, IBV_WC_LOCAL_INV);
				}
			}
			if (ibv_dealloc_mw(qp->window[half]))
				fail(lane, i, 0, "ibv_dealloc_mw failed (errno %d)", errno);
			qp->window[half] = NULL;
		}
}
