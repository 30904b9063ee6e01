/* What programs meet on the cards that the NIC can be like: each word of the command line is a pattern of a program that is
 * known to fail on the card itself, and must fail here at the same call with the same errno. `tells` prints all that a
 * device tells and how it takes a row of requests, one line each: it is also run on kernels, where lines must be the same.
 * It uses nothing but libibverbs. */
#include "bench.h"
#include <arpa/inet.h>
#include <poll.h>
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

/* An operation that older headers do not know. */
enum { ATOMIC_WRITE = 15 };

static union ibv_gid own_gid;
static int own_index = -1;

/* The first IPv4 address of the port. */
static void find_own_gid(void)
{
	static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	struct ibv_port_attr port;

	NEED(!ibv_query_port(context, 1, &port));
	for (int i = port.gid_tbl_len - 1; i >= 0; i--)
		if (!ibv_query_gid(context, 1, i, &own_gid) && !memcmp(own_gid.raw, mapped, sizeof mapped) && own_gid.raw[12])
			own_index = i;
	if (own_index >= 0)
		NEED(!ibv_query_gid(context, 1, own_index, &own_gid));
}

static int connect_pair(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
				   .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = own_gid, .hop_limit = 64}}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .max_rd_atomic = 1, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7};

	attr.ah_attr.grh.sgid_index = (uint8_t)own_index;
	attr.dest_qp_num = peer;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	       ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Two queue pairs that are connected to each other, the first of which sends; 0 if they cannot be. */
static int connected(struct ibv_qp *pair[2], struct ibv_cq *sends, struct ibv_cq *receives)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = plain_init(i ? receives : sends, IBV_QPT_RC);

		init.recv_cq = receives;
		init.cap.max_send_sge = init.cap.max_recv_sge = 1;
		pair[i] = ibv_create_qp(pd, &init);
		NEED(pair[i]);
		if (own_index < 0 || to_init(pair[i]))
			return 0;
	}
	return !connect_pair(pair[0], pair[1]->qp_num) && !connect_pair(pair[1], pair[0]->qp_num);
}

static void destroy(struct ibv_qp *pair[2])
{
	NEED(!ibv_destroy_qp(pair[0]) && !ibv_destroy_qp(pair[1]));
}

/* What stands in a field that was full of 0xa5. */
static const char *stands(uint32_t value, uint32_t mask, uint32_t own)
{
	static char number[4][16];
	static int turn;
	char *text = number[turn++ % 4];

	if (value == (0xa5a5a5a5 & mask))
		return "kept";
	if (own && value == own)
		return "own";
	snprintf(text, sizeof *number, "%u", value);
	return text;
}

/* Waits for a completion, and prints which of its fields were filled in. */
static struct ibv_wc print_completion(struct ibv_cq *queue, const char *what)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 20;
	int got = 0;

	memset(&wc, 0xa5, sizeof wc);
	while (!got && time(NULL) < end)
		got = ibv_poll_cq(queue, 1, &wc);
	if (got != 1) {
		printf("%s: none\n", what);
		return wc;
	}
	printf("%s: status %d, opcode %s, bytes %s, vendor %s, flags %s, ", what, wc.status, stands(wc.opcode, ~0U, 0),
	       stands(wc.byte_len, ~0U, 0), stands(wc.vendor_err, ~0U, 0), stands(wc.wc_flags, ~0U, 0));
	printf("source %s, immediate %s, ", stands(wc.src_qp, ~0U, wc.qp_num), stands(wc.imm_data, ~0U, 0));
	printf("pkey %s, slid %s, sl %s, path %s\n", stands(wc.pkey_index, 0xffff, 0), stands(wc.slid, 0xffff, 0),
	       stands(wc.sl, 0xff, 0), stands(wc.dlid_path_bits, 0xff, 0));
	return wc;
}

/* Which fields of completions are filled in, and with which status work fails that the device cannot do. */
static void prints_completions(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_cq *receives = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_sge in = {(uintptr_t)memory, 64, 0}, out = {(uintptr_t)memory + 512, 64, 0};
	struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &in, .num_sge = 1}, *bad;
	struct ibv_qp *pair[2];
	int refused;

	NEED(mr && receives);
	if (!connected(pair, cq, receives)) {
		printf("completions: not connected by hand\n");
		return;
	}
	in.lkey = out.lkey = mr->lkey;
	NEED(!ibv_post_recv(pair[1], &wr, &bad) && !ibv_post_recv(pair[1], &wr, &bad));
	NEED(!post(pair[0], 1, IBV_WR_SEND, &out, 0, 0));
	print_completion(receives, "receive");
	print_completion(cq, "SEND");
	NEED(!post(pair[0], 2, IBV_WR_RDMA_WRITE, &out, in.addr, mr->rkey));
	print_completion(cq, "WRITE");
	NEED(!post(pair[0], 3, IBV_WR_RDMA_READ, &in, out.addr, mr->rkey));
	print_completion(cq, "READ");
	NEED(!post(pair[0], 4, IBV_WR_RDMA_READ, &in, out.addr, mr->rkey ^ 0x5500));
	print_completion(cq, "READ with a wrong key");
	print_completion(receives, "flushed receive");
	destroy(pair);
	NEED(connected(pair, cq, receives));
	out.length = 8;
	refused = post(pair[0], 5, (enum ibv_wr_opcode)ATOMIC_WRITE, &out, in.addr, mr->rkey);
	if (refused)
		printf("ATOMIC_WRITE: %d\n", refused);
	else
		print_completion(cq, "ATOMIC_WRITE");
	destroy(pair);
	ibv_destroy_cq(receives);
}

/* How many events of that kind the device has told of, until none comes for half a second. */
static int events_of(enum ibv_event_type type)
{
	struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
	struct ibv_async_event event;
	int count = 0;

	while (poll(&fd, 1, 500) == 1 && !ibv_get_async_event(context, &event)) {
		count += event.event_type == type;
		ibv_ack_async_event(&event);
	}
	return count;
}

/* What becomes of completions that meet a full queue. */
static void overruns(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_cq *small = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp *pair[2];
	struct ibv_sge out = {(uintptr_t)memory + 512, 64, mr ? mr->lkey : 0};
	struct ibv_wc wc;
	int events, polled = 0, got;

	NEED(small && mr);
	if (!connected(pair, small, cq)) {
		printf("overrun: not connected by hand\n");
		return;
	}
	for (int i = 0; i < small->cqe + 3; i++) {
		NEED(!post(pair[0], 1, IBV_WR_RDMA_WRITE, &out, (uintptr_t)memory, mr->rkey));
		/* One by one: some devices take several completions together. */
		usleep(20000);
	}
	events = events_of(IBV_EVENT_CQ_ERR);
	while ((got = ibv_poll_cq(small, 1, &wc)) == 1)
		polled++;
	printf("overrun: %d events, the rest is%s there, and then %d", events, polled == small->cqe ? "" : " not", got);
	got = post(pair[0], 2, IBV_WR_RDMA_WRITE, &out, (uintptr_t)memory, mr->rkey);
	usleep(200000);
	printf("; posted later: %d, polled %d\n", got, ibv_poll_cq(small, 1, &wc));
	destroy(pair);
	ibv_destroy_cq(small);
}

/* Keys, and addresses that a program chooses. */
static void prints_registration(void)
{
	struct ibv_mr *local = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE), *other;

	NEED(local);
	printf("rkey of local memory is %s\n", local->rkey ? "shown" : "0");
	errno = 0;
	other = ibv_reg_mr_iova(pd, memory, 4096, (uintptr_t)memory + 8, IBV_ACCESS_LOCAL_WRITE);
	printf("iova at another place of a page %d\n", other ? 0 : errno);
	errno = 0;
	other = ibv_reg_mr_iova(pd, memory, 4096, (uintptr_t)memory + (1 << 20), IBV_ACCESS_LOCAL_WRITE);
	printf("iova at the same place %d\n", other ? 0 : errno);
	errno = 0;
	other = ibv_reg_mr(pd, memory + 8, 0, IBV_ACCESS_LOCAL_WRITE);
	printf("empty region %d\n", other ? 0 : errno);
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
	prints_registration();
	find_own_gid();
	prints_completions();
	overruns();
}

/* NCCL logs the opcode of what failed; a card leaves there what was there before. */
static void reads_what_failed(int is_kept)
{
	struct ibv_wc wc;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_sge in = {(uintptr_t)memory, 64, mr ? mr->lkey : 0};
	struct ibv_cq *receives = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *pair[2];

	find_own_gid();
	NEED(own_index >= 0 && mr);
	NEED(connected(pair, cq, receives) && !post(pair[0], 4, IBV_WR_RDMA_READ, &in, in.addr, mr->rkey ^ 0x5500));
	wc = print_completion(cq, "READ with a wrong key");
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == 4);
	CHECK((wc.opcode == 0xa5a5a5a5) == is_kept && (is_kept || wc.opcode == IBV_WC_RDMA_READ));
}

/* A program keeps an index of the GID table. */
static void keeps_an_index(int moves)
{
	union ibv_gid before, after;
	struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	find_own_gid();
	NEED(own_index >= 0 && !ibv_query_gid(context, 1, own_index, &before));
	CHECK((poll(&fd, 1, moves ? 20000 : 500) == 1) == moves);
	if (moves) {
		NEED(!ibv_get_async_event(context, &event));
		CHECK(event.event_type == IBV_EVENT_GID_CHANGE);
		ibv_ack_async_event(&event);
	}
	NEED(!ibv_query_gid(context, 1, own_index, &after));
	CHECK(!!memcmp(&before, &after, sizeof before) == moves);
}

/* How long a peer that has no receive is waited for, in milliseconds. */
static void waits_for_an_answer(int least)
{
	struct ibv_qp *pair[2];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge out = {(uintptr_t)memory, 64, mr ? mr->lkey : 0};
	struct ibv_qp_attr attr = {.timeout = 1, .retry_cnt = 0, .rnr_retry = 1, .min_rnr_timer = 1};
	struct timespec from, to;
	struct ibv_wc wc;

	find_own_gid();
	NEED(own_index >= 0 && mr && connected(pair, cq, cq));
	NEED(!ibv_modify_qp(pair[0], &attr, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER));
	clock_gettime(CLOCK_MONOTONIC, &from);
	/* There is no receive: once more after the RNR timer, and then no more. */
	NEED(!post(pair[0], 1, IBV_WR_SEND, &out, 0, 0));
	wc = completion(cq);
	clock_gettime(CLOCK_MONOTONIC, &to);
	CHECK(wc.status == IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000 >= least);
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
	else if (!strcmp(what, "failed-opcode"))
		reads_what_failed(!!error);
	else if (!strcmp(what, "moving-gid"))
		keeps_an_index(!!error);
	else if (!strcmp(what, "rnr-wait"))
		waits_for_an_answer(error);
	else if (!strcmp(what, "atomics"))
		posts_atomics(error);
	else
		NEED(!"a word that is known");
	return !!failures;
}
