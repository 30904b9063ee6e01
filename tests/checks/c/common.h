/*
 * What the programs share: a device, a protection domain, a completion queue, memory, queue pairs connected to one
 * another in one process; posting and polling with a deadline; a table of cases and main.
 *
 * A program is started as `./memory UV-0201 break` or `keep`. It ends with 0 when it did what it set out to do, whatever
 * the rules have to say about it.
 */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long something may take that should come at once: a busy machine may be slow. */
#define DEADLINE_SECONDS 10

/* The size of the buffer of a bench. */
#define BUFFER_SIZE 4096

/* Ends the program if what the program needs is not so. */
#define NEED(condition)                                                                                           \
	do {                                                                                                      \
		if (!(condition)) {                                                                               \
			fprintf(stderr, "%s:%d: %s: %s (errno %d)\n", __FILE__, __LINE__, __func__, #condition, errno); \
			exit(1);                                                                                  \
		}                                                                                                 \
	} while (0)

/* A case: a rule, a function that breaks it, one that does the same thing properly. */
struct program {
	const char *rule;
	void (*break_it)(void);
	void (*keep_it)(void);
};

/* What most cases begin with: see open_bench(). */
struct bench {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	/* All of BUFFER_SIZE bytes, with the rights to write, read and do atomics from afar. */
	char *buffer;
	struct ibv_mr *mr;
	/* Two queue pairs, connected to one another by connect_pair(). */
	struct ibv_qp *qp[2];
};

/* What a connection is made with. Zeros are replaced by usual values: see usual_path(). */
struct path {
	enum ibv_mtu mtu;
	uint32_t rq_psn, sq_psn;
	uint8_t max_rd_atomic, max_dest_rd_atomic;
	uint8_t min_rnr_timer, timeout, retry_cnt, rnr_retry;
	unsigned int access;
	uint32_t qkey;
};

/* Values of a connection that nobody would complain about. Timeouts are short, so that failing takes no time:
 * 4.096 us * 2^13, about 34 ms, three times. */
static inline struct path usual_path(void)
{
	struct path path = {
		.mtu = IBV_MTU_1024, .rq_psn = 77, .sq_psn = 77, .max_rd_atomic = 4, .max_dest_rd_atomic = 4,
		.min_rnr_timer = 1, .timeout = 13, .retry_cnt = 2, .rnr_retry = 3,
		.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.qkey = 0x11111111,
	};
	return path;
}

/* Opens ubi_lo, or the first device there is. */
static inline struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	NEED(list && list[0]);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), "ubi_lo"))
			context = ibv_open_device(list[i]);
	if (!context)
		context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	NEED(context);
	return context;
}

/* The last GID of a device that is a RoCEv2 one: for ubi_lo the one of 127.0.0.1. */
static inline int gid_index(struct ibv_context *context, union ibv_gid *gid)
{
	static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

	for (int i = 0; i < 64; i++)
		if (!ibv_query_gid(context, 1, i, gid) && !memcmp(gid->raw, mapped, sizeof mapped))
			return i;
	NEED(!"an IPv4 address");
	return -1;
}

/* Attributes of a queue pair, to be changed before it is made. */
static inline struct ibv_qp_init_attr usual_qp(struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64},
		.qp_type = type,
	};
	return init;
}

static inline void to_init(struct ibv_qp *qp, const struct path *path)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .qkey = path->qkey, .qp_access_flags = path->access, .port_num = 1};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	NEED(!ibv_modify_qp(qp, &attr, mask));
}

/* To RTR, towards the queue pair of that number of the same device. */
static inline void to_rtr(struct ibv_qp *qp, uint32_t peer, const struct path *path)
{
	union ibv_gid gid;
	int index = gid_index(qp->context, &gid);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = path->mtu, .dest_qp_num = peer, .rq_psn = path->rq_psn,
		.ah_attr = {.grh = {.dgid = gid, .sgid_index = (uint8_t)index, .hop_limit = 64}, .is_global = 1, .port_num = 1},
		.max_dest_rd_atomic = path->max_dest_rd_atomic, .min_rnr_timer = path->min_rnr_timer,
	};
	int mask = IBV_QP_STATE;

	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	NEED(!ibv_modify_qp(qp, &attr, mask));
}

static inline void to_rts(struct ibv_qp *qp, const struct path *path)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .sq_psn = path->sq_psn, .max_rd_atomic = path->max_rd_atomic,
				   .timeout = path->timeout, .retry_cnt = path->retry_cnt, .rnr_retry = path->rnr_retry};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	NEED(!ibv_modify_qp(qp, &attr, mask));
}

/* From RESET to RTS, towards a queue pair of the same device. */
static inline void connect_to(struct ibv_qp *qp, uint32_t peer, struct path path)
{
	to_init(qp, &path);
	to_rtr(qp, peer, &path);
	to_rts(qp, &path);
}

/* Connects two queue pairs to one another, each with its own values. */
static inline void connect_both(struct ibv_qp *one, struct path one_path, struct ibv_qp *other, struct path other_path)
{
	to_init(one, &one_path);
	to_init(other, &other_path);
	to_rtr(one, other->qp_num, &one_path);
	to_rtr(other, one->qp_num, &other_path);
	to_rts(one, &one_path);
	to_rts(other, &other_path);
}

/* A device, a protection domain, a completion queue and registered memory; no queue pairs. */
static inline struct bench open_bench(void)
{
	struct bench b = {.context = open_device()};

	b.pd = ibv_alloc_pd(b.context);
	NEED(b.pd);
	b.cq = ibv_create_cq(b.context, 64, NULL, NULL, 0);
	NEED(b.cq);
	b.buffer = aligned_alloc(4096, BUFFER_SIZE);
	NEED(b.buffer);
	memset(b.buffer, 0, BUFFER_SIZE);
	b.mr = ibv_reg_mr(b.pd, b.buffer, BUFFER_SIZE,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	NEED(b.mr);
	return b;
}

/* Makes the two queue pairs of a bench with these attributes, not connected. */
static inline void make_pair_as(struct bench *b, struct ibv_qp_init_attr init)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr attributes = init;

		b->qp[i] = ibv_create_qp(b->pd, &attributes);
		NEED(b->qp[i]);
	}
}

/* The same with usual attributes. */
static inline void make_pair(struct bench *b, enum ibv_qp_type type)
{
	make_pair_as(b, usual_qp(b->cq, type));
}

/* A bench with two queue pairs of that type in RTS, connected to one another where the type has connections. */
static inline struct bench open_pair(enum ibv_qp_type type)
{
	struct bench b = open_bench();

	make_pair(&b, type);
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	return b;
}

/* Destroys everything that is there. */
static inline void close_bench(struct bench *b)
{
	for (int i = 0; i < 2; i++)
		if (b->qp[i])
			NEED(!ibv_destroy_qp(b->qp[i]));
	if (b->mr)
		NEED(!ibv_dereg_mr(b->mr));
	free(b->buffer);
	if (b->cq)
		NEED(!ibv_destroy_cq(b->cq));
	if (b->pd)
		NEED(!ibv_dealloc_pd(b->pd));
	NEED(!ibv_close_device(b->context));
	memset(b, 0, sizeof *b);
}

/* Bytes of the buffer of a bench. */
static inline struct ibv_sge piece(const struct bench *b, size_t offset, uint32_t length)
{
	struct ibv_sge sge = {.addr = (uintptr_t)b->buffer + offset, .length = length, .lkey = b->mr->lkey};

	return sge;
}

/* An address handle towards the same device, for datagrams. */
static inline struct ibv_ah *address_handle(struct ibv_pd *pd)
{
	union ibv_gid gid;
	int index = gid_index(pd->context, &gid);
	struct ibv_ah_attr attr = {.grh = {.dgid = gid, .sgid_index = (uint8_t)index, .hop_limit = 64}, .is_global = 1,
				   .port_num = 1};
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	NEED(ah);
	return ah;
}

/* A work request for the send queue, signaled, to be changed before it is posted. */
static inline struct ibv_send_wr send_wr(uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge)
{
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = sge ? 1 : 0, .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED};

	return wr;
}

/* Posts it, and answers what ibv_post_send does. */
static inline int post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, wr, &bad);
}

/* Posts a SEND; it must be taken. */
static inline void post_send(struct ibv_qp *qp, uint64_t id, struct ibv_sge *sge)
{
	struct ibv_send_wr wr = send_wr(id, IBV_WR_SEND, sge);

	NEED(!post(qp, &wr));
}

/* Posts a WRITE, READ or atomic; it must be taken. */
static inline void post_rdma(struct ibv_qp *qp, uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge, const void *remote,
			     uint32_t rkey)
{
	struct ibv_send_wr wr = send_wr(id, opcode, sge);

	if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)remote;
		wr.wr.rdma.rkey = rkey;
	}
	NEED(!post(qp, &wr));
}

/* Posts a receive; it must be taken. */
static inline void post_recv(struct ibv_qp *qp, uint64_t id, struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = sge ? 1 : 0};
	struct ibv_recv_wr *bad;

	NEED(!ibv_post_recv(qp, &wr, &bad));
}

static inline double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void sleep_millis(long millis)
{
	struct timespec time = {.tv_sec = millis / 1000, .tv_nsec = millis % 1000 * 1000000};

	nanosleep(&time, NULL);
}

/* Polls until there is a completion. */
static inline struct ibv_wc poll_one(struct ibv_cq *cq)
{
	double end = seconds_now() + DEADLINE_SECONDS;
	struct ibv_wc wc;
	int got = 0;

	memset(&wc, 0, sizeof wc);
	while (!got && seconds_now() < end)
		got = ibv_poll_cq(cq, 1, &wc);
	NEED(got == 1);
	return wc;
}

/* Polls one completion, which must have that status. */
static inline struct ibv_wc poll_status(struct ibv_cq *cq, enum ibv_wc_status status)
{
	struct ibv_wc wc = poll_one(cq);

	if (wc.status != status)
		fprintf(stderr, "work request %llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	NEED(wc.status == status);
	return wc;
}

/* Polls so many completions; all must have succeeded. */
static inline void poll_success(struct ibv_cq *cq, int count)
{
	while (count-- > 0)
		poll_status(cq, IBV_WC_SUCCESS);
}

/* The program: finds the case and runs it. `--list` names the cases. */
static inline int run_cases(int argc, char **argv, const struct program *cases, size_t count)
{
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (size_t i = 0; i < count; i++)
			printf("%s%s%s\n", cases[i].rule, cases[i].break_it ? " break" : "", cases[i].keep_it ? " keep" : "");
		return 0;
	}
	for (size_t i = 0; argc == 3 && i < count; i++) {
		void (*run)(void) = !strcmp(argv[2], "break") ? cases[i].break_it : cases[i].keep_it;

		if (!strcmp(argv[1], cases[i].rule) && run) {
			run();
			/* For tests of reports: the end of a process that cannot say so. */
			if (getenv("CHECKS_KILL_AFTER"))
				raise(SIGKILL);
			return 0;
		}
	}
	fprintf(stderr, "usage: %s RULE break|keep\n       %s --list\n", argv[0], argv[0]);
	return 2;
}

/* The table of a family's cases, and main: CASES({"UV-0201", break_it, keep_it}, …) */
#define CASES(...)                                                                            \
	static const struct program cases[] = {__VA_ARGS__};                                  \
	int main(int argc, char **argv)                                                       \
	{                                                                                     \
		return run_cases(argc, argv, cases, sizeof cases / sizeof cases[0]);          \
	}

#endif
