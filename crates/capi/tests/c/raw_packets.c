/* Raw packet queue pairs on the loopback interface: frames out and in, flows with their priorities, actions and
 * counters, work queues, checksums, VLAN tags, events. What a queue pair gets is what its flows match, nothing else. */
#include "raw.h"
#include <pthread.h>
#include <unistd.h>

static void what_a_device_says(void)
{
	struct ibv_device_attr_ex attr;

	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING);
	CHECK(attr.orig_attr.device_cap_flags & IBV_DEVICE_RAW_IP_CSUM);
	CHECK(attr.orig_attr.max_raw_ethy_qp > 0);
	CHECK(attr.rss_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET);
	CHECK(attr.rss_caps.rx_hash_function == IBV_RX_HASH_FUNC_TOEPLITZ);
	CHECK(attr.raw_packet_caps == (IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | IBV_RAW_PACKET_CAP_IP_CSUM));
	CHECK(attr.tso_caps.max_tso == 0 && attr.max_wq_type_rq > 0);
}

static void frames_go_to_the_queue_pair_whose_flow_they_match(void)
{
	struct ibv_qp *from = raw_qp(), *to = raw_qp();
	struct ibv_flow *flow;
	struct ibv_wc wc;
	uint32_t length = frame(0, 2, 0, 9, 10, 100);
	struct ibv_send_wr *bad;

	post_slot(to, 1);
	CHECK(!send_one(from, 0, length));
	quiet(cq); /* there is no flow */
	flow = eth_flow(to, 2, 0);
	CHECK(!send_one(from, 0, length));
	wc = completion(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 1 && wc.byte_len == length);
	CHECK(wc.qp_num == to->qp_num && !(wc.wc_flags & IBV_WC_IP_CSUM_OK));
	CHECK(!memcmp(memory, memory + ROOM, length));
	/* Another address. */
	post_slot(to, 1);
	CHECK(!send_one(from, 2, frame(2, 3, 0, 9, 10, 100)));
	quiet(cq);
	/* The device fills the checksums in. */
	length = frame(0, 2, 0, 9, 10, 333);
	CHECK(!send_flags(from, 0, length, IBV_SEND_IP_CSUM));
	wc = completion(cq);
	CHECK(wc.byte_len == length && wc.wc_flags & IBV_WC_IP_CSUM_OK);
	CHECK(memory[24] == 0 && memory[ROOM + 24] != 0); /* not in the program's memory */
	/* Gathered, inline, and a list of three. */
	length = frame(0, 2, 0, 9, 10, 100);
	struct ibv_sge pieces[] = {slot(0, 14), slot(0, 20), slot(0, length - 34)};

	pieces[1].addr += 14;
	pieces[2].addr += 34;
	struct ibv_send_wr third = {.wr_id = 3, .sg_list = pieces, .num_sge = 3, .opcode = IBV_WR_SEND};
	struct ibv_send_wr second = {.wr_id = 2, .next = &third, .sg_list = pieces, .num_sge = 3, .opcode = IBV_WR_SEND,
				     .send_flags = IBV_SEND_INLINE};
	struct ibv_send_wr first = {.wr_id = 1, .next = &second, .sg_list = pieces, .num_sge = 3, .opcode = IBV_WR_SEND};

	for (int i = 1; i <= 3; i++)
		post_slot(to, i);
	CHECK(!ibv_post_send(from, &first, &bad));
	for (int i = 1; i <= 3; i++) {
		wc = completion(cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i && wc.byte_len == length);
		CHECK(!memcmp(memory, memory + (size_t)i * ROOM, length));
	}
	/* Without a receive it waits a moment, then it is lost. */
	CHECK(!send_one(from, 0, length));
	usleep(10000);
	post_slot(to, 1);
	CHECK(completion(cq).byte_len == length);
	CHECK(!send_one(from, 0, length));
	quiet(cq);
	usleep(100000);
	post_slot(to, 1);
	quiet(cq);
	CHECK(!send_one(from, 0, length));
	CHECK(completion(cq).byte_len == length);
	/* One that is too short for it waits for another. */
	struct ibv_sge shorter = slot(1, length - 1);

	CHECK(!receive(to, 1, &shorter));
	CHECK(!send_one(from, 0, length));
	quiet(cq);
	CHECK(!send_one(from, 0, frame(0, 2, 0, 9, 10, 99)));
	CHECK(completion(cq).byte_len == length - 1);
	CHECK(ibv_destroy_qp(to) == EBUSY);
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(to) && !ibv_destroy_qp(from));
}

static void sends_that_cannot_be_are_refused_or_fail(void)
{
	struct ibv_qp *qp = raw_qp();
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_sge sge = slot(0, 13);
	struct ibv_wc wc;

	CHECK(post(qp, 1, IBV_WR_SEND, &sge, 0, 0) == EINVAL); /* not even a header */
	sge.length = 64;
	CHECK(post(qp, 1, IBV_WR_SEND_WITH_IMM, &sge, 0, 0) == EINVAL);
	CHECK(post(qp, 1, IBV_WR_RDMA_WRITE, &sge, 0, 0) == EINVAL);
	sge.lkey ^= 0xff;
	CHECK(!post(qp, 7, IBV_WR_SEND, &sge, 0, 0));
	wc = completion(sent);
	CHECK(wc.status == IBV_WC_LOC_PROT_ERR && wc.wr_id == 7);
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_SQE && init.qp_type == IBV_QPT_RAW_PACKET);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	CHECK(!send_one(qp, 0, frame(0, 9, 0, 1, 2, 50)));
	/* Only state and port are said. */
	attr.qp_state = IBV_QPS_RESET;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY) == EINVAL);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	CHECK(post(qp, 1, IBV_WR_SEND, &sge, 0, 0) == EINVAL); /* INIT */
	CHECK(!ibv_destroy_qp(qp));
}

static uint64_t figure(struct ibv_counters *counters, int index)
{
	uint64_t values[3] = {99, 99, 99};

	CHECK(!ibv_read_counters(counters, values, 3, 0));
	return values[index];
}

static void priorities_actions_and_counters(void)
{
	struct ibv_qp *from = raw_qp(), *first = raw_qp(), *second = raw_qp();
	struct ibv_counters_init_attr none = {0};
	struct ibv_counters *counters = ibv_create_counters(context, &none);
	struct ibv_counter_attach_attr packets = {.counter_desc = IBV_COUNTER_PACKETS, .index = 2};
	struct ibv_counter_attach_attr bytes = {.counter_desc = IBV_COUNTER_BYTES, .index = 0};
	struct ibv_flow_spec_counter_action count = {IBV_FLOW_SPEC_ACTION_COUNT, sizeof count, counters};
	struct ibv_flow_spec_action_drop drop = {IBV_FLOW_SPEC_ACTION_DROP, sizeof drop};
	struct ibv_flow *flows[4];
	struct rule rule;
	uint32_t length = frame(0, 4, 0, 9, 4321, 40);

	NEED(counters != NULL);
	CHECK(!ibv_attach_counters_point_flow(counters, &packets, NULL));
	CHECK(!ibv_attach_counters_point_flow(counters, &bytes, NULL));
	for (int i = 1; i <= 8; i++) {
		post_slot(first, i);
		post_slot(second, 10 + i);
	}
	flows[0] = eth_flow(first, 4, 3);
	flows[1] = eth_flow(second, 4, 1);
	CHECK(!send_one(from, 0, length));
	CHECK(completion(cq).qp_num == second->qp_num);
	quiet(cq);
	/* A flow before them that counts, and drops. */
	begin(&rule, IBV_FLOW_ATTR_NORMAL, 0);
	add_eth(&rule, 4, 0);
	add_udp(&rule, 4321);
	add(&rule, &count, sizeof count);
	add(&rule, &drop, sizeof drop);
	flows[2] = ibv_create_flow(first, &rule.attr);
	NEED(flows[2] != NULL);
	CHECK(ibv_attach_counters_point_flow(counters, &packets, NULL) == EBUSY);
	CHECK(ibv_destroy_counters(counters) == EBUSY);
	CHECK(!send_one(from, 0, length) && !send_one(from, 0, length));
	quiet(cq);
	CHECK(figure(counters, 2) == 2 && figure(counters, 0) == 2 * length && figure(counters, 1) == 0);
	CHECK(!send_one(from, 20, frame(20, 4, 0, 9, 4322, 40))); /* another port */
	CHECK(completion(cq).qp_num == second->qp_num);
	CHECK(!ibv_destroy_flow(flows[2]));
	/* A flow that lets pass: both get it. */
	begin(&rule, IBV_FLOW_ATTR_NORMAL, 0);
	rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	add_eth(&rule, 4, 0);
	flows[2] = ibv_create_flow(first, &rule.attr);
	NEED(flows[2] != NULL);
	CHECK(!send_one(from, 0, length));
	CHECK(completion(cq).qp_num + completion(cq).qp_num == first->qp_num + second->qp_num);
	CHECK(!ibv_destroy_flow(flows[2]));
	/* The same conditions at the same priority: a copy each. */
	flows[2] = eth_flow(first, 4, 1);
	CHECK(!send_one(from, 0, length));
	CHECK(completion(cq).qp_num + completion(cq).qp_num == first->qp_num + second->qp_num);
	for (int i = 0; i < 3; i++)
		CHECK(!ibv_destroy_flow(flows[i]));
	/* What no flow takes. */
	begin(&rule, IBV_FLOW_ATTR_ALL_DEFAULT, 0);
	flows[0] = ibv_create_flow(first, &rule.attr);
	NEED(flows[0] != NULL);
	flows[1] = eth_flow(second, 4, 0);
	CHECK(!send_one(from, 0, length));
	CHECK(completion(cq).qp_num == second->qp_num);
	CHECK(!send_one(from, 20, frame(20, 5, 0, 9, 4322, 40)));
	CHECK(completion(cq).qp_num == first->qp_num);
	CHECK(!ibv_destroy_flow(flows[0]));
	/* A sniffer sees what is sent and what comes: on the loopback that is twice. */
	begin(&rule, IBV_FLOW_ATTR_SNIFFER, 0);
	flows[0] = ibv_create_flow(first, &rule.attr);
	NEED(flows[0] != NULL);
	CHECK(!send_one(from, 20, frame(20, 5, 0, 9, 4322, 40)));
	CHECK(completion(cq).qp_num == first->qp_num && completion(cq).qp_num == first->qp_num);
	CHECK(!ibv_destroy_flow(flows[0]) && !ibv_destroy_flow(flows[1]));
	quiet(cq);
	CHECK(!ibv_destroy_counters(counters));
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(first) && !ibv_destroy_qp(second));
}

static void tags_of_vlans_and_flows_are_in_completions(void)
{
	struct ibv_cq_init_attr_ex cq_attr = {.cqe = 64,
					      .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG};
	struct ibv_cq_ex *queue = ibv_create_cq_ex(context, &cq_attr);
	struct ibv_poll_cq_attr poll = {0};
	struct ibv_flow_spec_action_tag mark = {IBV_FLOW_SPEC_ACTION_TAG, sizeof mark, 0x123456};
	struct ibv_qp *from = raw_qp(), *plain, *stripping;
	struct ibv_flow *flows[2];
	struct rule rule;
	uint32_t length = frame(0, 6, 0x6007, 9, 10, 60);

	NEED(queue != NULL);
	struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = ibv_cq_ex_to_cq(queue), .pd = pd,
					   .cap = {.max_send_wr = 1, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
					   .qp_type = IBV_QPT_RAW_PACKET,
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS};
	plain = ready(ibv_create_qp_ex(context, &init));
	init.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
	stripping = ready(ibv_create_qp_ex(context, &init));
	init.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
	begin(&rule, IBV_FLOW_ATTR_NORMAL, 0);
	add_eth(&rule, 6, 7); /* the number of the VLAN, whatever its priority */
	add(&rule, &mark, sizeof mark);
	flows[0] = ibv_create_flow(plain, &rule.attr);
	NEED(flows[0] != NULL);
	post_slot(plain, 1);
	post_slot(stripping, 2);
	CHECK(!send_one(from, 20, frame(20, 6, 8, 9, 10, 60)) && !send_one(from, 21, frame(21, 6, 0, 9, 10, 60)));
	CHECK(!send_one(from, 0, length));
	while (ibv_start_poll(queue, &poll))
		;
	CHECK(queue->status == IBV_WC_SUCCESS && queue->wr_id == 1 && ibv_wc_read_byte_len(queue) == length);
	CHECK(ibv_wc_read_flow_tag(queue) == 0x123456 && ibv_wc_read_cvlan(queue) == 0);
	ibv_end_poll(queue);
	CHECK(!memcmp(memory, memory + ROOM, length));
	CHECK(!ibv_destroy_flow(flows[0]));
	flows[1] = eth_flow(stripping, 6, 0);
	CHECK(!send_one(from, 0, length));
	while (ibv_start_poll(queue, &poll))
		;
	CHECK(queue->wr_id == 2 && ibv_wc_read_byte_len(queue) == length - 4);
	CHECK(ibv_wc_read_cvlan(queue) == 0x6007 && ibv_wc_read_flow_tag(queue) == 0);
	ibv_end_poll(queue);
	CHECK(!memcmp(memory, memory + 2 * ROOM, 12) && !memcmp(memory + 16, memory + 2 * ROOM + 12, length - 16));
	CHECK(!ibv_destroy_flow(flows[1]));
	CHECK(!ibv_destroy_qp(plain) && !ibv_destroy_qp(stripping) && !ibv_destroy_qp(from));
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(queue)));
}

static void work_queues_share_frames_by_their_hash(void)
{
	enum { QUEUES = 4, FRAMES = 16 };
	static uint8_t key[40] = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
				  0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
				  0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};
	struct ibv_wq_init_attr wq_attr = {.wq_type = IBV_WQT_RQ, .max_wr = 32, .max_sge = 1, .pd = pd, .cq = cq};
	struct ibv_wq_attr to_ready = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
	struct ibv_wq *queues[QUEUES];
	struct ibv_rwq_ind_table_init_attr table_attr = {.log_ind_tbl_size = 2, .ind_tbl = queues};
	struct ibv_rwq_ind_table *table;
	struct ibv_qp *from = raw_qp(), *spread;
	struct ibv_flow *flow;
	struct ibv_recv_wr *bad;
	uint32_t takers[FRAMES];
	int counts[QUEUES] = {0};

	for (int i = 0; i < QUEUES; i++) {
		queues[i] = ibv_create_wq(context, &wq_attr);
		NEED(queues[i] != NULL);
		struct ibv_sge sge = slot(1, ROOM);
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1};

		CHECK(ibv_post_wq_recv(queues[i], &wr, &bad) == EINVAL && bad == &wr); /* RESET */
		CHECK(!ibv_modify_wq(queues[i], &to_ready));
		for (int n = 0; n < 2 * FRAMES; n++)
			CHECK(!ibv_post_wq_recv(queues[i], &wr, &bad));
		CHECK(ibv_post_wq_recv(queues[i], &wr, &bad) == ENOMEM && bad == &wr);
	}
	table = ibv_create_rwq_ind_table(context, &table_attr);
	NEED(table != NULL);
	struct ibv_qp_init_attr_ex init = {
		.pd = pd, .qp_type = IBV_QPT_RAW_PACKET, .rwq_ind_tbl = table,
		.rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = 40, .rx_hash_key = key,
				 .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_UDP |
							IBV_RX_HASH_DST_PORT_UDP},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
	};
	spread = ibv_create_qp_ex(context, &init);
	NEED(spread != NULL);
	CHECK(ibv_destroy_wq(queues[0]) == EBUSY && ibv_destroy_rwq_ind_table(table) == EBUSY);
	flow = eth_flow(spread, 7, 0);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < FRAMES; i++) {
			struct ibv_wc wc;

			CHECK(!send_one(from, 0, frame(0, 7, 0, (uint16_t)(2000 + i), 10, 64)));
			wc = completion(cq);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
			if (round)
				CHECK(takers[i] == wc.qp_num); /* the same connection, the same queue */
			takers[i] = wc.qp_num;
			for (int q = 0; q < QUEUES; q++)
				counts[q] += wc.qp_num == queues[q]->wq_num;
		}
	CHECK(counts[0] + counts[1] + counts[2] + counts[3] == 2 * FRAMES);
	for (int q = 0; q < QUEUES; q++)
		CHECK(counts[q] > 0);
	/* An error flushes; another state than that is refused. */
	struct ibv_wq_attr change = {.attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE, .wq_state = IBV_WQS_ERR,
				     .curr_wq_state = IBV_WQS_RESET};
	CHECK(ibv_modify_wq(queues[0], &change) == EINVAL);
	change.curr_wq_state = IBV_WQS_RDY;
	CHECK(!ibv_modify_wq(queues[0], &change));
	CHECK(completion(cq).status == IBV_WC_WR_FLUSH_ERR);
	change.attr_mask = IBV_WQ_ATTR_STATE;
	change.wq_state = IBV_WQS_RDY;
	CHECK(ibv_modify_wq(queues[0], &change) == EINVAL);
	change.wq_state = IBV_WQS_RESET;
	CHECK(!ibv_modify_wq(queues[0], &change)); /* forgets the other flushes */
	quiet(cq);
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(spread) && !ibv_destroy_rwq_ind_table(table));
	for (int i = 0; i < QUEUES; i++)
		CHECK(!ibv_destroy_wq(queues[i]));
	CHECK(!ibv_destroy_qp(from));
}

static struct ibv_qp *late_sender;

static void *send_late(void *unused)
{
	struct ibv_sge sge = slot(0, frame(0, 8, 0, 9, 10, 77));
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
	struct ibv_send_wr *bad;

	usleep(100000);
	CHECK(!ibv_post_send(late_sender, &wr, &bad));
	return unused;
}

static void a_frame_wakes_a_program_that_sleeps(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *queue = ibv_create_cq(context, 16, NULL, channel, 0), *told;
	struct ibv_qp_init_attr init = plain_init(queue, IBV_QPT_RAW_PACKET);
	struct ibv_qp *to = ready(ibv_create_qp(pd, &init));
	struct ibv_flow *flow = eth_flow(to, 8, 0);
	struct ibv_wc wc;
	pthread_t thread;
	void *user;

	late_sender = raw_qp();
	for (int i = 0; i < 3; i++) {
		post_slot(to, 1);
		CHECK(!ibv_req_notify_cq(queue, 0));
		NEED(!pthread_create(&thread, NULL, send_late, NULL));
		CHECK(!ibv_get_cq_event(channel, &told, &user) && told == queue);
		ibv_ack_cq_events(queue, 1);
		CHECK(ibv_poll_cq(queue, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
		CHECK(!pthread_join(thread, NULL));
	}
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(to) && !ibv_destroy_qp(late_sender));
	CHECK(!ibv_destroy_cq(queue) && !ibv_destroy_comp_channel(channel));
}

int main(void)
{
	open_all(open_lo());
	what_a_device_says();
	frames_go_to_the_queue_pair_whose_flow_they_match();
	sends_that_cannot_be_are_refused_or_fail();
	priorities_actions_and_counters();
	tags_of_vlans_and_flows_are_in_completions();
	work_queues_share_frames_by_their_hash();
	a_frame_wakes_a_program_that_sleeps();
	close_all();
	return failures != 0;
}
