/*
 * Two ends of a connection in one process: what the programs of this directory share. Each program makes one mistake,
 * and the line with the mistake says MISTAKE.
 */
#ifndef TWO_ENDS_H
#define TWO_ENDS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE 4096

#define NEED(condition)                                                                     \
	do {                                                                                \
		if (!(condition)) {                                                         \
			fprintf(stderr, "%s failed: %s\n", #condition, strerror(errno)); \
			exit(1);                                                            \
		}                                                                           \
	} while (0)

/* One end: a protection domain, memory, a completion queue, a queue pair. */
struct end {
	struct ibv_pd *pd;
	char *memory;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

/* What the two ends tell each other, and how they are set up. Zeros get usual values in make_end and connect_to. */
struct setup {
	enum ibv_qp_type type;
	int access;
	int cq_size;
	uint32_t max_send_wr;
	uint32_t max_inline;
	uint32_t psn_to_send, psn_to_expect;
	enum ibv_mtu mtu;
	int no_rd_atomic;
	uint32_t qkey;
	uint32_t peer_qpn;
};

static struct ibv_context *context;
static union ibv_gid gid;
static int gid_index;

static void open_device(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	NEED(list && count > 0);
	for (int i = 0; i < count && !context; i++)
		if (!strcmp(ibv_get_device_name(list[i]), "ubi_lo"))
			context = ibv_open_device(list[i]);
	if (!context)
		context = ibv_open_device(list[0]);
	NEED(context);
	ibv_free_device_list(list);
	NEED(!ibv_query_gid(context, 1, gid_index, &gid));
}

static struct end make_end(struct setup setup)
{
	struct end end = { .pd = ibv_alloc_pd(context), .memory = aligned_alloc(SIZE, SIZE) };
	NEED(end.pd && end.memory);
	memset(end.memory, 0, SIZE);
	end.mr = ibv_reg_mr(end.pd, end.memory, SIZE, setup.access ? setup.access : IBV_ACCESS_LOCAL_WRITE);
	NEED(end.mr);
	end.cq = ibv_create_cq(context, setup.cq_size ? setup.cq_size : 64, NULL, NULL, 0);
	NEED(end.cq);
	struct ibv_qp_init_attr init = {
		.send_cq = end.cq,
		.recv_cq = end.cq,
		.qp_type = setup.type ? setup.type : IBV_QPT_RC,
		.cap = { .max_send_wr = setup.max_send_wr ? setup.max_send_wr : 16,
			 .max_recv_wr = 16,
			 .max_send_sge = 1,
			 .max_recv_sge = 1,
			 .max_inline_data = setup.max_inline },
	};
	end.qp = ibv_create_qp(end.pd, &init);
	NEED(end.qp);
	return end;
}

static void to_init(struct end *end, struct setup setup)
{
	int is_ud = end->qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = setup.qkey ? setup.qkey : 0x11111111,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	NEED(!ibv_modify_qp(end->qp, &attr, mask));
}

static void to_rts(struct end *end, struct setup setup)
{
	int is_ud = end->qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = setup.mtu ? setup.mtu : IBV_MTU_1024,
		.dest_qp_num = setup.peer_qpn,
		.rq_psn = setup.psn_to_expect ? setup.psn_to_expect : 1000,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	NEED(!ibv_modify_qp(end->qp, &attr, is_ud ? IBV_QP_STATE : mask));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS,
		.timeout = 12, /* 16.8 ms */
		.retry_cnt = 2,
		.rnr_retry = 2,
		.sq_psn = setup.psn_to_send ? setup.psn_to_send : 1000,
		.max_rd_atomic = setup.no_rd_atomic ? 0 : 4,
	};
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (!is_ud)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	NEED(!ibv_modify_qp(end->qp, &attr, mask));
}

/* Connects a to b with one setup for each. */
static void connect_ends(struct end *a, struct setup of_a, struct end *b, struct setup of_b)
{
	of_a.peer_qpn = of_a.peer_qpn ? of_a.peer_qpn : b->qp->qp_num;
	of_b.peer_qpn = of_b.peer_qpn ? of_b.peer_qpn : a->qp->qp_num;
	to_init(a, of_a);
	to_init(b, of_b);
	to_rts(a, of_a);
	to_rts(b, of_b);
}

/* A receive for a part of the memory. */
static int post_receive(struct end *end, uint64_t wr_id, uint32_t offset, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t) end->memory + offset, .length = length, .lkey = end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(end->qp, &wr, &bad);
}

static struct ibv_sge piece(struct end *end, uint32_t length)
{
	return (struct ibv_sge) { .addr = (uintptr_t) end->memory, .length = length, .lkey = end->mr->lkey };
}

/* Posts one request and says so if it is refused. */
static int post(struct end *end, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	int error = ibv_post_send(end->qp, &wr, &bad);
	if (error)
		printf("ibv_post_send: %s\n", strerror(error));
	return error;
}

/* Waits for a completion for a while and prints what a program prints. Answers the status, or -1. */
static int wait_for(struct ibv_cq *cq, double seconds)
{
	struct timespec begin, now;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		struct ibv_wc wc;
		int count = ibv_poll_cq(cq, 1, &wc);
		NEED(count >= 0);
		if (count) {
			printf("work request %llu: %s (%d), vendor_err %u\n", (unsigned long long) wc.wr_id,
			       ibv_wc_status_str(wc.status), wc.status, wc.vendor_err);
			return wc.status;
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - begin.tv_sec) + (now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
	printf("nothing completed\n");
	return -1;
}

/* Frees everything, in the order that verbs demand. */
static void close_end(struct end *end)
{
	NEED(!ibv_destroy_qp(end->qp));
	NEED(!ibv_destroy_cq(end->cq));
	if (end->mr)
		NEED(!ibv_dereg_mr(end->mr));
	NEED(!ibv_dealloc_pd(end->pd));
	free(end->memory);
}

static void close_device(void)
{
	NEED(!ibv_close_device(context));
}

#endif
