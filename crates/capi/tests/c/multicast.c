/* Multicast on one host: who is in a group gets one copy of what is sent to it, in this process and in another; who is not, or has another key, gets none. */
#include "bench.h"
#include <sys/wait.h>
#include <unistd.h>

#define KEY 0x11111111
#define ROOM 256

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_ah *to_group;
static union ibv_gid group;

/* A datagram queue pair with completion queues of its own, so that what it got can be told from what others got. */
struct member {
	struct ibv_qp *qp;
	struct ibv_cq *sends, *receives;
	struct ibv_mr *mr;
	char memory[4 * ROOM];
};

static union ibv_gid group_of(uint8_t a, uint8_t d)
{
	union ibv_gid gid = {.raw = {[10] = 0xff, 0xff, a, 77, 0, d}};

	return gid;
}

static struct member *join(uint32_t key, uint32_t flags)
{
	struct member *member = calloc(1, sizeof *member);

	member->sends = ibv_create_cq(context, 16, NULL, NULL, 0);
	member->receives = ibv_create_cq(context, 16, NULL, NULL, 0);
	member->mr = ibv_reg_mr(pd, member->memory, sizeof member->memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = member->sends, .recv_cq = member->receives, .qp_type = IBV_QPT_UD, .pd = pd, .create_flags = flags,
		.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
		.comp_mask = IBV_QP_INIT_ATTR_PD | (flags ? IBV_QP_INIT_ATTR_CREATE_FLAGS : 0),
	};

	member->qp = ibv_create_qp_ex(context, &init);
	NEED(member->qp && member->mr);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .qkey = key, .port_num = 1};

	CHECK(!ibv_modify_qp(member->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(member->qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(member->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	for (int i = 0; i < 4; i++) {
		struct ibv_sge sge = {(uintptr_t)member->memory + i * ROOM, ROOM, member->mr->lkey};

		CHECK(!receive(member->qp, i, &sge));
	}
	return member;
}

static void leave(struct member *member)
{
	CHECK(!ibv_destroy_qp(member->qp) && !ibv_dereg_mr(member->mr));
	CHECK(!ibv_destroy_cq(member->sends) && !ibv_destroy_cq(member->receives));
	free(member);
}

/* One byte, many times. */
static void tell(struct member *from, char what, uint32_t qpn)
{
	static char text[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, text, sizeof text, 0);
	struct ibv_sge sge = {(uintptr_t)text, sizeof text, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
				 .wr.ud = {.ah = to_group, .remote_qpn = qpn, .remote_qkey = KEY}}, *bad;

	memset(text, what, sizeof text);
	CHECK(!ibv_post_send(from->qp, &wr, &bad));
	CHECK(completion(from->sends).status == IBV_WC_SUCCESS);
	ibv_dereg_mr(mr);
}

/* What it got next, and that it got it as it should; its buffer is posted anew. */
static char hear(struct member *member, uint32_t from)
{
	struct ibv_wc wc = completion(member->receives);
	char *buffer = member->memory + (wc.wr_id & 3) * ROOM, what = buffer[40];
	struct ibv_sge sge = {(uintptr_t)buffer, ROOM, member->mr->lkey};

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 104 && wc.qp_num == member->qp->qp_num);
	CHECK(wc.wc_flags & IBV_WC_GRH && (!from || wc.src_qp == from));
	/* An IPv4 header in the last twenty bytes of forty, sent to the group. */
	CHECK(buffer[20] == 0x45 && !memcmp(buffer + 36, group.raw + 12, 4) && buffer[103] == what);
	CHECK(!receive(member->qp, wc.wr_id, &sge));
	return what;
}

static int deaf(struct member *member)
{
	struct ibv_wc wc;

	return ibv_poll_cq(member->receives, 1, &wc) == 0;
}

static void start(void)
{
	union ibv_gid own;
	struct ibv_ah_attr where = {.is_global = 1, .port_num = 1};

	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	group = group_of(239, 2);
	where.grh.sgid_index = gid_index(context, &own);
	where.grh.dgid = group;
	where.grh.hop_limit = 1;
	to_group = ibv_create_ah(pd, &where);
	NEED(pd && to_group);
}

/* Another process of the host: says when it is in, and with its exit how it went. */
static int other_process(int ready)
{
	start();
	struct member *member = join(KEY, 0);

	CHECK(!ibv_attach_mcast(member->qp, &group, 0));
	CHECK(write(ready, "r", 1) == 1);
	CHECK(hear(member, 0) == '1' && hear(member, 0) == '2' && hear(member, 0) == '3');
	return failures;
}

static void misuse(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *reliable = ibv_create_qp(pd, &init);
	struct member *member = join(KEY, 0);
	union ibv_gid other = group_of(10, 2), v6 = {.raw = {0xff, 0x15, [15] = 7}};
	struct ibv_device_attr attr;

	CHECK(ibv_attach_mcast(reliable, &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(member->qp, &other, 0) == EINVAL);
	CHECK(ibv_attach_mcast(member->qp, NULL, 0) == EINVAL);
	CHECK(ibv_detach_mcast(member->qp, &group, 0) == EINVAL);
	/* The kernel has none on the loopback. */
	CHECK(ibv_attach_mcast(member->qp, &v6, 0) == EADDRNOTAVAIL);
	CHECK(!ibv_query_device(context, &attr));
	CHECK(attr.max_mcast_grp > 0 && attr.max_mcast_qp_attach > 0);
	CHECK(attr.max_total_mcast_qp_attach == attr.max_mcast_grp * attr.max_mcast_qp_attach);
	int limit = attr.max_mcast_grp < 200 ? attr.max_mcast_grp : 200;

	for (int i = 0; i < limit; i++) {
		other = group_of(239, 10 + i);
		CHECK(!ibv_attach_mcast(member->qp, &other, 0));
	}
	CHECK(ibv_destroy_qp(member->qp) == EBUSY);
	if (limit == attr.max_mcast_grp)
		CHECK(ibv_attach_mcast(member->qp, &group, 0) == ENOBUFS);
	for (int i = 0; i < limit; i++) {
		other = group_of(239, 10 + i);
		CHECK(!ibv_detach_mcast(member->qp, &other, 0));
	}
	leave(member);
	CHECK(!ibv_destroy_qp(reliable) && !ibv_destroy_cq(cq));
}

int main(void)
{
	int ready[2], status = -1;
	char said;

	NEED(!pipe(ready));
	pid_t child = fork();

	if (!child)
		_exit(other_process(ready[1]) != 0);
	NEED(read(ready[0], &said, 1) == 1);
	start();
	struct member *sender = join(KEY, 0), *one = join(KEY, 0), *two = join(KEY, 0), *stranger = join(KEY + 1, 0),
		      *shy = join(KEY, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB), *inside[] = {one, two, shy};

	CHECK(!ibv_attach_mcast(one->qp, &group, 0) && !ibv_attach_mcast(two->qp, &group, 0));
	CHECK(!ibv_attach_mcast(stranger->qp, &group, 0) && !ibv_attach_mcast(shy->qp, &group, 0));
	/* Twice is as good as once. */
	CHECK(!ibv_attach_mcast(two->qp, &group, 0));

	/* A number of one is nobody's where all are meant. */
	tell(sender, '0', two->qp->qp_num);
	tell(sender, '1', 0xffffff);
	for (int i = 0; i < 3; i++)
		CHECK(hear(inside[i], sender->qp->qp_num) == '1');
	/* Who is in the group hears himself, unless he does not want to. */
	tell(one, '2', 0xffffff);
	for (int i = 0; i < 3; i++)
		CHECK(hear(inside[i], one->qp->qp_num) == '2');
	tell(shy, '3', 0xffffff);
	CHECK(hear(one, shy->qp->qp_num) == '3' && hear(two, shy->qp->qp_num) == '3');

	CHECK(ibv_destroy_qp(one->qp) == EBUSY);
	CHECK(!ibv_detach_mcast(two->qp, &group, 0));
	tell(sender, '4', 0xffffff);
	CHECK(hear(one, 0) == '4' && hear(shy, 0) == '4');
	CHECK(deaf(sender) && deaf(two) && deaf(stranger) && deaf(shy) && deaf(one));
	CHECK(ibv_detach_mcast(two->qp, &group, 0) == EINVAL);
	CHECK(!ibv_detach_mcast(one->qp, &group, 0) && !ibv_detach_mcast(stranger->qp, &group, 0));
	CHECK(!ibv_detach_mcast(shy->qp, &group, 0));
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	leave(sender), leave(one), leave(two), leave(stranger), leave(shy);
	misuse();
	CHECK(!ibv_destroy_ah(to_group) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return failures != 0;
}
