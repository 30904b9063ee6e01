/* Calls that are refused: UV-08xx. The rule is the explanation. */
#include "common.h"

/* Makes, connects and uses what the other cases get wrong. */
static void all_is_well(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	poll_success(b.cq, 2);
	close_bench(&b);
}

/* Moves a queue pair of the bench, in INIT, and must not succeed. */
static void modify_fails(struct ibv_qp_attr attr, int mask)
{
	struct bench b = open_bench();
	struct path path = usual_path();

	make_pair(&b, IBV_QPT_RC);
	to_init(b.qp[0], &path);
	NEED(ibv_modify_qp(b.qp[0], &attr, mask));
	close_bench(&b);
}

static void not_a_transition(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};

	modify_fails(attr, IBV_QP_STATE);
}

static void attribute_missing(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};

	modify_fails(attr, IBV_QP_STATE | IBV_QP_PATH_MTU);
}

static void attribute_unwanted(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .timeout = 14};

	modify_fails(attr, IBV_QP_STATE | IBV_QP_TIMEOUT);
}

static void value_out_of_range(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 9};

	modify_fails(attr, IBV_QP_STATE | IBV_QP_PORT);
}

static void wrong_current_state(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_RTR, .port_num = 1};

	modify_fails(attr, IBV_QP_STATE | IBV_QP_CUR_STATE);
}

static void no_route(void)
{
	struct bench b = open_bench();
	struct ibv_ah_attr attr = {.dlid = 1, .port_num = 1};

	NEED(!ibv_create_ah(b.pd, &attr));
	close_bench(&b);
}

static void wrong_state(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 64);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

	make_pair(&b, IBV_QPT_RC);
	to_init(b.qp[0], &path);
	NEED(post(b.qp[0], &wr));
	close_bench(&b);
}

/* Messages that wait for the peer to post receives. */
static void send_queue_full(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 8);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);
	int posted = 0;

	path.rnr_retry = 7;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], path, b.qp[1], path);
	while (posted < 10000 && !post(b.qp[0], &wr))
		posted++;
	NEED(posted < 10000);
	close_bench(&b);
}

static void receive_queue_full(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in = piece(&b, 0, 8);
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &in, .num_sge = 1}, *bad;
	int posted = 0;

	while (posted < 10000 && !ibv_post_recv(b.qp[0], &wr, &bad))
		posted++;
	NEED(posted < 10000);
	close_bench(&b);
}

/* Posts something that the send queue does not take. */
static void not_taken(enum ibv_qp_type type, enum ibv_wr_opcode opcode, int pieces, unsigned int flags, uint32_t length)
{
	struct bench b = open_pair(type);
	struct ibv_sge out[8];
	struct ibv_send_wr wr = send_wr(1, opcode, out);

	for (int i = 0; i < 8; i++)
		out[i] = piece(&b, 0, length);
	wr.num_sge = pieces;
	wr.send_flags |= flags;
	NEED(post(b.qp[0], &wr));
	close_bench(&b);
}

static void too_many_pieces(void)
{
	not_taken(IBV_QPT_RC, IBV_WR_SEND, 8, 0, 8);
}

static void inline_too_long(void)
{
	not_taken(IBV_QPT_RC, IBV_WR_SEND, 1, IBV_SEND_INLINE, 4000);
}

static void not_supported(void)
{
	not_taken(IBV_QPT_UD, IBV_WR_LOCAL_INV, 0, 0, 8);
}

static void target_missing(void)
{
	not_taken(IBV_QPT_UD, IBV_WR_SEND, 1, 0, 8);
}

static void message_length(void)
{
	not_taken(IBV_QPT_RC, IBV_WR_SEND, 4, 0, 0x40000000);
}

static void no_receive_queue(void)
{
	struct bench b = open_bench();
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_RC);
	struct path path = usual_path();
	struct ibv_sge in = piece(&b, 0, 8);
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &in, .num_sge = 1}, *bad;

	init.srq = ibv_create_srq(b.pd, &srq_init);
	NEED(init.srq);
	make_pair_as(&b, init);
	to_init(b.qp[0], &path);
	NEED(ibv_post_recv(b.qp[0], &wr, &bad));
	for (int i = 0; i < 2; i++)
		NEED(!ibv_destroy_qp(b.qp[i]));
	b.qp[0] = b.qp[1] = NULL;
	NEED(!ibv_destroy_srq(init.srq));
	close_bench(&b);
}

static void busy(void)
{
	struct bench b = open_bench();

	NEED(ibv_dealloc_pd(b.pd) == EBUSY);
	close_bench(&b);
}

static void limit(void)
{
	struct bench b = open_bench();
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_RC);

	init.cap.max_send_wr = 100000000;
	NEED(!ibv_create_qp(b.pd, &init));
	close_bench(&b);
}

static void access_flags(void)
{
	struct bench b = open_bench();

	NEED(!ibv_reg_mr(b.pd, b.buffer, 64, IBV_ACCESS_REMOTE_WRITE));
	close_bench(&b);
}

static void null_argument(void)
{
	struct bench b = open_bench();

	NEED(!ibv_create_ah(b.pd, NULL));
	close_bench(&b);
}

static void not_mapped(void)
{
	struct bench b = open_bench();
	void *memory = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NEED(memory != MAP_FAILED && !munmap(memory, 4096));
	NEED(!ibv_reg_mr(b.pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE));
	close_bench(&b);
}

static void unknown_bits(void)
{
	struct bench b = open_bench();
	struct ibv_parent_domain_init_attr init = {.pd = b.pd, .comp_mask = 1u << 30};
	struct ibv_qp_init_attr_ex extended = {.pd = b.pd, .comp_mask = IBV_QP_INIT_ATTR_PD | 1u << 30};

	NEED(!ibv_alloc_parent_domain(b.context, &init));
	NEED(!ibv_create_qp_ex(b.context, &extended));
	close_bench(&b);
}

/* A queue pair with so much inline data, on a NIC that is like a card with 101 bytes of it. */
static struct ibv_qp *on_a_card(struct bench *b, uint32_t max_inline_data)
{
	setenv("UBIVERBS_NIC", "irdma", 1);
	*b = open_bench();
	struct ibv_qp_init_attr init = {.send_cq = b->cq, .recv_cq = b->cq, .qp_type = IBV_QPT_RC,
		.cap = {1, 1, 1, 1, max_inline_data}};

	return ibv_create_qp(b->pd, &init);
}

static void more_than_the_card_has(void)
{
	struct bench b;

	NEED(!on_a_card(&b, 128));
	close_bench(&b);
}

static void as_much_as_the_card_has(void)
{
	struct bench b;
	struct ibv_qp *qp = on_a_card(&b, 101);

	NEED(qp);
	NEED(!ibv_destroy_qp(qp));
	close_bench(&b);
}

static void unsupported(void)
{
	struct bench b = open_bench();
	struct ibv_modify_cq_attr attr = {.attr_mask = 1u << 20};

	NEED(ibv_modify_cq(b.cq, &attr));
	close_bench(&b);
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;

	NEED(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return id;
}

static void manager_state(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(channel);

	NEED(rdma_resolve_route(id, 1000));
	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* Binds an id to an address of that host. */
static void bind_to(uint32_t host, int answer)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(channel);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(host)}};

	NEED(rdma_bind_addr(id, (struct sockaddr *)&address) == answer);
	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void manager_address(void)
{
	bind_to(0xc0000201, -1); /* 192.0.2.1, which nobody has */
}

static void manager_own_address(void)
{
	bind_to(INADDR_LOOPBACK, 0);
}

/* Waits for an event of that kind. */
static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	NEED(!rdma_get_cm_event(channel, &event));
	NEED(event->event == kind);
	NEED(!rdma_ack_cm_event(event));
}

/* Connects to nobody, with so many bytes of private data. */
static void connect_with(uint8_t length, int answer)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(channel);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7),
				      .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	struct ibv_qp_init_attr init = usual_qp(NULL, IBV_QPT_RC);
	static const char data[256];
	struct rdma_conn_param parameters = {.private_data = data, .private_data_len = length, .retry_count = 1};

	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, 1000));
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	NEED(!rdma_create_qp(id, NULL, &init));
	NEED(rdma_connect(id, &parameters) == answer);
	if (answer == 0)
		expect(channel, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_qp(id);
	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void private_data_too_long(void)
{
	connect_with(200, -1);
}

static void private_data_fits(void)
{
	connect_with(56, 0);
}

static void destroyed_twice(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_cq *cq = ibv_create_cq(b.context, 1, NULL, NULL, 0);

	NEED(!ibv_destroy_cq(cq));
	NEED(ibv_destroy_cq(cq) == ENOENT);
	close_bench(&b);
}

static void another_refusal(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 1}};

	NEED(ibv_attach_mcast(b.qp[0], &group, 0));
	close_bench(&b);
}

/* UV-0828 */
static void list_leads_nowhere(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in = piece(&b, 0, 64);
	struct ibv_recv_wr wr = {.wr_id = 1, .next = (struct ibv_recv_wr *)0x4141414141410ull, .sg_list = &in, .num_sge = 1};
	struct ibv_recv_wr *bad = NULL;

	NEED(ibv_post_recv(b.qp[0], &wr, &bad) == EINVAL && bad == &wr);
	close_bench(&b);
}

CASES({"UV-0801", not_a_transition, all_is_well}, {"UV-0802", attribute_missing, all_is_well},
      {"UV-0803", attribute_unwanted, all_is_well}, {"UV-0804", value_out_of_range, all_is_well},
      {"UV-0805", wrong_current_state, all_is_well}, {"UV-0806", no_route, all_is_well},
      {"UV-0810", wrong_state, all_is_well}, {"UV-0811", send_queue_full, all_is_well},
      {"UV-0812", receive_queue_full, all_is_well}, {"UV-0813", too_many_pieces, all_is_well},
      {"UV-0814", inline_too_long, all_is_well}, {"UV-0816", not_supported, all_is_well},
      {"UV-0817", target_missing, all_is_well}, {"UV-0818", no_receive_queue, all_is_well},
      {"UV-0819", message_length, all_is_well}, {"UV-0820", busy, all_is_well}, {"UV-0821", limit, all_is_well},
      {"UV-0822", access_flags, all_is_well}, {"UV-0823", null_argument, all_is_well},
      {"UV-0824", not_mapped, all_is_well}, {"UV-0825", unknown_bits, all_is_well},
      {"UV-0826", unsupported, all_is_well}, {"UV-0827", destroyed_twice, all_is_well},
      {"UV-0828", list_leads_nowhere, all_is_well}, {"UV-0830", manager_state, manager_own_address},
      {"UV-0831", manager_address, manager_own_address}, {"UV-0832", private_data_too_long, private_data_fits},
      {"UV-0833", more_than_the_card_has, as_much_as_the_card_has}, {"UV-0899", another_refusal, all_is_well})
