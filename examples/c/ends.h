/* For examples that play both ends in one process: the first device, and two queue pairs on it that are connected by hand. */
#ifndef ENDS_H
#define ENDS_H

#include <infiniband/verbs.h>
#include <stdint.h>
#include "need.h"

static inline struct ibv_context *open_first_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	NEED(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	NEED(context);
	ibv_free_device_list(list);
	return context;
}

static inline struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = type,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	NEED(qp);
	return qp;
}

static inline int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static inline int to_rtr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}},
	};
	/* The peer is on our own address. */
	NEED(ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static inline int to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

/* Both ends ready to send. */
static inline void join(struct ibv_qp *a, struct ibv_qp *b)
{
	NEED(to_init(a) == 0 && to_init(b) == 0);
	NEED(to_rtr(a, b->qp_num) == 0 && to_rtr(b, a->qp_num) == 0);
	NEED(to_rts(a) == 0 && to_rts(b) == 0);
}

static inline int post_receive(struct ibv_qp *qp, uint64_t id, void *at, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = {(uintptr_t)at, length, lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

static inline int post_send(struct ibv_qp *qp, uint64_t id, void *at, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = {(uintptr_t)at, length, lkey};
	struct ibv_send_wr wr = {
		.wr_id = id, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
	}, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

/* Polls for one completion, and answers it whatever its status is. */
static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int found;

	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	NEED(found == 1);
	return wc;
}

#endif
