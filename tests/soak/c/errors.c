/* Rounds in which something is wrong on purpose: both sides must hear of it as the manual says, and no byte may change that should not. */
#include "soak.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

#define AREA (256u << 10)
#define SOURCE 4096u
#define TARGET (64u << 10)
#define ARRIVAL (128u << 10)
/* Of the target, what is registered for the peer. */
#define TARGET_LENGTH 20000u
#define SOON_MS 50000

enum mistake {
	WRONG_KEY, OLD_KEY, OUT_OF_BOUNDS, NO_RIGHT, CLOSED_WINDOW, WRONG_LOCAL_KEY, LOCAL_OUT_OF_BOUNDS, READ_ONLY_MEMORY,
	SHORT_RECEIVE, WRONG_RECEIVE_KEY, NO_RECEIVE, MISTAKES
};

static const char *const names[] = {"a wrong key", "the key of a region that is gone", "out of bounds", "no right", "a window that is closed",
				    "a wrong local key", "local memory out of bounds", "READ into read-only memory", "a receive too short",
				    "a receive with a wrong key", "no receive"};

/* What each side is told: of the bad request, and of the first receive; the rest is flushed. */
static const struct {
	enum ibv_wc_status request, receive;
	bool responder_stops;
} outcome[] = {
	[WRONG_KEY] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, true},
	[OLD_KEY] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, true},
	[OUT_OF_BOUNDS] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, true},
	[NO_RIGHT] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, true},
	[CLOSED_WINDOW] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, true},
	[WRONG_LOCAL_KEY] = {IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, false},
	[LOCAL_OUT_OF_BOUNDS] = {IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, false},
	[READ_ONLY_MEMORY] = {IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, false},
	[SHORT_RECEIVE] = {IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, true},
	[WRONG_RECEIVE_KEY] = {IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, true},
	[NO_RECEIVE] = {IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, false},
};

struct trial {
	struct lane *lane;
	enum mistake mistake;
	enum side requester;
	/* How memory of the responder is accessed, where that is the mistake. */
	enum ibv_wr_opcode access;
	struct dice dice;
	uint32_t length;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *target, *limited;
	struct ibv_mw *window;
};

struct told {
	union ibv_gid gid;
	uint64_t address;
	uint32_t qp, key, bad_key, unused;
};

/* The next completion; false when the peer is gone. */
static bool next(struct trial *trial, struct ibv_wc *wc, uint64_t id)
{
	uint64_t end = now_ms() + SOON_MS, look = now_ms() + 200;
	char byte;

	while (!ibv_poll_cq(trial->cq, 1, wc)) {
		sched_yield();
		if (now_ms() > look) {
			look = now_ms() + 200;
			if (recv(trial->lane->control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
				lost(trial->lane, "the control channel was closed");
				return false;
			}
		}
		if (now_ms() > end)
			fail(trial->lane, 0, id, "error round (%s): no completion for %d seconds", names[trial->mistake], SOON_MS / 1000);
	}
	step(trial->lane, NULL);
	if (wc->wr_id != id)
		fail(trial->lane, 0, wc->wr_id, "error round (%s): a completion (%s) where wr_id 0x%lx was expected", names[trial->mistake],
		     status_name(wc->status), id);
	trial->lane->operations++;
	return true;
}

static bool expect(struct trial *trial, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	bool silence;

	if (!next(trial, &wc, id))
		return false;
	if (wc.status == status)
		return true;
	/* The manual has this status for a WRITE with immediate that is refused, and hardware flushes. */
	if (wc.status == IBV_WC_LOC_ACCESS_ERR && trial->access == IBV_WR_RDMA_WRITE_WITH_IMM && id == 11 && status == IBV_WC_WR_FLUSH_ERR)
		return true;
	silence = wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR || wc.status == IBV_WC_RNR_RETRY_EXC_ERR;
	if (silence && options.peer_may_die) {
		lost(trial->lane, status_name(wc.status));
		return false;
	}
	/* A refusal that gets lost is not said again: its sender is in the error state. */
	if (wc.status == IBV_WC_RETRY_EXC_ERR && !options.limits.lossless && outcome[trial->mistake].responder_stops && id == 2)
		return true;
	fail(trial->lane, 0, id, "error round (%s, %u bytes): ended with %s where %s was expected", names[trial->mistake], trial->length,
	     status_name(wc.status), status_name(status));
}

static void post(struct trial *trial, uint64_t id, enum ibv_wr_opcode opcode, uint32_t length, uint32_t lkey, uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)(trial->lane->pool.at + SOURCE), length, lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	if (ibv_post_send(trial->qp, &wr, &bad))
		fail(trial->lane, 0, id, "error round: posting failed");
}

static void receive(struct trial *trial, uint64_t id, uint32_t at, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = {(uintptr_t)(trial->lane->pool.at + at), length, lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = length ? 1 : 0}, *bad;

	if (ibv_post_recv(trial->qp, &wr, &bad))
		fail(trial->lane, 0, id, "error round: posting a receive failed");
}

static void post_bad(struct trial *trial, const struct told *peer)
{
	struct pool *pool = &trial->lane->pool;
	uint64_t remote = peer->address + 64;
	uint32_t key = peer->bad_key;
	enum ibv_wr_opcode opcode = trial->access;
	uint32_t length = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : trial->length;

	switch (trial->mistake) {
	case OUT_OF_BOUNDS:
		key = peer->key;
		remote = peer->address + TARGET_LENGTH - length + 8;
		remote -= opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 0 : below(&trial->dice, 8);
		/* fall through */
	case WRONG_KEY:
	case OLD_KEY:
	case NO_RIGHT:
	case CLOSED_WINDOW:
		post(trial, 2, opcode, length, pool->whole->lkey, remote, key);
		break;
	case WRONG_LOCAL_KEY:
		post(trial, 2, chance(&trial->dice, 50) ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, trial->length, pool->local->lkey ^ 0x12300, remote,
		     peer->key);
		break;
	case LOCAL_OUT_OF_BOUNDS:
		post(trial, 2, chance(&trial->dice, 50) ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, trial->length, trial->limited->lkey, remote, peer->key);
		break;
	case READ_ONLY_MEMORY:
		post(trial, 2, IBV_WR_RDMA_READ, trial->length, trial->limited->lkey, remote, peer->key);
		break;
	default:
		post(trial, 2, IBV_WR_SEND, trial->length, pool->whole->lkey, 0, 0);
	}
}

static bool request(struct trial *trial, const struct told *peer)
{
	uint32_t lkey = trial->lane->pool.whole->lkey;

	/* First something right, to see that it is the mistake that fails. */
	post(trial, 1, IBV_WR_RDMA_WRITE, 16, lkey, peer->address + 8, peer->key);
	if (!expect(trial, 1, IBV_WC_SUCCESS))
		return false;
	post_bad(trial, peer);
	post(trial, 3, IBV_WR_RDMA_WRITE, 16, lkey, peer->address + 1000, peer->key);
	post(trial, 4, IBV_WR_SEND, 16, lkey, 0, 0);
	return expect(trial, 2, outcome[trial->mistake].request) && expect(trial, 3, IBV_WC_WR_FLUSH_ERR) &&
	       expect(trial, 4, IBV_WC_WR_FLUSH_ERR);
}

static bool respond(struct trial *trial)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if (outcome[trial->mistake].responder_stops) {
		if (!expect(trial, 11, outcome[trial->mistake].receive) || !expect(trial, 12, IBV_WC_WR_FLUSH_ERR))
			return false;
	}
	/* The other side is done with it. */
	if (!meet(trial->lane, "error told"))
		return false;
	if (outcome[trial->mistake].responder_stops)
		return true;
	if (ibv_modify_qp(trial->qp, &attr, IBV_QP_STATE))
		fail(trial->lane, 0, 0, "error round (%s): the responder cannot be stopped", names[trial->mistake]);
	return trial->mistake == NO_RECEIVE || (expect(trial, 11, IBV_WC_WR_FLUSH_ERR) && expect(trial, 12, IBV_WC_WR_FLUSH_ERR));
}

static void prepare(struct trial *trial, struct told *told)
{
	struct lane *lane = trial->lane;
	struct pool *pool = &lane->pool;
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {8, 8, 1, 1, 0}};
	bool requester = options.side == trial->requester;

	fill(pool->at, key_of(lane->round.key, 4), 0, AREA);
	memcpy(pool->shadow, pool->at, AREA);
	if (!requester)
		fill(pool->shadow + TARGET + 8, key_of(lane->round.key, 4), SOURCE, 16);
	init.send_cq = init.recv_cq = trial->cq = ibv_create_cq(device, 32, NULL, NULL, 0);
	trial->qp = trial->cq ? ibv_create_qp(lane->pd, &init) : NULL;
	trial->target = ibv_reg_mr(lane->pd, pool->at + TARGET, TARGET_LENGTH, rights);
	if (requester && trial->mistake == READ_ONLY_MEMORY)
		trial->limited = ibv_reg_mr(lane->pd, pool->at + SOURCE, 32768, 0);
	else if (requester)
		trial->limited = ibv_reg_mr(lane->pd, pool->at + SOURCE, trial->length - 1, IBV_ACCESS_LOCAL_WRITE);
	else
		trial->limited = ibv_reg_mr(lane->pd, pool->at + TARGET, TARGET_LENGTH, IBV_ACCESS_LOCAL_WRITE);
	if (!trial->qp || !trial->target || !trial->limited)
		fail(lane, 0, 0, "error round: no objects (errno %d)", errno);
	told->gid = own_gid;
	told->qp = trial->qp->qp_num;
	told->address = (uintptr_t)(pool->at + TARGET);
	told->key = trial->target->rkey;
	told->bad_key = trial->mistake == NO_RIGHT ? trial->limited->rkey : trial->target->rkey ^ 0x00340000;
	if (trial->mistake == OLD_KEY) {
		told->bad_key = trial->limited->rkey;
		if (ibv_dereg_mr(trial->limited))
			fail(lane, 0, 0, "error round: ibv_dereg_mr failed");
		trial->limited = NULL;
	}
	if (trial->mistake == CLOSED_WINDOW) {
		/* Allocated and never bound, it opens nothing. */
		trial->window = ibv_alloc_mw(lane->pd, IBV_MW_TYPE_2);
		if (!trial->window)
			fail(lane, 0, 0, "error round: no window (errno %d)", errno);
		told->bad_key = trial->window->rkey;
	}
}

static void verify_area(struct trial *trial)
{
	struct pool *pool = &trial->lane->pool;

	for (uint32_t i = 0; i < AREA; i++) {
		/* What a receive with an error holds is nobody's business, as long as it stays within. */
		if (trial->mistake == SHORT_RECEIVE && i >= ARRIVAL && i < ARRIVAL + trial->length - 1)
			continue;
		if (pool->at[i] != pool->shadow[i])
			fail(trial->lane, 0, 0, "error round (%s, %u bytes): byte 0x%x is 0x%02x and not 0x%02x", names[trial->mistake],
			     trial->length, i, pool->at[i], pool->shadow[i]);
	}
}

bool error_round(struct lane *lane, uint64_t key)
{
	struct trial trial = {.lane = lane, .dice = {key_of(key, 30)}};
	static const enum ibv_wr_opcode accesses[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
						      IBV_WR_RDMA_WRITE_WITH_IMM};
	struct told mine, theirs;
	struct way way;
	bool well;

	memset(&lane->round, 0, sizeof lane->round);
	memset(&mine, 0, sizeof mine);
	lane->round.key = key;
	trial.mistake = below(&trial.dice, MISTAKES);
	trial.requester = below(&trial.dice, 2);
	trial.access = accesses[below(&trial.dice, 4)];
	trial.length = 9 + below(&trial.dice, 3 * options.limits.mtu);
	memory_register(lane);
	prepare(&trial, &mine);
	step(lane, "error round");
	well = exchange(lane, &mine, &theirs, sizeof mine);
	if (well) {
		way = (struct way){.qp = theirs.qp, .own_psn = 0xfffffe, .peer_psn = 0xfffffe, .gid = theirs.gid, .fetches = 4,
				   .rnr_retry = trial.mistake == NO_RECEIVE ? 0 : 7};
		if (bring_up(trial.qp, &way))
			fail(lane, 0, 0, "error round: a queue pair does not come up (errno %d)", errno);
		if (options.side != trial.requester && trial.mistake != NO_RECEIVE) {
			receive(&trial, 11, ARRIVAL, trial.mistake == SHORT_RECEIVE ? trial.length - 1 : trial.length,
				trial.mistake == WRONG_RECEIVE_KEY ? lane->pool.local->lkey ^ 0x45600 : lane->pool.local->lkey);
			receive(&trial, 12, ARRIVAL + 65536, 100, lane->pool.local->lkey);
		}
		well = meet(lane, "error start");
	}
	if (well)
		well = options.side == trial.requester ? request(&trial, &theirs) && meet(lane, "error told") : respond(&trial);
	well = well && meet(lane, "error end");
	if (well)
		verify_area(&trial);
	if (ibv_destroy_qp(trial.qp) || ibv_destroy_cq(trial.cq) || ibv_dereg_mr(trial.target) || (trial.limited && ibv_dereg_mr(trial.limited)) ||
	    (trial.window && ibv_dealloc_mw(trial.window)))
		fail(lane, 0, 0, "error round: something cannot be destroyed (errno %d)", errno);
	return well;
}
