/* Rules of posting: UV-03xx. */
#include "common.h"

/* A work request for the peer's memory, which is the same buffer. */
static struct ibv_send_wr rdma_wr(const struct bench *b, uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge,
				  size_t offset)
{
	struct ibv_send_wr wr = send_wr(id, opcode, sge);

	wr.wr.rdma.remote_addr = (uintptr_t)b->buffer + offset;
	wr.wr.rdma.rkey = b->mr->rkey;
	return wr;
}

/* Posts `count` WRITEs of 128 bytes, every `every`th of them signaled, and polls those. 0 signals none. */
static void write_signaled(int count, int every)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 128);

	for (int i = 1; i <= count; i++) {
		struct ibv_send_wr wr = rdma_wr(&b, i, IBV_WR_RDMA_WRITE, &out, 1024);

		wr.send_flags = every && i % every == 0 ? IBV_SEND_SIGNALED : 0;
		NEED(!post(b.qp[0], &wr));
		if (wr.send_flags)
			poll_success(b.cq, 1);
	}
	close_bench(&b);
}

/* UV-0301: 16 is what the queue holds. */
static void fill_without_signal(void)
{
	write_signaled(16, 0);
}

/* UV-0302 */
static void never_signal(void)
{
	write_signaled(8, 0);
}

static void signal_now_and_then(void)
{
	write_signaled(64, 8);
}

/* Sends small messages with these flags. */
static void send_small(unsigned int flags)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 32), in = piece(&b, 1024, 64);

	for (int i = 0; i < 20; i++) {
		struct ibv_send_wr wr = send_wr(i, IBV_WR_SEND, &out);

		wr.send_flags |= flags;
		post_recv(b.qp[1], 100 + i, &in);
		NEED(!post(b.qp[0], &wr));
		poll_success(b.cq, 2);
	}
	close_bench(&b);
}

/* UV-0303 */
static void send_small_from_memory(void)
{
	send_small(0);
}

static void send_small_inline(void)
{
	send_small(IBV_SEND_INLINE);
}

/* One message of that many bytes inline; 64 were asked for. */
static void send_inline(uint32_t length, bool fits)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, length), in = piece(&b, 1024, 1024);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

	wr.send_flags |= IBV_SEND_INLINE;
	post_recv(b.qp[1], 2, &in);
	NEED(!post(b.qp[0], &wr) == fits);
	if (fits)
		poll_success(b.cq, 2);
	close_bench(&b);
}

/* UV-0304 */
static void send_inline_too_long(void)
{
	send_inline(100, false);
}

static void send_inline_that_fits(void)
{
	send_inline(64, true);
}

/* Reads so often at once, where so many READs may be under way. */
static void read_with_depth(uint8_t depth, int count, enum ibv_wc_status status)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge in[8];
	struct ibv_send_wr wr[8];

	path.max_rd_atomic = depth;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], path, b.qp[1], path);
	for (int i = 0; i < count; i++) {
		in[i] = piece(&b, 64 * i, 64);
		wr[i] = rdma_wr(&b, i, IBV_WR_RDMA_READ, &in[i], 1024);
		wr[i].next = i + 1 < count ? &wr[i + 1] : NULL;
	}
	NEED(!post(b.qp[0], wr));
	for (int i = 0; i < count; i++)
		poll_status(b.cq, status);
	close_bench(&b);
}

/* UV-0305 */
static void read_with_depth_0(void)
{
	read_with_depth(0, 1, IBV_WC_LOC_QP_OP_ERR);
}

static void read_with_depth_1(void)
{
	read_with_depth(1, 1, IBV_WC_SUCCESS);
}

/* UV-0306 */
static void read_many_with_depth_1(void)
{
	read_with_depth(1, 8, IBV_WC_SUCCESS);
}

static void read_many_with_depth_4(void)
{
	read_with_depth(4, 8, IBV_WC_SUCCESS);
}

/* 16 WRITEs, as one list or one by one. */
static void write_16(bool list)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 128);
	struct ibv_send_wr wr[16];

	for (int i = 0; i < 16; i++) {
		wr[i] = rdma_wr(&b, i, IBV_WR_RDMA_WRITE, &out, 1024);
		wr[i].send_flags = i == 15 ? IBV_SEND_SIGNALED : 0;
		wr[i].next = list && i < 15 ? &wr[i + 1] : NULL;
	}
	/* A thread that is stopped between two posts does not post in a row: try again. */
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < (list ? 1 : 16); i++)
			NEED(!post(b.qp[0], &wr[i]));
		poll_success(b.cq, 1);
	}
	close_bench(&b);
}

/* UV-0307 */
static void post_one_by_one(void)
{
	write_16(false);
}

static void post_list(void)
{
	write_16(true);
}

/* Fills a receive queue, uses all of it, fills it again; the second time as a list or one by one. */
static void refill(bool list)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in[16];
	struct ibv_recv_wr wr[16], *bad;

	for (int i = 0; i < 16; i++) {
		in[i] = piece(&b, 1024 + 64 * i, 64);
		wr[i] = (struct ibv_recv_wr){.wr_id = i, .sg_list = &in[i], .num_sge = 1};
		post_recv(b.qp[1], i, &in[i]);
	}
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 16; i++) {
			post_send(b.qp[0], i, &out);
			poll_success(b.cq, 2);
		}
		for (int i = 0; i < 16; i++)
			wr[i].next = list && i < 15 ? &wr[i + 1] : NULL;
		for (int i = 0; i < (list ? 1 : 16); i++)
			NEED(!ibv_post_recv(b.qp[1], &wr[i], &bad));
	}
	close_bench(&b);
}

/* UV-0308 */
static void refill_one_by_one(void)
{
	refill(false);
}

static void refill_by_list(void)
{
	refill(true);
}

/* UV-0311: a receive for datagrams of that size. */
static void receive_datagram(uint32_t length)
{
	struct bench b = open_pair(IBV_QPT_UD);
	struct ibv_sge in = piece(&b, 0, length);

	post_recv(b.qp[1], 1, &in);
	close_bench(&b);
}

static void receive_datagram_without_header(void)
{
	receive_datagram(32);
}

static void receive_datagram_with_header(void)
{
	receive_datagram(40 + 32);
}

/* A datagram to the other queue pair, of so many bytes, with these flags. */
static void send_datagram(uint32_t length, unsigned int flags, enum ibv_wc_status status)
{
	struct bench b = open_bench();
	char *mine = calloc(1, 8192);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, mine, 8192, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_ah *ah = address_handle(b.pd);
	struct ibv_sge out = {.addr = (uintptr_t)mine, .length = length, .lkey = mr->lkey};
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

	make_pair(&b, IBV_QPT_UD);
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	wr.send_flags |= flags;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b.qp[1]->qp_num;
	wr.wr.ud.remote_qkey = usual_path().qkey;
	NEED(!post(b.qp[0], &wr));
	poll_status(b.cq, status);
	NEED(!ibv_destroy_ah(ah));
	NEED(!ibv_dereg_mr(mr));
	free(mine);
	close_bench(&b);
}

/* UV-0312 */
static void send_long_datagram(void)
{
	send_datagram(5000, 0, IBV_WC_LOC_LEN_ERR);
}

/* UV-0325 */
static void send_fenced_datagram(void)
{
	send_datagram(64, IBV_SEND_FENCE, IBV_WC_SUCCESS);
}

static void send_short_datagram(void)
{
	send_datagram(64, 0, IBV_WC_SUCCESS);
}

/* UV-0313: a WRITE wakes nobody. */
static void solicit_write(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64);
	struct ibv_send_wr wr = rdma_wr(&b, 1, IBV_WR_RDMA_WRITE, &out, 1024);

	wr.send_flags |= IBV_SEND_SOLICITED;
	NEED(!post(b.qp[0], &wr));
	poll_success(b.cq, 1);
	close_bench(&b);
}

static void solicit_send(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

	wr.send_flags |= IBV_SEND_SOLICITED;
	post_recv(b.qp[1], 2, &in);
	NEED(!post(b.qp[0], &wr));
	poll_success(b.cq, 2);
	close_bench(&b);
}

/* A READ, and behind it in the same list other work with these flags. */
static void after_read(struct bench *b, struct ibv_send_wr next, unsigned int flags)
{
	struct ibv_sge in = piece(b, 0, 64);
	struct ibv_send_wr wr = rdma_wr(b, 1, IBV_WR_RDMA_READ, &in, 1024);

	next.send_flags |= flags;
	wr.next = &next;
	NEED(!post(b->qp[0], &wr));
}

/* Sends on what a READ brings. */
static void forward(unsigned int flags)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 2048, 64);

	post_recv(b.qp[1], 3, &in);
	after_read(&b, send_wr(2, IBV_WR_SEND, &out), flags);
	poll_success(b.cq, 3);
	close_bench(&b);
}

/* UV-0314 */
static void forward_without_fence(void)
{
	forward(0);
}

static void forward_with_fence(void)
{
	forward(IBV_SEND_FENCE);
}

/* Overwrites what a READ reads. */
static void overwrite(unsigned int flags)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 2048, 64);

	after_read(&b, rdma_wr(&b, 2, IBV_WR_RDMA_WRITE, &out, 1024), flags);
	poll_success(b.cq, 2);
	close_bench(&b);
}

/* UV-0323 */
static void overwrite_without_fence(void)
{
	overwrite(0);
}

static void overwrite_with_fence(void)
{
	overwrite(IBV_SEND_FENCE);
}

/* Two WRITEs at once, of which the first fails. */
static void fail_first(uint64_t second_id)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out[2] = {piece(&b, 0, 64), piece(&b, 64, 64)};
	struct ibv_send_wr wr[2] = {rdma_wr(&b, 7, IBV_WR_RDMA_WRITE, &out[0], BUFFER_SIZE),
				    rdma_wr(&b, second_id, IBV_WR_RDMA_WRITE, &out[1], 1024)};

	wr[0].next = &wr[1];
	NEED(!post(b.qp[0], wr));
	poll_status(b.cq, IBV_WC_REM_ACCESS_ERR);
	poll_status(b.cq, IBV_WC_WR_FLUSH_ERR);
	close_bench(&b);
}

/* UV-0315 */
static void fail_with_shared_name(void)
{
	fail_first(7);
}

static void fail_with_own_name(void)
{
	fail_first(8);
}

/* UV-0316: the peer's key was never put in. */
static void write_without_key(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64);

	post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &out, b.buffer + 1024, 0);
	poll_status(b.cq, IBV_WC_REM_ACCESS_ERR);
	close_bench(&b);
}

static void write_with_key(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64);

	post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &out, b.buffer + 1024, b.mr->rkey);
	poll_success(b.cq, 1);
	close_bench(&b);
}

/* Threads that take turns: each posts when it is its turn. */
struct turns {
	struct bench *b;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int turn;
	bool own_queues;
};

struct player {
	struct turns *turns;
	int number;
};

static void *take_turns(void *argument)
{
	struct player *player = argument;
	struct turns *turns = player->turns;
	struct bench *b = turns->b;
	struct ibv_sge out = piece(b, 0, 128);

	for (int i = 0; i < 12; i++) {
		pthread_mutex_lock(&turns->lock);
		while (turns->turn % 2 != player->number)
			pthread_cond_wait(&turns->changed, &turns->lock);
		post_rdma(b->qp[turns->own_queues ? player->number : 0], i, IBV_WR_RDMA_WRITE, &out, b->buffer + 1024,
			  b->mr->rkey);
		poll_success(b->cq, 1);
		turns->turn++;
		pthread_cond_broadcast(&turns->changed);
		pthread_mutex_unlock(&turns->lock);
	}
	return NULL;
}

static void post_by_two_threads(bool own_queues)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct turns turns = {.b = &b, .own_queues = own_queues};
	struct player players[2] = {{&turns, 0}, {&turns, 1}};
	pthread_t threads[2];

	pthread_mutex_init(&turns.lock, NULL);
	pthread_cond_init(&turns.changed, NULL);
	for (int i = 0; i < 2; i++)
		NEED(!pthread_create(&threads[i], NULL, take_turns, &players[i]));
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	close_bench(&b);
}

/* UV-0317 */
static void share_queue_pair(void)
{
	post_by_two_threads(false);
}

static void own_queue_pairs(void)
{
	post_by_two_threads(true);
}

/* Posts full queues of WRITEs, of which every `every`th is signaled. The lists are large enough that work is under way
 * while more is posted. */
static void write_deep(int every)
{
	struct bench b = open_bench();
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 1024);
	struct ibv_send_wr wr[32];

	init.cap.max_send_wr = 32;
	make_pair_as(&b, init);
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	for (int i = 0; i < 32; i++) {
		wr[i] = rdma_wr(&b, i, IBV_WR_RDMA_WRITE, &out, 2048);
		wr[i].send_flags = i % every == every - 1 ? IBV_SEND_SIGNALED : 0;
		wr[i].next = i < 31 ? &wr[i + 1] : NULL;
	}
	for (int round = 0; round < 5; round++) {
		NEED(!post(b.qp[0], wr));
		poll_success(b.cq, 32 / every);
	}
	close_bench(&b);
}

/* UV-0318 */
static void signal_all(void)
{
	write_deep(1);
}

static void signal_some(void)
{
	write_deep(16);
}

/* WRITEs with or without a fence, and never a READ. */
static void write_fenced(unsigned int flags)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 128);

	for (int i = 0; i < 20; i++) {
		struct ibv_send_wr wr = rdma_wr(&b, i, IBV_WR_RDMA_WRITE, &out, 1024);

		wr.send_flags |= flags;
		NEED(!post(b.qp[0], &wr));
		poll_success(b.cq, 1);
	}
	close_bench(&b);
}

/* UV-0319 */
static void fence_without_reads(void)
{
	write_fenced(IBV_SEND_FENCE);
}

static void write_without_fence(void)
{
	write_fenced(0);
}

/* Writes 1 KiB in parts of that size. */
static void write_in_parts(uint32_t size)
{
	struct bench b = open_pair(IBV_QPT_RC);

	for (uint32_t at = 0; at < 1024; at += size) {
		struct ibv_sge out = piece(&b, at, size);

		post_rdma(b.qp[0], at, IBV_WR_RDMA_WRITE, &out, b.buffer + 2048 + at, b.mr->rkey);
		poll_success(b.cq, 1);
	}
	close_bench(&b);
}

/* UV-0320 */
static void write_in_small_parts(void)
{
	write_in_parts(32);
}

static void write_in_one_part(void)
{
	write_in_parts(1024);
}

/* UV-0321: the send queue is stopped while the program posts. */
static void stop_and_post(bool resume)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD};
	struct ibv_sge out = piece(&b, 0, 64);

	NEED(!ibv_modify_qp(b.qp[0], &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	if (resume)
		NEED(!ibv_modify_qp(b.qp[0], &attr, IBV_QP_STATE));
	post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &out, b.buffer + 1024, b.mr->rkey);
	if (!resume)
		NEED(!ibv_modify_qp(b.qp[0], &attr, IBV_QP_STATE));
	poll_success(b.cq, 1);
	close_bench(&b);
}

static void post_while_stopped(void)
{
	stop_and_post(false);
}

static void post_after_resume(void)
{
	stop_and_post(true);
}

/* A datagram to a group, with this number. */
static void send_to_group(uint32_t qpn)
{
	struct bench b = open_pair(IBV_QPT_UD);
	union ibv_gid own;
	struct ibv_ah_attr attr = {.grh = {.dgid = {.raw = {0xff, 0x0e, [10] = 0xff, 0xff, 239, 1, 2, 3}},
					   .sgid_index = (uint8_t)gid_index(b.context, &own), .hop_limit = 1},
				   .is_global = 1, .port_num = 1};
	struct ibv_ah *ah = ibv_create_ah(b.pd, &attr);
	struct ibv_sge out = piece(&b, 0, 64);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

	NEED(ah);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = usual_path().qkey;
	NEED(!post(b.qp[0], &wr));
	poll_one(b.cq);
	NEED(!ibv_destroy_ah(ah));
	close_bench(&b);
}

/* UV-0322 */
static void send_to_group_by_number(void)
{
	send_to_group(17);
}

static void send_to_group_properly(void)
{
	send_to_group(0xffffff);
}

/* WRITEs, after each of which the peer is told, by a SEND or by immediate data. */
static void write_and_tell(bool by_send)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 512), note = piece(&b, 512, 4), in = piece(&b, 1024, 64);

	for (int i = 0; i < 20; i++) {
		struct ibv_send_wr tell = send_wr(2, IBV_WR_SEND, &note);
		struct ibv_send_wr wr = rdma_wr(&b, 1, by_send ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM, &out, 2048);

		post_recv(b.qp[1], 3, &in);
		wr.next = by_send ? &tell : NULL;
		NEED(!post(b.qp[0], &wr));
		poll_success(b.cq, by_send ? 3 : 2);
	}
	close_bench(&b);
}

/* UV-0324 */
static void write_then_send(void)
{
	write_and_tell(true);
}

static void write_with_immediate(void)
{
	write_and_tell(false);
}

/* UV-0326: 24 signaled WRITEs on a queue of 16, polled at the end or as soon as the queue is full. */
static void write_past_the_end(bool polls)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 128);

	for (int i = 0; i < 24; i++) {
		struct ibv_send_wr wr = rdma_wr(&b, i, IBV_WR_RDMA_WRITE, &out, 1024);
		int error;

		if (polls && i >= 16)
			poll_success(b.cq, 1);
		/* A place may not be free yet on a busy machine: work that is not done has its place here, too. */
		while ((error = post(b.qp[0], &wr)) == ENOMEM)
			usleep(100);
		NEED(!error);
	}
	poll_success(b.cq, polls ? 16 : 24);
	close_bench(&b);
}

static void post_past_the_end(void)
{
	write_past_the_end(false);
}

static void poll_for_room(void)
{
	write_past_the_end(true);
}

/* UV-0327: one message, by queue pairs that were asked for with these capabilities. */
static void send_with(struct ibv_qp_cap cap)
{
	struct bench b = open_bench();
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 128), in = piece(&b, 1024, 128);

	init.cap = cap;
	make_pair_as(&b, init);
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	post_recv(b.qp[1], 1, &in);
	post_send(b.qp[0], 2, &out);
	poll_success(b.cq, 2);
	close_bench(&b);
}

static void ask_for_none(void)
{
	struct ibv_qp_cap none = {0};

	send_with(none);
}

static void ask_for_some(void)
{
	struct ibv_qp_cap some = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};

	send_with(some);
}

/* UV-0328: two messages in a list, whose second leads on. */
static void send_list_to(struct ibv_send_wr *behind)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 128), in = piece(&b, 1024, 128);
	struct ibv_send_wr wr[2] = {send_wr(1, IBV_WR_SEND, &out), send_wr(2, IBV_WR_SEND, &out)}, *bad = NULL;

	post_recv(b.qp[1], 3, &in);
	post_recv(b.qp[1], 4, &in);
	wr[0].next = &wr[1];
	wr[1].next = behind;
	if (behind) {
		NEED(ibv_post_send(b.qp[0], wr, &bad) == EINVAL);
		NEED(bad == &wr[1]);
	} else {
		NEED(!ibv_post_send(b.qp[0], wr, &bad));
	}
	poll_success(b.cq, 4);
	close_bench(&b);
}

static void never_set_next(void)
{
	send_list_to((struct ibv_send_wr *)0x4141414141410ull);
}

static void set_next(void)
{
	send_list_to(NULL);
}

CASES({"UV-0301", fill_without_signal, signal_now_and_then},
      {"UV-0302", never_signal, signal_now_and_then},
      {"UV-0303", send_small_from_memory, send_small_inline},
      {"UV-0304", send_inline_too_long, send_inline_that_fits},
      {"UV-0305", read_with_depth_0, read_with_depth_1},
      {"UV-0306", read_many_with_depth_1, read_many_with_depth_4},
      {"UV-0307", post_one_by_one, post_list},
      {"UV-0308", refill_one_by_one, refill_by_list},
      {"UV-0311", receive_datagram_without_header, receive_datagram_with_header},
      {"UV-0312", send_long_datagram, send_short_datagram},
      {"UV-0313", solicit_write, solicit_send},
      {"UV-0314", forward_without_fence, forward_with_fence},
      {"UV-0315", fail_with_shared_name, fail_with_own_name},
      {"UV-0316", write_without_key, write_with_key},
      {"UV-0317", share_queue_pair, own_queue_pairs},
      {"UV-0318", signal_all, signal_some},
      {"UV-0319", fence_without_reads, write_without_fence},
      {"UV-0320", write_in_small_parts, write_in_one_part},
      {"UV-0321", post_while_stopped, post_after_resume},
      {"UV-0322", send_to_group_by_number, send_to_group_properly},
      {"UV-0323", overwrite_without_fence, overwrite_with_fence},
      {"UV-0324", write_then_send, write_with_immediate},
      {"UV-0325", send_fenced_datagram, send_short_datagram},
      {"UV-0326", post_past_the_end, poll_for_room},
      {"UV-0327", ask_for_none, ask_for_some}, {"UV-0328", never_set_next, set_next})
