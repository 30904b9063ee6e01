/* Whether the library answers as the manual pages say, one thing after another: queries, misuse, objects in use, work of every kind. */
#include "bench.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

static struct ibv_context *context;
static char memory[1 << 16] __attribute__((aligned(4096)));

static void devices(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);

	NEED(list && count > 0 && !list[count]);
	for (int i = 0; i < count; i++) {
		CHECK(ibv_get_device_guid(list[i]) != 0);
		CHECK(ibv_get_device_index(list[i]) > 0);
		CHECK(list[i]->node_type == IBV_NODE_CA && list[i]->transport_type == IBV_TRANSPORT_IB);
		CHECK(!strncmp(list[i]->dev_name, "uverbs", 6));
	}
	struct ibv_device *first = list[0];

	ibv_free_device_list(list);
	/* Devices stay, and are the same ones the next time. */
	list = ibv_get_device_list(NULL);
	CHECK(list[0] == first);
	ibv_free_device_list(list);
	errno = 0;
	CHECK(!ibv_open_device(NULL) && errno == EINVAL);
	CHECK(!ibv_get_device_name(NULL));
}

static void queries(void)
{
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex extended;
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_gid_entry entry, entries[64];
	uint16_t pkey;

	CHECK(!ibv_query_device(context, &attr));
	CHECK(attr.vendor_id && attr.max_mr_size > 4096 && attr.max_qp_rd_atom >= 3 && attr.phys_port_cnt == 1);
	/* What hardware says, and programs compare with. */
	CHECK(attr.atomic_cap == IBV_ATOMIC_HCA);
	CHECK(attr.node_guid == ibv_get_device_guid(context->device));
	memset(&extended, 0xff, sizeof extended);
	CHECK(!ibv_query_device_ex(context, NULL, &extended));
	CHECK(extended.phys_port_cnt_ex == 1 && extended.max_dm_size > 0 && extended.completion_timestamp_mask);
	CHECK(!memcmp(&extended.orig_attr, &attr, sizeof attr));
	CHECK(!ibv_query_port(context, 1, &port));
	CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.gid_tbl_len == 64);
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	CHECK(ibv_query_port(context, 0, &port) == EINVAL);
	CHECK(!ibv_query_gid(context, 1, 0, &gid) && (gid.global.subnet_prefix | gid.global.interface_id));
	/* The last entry is empty: there, but nothing. */
	CHECK(!ibv_query_gid(context, 1, 63, &gid) && !(gid.global.subnet_prefix | gid.global.interface_id));
	CHECK(ibv_query_gid(context, 1, 64, &gid) == -1);
	CHECK(ibv_query_gid(context, 1, -1, &gid) == -1);
	CHECK(!ibv_query_gid_ex(context, 1, 0, &entry, 0) && entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.ndev_ifindex);
	CHECK(ibv_query_gid_ex(context, 1, 63, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 1) == EINVAL);
	CHECK(ibv_query_gid_table(context, entries, 64, 0) >= 1);
	CHECK(ibv_query_gid_table(context, entries, 0, 0) == -EINVAL);
	CHECK(!ibv_query_pkey(context, 1, 0, &pkey) && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, 1, 1, &pkey) == -1);
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0);
	CHECK(!strcmp(ibv_wc_status_str(IBV_WC_SUCCESS), "success"));
}

static void regions(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr;
	int writable = IBV_ACCESS_LOCAL_WRITE;

	NEED(pd);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_REMOTE_ATOMIC) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, memory, 4096, 1 << 15) && errno == EINVAL);
	CHECK(!ibv_reg_mr(NULL, memory, 4096, writable) && errno == EINVAL);
	void *hole = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(hole, 8192);
	CHECK(!ibv_reg_mr(pd, hole, 8192, writable) && errno == EFAULT);
	/* Of no bytes: they must be on a page, as the kernel counts. */
	mr = ibv_reg_mr(pd, memory + 8, 0, writable);
	CHECK(mr && mr->length == 0 && mr->addr == memory + 8);
	CHECK(!mr || !ibv_dereg_mr(mr));
	CHECK(!ibv_reg_mr(pd, hole, 0, writable) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, NULL, 0, writable) && errno == EINVAL);
	/* Rights that a device may ignore are ignored. */
	mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING | (1 << 25));
	NEED(mr && mr->lkey && mr->addr == memory && mr->length == 4096 && mr->pd == pd);
	/* On much hardware they are the same. */
	CHECK(mr->lkey != mr->rkey);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == -1);
	uint32_t key = mr->lkey, remote_key = mr->rkey;

	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + 4096, 8192, 0));
	CHECK(mr->lkey == key && mr->rkey == remote_key && mr->addr == memory + 4096 && mr->length == 8192);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(ibv_dereg_mr(NULL) == EINVAL);
	CHECK(!ibv_dealloc_pd(pd));
}

static void objects_in_use(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, &memory, channel, 0);
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);

	NEED(pd && channel && cq && srq);
	CHECK(cq->cq_context == &memory && cq->cqe >= 16 && channel->refcnt == 1);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);

	init.srq = srq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	NEED(qp);
	CHECK(qp->srq == srq && qp->send_cq == cq && qp->pd == pd && qp->state == IBV_QPS_RESET && qp->qp_num > 1);
	CHECK(!ibv_qp_to_qp_ex(qp));
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(receive(qp, 1, NULL) == EINVAL);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_srq(srq));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dealloc_pd(pd));
}

/* An XRC target sends nothing, and does not hold the queue that it is given for that. */
static void xrc_targets(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};

	NEED(cq && xrcd);
	struct ibv_qp *target = ibv_create_qp_ex(context, &init);

	NEED(target);
	CHECK(ibv_close_xrcd(xrcd) == EBUSY);
	CHECK(!ibv_destroy_qp(target));
	CHECK(!ibv_destroy_cq(cq) && !ibv_close_xrcd(xrcd));
}

static void bad_sizes(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_device_attr attr;

	NEED(pd && cq);
	ibv_query_device(context, &attr);
	errno = 0;
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, -1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, attr.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors) && errno == EINVAL);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);

	init.cap.max_send_wr = 0xffffffff;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init = plain_init(cq, IBV_QPT_RC);
	init.cap.max_recv_sge = 0xffff;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init = plain_init(cq, IBV_QPT_RC);
	init.send_cq = NULL;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init = plain_init(cq, IBV_QPT_RAW_PACKET);
	struct ibv_qp *raw = ibv_create_qp(pd, &init);
	CHECK(raw ? !ibv_destroy_qp(raw) : errno == EPERM);
	init = plain_init(cq, (enum ibv_qp_type)77);
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	CHECK(!ibv_alloc_mw(pd, (enum ibv_mw_type)3) && errno == EINVAL);
	CHECK(ibv_resize_cq(cq, 0) == EINVAL);
	CHECK(!ibv_resize_cq(cq, 100) && cq->cqe >= 100);
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
}

static void address_handles(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	union ibv_gid gid;
	int index = gid_index(context, &gid);
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = index}};
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	NEED(pd && ah);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_destroy_ah(ah));
	attr.is_global = 0;
	CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
	attr.is_global = 1;
	attr.grh.sgid_index = 63;
	CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
	attr.grh.sgid_index = index;
	attr.port_num = 2;
	CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
	CHECK(!ibv_dealloc_pd(pd));
}

/* Work of every kind between two queue pairs, and what becomes of it when something is wrong. */
static void work(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
									  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);

	NEED(pd && cq && mr && a && b);
	CHECK(init.cap.max_send_wr >= 16 && init.cap.max_inline_data >= 64);
	CHECK(post(a, 1, IBV_WR_SEND, NULL, 0, 0) == EINVAL);
	CHECK(receive(a, 1, NULL) == EINVAL);
	CHECK(!to_init(a) && !to_init(b) && !to_init(b));
	CHECK(post(a, 1, IBV_WR_SEND, NULL, 0, 0) == EINVAL);
	CHECK(!connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	CHECK(a->state == IBV_QPS_RTS);

	/* The receive queue holds what it says, and the one that is too many is named. */
	struct ibv_recv_wr receives[17], *bad_receive = NULL;

	for (int i = 0; i < 17; i++)
		receives[i] = (struct ibv_recv_wr){.wr_id = i, .next = i < 16 ? &receives[i + 1] : NULL};
	CHECK(ibv_post_recv(b, receives, &bad_receive) == ENOMEM && bad_receive == &receives[16]);
	struct ibv_sge many[5] = {{0}};
	struct ibv_send_wr too_many = {.sg_list = many, .num_sge = 5, .opcode = IBV_WR_SEND}, *bad_send = NULL;

	CHECK(ibv_post_send(a, &too_many, &bad_send) == EINVAL && bad_send == &too_many);
	for (int i = 0; i < 16; i++) {
		struct ibv_send_wr empty = {.wr_id = 100 + i, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(7000 + i),
					    .send_flags = IBV_SEND_SIGNALED};
		CHECK(!ibv_post_send(a, &empty, &bad_send));
	}
	int sent = 0, received = 0;

	for (int i = 0; i < 32; i++) {
		struct ibv_wc wc = completion(cq);

		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode & IBV_WC_RECV) {
			CHECK(wc.wr_id == (uint64_t)received && ntohl(wc.imm_data) == 7000u + received);
			CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.byte_len == 0 && wc.qp_num == b->qp_num);
			received++;
		} else {
			CHECK(wc.wr_id == 100u + sent && wc.opcode == IBV_WC_SEND && wc.qp_num == a->qp_num);
			sent++;
		}
	}
	CHECK(sent == 16 && received == 16);

	/* Inline data needs no key and is gone when the call returns. */
	char word[16] = "from the stack";
	struct ibv_sge from = {.addr = (uintptr_t)word, .length = sizeof word}, to = {(uintptr_t)memory, 16, mr->lkey};
	struct ibv_send_wr inlined = {.wr_id = 5, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
				      .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};

	CHECK(!receive(b, 6, &to));
	CHECK(!ibv_post_send(a, &inlined, &bad_send));
	memset(word, 0, sizeof word);
	completion(cq), completion(cq);
	CHECK(!strcmp(memory, "from the stack"));

	/* One-sided work. */
	char *here = memory + 4096, *there = memory + 8192;
	struct ibv_sge sge = {(uintptr_t)here, 2000, mr->lkey};

	memset(here, 'w', 2000);
	CHECK(!post(a, 7, IBV_WR_RDMA_WRITE, &sge, (uintptr_t)there, mr->rkey));
	CHECK(completion(cq).opcode == IBV_WC_RDMA_WRITE && there[0] == 'w' && there[1999] == 'w' && there[2000] == 0);
	memset(there, 'r', 2000);
	CHECK(!post(a, 8, IBV_WR_RDMA_READ, &sge, (uintptr_t)there, mr->rkey));
	CHECK(completion(cq).opcode == IBV_WC_RDMA_READ && here[0] == 'r' && here[1999] == 'r');
	uint64_t *counter = (uint64_t *)there, *result = (uint64_t *)here;
	struct ibv_send_wr atomic = {.wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				     .send_flags = IBV_SEND_SIGNALED,
				     .wr.atomic = {.remote_addr = (uintptr_t)there, .compare_add = 5, .rkey = mr->rkey}};

	/* Of a longer piece the first eight bytes are taken. */
	sge.length = 24;
	*counter = 37;
	CHECK(!ibv_post_send(a, &atomic, &bad_send));
	struct ibv_wc added = completion(cq);

	CHECK(added.status == IBV_WC_SUCCESS && added.opcode == IBV_WC_FETCH_ADD && added.byte_len == 8);
	CHECK(*result == 37 && *counter == 42 && here[8] == 'r' && here[23] == 'r');
	sge.length = 8;
	atomic.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	atomic.wr.atomic.compare_add = 42;
	atomic.wr.atomic.swap = 1;
	CHECK(!ibv_post_send(a, &atomic, &bad_send));
	CHECK(completion(cq).opcode == IBV_WC_COMP_SWAP && *result == 42 && *counter == 1);

	/* A wrong key stops both ends; what is posted later is flushed, in order. */
	CHECK(!receive(b, 20, &to));
	CHECK(!post(a, 10, IBV_WR_RDMA_WRITE, &sge, (uintptr_t)there, mr->rkey + 1));
	struct ibv_wc first = completion(cq), second = completion(cq);
	struct ibv_wc *mine = first.qp_num == a->qp_num ? &first : &second, *other = mine == &first ? &second : &first;

	CHECK(mine->wr_id == 10 && mine->status == IBV_WC_REM_ACCESS_ERR);
	CHECK(other->wr_id == 20 && other->status == IBV_WC_WR_FLUSH_ERR);
	CHECK(a->state == IBV_QPS_RTS);
	struct ibv_qp_attr now;

	/* The structure says what the program knows, until it asks. */
	CHECK(!ibv_query_qp(a, &now, IBV_QP_CAP, &init) && now.qp_state == IBV_QPS_ERR && a->state == IBV_QPS_RTS);
	CHECK(!ibv_query_qp(a, &now, IBV_QP_STATE, &init) && now.qp_state == IBV_QPS_ERR && a->state == IBV_QPS_ERR);
	CHECK(init.send_cq == cq && init.qp_type == IBV_QPT_RC);
	CHECK(!post(a, 11, IBV_WR_SEND, NULL, 0, 0) && !post(a, 12, IBV_WR_SEND, NULL, 0, 0) && !receive(a, 13, NULL));
	for (uint64_t id = 11; id <= 13; id++) {
		struct ibv_wc flushed = completion(cq);

		CHECK(flushed.wr_id == id && flushed.status == IBV_WC_WR_FLUSH_ERR);
	}

	/* After a reset it starts anew, and meets nothing of its past. */
	CHECK(!post(a, 14, IBV_WR_SEND, NULL, 0, 0));
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

	CHECK(!ibv_modify_qp(a, &reset, IBV_QP_STATE) && !ibv_modify_qp(b, &reset, IBV_QP_STATE));
	CHECK(ibv_poll_cq(cq, 1, &first) == 0);
	CHECK(!to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	sge.length = 8;
	CHECK(!post(a, 15, IBV_WR_RDMA_WRITE, &sge, (uintptr_t)there, mr->rkey) && completion(cq).wr_id == 15);

	CHECK(ibv_modify_qp(a, &reset, 1 << 24) == EINVAL);
	reset.qp_state = 99;
	CHECK(ibv_modify_qp(a, &reset, IBV_QP_STATE) == EINVAL);

	/* Completions of a queue pair go with it, and no others. */
	reset.qp_state = IBV_QPS_ERR;
	CHECK(!ibv_modify_qp(a, &reset, IBV_QP_STATE) && !ibv_modify_qp(b, &reset, IBV_QP_STATE));
	CHECK(!post(a, 16, IBV_WR_SEND, NULL, 0, 0) && !post(b, 17, IBV_WR_SEND, NULL, 0, 0));
	CHECK(!ibv_destroy_qp(a) && completion(cq).wr_id == 17 && ibv_poll_cq(cq, 1, &first) == 0);
	CHECK(!ibv_destroy_qp(b) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

/* A datagram, and an answer to where it came from. */
static void datagrams(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_UD);
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init), *both[2] = {a, b};

	NEED(pd && cq && mr && a && b);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};

		CHECK(!to_init(both[i]) && !ibv_modify_qp(both[i], &attr, IBV_QP_STATE));
		attr.qp_state = IBV_QPS_RTS;
		CHECK(!ibv_modify_qp(both[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	}
	union ibv_gid gid;
	struct ibv_ah_attr where = {.is_global = 1, .port_num = 1};

	where.grh.sgid_index = gid_index(context, &gid);
	where.grh.dgid = gid;
	where.grh.traffic_class = 0x68;
	where.grh.hop_limit = 9;
	struct ibv_ah *ah = ibv_create_ah(pd, &where);
	struct ibv_sge to = {(uintptr_t)memory, 140, mr->lkey}, from = {(uintptr_t)memory + 4096, 100, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.ud = {.ah = ah, .remote_qpn = b->qp_num, .remote_qkey = 0x11111111}}, *bad;

	NEED(ah);
	/*
	 * What UD does not have is taken, and stops the send queue. The address of the peer's memory lies where a datagram
	 * has its address handle.
	 */
	enum ibv_wr_opcode others[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
	struct ibv_qp_init_attr as_made;
	struct ibv_qp_attr state;

	for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
		struct ibv_send_wr other = {.wr_id = 9, .sg_list = &from, .num_sge = 1, .opcode = others[i]};

		if (others[i] == IBV_WR_ATOMIC_FETCH_AND_ADD)
			other.wr.atomic.remote_addr = 0x1001;
		else
			other.wr.rdma.remote_addr = 0x1001;
		CHECK(!ibv_post_send(a, &other, &bad));
		struct ibv_wc failed = completion(cq);

		CHECK(failed.wr_id == 9 && failed.status == IBV_WC_LOC_QP_OP_ERR && failed.qp_num == a->qp_num);
		CHECK(!ibv_query_qp(a, &state, IBV_QP_STATE, &as_made) && state.qp_state == IBV_QPS_SQE);
		CHECK(!ibv_post_send(a, &other, &bad) && completion(cq).status == IBV_WC_WR_FLUSH_ERR);
		state.qp_state = IBV_QPS_RTS;
		CHECK(!ibv_modify_qp(a, &state, IBV_QP_STATE));
	}
	/* A key of its own cannot be invalidated there. */
	struct ibv_send_wr local = {.wr_id = 9, .opcode = IBV_WR_LOCAL_INV};

	CHECK(ibv_post_send(a, &local, &bad) == EINVAL && bad == &local);
	memset(memory + 4096, 'd', 100);
	CHECK(!receive(b, 1, &to) && !ibv_post_send(a, &wr, &bad));
	struct ibv_wc first = completion(cq), second = completion(cq), *got = first.opcode & IBV_WC_RECV ? &first : &second;

	CHECK(got->wr_id == 1 && got->status == IBV_WC_SUCCESS && got->byte_len == 140 && got->src_qp == a->qp_num);
	CHECK(got->wc_flags & IBV_WC_GRH && memory[40] == 'd' && memory[139] == 'd');
	/* The kind of packet where hardware tells it: UDP over IPv4. */
	CHECK(got->sl == 10);
	/* The header is the second half of the forty bytes: what the address handle asked of the network is in it. */
	CHECK(memory[20] == 0x45 && memory[21] == (0x68 | 2) && memory[28] == 9);
	struct ibv_ah *back = ibv_create_ah_from_wc(pd, got, (struct ibv_grh *)memory, 1);
	struct ibv_ah_attr way;

	NEED(back);
	CHECK(!ibv_init_ah_from_wc(context, 1, got, (struct ibv_grh *)memory, &way));
	CHECK(!memcmp(&way.grh.dgid, &gid, 16) && way.grh.sgid_index == where.grh.sgid_index && way.is_global);
	wr.wr.ud.ah = back;
	wr.wr.ud.remote_qpn = got->src_qp;
	CHECK(!receive(a, 3, &to) && !ibv_post_send(b, &wr, &bad));
	first = completion(cq), second = completion(cq);
	got = first.opcode & IBV_WC_RECV ? &first : &second;
	CHECK(got->wr_id == 3 && got->src_qp == b->qp_num);
	/* A datagram that is too long for its receive vanishes, and the receive waits for the next one. */
	struct ibv_qp_attr now;
	struct ibv_sge longer = {(uintptr_t)memory + 4096, 101, mr->lkey};

	wr.sg_list = &longer;
	CHECK(!receive(a, 4, &to) && !ibv_post_send(b, &wr, &bad));
	CHECK(completion(cq).wr_id == 2);
	wr.sg_list = &from;
	CHECK(!ibv_post_send(b, &wr, &bad));
	first = completion(cq), second = completion(cq);
	got = first.opcode & IBV_WC_RECV ? &first : &second;
	CHECK(got->wr_id == 4 && got->status == IBV_WC_SUCCESS && got->byte_len == 140);
	CHECK(!ibv_query_qp(a, &now, IBV_QP_STATE, &as_made) && now.qp_state == IBV_QPS_RTS);
	wr.wr.ud.ah = NULL;
	CHECK(ibv_post_send(a, &wr, &bad) == EINVAL && bad == &wr);
	wr.wr.ud.ah = ah;
	wr.opcode = IBV_WR_RDMA_WRITE;
	CHECK(!ibv_post_send(a, &wr, &bad) && completion(cq).status == IBV_WC_LOC_QP_OP_ERR);
	CHECK(!ibv_destroy_ah(back) && !ibv_destroy_ah(ah) && !ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

/* What is not wanted goes nowhere, and what is not there is zero. */
static void nothing(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);

	NEED(pd && cq && mr && null && a && b);
	CHECK(null->length == SIZE_MAX && !null->addr && !null->rkey && null->pd == pd);
	CHECK(!to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	struct ibv_sge from[2] = {{(uintptr_t)memory + 4096, 10, mr->lkey}, {12345, 20, null->lkey}};
	struct ibv_sge to[2] = {{0, 5, null->lkey}, {(uintptr_t)memory, 100, mr->lkey}};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = from, .num_sge = 2, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_recv_wr receive = {.wr_id = 2, .sg_list = to, .num_sge = 2}, *bad_receive;

	memset(memory, 'x', 4096);
	memcpy(memory + 4096, "0123456789", 10);
	CHECK(!ibv_post_recv(b, &receive, &bad_receive) && !ibv_post_send(a, &wr, &bad));
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = completion(cq);

		CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 1 || wc.byte_len == 30));
	}
	/* Five bytes were not wanted; five of ten came, then twenty zeros, and no more. */
	CHECK(!memcmp(memory, "56789", 5) && !memory[5] && !memory[24] && memory[25] == 'x');
	CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) < 0);
	/* Peers do not reach it. */
	struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};

	CHECK(!post(a, 3, IBV_WR_RDMA_WRITE, &sge, 0, null->lkey) && completion(cq).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_dereg_mr(null) && !ibv_dereg_mr(mr));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

/* What there is none of says so. */
static void not_offered(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	NEED(qp);
	struct ibv_modify_cq_attr nothing = {}, unknown = {.attr_mask = IBV_CQ_ATTR_RESERVED};

	CHECK(ibv_modify_cq(cq, &unknown) == EOPNOTSUPP && ibv_modify_cq(cq, &nothing) == EINVAL);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

static void imports(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, 0);
	struct ibv_context *again = ibv_import_device(dup(context->cmd_fd));

	NEED(pd && mr && again);
	CHECK(again->device == context->device && again != context);
	struct ibv_pd *same = ibv_import_pd(again, pd->handle);

	NEED(same);
	struct ibv_mr *seen = ibv_import_mr(same, mr->handle);

	NEED(seen);
	CHECK(seen->lkey == mr->lkey && seen->rkey == mr->rkey && seen->length == mr->length);
	errno = 0;
	CHECK(!ibv_import_pd(again, 0x7fffffff) && errno);
	CHECK(!ibv_import_device(-1));
	int other = open("/dev/null", O_RDONLY);

	CHECK(!ibv_import_device(other) && errno == EINVAL);
	close(other);
	ibv_unimport_mr(seen);
	ibv_unimport_pd(same);
	CHECK(!ibv_close_device(again));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
}

int main(void)
{
	devices();
	context = open_lo();
	NEED(context);
	queries();
	regions();
	objects_in_use();
	xrc_targets();
	bad_sizes();
	address_handles();
	work();
	datagrams();
	nothing();
	not_offered();
	imports();
	CHECK(!ibv_close_device(context));
	printf("%d failures\n", failures);
	return failures != 0;
}
