/* Every call of verbs with what makes no sense: null pointers, unknown flags and masks, wrong sizes and numbers. Each
 * answers in the way and with the errno of its manual page, and nothing crashes. Calls that the header makes inline on
 * an object are made as it makes them, through the tables of the context. */
#include "bench.h"
#include <fcntl.h>
#include <stddef.h>

/* A call that answers an errno. */
#define ERRNO(call, error)                                                                            \
	do {                                                                                          \
		int answer_ = (call);                                                                 \
		if (answer_ != (error))                                                               \
			fprintf(stderr, "answers %d, not %d: ", answer_, (error));                    \
		CHECK(answer_ == (error));                                                            \
	} while (0)

/* One that answers null or a number below 0, and sets errno. */
#define SETS(call, answer, error)                                                                     \
	do {                                                                                          \
		errno = 0;                                                                            \
		CHECK((call) == (answer));                                                            \
		if (errno != (error))                                                                 \
			fprintf(stderr, "errno not %d: ", (error));                                   \
		CHECK(errno == (error));                                                              \
	} while (0)
#define NOTHING(call) SETS(call, NULL, EINVAL)

#define UNKNOWN (1u << 30)

static struct ibv_context *context;
static struct verbs_context *verbs;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[8192];

static void devices(void)
{
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex ex;
	struct ibv_query_device_ex_input input = {.comp_mask = UNKNOWN};
	struct ibv_port_attr port;
	struct ibv_async_event event;
	struct ibv_values_ex values = {.comp_mask = UNKNOWN};
	struct ibv_gid_entry entry;
	union ibv_gid gid;
	__be16 pkey;

	NOTHING(ibv_open_device(NULL));
	NOTHING(ibv_import_device(-1));
	CHECK(!ibv_get_device_name(NULL));
	CHECK(ibv_close_device(NULL));
	ERRNO(ibv_query_device(NULL, &attr), EINVAL);
	ERRNO(ibv_query_device(context, NULL), EINVAL);
	ERRNO(ibv_query_device_ex(context, &input, &ex), EINVAL);
	ERRNO(verbs->query_device_ex(NULL, NULL, &ex, sizeof ex), EINVAL);
	ERRNO(verbs->query_device_ex(context, NULL, NULL, sizeof ex), EINVAL);
	ERRNO(verbs->query_device_ex(context, NULL, &ex, sizeof attr - 1), EINVAL);
	for (int number = 0; number < 256; number++)
		if (number != 1) {
			CHECK(ibv_query_port(context, number, &port) == EINVAL);
			CHECK(ibv_query_gid(context, number, 0, &gid) == -1);
			CHECK(ibv_query_pkey(context, number, 0, &pkey) == -1);
		}
	ERRNO(verbs->query_port(context, 1, NULL, sizeof port), EINVAL);
	ERRNO(verbs->query_port(NULL, 1, &port, sizeof port), EINVAL);
	SETS(ibv_query_gid(NULL, 1, 0, &gid), -1, EINVAL);
	SETS(ibv_query_gid(context, 1, 0, NULL), -1, EINVAL);
	SETS(ibv_query_gid(context, 1, -1, &gid), -1, EINVAL);
	SETS(ibv_query_gid(context, 1, 1 << 20, &gid), -1, EINVAL);
	SETS(ibv_query_pkey(NULL, 1, 0, &pkey), -1, EINVAL);
	SETS(ibv_query_pkey(context, 1, 0, NULL), -1, EINVAL);
	SETS(ibv_query_pkey(context, 1, -1, &pkey), -1, EINVAL);
	CHECK(ibv_get_pkey_index(context, 1, 0x1234) == -1);
	CHECK(ibv_get_pkey_index(NULL, 1, 0xffff) == -1);
	ERRNO(ibv_query_gid_ex(context, 1, 0, NULL, 0), EINVAL);
	ERRNO(ibv_query_gid_ex(context, 1, 0, &entry, UNKNOWN), EINVAL);
	ERRNO(ibv_query_gid_ex(context, 2, 0, &entry, 0), EINVAL);
	ERRNO(ibv_query_gid_ex(context, 1, 1 << 20, &entry, 0), EINVAL);
	CHECK(ibv_query_gid_table(context, NULL, 1, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(context, &entry, 1, UNKNOWN) == -EINVAL);
	SETS(ibv_get_async_event(NULL, &event), -1, EINVAL);
	SETS(ibv_get_async_event(context, NULL), -1, EINVAL);
	ibv_ack_async_event(NULL);
	ERRNO(verbs->query_rt_values(NULL, &values), EINVAL);
	ERRNO(verbs->query_rt_values(context, NULL), EINVAL);
	ERRNO(verbs->query_rt_values(context, &values), 0);
	CHECK(!values.comp_mask);
}

static void words(void)
{
	CHECK(!strcmp(ibv_wc_status_str((enum ibv_wc_status)1000), "unknown"));
	CHECK(!strcmp(ibv_event_type_str((enum ibv_event_type)1000), "unknown"));
	CHECK(!strcmp(ibv_node_type_str((enum ibv_node_type)1000), "unknown"));
	CHECK(!strcmp(ibv_port_state_str((enum ibv_port_state)1000), "unknown"));
	CHECK(ibv_rate_to_mult((enum ibv_rate)1000) == -1 && mult_to_ibv_rate(1000) == IBV_RATE_MAX);
	CHECK(ibv_rate_to_mbps((enum ibv_rate)1000) == -1 && mbps_to_ibv_rate(7) == IBV_RATE_MAX);
}

static void memories(void)
{
	struct ibv_td_init_attr td = {.comp_mask = UNKNOWN};
	struct ibv_parent_domain_init_attr parent = {.pd = pd, .comp_mask = UNKNOWN};
	struct ibv_alloc_dm_attr dm = {.length = 4096, .comp_mask = UNKNOWN};
	struct ibv_mw_bind bind = {};
	struct ibv_mw *mw;
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey};

	NOTHING(ibv_alloc_pd(NULL));
	ERRNO(ibv_dealloc_pd(NULL), EINVAL);
	ERRNO(ibv_dealloc_pd(pd), EBUSY);
	NOTHING(verbs->alloc_td(NULL, &td));
	NOTHING(verbs->alloc_td(context, NULL));
	SETS(ibv_alloc_td(context, &td), NULL, EINVAL);
	ERRNO(verbs->dealloc_td(NULL), EINVAL);
	NOTHING(verbs->alloc_parent_domain(context, NULL));
	NOTHING(ibv_alloc_parent_domain(context, &parent));
	parent.comp_mask = 0, parent.pd = NULL;
	NOTHING(ibv_alloc_parent_domain(context, &parent));

	NOTHING(ibv_reg_mr(NULL, memory, 4096, 0));
	NOTHING(ibv_reg_mr(pd, memory, 4096, 1 << 15));
	NOTHING(ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_REMOTE_WRITE));
	NOTHING(ibv_reg_mr_iova(NULL, memory, 4096, 0, 0));
	CHECK(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) < 0);
	CHECK(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) < 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) < 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0) < 0);
	ERRNO(ibv_dereg_mr(NULL), EINVAL);
	ERRNO(verbs->advise_mr(NULL, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EINVAL);
	ERRNO(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 1), EINVAL);
	ERRNO(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, UNKNOWN, &sge, 1), EINVAL);
	CHECK(ibv_advise_mr(pd, (enum ib_uverbs_advise_mr_advice)77, 0, &sge, 1));

	NOTHING(context->ops.alloc_mw(NULL, IBV_MW_TYPE_1));
	NOTHING(ibv_alloc_mw(pd, (enum ibv_mw_type)0));
	NOTHING(ibv_alloc_mw(pd, (enum ibv_mw_type)3));
	ERRNO(context->ops.dealloc_mw(NULL), EINVAL);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	NEED(mw);
	ERRNO(context->ops.bind_mw(NULL, mw, &bind), EINVAL);
	CHECK(!ibv_dealloc_mw(mw));

	NOTHING(verbs->alloc_dm(NULL, &dm));
	NOTHING(verbs->alloc_dm(context, NULL));
	NOTHING(ibv_alloc_dm(context, &dm));
	dm.comp_mask = 0, dm.length = 0;
	NOTHING(ibv_alloc_dm(context, &dm));
	ERRNO(verbs->free_dm(NULL), EINVAL);
	NOTHING(verbs->reg_dm_mr(pd, NULL, 0, 64, IBV_ACCESS_ZERO_BASED));
	NOTHING(verbs->alloc_null_mr(NULL));
	NOTHING(ibv_import_pd(NULL, 1));
	SETS(ibv_import_pd(context, 0x7fffffff), NULL, ENOENT);
	NOTHING(ibv_import_mr(NULL, 1));
	SETS(ibv_import_mr(pd, 0x7fffffff), NULL, ENOENT);
	SETS(ibv_import_dm(context, 0x7fffffff), NULL, ENOENT);
	ibv_unimport_pd(NULL), ibv_unimport_mr(NULL), ibv_unimport_dm(NULL);
}

static void completions(void)
{
	struct ibv_cq_init_attr_ex ex = {.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS}, wrong = ex;
	struct ibv_modify_cq_attr modify = {.attr_mask = IBV_CQ_ATTR_MODERATE};
	struct ibv_poll_cq_attr poll = {.comp_mask = UNKNOWN};
	struct ibv_cq *other;
	struct ibv_cq_ex *extended;
	struct ibv_wc wc;
	void *user;

	NOTHING(ibv_create_comp_channel(NULL));
	ERRNO(ibv_destroy_comp_channel(NULL), EINVAL);
	NOTHING(ibv_create_cq(NULL, 8, NULL, NULL, 0));
	NOTHING(ibv_create_cq(context, 0, NULL, NULL, 0));
	NOTHING(ibv_create_cq(context, -1, NULL, NULL, 0));
	NOTHING(ibv_create_cq(context, 8, NULL, NULL, -1));
	NOTHING(ibv_create_cq(context, 8, NULL, NULL, 1 << 20));
	ERRNO(ibv_destroy_cq(NULL), EINVAL);
	ERRNO(ibv_resize_cq(NULL, 8), EINVAL);
	ERRNO(ibv_resize_cq(cq, -1), EINVAL);
	SETS(ibv_get_cq_event(NULL, &other, &user), -1, EINVAL);
	ibv_ack_cq_events(NULL, 1);
	CHECK(context->ops.poll_cq(NULL, 1, &wc) < 0 && ibv_poll_cq(cq, -1, &wc) < 0 && ibv_poll_cq(cq, 1, NULL) < 0);
	ERRNO(ibv_poll_cq(cq, 0, NULL), 0);
	ERRNO(context->ops.req_notify_cq(NULL, 0), EINVAL);
	ERRNO(verbs->modify_cq(NULL, &modify), EINVAL);
	ERRNO(verbs->modify_cq(cq, NULL), EINVAL);

	NOTHING(ibv_create_cq_ex(context, (wrong = ex, wrong.cqe = 0, &wrong)));
	NOTHING(ibv_create_cq_ex(context, (wrong = ex, wrong.comp_mask = UNKNOWN, &wrong)));
	NOTHING(ibv_create_cq_ex(context, (wrong = ex, wrong.comp_vector = 1 << 20, &wrong)));
	NOTHING(verbs->create_cq_ex(context, (wrong = ex, wrong.wc_flags = 1ull << 40, &wrong)));
	NOTHING(ibv_create_cq_ex(context, (wrong = ex, wrong.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					   wrong.flags = UNKNOWN, &wrong)));
	NOTHING(verbs->create_cq_ex(NULL, &ex));
	NOTHING(verbs->create_cq_ex(context, NULL));
	extended = ibv_create_cq_ex(context, &ex);
	NEED(extended);
	ERRNO(ibv_start_poll(extended, &poll), EINVAL);
	poll.comp_mask = 0;
	ERRNO(ibv_start_poll(extended, &poll), ENOENT);
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(extended)));
}

/* Hardware rounds up, to one less than a power of two, and says so. The largest is what the device has. */
static void receive_queue_sizes(void)
{
	struct ibv_device_attr device;

	NEED(!ibv_query_device(context, &device));
	const uint32_t most = device.max_srq_wr;
	const struct {
		uint32_t asked, granted;
	} sizes[] = {{1, 1}, {2, 3}, {4, 7}, {127, 127}, {128, 255}, {most - 1, most - 1}, {most, most}, {most + 1, 0}};

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct ibv_srq_init_attr init = {.attr = {.max_wr = sizes[i].asked, .max_sge = 1}};
		struct ibv_srq *srq = ibv_create_srq(pd, &init);
		struct ibv_recv_wr wr = {}, *bad;
		struct ibv_srq_attr attr;
		uint32_t posted = 0;

		CHECK(!srq == !sizes[i].granted);
		if (!srq)
			continue;
		CHECK(init.attr.max_wr == sizes[i].granted);
		CHECK(!ibv_query_srq(srq, &attr) && attr.max_wr == sizes[i].granted);
		while (!ibv_post_srq_recv(srq, &wr, &bad))
			posted++;
		CHECK(posted == sizes[i].granted);
		attr.max_wr = most / 2;
		if (posted < most / 2)
			CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) && !ibv_query_srq(srq, &attr) && attr.max_wr == most - 1);
		CHECK(!ibv_destroy_srq(srq));
	}
}

static void receive_queues(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}}, wrong = init;
	struct ibv_srq_init_attr_ex ex = {.attr = init.attr, .pd = pd, .comp_mask = IBV_SRQ_INIT_ATTR_PD};
	struct ibv_srq_attr attr = {.max_wr = 4};
	struct ibv_recv_wr wr = {}, *bad;
	struct ibv_ops_wr operation = {.opcode = IBV_WR_TAG_SYNC}, *bad_operation;
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	uint32_t number;

	NEED(srq);
	NOTHING(ibv_create_srq(NULL, &init));
	NOTHING(ibv_create_srq(pd, NULL));
	NOTHING(ibv_create_srq(pd, (wrong.attr.max_wr = 0, &wrong)));
	NOTHING(ibv_create_srq(pd, (wrong.attr.max_wr = UINT32_MAX, &wrong)));
	NOTHING(ibv_create_srq(pd, (wrong.attr.max_wr = 1, wrong.attr.max_sge = UINT32_MAX, &wrong)));
	ERRNO(ibv_modify_srq(NULL, &attr, IBV_SRQ_LIMIT), EINVAL);
	ERRNO(ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT), EINVAL);
	ERRNO(ibv_modify_srq(srq, &attr, 4), EINVAL);
	ERRNO(ibv_modify_srq(srq, (attr.srq_limit = 8, &attr), IBV_SRQ_LIMIT), EINVAL);
	ERRNO(ibv_query_srq(NULL, &attr), EINVAL);
	ERRNO(ibv_query_srq(srq, NULL), EINVAL);
	ERRNO(ibv_destroy_srq(NULL), EINVAL);
	ERRNO(context->ops.post_srq_recv(NULL, &wr, &bad), EINVAL);
	ERRNO((wr.num_sge = 1, ibv_post_srq_recv(srq, &wr, &bad)), EINVAL);
	CHECK(bad == &wr);
	ERRNO(verbs->post_srq_ops(NULL, &operation, &bad_operation), EINVAL);
	ERRNO(verbs->get_srq_num(NULL, &number), EINVAL);
	ERRNO(verbs->get_srq_num(srq, &number), EINVAL);

	NOTHING(verbs->create_srq_ex(NULL, &ex));
	NOTHING(verbs->create_srq_ex(context, NULL));
	ex.comp_mask |= IBV_SRQ_INIT_ATTR_TYPE, ex.srq_type = (enum ibv_srq_type)9;
	NOTHING(verbs->create_srq_ex(context, &ex));
	ex.srq_type = IBV_SRQT_XRC;
	NOTHING(verbs->create_srq_ex(context, &ex));
	ex.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	NOTHING(verbs->create_srq_ex(context, &ex));
	ex.srq_type = IBV_SRQT_BASIC, ex.comp_mask = UNKNOWN;
	NOTHING(verbs->create_srq_ex(context, &ex));
	ex.comp_mask = 0;
	NOTHING(verbs->create_srq_ex(context, &ex));
	CHECK(!ibv_destroy_srq(srq));
}

static void queue_pairs(void)
{
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC), wrong = init, out;
	struct ibv_qp_init_attr_ex ex = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .pd = pd}, bad_ex;
	struct ibv_xrcd_init_attr xrcd = {.comp_mask = UNKNOWN, .fd = -1, .oflags = O_CREAT};
	struct ibv_qp_open_attr open = {.comp_mask = UNKNOWN};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
	struct ibv_recv_wr receive = {}, *bad_receive;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_ece ece = {};
	union ibv_gid gid = {};

	NEED(qp);
	NOTHING(ibv_create_qp(NULL, &init));
	NOTHING(ibv_create_qp(pd, NULL));
	NOTHING(ibv_create_qp(pd, (wrong.send_cq = NULL, &wrong)));
	NOTHING(ibv_create_qp(pd, (wrong = init, wrong.recv_cq = NULL, &wrong)));
	NOTHING(ibv_create_qp(pd, (wrong = init, wrong.qp_type = (enum ibv_qp_type)77, &wrong)));
	NOTHING(ibv_create_qp(pd, (wrong = init, wrong.cap.max_send_wr = UINT32_MAX, &wrong)));
	NOTHING(ibv_create_qp(pd, (wrong = init, wrong.cap.max_recv_wr = UINT32_MAX, &wrong)));
	NOTHING(ibv_create_qp(pd, (wrong = init, wrong.cap.max_send_sge = UINT32_MAX, &wrong)));
	NOTHING(ibv_create_qp(pd, (wrong = init, wrong.cap.max_recv_sge = UINT32_MAX, &wrong)));
	NOTHING(ibv_create_qp(pd, (wrong = init, wrong.cap.max_inline_data = UINT32_MAX, &wrong)));
	NOTHING(verbs->create_qp_ex(NULL, &ex));
	NOTHING(verbs->create_qp_ex(context, NULL));
	NOTHING(verbs->create_qp_ex(context, (bad_ex = ex, bad_ex.comp_mask = UNKNOWN, &bad_ex)));
	NOTHING(verbs->create_qp_ex(context, (bad_ex = ex, &bad_ex)));
	NOTHING(verbs->open_qp(NULL, &open));
	NOTHING(verbs->open_qp(context, NULL));
	NOTHING(verbs->open_qp(context, &open));
	NOTHING(verbs->open_xrcd(NULL, &xrcd));
	NOTHING(verbs->open_xrcd(context, NULL));
	NOTHING(verbs->open_xrcd(context, &xrcd));
	ERRNO(verbs->close_xrcd(NULL), EINVAL);
	ERRNO(ibv_modify_qp(NULL, &attr, IBV_QP_STATE), EINVAL);
	ERRNO(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
	ERRNO(ibv_modify_qp(qp, &attr, UNKNOWN), EINVAL);
	ERRNO(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = (enum ibv_qp_state)77;
	ERRNO(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	CHECK(qp->state == IBV_QPS_RESET);
	ERRNO(ibv_query_qp(NULL, &attr, 0, &out), EINVAL);
	ERRNO(ibv_query_qp(qp, NULL, 0, &out), EINVAL);
	ERRNO(ibv_query_qp(qp, &attr, 0, NULL), 0);
	ERRNO(ibv_destroy_qp(NULL), EINVAL);
	ERRNO(ibv_query_ece(NULL, &ece), EINVAL);
	ERRNO(ibv_set_ece(NULL, &ece), EINVAL);
	ERRNO(ibv_attach_mcast(NULL, &gid, 0), EINVAL);
	ERRNO(ibv_attach_mcast(qp, NULL, 0), EINVAL);
	ERRNO(ibv_attach_mcast(qp, &gid, 0), EINVAL);
	ERRNO(ibv_detach_mcast(NULL, &gid, 0), EINVAL);
	ERRNO(ibv_detach_mcast(qp, NULL, 0), EINVAL);
	ERRNO(ibv_detach_mcast(qp, &gid, 0), EINVAL);
	CHECK(!ibv_qp_to_qp_ex(qp));
	CHECK(!ibv_query_qp_data_in_order(NULL, IBV_WR_SEND, 0));
	bad_send = NULL;
	ERRNO(context->ops.post_send(NULL, &send, &bad_send), EINVAL);
	CHECK(bad_send == &send);
	ERRNO(context->ops.post_send(qp, &send, NULL), EINVAL);
	ERRNO(ibv_post_send(qp, NULL, &bad_send), 0);
	CHECK(!to_init(qp));
	ERRNO(context->ops.post_recv(NULL, &receive, &bad_receive), EINVAL);
	ERRNO((receive.num_sge = -1, ibv_post_recv(qp, &receive, &bad_receive)), EINVAL);
	CHECK(bad_receive == &receive);
	ERRNO((receive.num_sge = 33, ibv_post_recv(qp, &receive, &bad_receive)), EINVAL);
	ERRNO(context->ops.post_recv(qp, &receive, NULL), EINVAL);
	ERRNO(ibv_post_recv(qp, NULL, &bad_receive), 0);
	CHECK(!connect_to(qp, qp->qp_num));
	ERRNO((send.opcode = (enum ibv_wr_opcode)77, ibv_post_send(qp, &send, &bad_send)), EINVAL);
	ERRNO((send.opcode = IBV_WR_SEND, send.num_sge = 1, ibv_post_send(qp, &send, &bad_send)), EINVAL);
	CHECK(bad_send == &send);
	CHECK(!ibv_destroy_qp(qp));
}

static void addresses(void)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1}, wrong = attr;
	struct ibv_grh grh = {};
	struct ibv_wc wc = {};
	union ibv_gid gid;

	attr.grh.sgid_index = gid_index(context, &gid), attr.grh.dgid = gid;
	NOTHING(ibv_create_ah(NULL, &attr));
	NOTHING(ibv_create_ah(pd, NULL));
	NOTHING(ibv_create_ah(pd, (wrong = attr, wrong.port_num = 0, &wrong)));
	NOTHING(ibv_create_ah(pd, (wrong = attr, wrong.port_num = 2, &wrong)));
	NOTHING(ibv_create_ah(pd, (wrong = attr, wrong.is_global = 0, &wrong)));
	NOTHING(ibv_create_ah(pd, (wrong = attr, wrong.grh.sgid_index = 200, &wrong)));
	ERRNO(ibv_destroy_ah(NULL), EINVAL);
	CHECK(ibv_init_ah_from_wc(NULL, 1, &wc, &grh, &attr));
	CHECK(ibv_init_ah_from_wc(context, 1, NULL, &grh, &attr));
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, &grh, NULL));
	CHECK(!ibv_create_ah_from_wc(NULL, &wc, &grh, 1));
	CHECK(!ibv_create_ah_from_wc(pd, NULL, &grh, 1));
}

int main(void)
{
	context = open_lo();
	NEED(context);
	verbs = verbs_get_ctx(context);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	NEED(verbs && pd && cq && mr);
	devices();
	words();
	memories();
	completions();
	receive_queue_sizes();
	receive_queues();
	queue_pairs();
	addresses();
	/* Nothing was made or broken on the way. */
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return failures != 0;
}
