/* What programs meet on the cards that the NIC can be like: each word of the command line is a pattern of a program that is
 * known to fail on the card itself, and must fail here at the same call with the same errno. `tells` prints all that a
 * device tells and how it takes a row of requests, one line each: it is also run on kernels, where lines must be the same.
 * It uses nothing but libibverbs. */
#include "bench.h"
#include <arpa/inet.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[1 << 16];

static void open_first(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	NEED(list);
	for (int i = 0; list[i] && !context; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	NEED(context);
	pd = ibv_alloc_pd(context);
	NEED(pd);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	NEED(cq);
}

static struct ibv_qp *make(enum ibv_qp_type type, uint32_t inline_data)
{
	struct ibv_qp_init_attr init = plain_init(cq, type);

	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	init.cap.max_inline_data = inline_data;
	errno = 0;
	return ibv_create_qp(pd, &init);
}

/* llama.cpp asks for 220 bytes inline. */
static void asks_for_inline(uint32_t bytes, int error)
{
	struct ibv_qp *qp = make(IBV_QPT_RC, bytes);

	CHECK(error ? !qp && errno == error : !!qp);
	if (qp)
		ibv_destroy_qp(qp);
}

/* NVSHMEM shares receives. */
static void shares_receives(int error)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);

	CHECK(error ? !srq && errno == error : !!srq);
	if (srq)
		ibv_destroy_srq(srq);
}

/* NCCL recovers with UC. */
static void uses_uc(int error)
{
	struct ibv_qp *qp = make(IBV_QPT_UC, 0);

	CHECK(error ? !qp && errno == error : !!qp);
	if (qp)
		ibv_destroy_qp(qp);
}

/* llama.cpp brings its queue pairs to RTS by hand. */
static void connects_by_hand(int error)
{
	struct ibv_qp *qp = make(IBV_QPT_RC, 0);

	NEED(qp);
	NEED(!to_init(qp));
	CHECK(connect_to(qp, qp->qp_num) == error);
	ibv_destroy_qp(qp);
}

/* Monarch sends to its own device. */
static void sends_to_itself(int arrives)
{
	struct ibv_qp *qp = make(IBV_QPT_UD, 0);
	union ibv_gid gid;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	struct ibv_sge in = {(uintptr_t)memory, 256, mr ? mr->lkey : 0}, out = {(uintptr_t)memory + 512, 64, in.lkey};
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;
	int got = 0;

	NEED(qp && mr && !to_init(qp));
	to.grh.sgid_index = (uint8_t)gid_index(context, &gid);
	to.grh.dgid = gid;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	wr.wr.ud.ah = ibv_create_ah(pd, &to);
	NEED(wr.wr.ud.ah);
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 0x11111111;
	NEED(!receive(qp, 2, &in));
	NEED(!ibv_post_send(qp, &wr, &bad));
	/* A second is long for what arrives; what does not arrive is waited for in vain. */
	for (int i = 0; i < (arrives ? 6000 : 30) && !got; i++) {
		got = ibv_poll_cq(cq, 1, &wc);
		usleep(10000);
	}
	CHECK(got == arrives);
}

/* NCCL reads the table until it is empty, and takes an index that has no address. */
static void takes_the_first_gid(int error)
{
	union ibv_gid gid, zero = {{0}};
	struct ibv_qp *qp = make(IBV_QPT_RC, 0);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 1,
				   .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}},
				   .max_dest_rd_atomic = 1, .min_rnr_timer = 1};

	NEED(qp && !to_init(qp));
	NEED(!ibv_query_gid(context, 1, 0, &gid));
	CHECK(!memcmp(&gid, &zero, sizeof gid) == !!error);
	NEED(gid_index(context, &attr.ah_attr.grh.dgid) >= 0);
	attr.dest_qp_num = qp->qp_num;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == error);
}

/* JACCL has as many queue pairs and regions as it has peers and buffers. */
static void makes_many(int pairs, int pair_error, int regions, int region_error)
{
	struct ibv_qp *qp;
	int made = 0, registered = 0;

	while (made <= pairs && (qp = make(IBV_QPT_UC, 0)))
		made++;
	CHECK(made == pairs && errno == pair_error);
	errno = 0;
	while (registered <= regions && ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE))
		registered++;
	CHECK(registered == regions && errno == region_error);
}

/* A queue pair posts an atomic operation that the card does not do. */
static void posts_atomics(int error)
{
	struct ibv_qp *qp = make(IBV_QPT_RC, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = {(uintptr_t)memory, 8, mr ? mr->lkey : 0};

	NEED(qp && mr && !to_init(qp) && !connect_to(qp, qp->qp_num));
	CHECK(post(qp, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, (uintptr_t)memory, mr->rkey) == error);
}

/* What is granted for what is asked for. */
static void prints_grants(void)
{
	static const int asked[] = {1, 16, 100, 1000};

	for (unsigned i = 0; i < sizeof asked / sizeof *asked; i++) {
		struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
		struct ibv_srq_init_attr shared = {.attr = {.max_wr = (uint32_t)asked[i], .max_sge = 1}};
		struct ibv_cq *queue = ibv_create_cq(context, asked[i], NULL, NULL, 0);
		struct ibv_srq *srq = ibv_create_srq(pd, &shared);
		struct ibv_qp *qp;

		init.cap.max_send_wr = init.cap.max_recv_wr = (uint32_t)asked[i];
		init.cap.max_send_sge = init.cap.max_recv_sge = 1;
		qp = ibv_create_qp(pd, &init);
		printf("grants %d: cqe %d, srq %d, send %d, receive %d\n", asked[i], queue ? queue->cqe : -errno,
		       srq ? (int)shared.attr.max_wr : -1, qp ? (int)init.cap.max_send_wr : -1,
		       qp ? (int)init.cap.max_recv_wr : -1);
		if (qp)
			ibv_destroy_qp(qp);
		if (srq)
			ibv_destroy_srq(srq);
		if (queue)
			ibv_destroy_cq(queue);
	}
	for (int bytes = 0; bytes <= 576; bytes += 64) {
		struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
		struct ibv_qp *qp;

		init.cap.max_send_sge = init.cap.max_recv_sge = 2;
		init.cap.max_inline_data = (uint32_t)bytes;
		qp = ibv_create_qp(pd, &init);
		printf("inline %d: %d, pieces %d\n", bytes, qp ? (int)init.cap.max_inline_data : -errno,
		       qp ? (int)init.cap.max_send_sge : -1);
		if (qp)
			ibv_destroy_qp(qp);
	}
}

#define TELL(field) printf(#field " %#llx\n", (unsigned long long)device.field)

static void tells(void)
{
	static const struct {
		const char *name;
		enum ibv_qp_type type;
	} types[] = {{"RC", IBV_QPT_RC}, {"UC", IBV_QPT_UC}, {"UD", IBV_QPT_UD}, {"RAW_PACKET", IBV_QPT_RAW_PACKET}};
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_mw *mw;

	NEED(!ibv_query_device(context, &device) && !ibv_query_port(context, 1, &port) && mr);
	printf("node %d, transport %d\n", context->device->node_type, context->device->transport_type);
	TELL(vendor_id), TELL(vendor_part_id), TELL(hw_ver), TELL(max_mr_size), TELL(page_size_cap), TELL(max_qp);
	TELL(max_qp_wr), TELL(device_cap_flags), TELL(max_sge), TELL(max_sge_rd), TELL(max_cq), TELL(max_cqe);
	TELL(max_mr), TELL(max_pd), TELL(max_qp_rd_atom), TELL(max_res_rd_atom), TELL(max_qp_init_rd_atom);
	TELL(atomic_cap), TELL(max_mw), TELL(max_raw_ethy_qp), TELL(max_mcast_grp), TELL(max_mcast_qp_attach);
	TELL(max_total_mcast_qp_attach), TELL(max_ah), TELL(max_srq), TELL(max_srq_wr), TELL(max_srq_sge);
	TELL(max_pkeys), TELL(local_ca_ack_delay);
	printf("port: gids %d, pkeys %d, message %#x, vl %d\n", port.gid_tbl_len, port.pkey_tbl_len, port.max_msg_sz,
	       port.max_vl_num);
	printf("keys are %s\n", mr->lkey == mr->rkey ? "equal" : "distinct");
	for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
		struct ibv_qp *qp = make(types[i].type, 0);

		printf("%s %d\n", types[i].name, qp ? 0 : errno);
		if (qp)
			ibv_destroy_qp(qp);
	}
	errno = 0;
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	printf("window %d\n", mw ? 0 : errno);
	if (mw)
		ibv_dealloc_mw(mw);
	printf("resize %d\n", ibv_resize_cq(cq, 128));
	prints_grants();
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int error = argc > 2 ? atoi(argv[2]) : 0;

	if (!strcmp(what, "tells")) {
		open_first(argc > 2 ? argv[2] : NULL);
		tells();
		return !!failures;
	}
	open_first(NULL);
	if (!strcmp(what, "inline"))
		asks_for_inline(220, error);
	else if (!strcmp(what, "srq"))
		shares_receives(error);
	else if (!strcmp(what, "uc"))
		uses_uc(error);
	else if (!strcmp(what, "by-hand"))
		connects_by_hand(error);
	else if (!strcmp(what, "loopback"))
		sends_to_itself(!error);
	else if (!strcmp(what, "first-gid"))
		takes_the_first_gid(error);
	else if (!strcmp(what, "many"))
		makes_many(10, EBUSY, 100, ENOMEM);
	else if (!strcmp(what, "atomics"))
		posts_atomics(error);
	else
		NEED(!"a word that is known");
	return !!failures;
}
