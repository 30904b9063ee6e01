/*
 * Device memory and an extended completion queue: two queue pairs of one process, connected to each other. One writes into device memory that the
 * other has registered; the program reads it back with a copy and with RDMA READ, and looks at when each completion happened.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 4096, ROUNDS = 8 };

#define NEED(condition)                                                          \
	do {                                                                     \
		if (!(condition)) {                                              \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);  \
			perror("errno");                                         \
			exit(1);                                                 \
		}                                                                \
	} while (0)

static struct ibv_context *open_by_name(const char *name)
{
	int count, i;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = NULL;

	NEED(list);
	for (i = 0; i < count; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	NEED(context);
	return context;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid, enum ibv_mtu mtu)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = mtu;
	attr.dest_qp_num = peer;
	attr.rq_psn = 7;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 1;
	NEED(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 7;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	NEED(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Waits for one completion; its time. */
static uint64_t completion(struct ibv_cq_ex *cq, uint64_t wr_id, enum ibv_wc_opcode opcode, uint64_t *wall)
{
	struct ibv_poll_cq_attr attr = {};
	uint64_t time;
	int status;

	do
		status = ibv_start_poll(cq, &attr);
	while (status == ENOENT);
	NEED(status == 0);
	NEED(cq->status == IBV_WC_SUCCESS);
	NEED(cq->wr_id == wr_id);
	NEED(ibv_wc_read_opcode(cq) == opcode);
	time = ibv_wc_read_completion_ts(cq);
	*wall = ibv_wc_read_completion_wallclock_ns(cq);
	NEED(ibv_next_poll(cq) == ENOENT);
	ibv_end_poll(cq);
	return time;
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	struct ibv_device_attr_ex device;
	struct ibv_values_ex before = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, after = before;
	struct ibv_port_attr port;
	union ibv_gid gid;
	unsigned char source[LENGTH], target[LENGTH];
	uint64_t last = 0, last_wall = 0;
	int round, i;

	NEED(argc == 2);
	context = open_by_name(argv[1]);
	NEED(!ibv_query_device_ex(context, NULL, &device));
	NEED(device.max_dm_size >= LENGTH);
	NEED(device.completion_timestamp_mask != 0 && device.hca_core_clock != 0);
	NEED(!ibv_query_port(context, 1, &port));
	NEED(!ibv_query_gid(context, 1, 0, &gid));
	NEED(!ibv_query_rt_values_ex(context, &before));

	struct ibv_pd *pd = ibv_alloc_pd(context);
	NEED(pd);
	struct ibv_alloc_dm_attr dm_attr = { .length = LENGTH };
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	NEED(dm);
	struct ibv_mr *dm_mr = ibv_reg_dm_mr(pd, dm, 0, LENGTH,
					     IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE |
						     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	NEED(dm_mr);
	struct ibv_mr *source_mr = ibv_reg_mr(pd, source, LENGTH, 0);
	struct ibv_mr *target_mr = ibv_reg_mr(pd, target, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	NEED(source_mr && target_mr);

	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 16,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	NEED(cq);
	struct ibv_qp_init_attr qp_attr = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *one = ibv_create_qp(pd, &qp_attr), *other = ibv_create_qp(pd, &qp_attr);
	NEED(one && other);
	connect_to(one, other->qp_num, gid, port.active_mtu);
	connect_to(other, one->qp_num, gid, port.active_mtu);

	for (round = 0; round < ROUNDS; round++) {
		struct ibv_sge sge = { .addr = (uintptr_t)source, .length = LENGTH, .lkey = source_mr->lkey };
		struct ibv_send_wr wr = { .wr_id = 2 * round, .sg_list = &sge, .num_sge = 1 }, *bad;
		uint64_t time, wall;

		for (i = 0; i < LENGTH; i++)
			source[i] = (unsigned char)(i * 7 + round);
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.send_flags = IBV_SEND_SIGNALED;
		wr.wr.rdma.remote_addr = 0;
		wr.wr.rdma.rkey = dm_mr->rkey;
		NEED(!ibv_post_send(one, &wr, &bad));
		time = completion(cq, 2 * round, IBV_WC_RDMA_WRITE, &wall);
		NEED(time > last && wall >= last_wall);
		last = time;
		last_wall = wall;

		memset(target, 0, LENGTH);
		NEED(!ibv_memcpy_from_dm(target, dm, 0, LENGTH));
		NEED(!memcmp(source, target, LENGTH));

		/* The other way round: the program writes, and RDMA reads. */
		source[5] ^= 0xff;
		NEED(!ibv_memcpy_to_dm(dm, 4, source + 4, 4));
		memset(target, 0, LENGTH);
		sge.addr = (uintptr_t)target;
		sge.lkey = target_mr->lkey;
		wr.wr_id = 2 * round + 1;
		wr.opcode = IBV_WR_RDMA_READ;
		NEED(!ibv_post_send(one, &wr, &bad));
		time = completion(cq, 2 * round + 1, IBV_WC_RDMA_READ, &wall);
		NEED(time > last && wall >= last_wall);
		last = time;
		NEED(!memcmp(source, target, LENGTH));
	}
	puts("device memory holds what was written");
	NEED(!ibv_query_rt_values_ex(context, &after));
	NEED(after.raw_clock.tv_sec > before.raw_clock.tv_sec ||
	     (after.raw_clock.tv_sec == before.raw_clock.tv_sec && after.raw_clock.tv_nsec > before.raw_clock.tv_nsec));
	puts("timestamps rise");

	NEED(!ibv_destroy_qp(one) && !ibv_destroy_qp(other));
	NEED(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	NEED(!ibv_dereg_mr(source_mr) && !ibv_dereg_mr(target_mr) && !ibv_dereg_mr(dm_mr));
	NEED(!ibv_free_dm(dm));
	NEED(!ibv_dealloc_pd(pd));
	NEED(!ibv_close_device(context));
	return 0;
}
