/* Packet pacing: what the device says of it, what it refuses, and that a limit holds, towards another process. */
#include "bench.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE (1 << 20)
/* In kilobits a second: so slow that a busy machine is quicker without it. */
#define RATE 100000

/* What one process tells the other of its end. */
struct end {
	uint32_t qpn[3];
	uint32_t rkey;
	uint64_t address;
};

static const enum ibv_qp_type kinds[3] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qps[3];
static char *memory;

static struct end make_end(void)
{
	struct end mine = {};

	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	memory = calloc(1, MESSAGE);
	mr = ibv_reg_mr(pd, memory, MESSAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	NEED(pd && cq && mr);
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_init_attr init = plain_init(cq, kinds[i]);

		init.cap.max_send_wr = init.cap.max_recv_wr = 128;
		qps[i] = ibv_create_qp(pd, &init);
		NEED(qps[i] && !to_init(qps[i]));
		mine.qpn[i] = qps[i]->qp_num;
	}
	mine.rkey = mr->rkey, mine.address = (uintptr_t)memory;
	return mine;
}

static void connect_all(const struct end *other, uint32_t limit_on_the_way)
{
	for (int i = 0; i < 3; i++) {
		union ibv_gid gid;
		int reliable = kinds[i] == IBV_QPT_RC, connected = kinds[i] != IBV_QPT_UD;
		struct ibv_qp_attr rtr = {
			.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = other->qpn[i],
			.ah_attr = {.grh = {.sgid_index = (uint8_t)gid_index(context, &gid), .hop_limit = 64}, .is_global = 1,
				    .port_num = 1},
			.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		};
		struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .max_rd_atomic = 4, .timeout = 16, .retry_cnt = 7,
					  .rnr_retry = 7, .rate_limit = limit_on_the_way};
		int mask = IBV_QP_STATE, more = IBV_QP_STATE | IBV_QP_SQ_PSN;

		rtr.ah_attr.grh.dgid = gid;
		if (connected)
			mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		if (reliable) {
			mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
			more |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
		}
		if (limit_on_the_way)
			more |= IBV_QP_RATE_LIMIT;
		NEED(!ibv_modify_qp(qps[i], &rtr, mask) && !ibv_modify_qp(qps[i], &rts, more));
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int limit(struct ibv_qp *qp, uint32_t kbps, uint32_t burst)
{
	struct ibv_qp_rate_limit_attr attr = {.rate_limit = kbps, .max_burst_sz = burst};

	return ibv_modify_qp_rate_limit(qp, &attr);
}

/* Writes so many messages and answers how long that took. */
static double write_messages(int which, int count, const struct end *other)
{
	struct ibv_sge sge = {(uintptr_t)memory, MESSAGE, mr->lkey};
	double start = now();

	for (int i = 0; i < count; i++)
		CHECK(!post(qps[which], i, IBV_WR_RDMA_WRITE, &sge, other->address, other->rkey));
	for (int i = 0; i < count; i++)
		CHECK(completion(cq).status == IBV_WC_SUCCESS);
	return now() - start;
}

/* That many packets with that payload take so long at this rate, less what may go at once; and not much longer, though the machine be busy. */
static void takes(const char *what, double took, double packets, double payload, double kbps)
{
	double expected = packets * (payload + 58) * 8 / (kbps * 1000);

	fprintf(stderr, "%s: %.1f ms, %.1f expected\n", what, took * 1e3, expected * 1e3);
	CHECK(took > expected - 0.01 && took < expected * 3 + 0.5);
}

static void caps_and_errors(void)
{
	struct ibv_device_attr_ex device;
	struct ibv_qp_rate_limit_attr none = {}, burst = {.max_burst_sz = 1000}, mask = {.rate_limit = 1000, .comp_mask = 1},
				      size = {.typical_pkt_sz = 64};
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC), asked;
	struct ibv_qp *fresh = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr;

	NEED(!ibv_query_device_ex(context, NULL, &device) && fresh);
	const struct ibv_packet_pacing_caps *caps = &device.packet_pacing_caps;
	CHECK(caps->qp_rate_limit_min > 0 && caps->qp_rate_limit_max >= 100000000);
	for (int i = 0; i < 3; i++)
		CHECK(ibv_is_qpt_supported(caps->supported_qpts, kinds[i]));
	CHECK(ibv_is_qpt_supported(caps->supported_qpts, IBV_QPT_RAW_PACKET));
	CHECK(!ibv_is_qpt_supported(caps->supported_qpts, IBV_QPT_XRC_RECV));

	CHECK(ibv_modify_qp_rate_limit(qps[0], NULL) == EINVAL);
	CHECK(ibv_modify_qp_rate_limit(qps[0], &mask) == EINVAL);
	CHECK(ibv_modify_qp_rate_limit(qps[0], &burst) == EINVAL && ibv_modify_qp_rate_limit(qps[0], &size) == EINVAL);
	CHECK(limit(qps[0], caps->qp_rate_limit_max + 1, 0) == EINVAL && limit(qps[0], 1000, 1u << 31) == EINVAL);
	/* Nothing can be sent yet. */
	CHECK(limit(fresh, 1000, 0) == EINVAL);
	CHECK(!to_init(fresh) && limit(fresh, 1000, 0) == EINVAL && !ibv_destroy_qp(fresh));

	CHECK(!ibv_query_qp(qps[0], &attr, IBV_QP_RATE_LIMIT, &asked) && attr.rate_limit == RATE);
	CHECK(!limit(qps[0], caps->qp_rate_limit_max, 0) && !limit(qps[0], caps->qp_rate_limit_min, 0));
	CHECK(!ibv_query_qp(qps[0], &attr, IBV_QP_RATE_LIMIT, &asked) && attr.rate_limit == caps->qp_rate_limit_min);
	CHECK(!ibv_modify_qp_rate_limit(qps[0], &none));
	CHECK(!ibv_query_qp(qps[0], &attr, IBV_QP_RATE_LIMIT, &asked) && attr.rate_limit == 0);
}

static void datagrams(const struct end *other)
{
	struct ibv_ah_attr way = {.grh = {.hop_limit = 64}, .is_global = 1, .port_num = 1};

	way.grh.sgid_index = (uint8_t)gid_index(context, &way.grh.dgid);
	struct ibv_ah *ah = ibv_create_ah(pd, &way);
	struct ibv_sge sge = {(uintptr_t)memory, 4096, mr->lkey};
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};

	NEED(ah && !limit(qps[2], 100000, 0));
	wr.wr.ud.ah = ah, wr.wr.ud.remote_qpn = other->qpn[2], wr.wr.ud.remote_qkey = 0x11111111;
	double start = now();
	for (int i = 0; i < 100; i++)
		CHECK(!ibv_post_send(qps[2], &wr, &bad));
	for (int i = 0; i < 100; i++)
		CHECK(completion(cq).status == IBV_WC_SUCCESS);
	takes("datagrams", now() - start, 100, 4096, 100000);
	CHECK(!ibv_destroy_ah(ah));
}

int main(void)
{
	int down[2], up[2];
	struct end mine, other;
	char byte = 0;

	NEED(!pipe(down) && !pipe(up));
	pid_t child = fork();
	if (!child) {
		/* The other end of the pipes may not be held, or nobody would see the other process end. */
		close(down[1]), close(up[0]);
		mine = make_end();
		NEED(write(up[1], &mine, sizeof mine) == sizeof mine && read(down[0], &other, sizeof other) == sizeof other);
		connect_all(&other, 0);
		NEED(write(up[1], &byte, 1) == 1);
		CHECK(read(down[0], &byte, 1) == 0);
		return failures != 0;
	}
	close(down[0]), close(up[1]);
	mine = make_end();
	NEED(read(up[0], &other, sizeof other) == sizeof other && write(down[1], &mine, sizeof mine) == sizeof mine);
	connect_all(&other, RATE);
	NEED(read(up[0], &byte, 1) == 1);

	takes("RC, limited on the way to RTS", write_messages(0, 4, &other), 4 * 256, 4096, RATE);
	caps_and_errors();
	/* Without the limit: on a busy machine a try may take long, but not each of them. */
	double half = 4 * 256 * (4096.0 + 58) * 8 / (RATE * 1000.0) / 2;
	int tries = 0;

	while (write_messages(0, 4, &other) >= half)
		NEED(++tries < 20);
	NEED(!limit(qps[0], RATE, 0) && !limit(qps[1], RATE, 65536));
	takes("RC", write_messages(0, 4, &other), 4 * 256, 4096, RATE);
	takes("UC", write_messages(1, 4, &other), 4 * 256, 4096, RATE);
	datagrams(&other);

	close(down[1]);
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return failures != 0;
}
