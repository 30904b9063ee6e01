/* The life of a lane: round after round, each with its barriers, until the time is over or the peer is gone. */
#include "soak.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A WRITE of an unreliable connection is complete for its sender when it was sent; where nothing is lost it comes soon. */
static void settle(struct lane *lane)
{
	uint64_t end = now_ms() + 10000;

	for (int i = 0; i < lane->qps && options.limits.lossless; i++) {
		struct queue_pair *qp = &lane->qp[i];

		while (qp->kind == KIND_UC && now_ms() < end &&
		       memcmp(lane->pool.at + qp->target_base[0], qp->theirs[0]->target, qp->theirs[0]->target_used))
			usleep(200);
	}
}

static bool exchange_offers(struct lane *lane)
{
	struct {
		struct remote offer[MAX_QPS];
		uint64_t shared;
		uint64_t shared_key;
	} mine, theirs;

	memset(&mine, 0, sizeof mine);
	for (int i = 0; i < lane->qps; i++)
		mine.offer[i] = lane->qp[i].offer;
	mine.shared = (uintptr_t)shared_word(lane);
	mine.shared_key = lane->pool.whole->rkey;
	step(lane, "exchanging keys");
	if (!exchange(lane, &mine, &theirs, sizeof mine))
		return false;
	for (int i = 0; i < lane->qps; i++) {
		struct remote *remote = &lane->qp[i].remote;
		struct remote before = *remote;

		*remote = theirs.offer[i];
		remote->send_qp = before.send_qp;
		remote->receive_qp = before.receive_qp;
		remote->srq = before.srq;
	}
	lane->remote_shared = theirs.shared;
	lane->remote_shared_key = (uint32_t)theirs.shared_key;
	return true;
}

static void plan_streams(struct lane *lane)
{
	for (int i = 0; i < lane->qps; i++)
		for (int half = 0; half < lane->qp[i].halves; half++) {
			struct queue_pair *qp = &lane->qp[i];

			free_stream(qp->mine[half]);
			free_stream(qp->theirs[half]);
			plan_stream(qp->mine[half], &lane->round, &lane->epoch, &options.limits, i, half, options.side);
			plan_stream(qp->theirs[half], &lane->round, &lane->epoch, &options.limits, i, half, options.side == SERVER ? CLIENT : SERVER);
		}
}

/* Ends the work of a round, and what it was done with. */
static bool end_round(struct lane *lane)
{
	bool unreliable = false;

	for (int i = 0; i < lane->qps; i++)
		unreliable |= !is_reliable(lane->qp[i].kind);
	if (!meet(lane, lane->stopped ? "stopped" : "worked"))
		return false;
	if (!lane->stopped) {
		settle(lane);
		if (unreliable && !options.limits.lossless)
			work_quiet(lane);
		windows_close(lane);
		/* Nobody may go to the error state while the other still works. */
		if (lane->round.ending != END_CONTINUE && !meet(lane, "ending"))
			return false;
		if (lane->round.ending == END_DESTROY && options.limits.cm && !cm_disconnect(lane))
			return false;
		if (lane->round.ending == END_ERROR_RESET ||
		    (lane->round.ending == END_DESTROY && !lane->round.destroyed_at_once[options.side]))
			stop(lane);
	}
	if (lane->stopped) {
		work_drain(lane);
		windows_close(lane);
	}
	memory_verify(lane);
	if (!meet(lane, "verified"))
		return false;
	memory_release(lane);
	if (lane->round.ending == END_DESTROY) {
		lane->connected = false;
		epoch_close(lane);
	} else if (lane->round.ending != END_CONTINUE) {
		lane->connected = false;
		to_state(lane, IBV_QPS_RESET);
	}
	return true;
}

static bool normal_round(struct lane *lane, uint64_t key)
{
	if (!lane->qps) {
		plan_epoch(&lane->epoch, key_of(key, 20), &options.limits);
		lane->epoch_number++;
		/* Before there are queue pairs: the plan of the round may still fail to be drawn. */
		epoch_open(lane);
	}
	plan_round(&lane->round, key, &lane->epoch, &options.limits);
	plan_streams(lane);
	memory_register(lane);
	memory_lay_out(lane);
	if (!lane->connected) {
		if (!epoch_connect(lane))
			return false;
		lane->connected = true;
	}
	work_prepare(lane);
	if (!windows_open(lane) || !exchange_offers(lane) || !meet(lane, "start"))
		return false;
	work_run(lane);
	return !lane->gone && end_round(lane);
}

/* The peer is gone: what was posted must still be told, and nothing may have been touched that is nobody's business. */
static void bury(struct lane *lane)
{
	if (lane->qps && lane->connected) {
		stop(lane);
		work_drain(lane);
		windows_close(lane);
		memory_verify(lane);
		memory_release(lane);
	}
	windows_close(lane);
	memory_release(lane);
	if (lane->qps)
		epoch_close(lane);
}

/* The client's clock decides, because both have to stop after the same round. */
static bool another(struct lane *lane, uint64_t end)
{
	uint32_t mine = now_ms() < end, theirs;

	if (!exchange(lane, &mine, &theirs, sizeof mine))
		return false;
	return options.side == CLIENT ? mine : theirs;
}

void *lane_run(void *argument)
{
	struct lane *lane = argument;
	uint64_t end = now_ms() + (uint64_t)options.seconds * 1000, key = key_of(options.seed, lane->number);

	memory_open(lane);
	lane->pd = ibv_alloc_pd(device);
	lane->other_pd = ibv_alloc_pd(device);
	if (!lane->pd || !lane->other_pd)
		trouble("no protection domain");
	cm_open(lane);
	for (;;) {
		struct dice dice = {key_of(key, ++lane->round_number)};
		uint64_t round_key = draw(&dice);
		bool well;

		step(lane, "between rounds");
		if (!another(lane, end))
			break;
		/* Errors end connections, so they have queue pairs of their own. */
		if (!lane->qps && chance(&dice, 15))
			well = error_round(lane, round_key);
		else
			well = normal_round(lane, round_key);
		if (!well)
			break;
	}
	step(lane, "ending");
	if (lane->gone)
		bury(lane);
	else if (lane->qps)
		epoch_close(lane);
	/* The last one was not finished, or not begun. */
	lane->round_number--;
	memory_close(lane);
	if (ibv_dealloc_pd(lane->pd) || ibv_dealloc_pd(lane->other_pd))
		fail(lane, -1, 0, "a protection domain is still in use");
	close(lane->control);
	atomic_store(&lane->finished, true);
	return NULL;
}
