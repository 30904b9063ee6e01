/* What the test programs share: checks that say what went wrong and where, and a pair of connected queue pairs. */
#ifndef BENCH_H
#define BENCH_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failures;

#define CHECK(condition)                                                                      \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			failures++;                                                           \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __func__, __LINE__, #condition, errno); \
		}                                                                             \
	} while (0)

#define NEED(condition)                                   \
	do {                                              \
		CHECK(condition);                         \
		if (failures) {                           \
			fprintf(stderr, "giving up\n");   \
			exit(1);                          \
		}                                         \
	} while (0)

static inline struct ibv_context *open_lo(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), "ubi_lo"))
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	return context;
}

/* The index of the GID of 127.0.0.1. */
static inline int gid_index(struct ibv_context *context, union ibv_gid *gid)
{
	static const uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

	for (int i = 0; i < 64; i++)
		if (!ibv_query_gid(context, 1, i, gid) && !memcmp(gid->raw, loopback, 16))
			return i;
	return -1;
}

static inline struct ibv_qp_init_attr plain_init(struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64},
		.qp_type = type,
	};
	return init;
}

static inline int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .qkey = 0x11111111,
				   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
				   .port_num = 1};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	return ibv_modify_qp(qp, &attr, mask);
}

static inline int connect_to(struct ibv_qp *qp, uint32_t peer)
{
	union ibv_gid gid;
	int index = gid_index(qp->context, &gid);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.ah_attr = {.grh = {.dgid = gid, .sgid_index = (uint8_t)index, .hop_limit = 64}, .is_global = 1, .port_num = 1},
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
	};
	int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	/* A quarter of a second, eight times: longer than a busy machine keeps anybody from answering. */
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .max_rd_atomic = 4, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7};

	if (error)
		return error;
	return ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Waits for one completion. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 60;
	int got = 0;

	memset(&wc, 0xff, sizeof wc);
	while (!got && time(NULL) < end)
		got = ibv_poll_cq(cq, 1, &wc);
	CHECK(got == 1);
	return wc;
}

static inline int post(struct ibv_qp *qp, uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge, uint64_t remote,
		       uint32_t rkey)
{
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = sge ? 1 : 0, .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = rkey;
	return ibv_post_send(qp, &wr, &bad);
}

static inline int receive(struct ibv_qp *qp, uint64_t id, struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = sge ? 1 : 0};
	struct ibv_recv_wr *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

#endif
