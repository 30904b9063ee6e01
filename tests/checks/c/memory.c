/* Rules of memory: UV-02xx. */
#include "common.h"

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* Two queue pairs whose SENDs wait for a receive as long as it takes. */
static struct bench open_patient_pair(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();

	path.rnr_retry = 7;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], path, b.qp[1], path);
	return b;
}

/* UV-0201: the buffer of a SEND is changed before its completion was polled, although the message has arrived. */
static void change_under_way(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	b.buffer[7] = 'x';
	poll_success(b.cq, 2);
	close_bench(&b);
}

static void change_after_completion(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	poll_success(b.cq, 2);
	b.buffer[7] = 'x';
	close_bench(&b);
}

/* Posts receives of 64 bytes at these offsets, and takes a message with each. */
static void receive_at(size_t first, size_t second)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 2048, 64), in[2] = {piece(&b, first, 64), piece(&b, second, 64)};

	for (int i = 0; i < 2; i++)
		post_recv(b.qp[1], i, &in[i]);
	for (int i = 0; i < 2; i++)
		post_send(b.qp[0], 10 + i, &out);
	poll_success(b.cq, 4);
	close_bench(&b);
}

/* UV-0202: two receives share 32 bytes. */
static void overlap_receives(void)
{
	receive_at(0, 32);
}

/* UV-0203: one buffer, two receives. */
static void post_receive_twice(void)
{
	receive_at(0, 0);
}

static void receive_side_by_side(void)
{
	receive_at(0, 64);
}

/* Two READs whose results go to these offsets, the second posted while the first may be under way. */
static void read_to(size_t first, size_t second)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in[2] = {piece(&b, first, 64), piece(&b, second, 64)};
	struct ibv_send_wr wr[2];

	for (int i = 0; i < 2; i++) {
		wr[i] = send_wr(i, IBV_WR_RDMA_READ, &in[i]);
		wr[i].wr.rdma.remote_addr = (uintptr_t)b.buffer + 1024;
		wr[i].wr.rdma.rkey = b.mr->rkey;
	}
	wr[0].next = &wr[1];
	NEED(!post(b.qp[0], wr));
	poll_success(b.cq, 2);
	close_bench(&b);
}

/* UV-0204: both READs write to the same bytes. */
static void read_to_one_place(void)
{
	read_to(0, 32);
}

static void read_to_two_places(void)
{
	read_to(0, 64);
}

/* A queue pair sends from one offset while a receive of its own waits at another. */
static void send_and_receive_at(size_t out_offset, size_t in_offset)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, out_offset, 64), in = piece(&b, in_offset, 64), far = piece(&b, 1024, 64);

	post_recv(b.qp[0], 1, &in);
	post_recv(b.qp[1], 2, &far);
	post_send(b.qp[0], 3, &out);
	poll_success(b.cq, 2);
	close_bench(&b);
}

/* UV-0205: one buffer for both directions. */
static void send_from_receive_buffer(void)
{
	send_and_receive_at(0, 32);
}

static void send_from_another_buffer(void)
{
	send_and_receive_at(0, 64);
}

/* Two receives, and a message for the first; the second buffer is prepared late or early. */
static void prepare_second_receive(bool late)
{
	struct bench b = open_bench();
	/* No peer may write here. */
	char *mine = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, memset(mine, 0, 4096), 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge out = piece(&b, 0, 64), in[2];

	NEED(mr);
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	if (!late)
		memset(mine + 64, 'x', 64);
	for (int i = 0; i < 2; i++) {
		in[i] = (struct ibv_sge){.addr = (uintptr_t)mine + 64 * i, .length = 64, .lkey = mr->lkey};
		post_recv(b.qp[1], i, &in[i]);
	}
	if (late)
		memset(mine + 64, 'x', 64);
	post_send(b.qp[0], 10, &out);
	poll_success(b.cq, 2);
	NEED(!ibv_destroy_qp(b.qp[1]));
	b.qp[1] = NULL;
	NEED(!ibv_dereg_mr(mr));
	free(mine);
	close_bench(&b);
}

/* UV-0206: the program writes to a receive buffer that is posted. */
static void change_posted_receive(void)
{
	prepare_second_receive(true);
}

static void change_receive_before_post(void)
{
	prepare_second_receive(false);
}

/* A SEND that waits for a receive; its memory goes before or after its completion. */
static void deregister_source(bool early)
{
	struct bench b = open_patient_pair();
	char *mine = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, memset(mine, 0, 4096), 4096, 0);
	struct ibv_sge out = {.addr = (uintptr_t)mine, .length = 4096, .lkey = mr->lkey}, in = piece(&b, 0, 4096);

	post_send(b.qp[0], 1, &out);
	if (early)
		NEED(!ibv_dereg_mr(mr));
	post_recv(b.qp[1], 2, &in);
	if (early) {
		/* The SEND fails, or all of it was on its way before. */
		poll_one(b.cq);
	} else {
		poll_success(b.cq, 2);
		NEED(!ibv_dereg_mr(mr));
	}
	free(mine);
	close_bench(&b);
}

/* UV-0207 */
static void deregister_under_way(void)
{
	deregister_source(true);
}

static void deregister_after_completion(void)
{
	deregister_source(false);
}

/* UV-0208: the memory of a posted receive is deregistered before the queue pair is destroyed. */
static void deregister_posted(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in = piece(&b, 0, 64);

	post_recv(b.qp[0], 1, &in);
	NEED(!ibv_dereg_mr(b.mr));
	b.mr = NULL;
	close_bench(&b);
}

static void deregister_after_destroy(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in = piece(&b, 0, 64);

	post_recv(b.qp[0], 1, &in);
	close_bench(&b);
}

/* Memory of its own mapping, with a key. */
static struct ibv_mr *map_and_register(struct bench *b, size_t length)
{
	void *mine = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	NEED(mine != MAP_FAILED);
	memset(mine, 1, length);
	mr = ibv_reg_mr(b->pd, mine, length, IBV_ACCESS_LOCAL_WRITE);
	NEED(mr);
	return mr;
}

/* UV-0209: munmap comes before ibv_dereg_mr. */
static void unmap_registered(void)
{
	struct bench b = open_bench();
	struct ibv_mr *mr = map_and_register(&b, 65536);

	NEED(!munmap(mr->addr, 65536));
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

static void unmap_deregistered(void)
{
	struct bench b = open_bench();
	struct ibv_mr *mr = map_and_register(&b, 65536);
	void *mine = mr->addr;

	NEED(!ibv_dereg_mr(mr));
	NEED(!munmap(mine, 65536));
	close_bench(&b);
}

/* UV-0210: a receive is posted into memory that is not there any more. */
static void receive_into_unmapped(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mr *mr = map_and_register(&b, 65536);
	struct ibv_sge in = {.addr = (uintptr_t)mr->addr, .length = 64, .lkey = mr->lkey};

	NEED(!munmap(mr->addr, 65536));
	post_recv(b.qp[0], 1, &in);
	NEED(!ibv_destroy_qp(b.qp[0]));
	b.qp[0] = NULL;
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

static void receive_into_mapped(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mr *mr = map_and_register(&b, 65536);
	struct ibv_sge in = {.addr = (uintptr_t)mr->addr, .length = 64, .lkey = mr->lkey};

	post_recv(b.qp[0], 1, &in);
	NEED(!ibv_destroy_qp(b.qp[0]));
	b.qp[0] = NULL;
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

/* A receive with memory of another domain, or of the same one; nobody ever sends. */
static void receive_from_domain(bool other)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_pd *pd = ibv_alloc_pd(b.context);
	char *mine = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = ibv_reg_mr(other ? pd : b.pd, mine, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge in = {.addr = (uintptr_t)mine, .length = 64, .lkey = mr->lkey};

	post_recv(b.qp[0], 1, &in);
	NEED(!ibv_destroy_qp(b.qp[0]));
	b.qp[0] = NULL;
	NEED(!ibv_dereg_mr(mr));
	NEED(!ibv_dealloc_pd(pd));
	free(mine);
	close_bench(&b);
}

/* UV-0211 */
static void receive_in_other_domain(void)
{
	receive_from_domain(true);
}

static void receive_in_own_domain(void)
{
	receive_from_domain(false);
}

/* Posts a receive of that place that is never filled. */
static void receive_unused(size_t offset, uint32_t length)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in = piece(&b, offset, length);

	post_recv(b.qp[0], 1, &in);
	close_bench(&b);
}

/* UV-0212: the last 64 bytes of the receive are past the end of the region. */
static void receive_past_end(void)
{
	receive_unused(BUFFER_SIZE - 64, 128);
}

static void receive_to_end(void)
{
	receive_unused(BUFFER_SIZE - 64, 64);
}

/* UV-0213: the key is used after ibv_dereg_mr. */
static void receive_with_gone_key(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in = piece(&b, 0, 64);

	NEED(!ibv_dereg_mr(b.mr));
	b.mr = NULL;
	post_recv(b.qp[0], 1, &in);
	close_bench(&b);
}

static void receive_with_present_key(void)
{
	receive_unused(0, 64);
}

/* A receive into memory with these rights. */
static void receive_with_rights(int access)
{
	struct bench b = open_pair(IBV_QPT_RC);
	char *mine = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, mine, 4096, access);
	struct ibv_sge in = {.addr = (uintptr_t)mine, .length = 64, .lkey = mr->lkey};

	post_recv(b.qp[0], 1, &in);
	NEED(!ibv_destroy_qp(b.qp[0]));
	b.qp[0] = NULL;
	NEED(!ibv_dereg_mr(mr));
	free(mine);
	close_bench(&b);
}

/* UV-0214 */
static void receive_without_local_write(void)
{
	receive_with_rights(IBV_ACCESS_REMOTE_READ);
}

static void receive_with_local_write(void)
{
	receive_with_rights(IBV_ACCESS_LOCAL_WRITE);
}

/* Registers bytes of this stack with these rights. */
static void register_stack(int access)
{
	struct bench b = open_bench();
	char local[256] = {0};
	struct ibv_mr *mr = ibv_reg_mr(b.pd, local, sizeof local, access);

	NEED(mr);
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

/* UV-0215 */
static void open_stack(void)
{
	register_stack(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static void keep_stack(void)
{
	register_stack(IBV_ACCESS_LOCAL_WRITE);
}

/* Registers the buffer of a bench so many times more. */
static void register_again(int times)
{
	struct bench b = open_bench();
	struct ibv_mr *mr[8];

	for (int i = 0; i < times; i++) {
		mr[i] = ibv_reg_mr(b.pd, b.buffer, BUFFER_SIZE, ALL);
		NEED(mr[i]);
	}
	for (int i = 0; i < times; i++)
		NEED(!ibv_dereg_mr(mr[i]));
	close_bench(&b);
}

/* UV-0216 */
static void register_many_times(void)
{
	register_again(7);
}

static void register_once(void)
{
	register_again(0);
}

/* UV-0217: the buffer of a bench grants everything, and nobody uses it. */
static void grant_in_vain(void)
{
	struct bench b = open_bench();

	close_bench(&b);
}

static void grant_what_is_used(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge word = piece(&b, 0, 8);

	post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &word, b.buffer + 1024, b.mr->rkey);
	poll_success(b.cq, 1);
	post_rdma(b.qp[0], 2, IBV_WR_RDMA_READ, &word, b.buffer + 1024, b.mr->rkey);
	poll_success(b.cq, 1);
	post_rdma(b.qp[0], 3, IBV_WR_ATOMIC_FETCH_AND_ADD, &word, b.buffer + 1024, b.mr->rkey);
	poll_success(b.cq, 1);
	close_bench(&b);
}

/* A region for windows, with a window of type 2 that is bound to it under these keys, one after the other. */
static void bind_window(const int *keys, int count)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, b.buffer, BUFFER_SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
	uint32_t first = mw->rkey;

	NEED(mr && mw);
	for (int i = 0; i < count; i++) {
		struct ibv_send_wr bind = {.wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
		struct ibv_send_wr invalidate = {.wr_id = 2, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED};

		bind.bind_mw.mw = mw;
		bind.bind_mw.rkey = first + keys[i];
		bind.bind_mw.bind_info.mr = mr;
		bind.bind_mw.bind_info.addr = (uintptr_t)b.buffer;
		bind.bind_mw.bind_info.length = 64;
		bind.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
		NEED(!post(b.qp[0], &bind));
		poll_success(b.cq, 1);
		mw->rkey = bind.bind_mw.rkey;
		invalidate.invalidate_rkey = mw->rkey;
		NEED(!post(b.qp[0], &invalidate));
		poll_success(b.cq, 1);
	}
	NEED(!ibv_dealloc_mw(mw));
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

/* UV-0218: MW_BIND without a window; UV-0224: a window that is bound to nothing. */
static void bind_nothing(void)
{
	bind_window(NULL, 0);
}

/* UV-0223: the second binding has the key of the first. */
static void bind_same_key(void)
{
	bind_window((const int[]){1, 1}, 2);
}

static void bind_new_keys(void)
{
	bind_window((const int[]){1, 2}, 2);
}

/* A SEND that waits for a receive; its registration changes before or after its completion. */
static void reregister_source(bool early)
{
	struct bench b = open_patient_pair();
	char *mine = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, memset(mine, 0, 4096), 4096, 0);
	struct ibv_sge out = {.addr = (uintptr_t)mine, .length = 4096, .lkey = mr->lkey}, in = piece(&b, 0, 4096);

	post_send(b.qp[0], 1, &out);
	if (early)
		NEED(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	post_recv(b.qp[1], 2, &in);
	poll_one(b.cq);
	poll_one(b.cq);
	if (!early)
		NEED(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	NEED(!ibv_dereg_mr(mr));
	free(mine);
	close_bench(&b);
}

/* UV-0219 */
static void reregister_under_way(void)
{
	reregister_source(true);
}

static void reregister_after_completion(void)
{
	reregister_source(false);
}

static void add_at(size_t remote, uint32_t room, enum ibv_wc_status status)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge result = piece(&b, 0, room);

	post_rdma(b.qp[0], 1, IBV_WR_ATOMIC_FETCH_AND_ADD, &result, b.buffer + remote, b.mr->rkey);
	poll_status(b.cq, status);
	close_bench(&b);
}

/* UV-0220 */
static void add_misaligned(void)
{
	add_at(1028, 8, IBV_WC_REM_INV_REQ_ERR);
}

/* UV-0221 */
static void add_without_room(void)
{
	add_at(1024, 4, IBV_WC_LOC_LEN_ERR);
}

static void add_aligned(void)
{
	add_at(1024, 8, IBV_WC_SUCCESS);
}

/* Registers pieces of one allocation, each of that size. */
static void register_pieces(size_t size, int count)
{
	struct bench b = open_bench();
	char *mine = aligned_alloc(2 << 20, 2 << 20);
	struct ibv_mr *mr[128];

	NEED(mine);
	for (int i = 0; i < count; i++) {
		mr[i] = ibv_reg_mr(b.pd, mine + i * size, size, IBV_ACCESS_LOCAL_WRITE);
		NEED(mr[i]);
	}
	for (int i = 0; i < count; i++)
		NEED(!ibv_dereg_mr(mr[i]));
	free(mine);
	close_bench(&b);
}

/* UV-0222 */
static void register_each_buffer(void)
{
	register_pieces(256, 100);
}

static void register_all_buffers_at_once(void)
{
	register_pieces(25600, 1);
}

/* Sends lists of two pieces, ten times. */
static void send_pieces(size_t first, uint32_t first_length, size_t second, uint32_t second_length, int times)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out[2] = {piece(&b, first, first_length), piece(&b, second, second_length)}, in = piece(&b, 2048, 256);

	for (int i = 0; i < times; i++) {
		struct ibv_send_wr wr = send_wr(i, IBV_WR_SEND, out);

		wr.num_sge = 2;
		post_recv(b.qp[1], 100 + i, &in);
		NEED(!post(b.qp[0], &wr));
		poll_success(b.cq, 2);
	}
	close_bench(&b);
}

/* UV-0225: the second piece begins where the first ends. */
static void send_adjacent_pieces(void)
{
	send_pieces(0, 64, 64, 64, 10);
}

static void send_distant_pieces(void)
{
	send_pieces(0, 64, 128, 64, 10);
}

/* UV-0226 */
static void send_empty_piece(void)
{
	send_pieces(0, 64, 128, 0, 1);
}

/* A receive of two pieces, and a message that fills both. */
static void receive_pieces(size_t second)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in[2] = {piece(&b, 0, 64), piece(&b, second, 64)}, out = piece(&b, 2048, 128);
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = in, .num_sge = 2}, *bad;

	NEED(!ibv_post_recv(b.qp[1], &wr, &bad));
	post_send(b.qp[0], 2, &out);
	poll_success(b.cq, 2);
	close_bench(&b);
}

/* UV-0227 */
static void receive_into_overlapping_pieces(void)
{
	receive_pieces(32);
}

static void receive_into_pieces(void)
{
	receive_pieces(64);
}

/* Registers the whole address space on demand, with these rights. */
static void register_everything(int access)
{
	struct bench b = open_bench();
	struct ibv_mr *mr = ibv_reg_mr(b.pd, NULL, SIZE_MAX, access | IBV_ACCESS_ON_DEMAND);

	NEED(mr);
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

/* UV-0228 */
static void open_everything(void)
{
	register_everything(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
}

static void keep_everything(void)
{
	register_everything(IBV_ACCESS_LOCAL_WRITE);
}

/* UV-0229: nobody has set the key. */
static void receive_without_key(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in = {.addr = (uintptr_t)b.buffer, .length = 64};

	post_recv(b.qp[0], 1, &in);
	close_bench(&b);
}

/* So many messages go to and fro. */
#define ROUNDS 64

/* One queue pair writes a byte, the other writes it back, and so on; each is told of it by a receive, or looks itself. */
static void answer(enum ibv_wr_opcode opcode)
{
	struct bench b = open_patient_pair();
	volatile char *there = b.buffer + 1024, *back = b.buffer + 2048;
	struct ibv_sge out = piece(&b, 0, 1);
	int told = opcode == IBV_WR_RDMA_WRITE_WITH_IMM;

	for (int round = 1; round <= ROUNDS; round++) {
		for (int side = 0; side < 2; side++) {
			volatile char *at = side ? back : there;

			if (told)
				post_recv(b.qp[!side], 100, NULL);
			b.buffer[0] = (char)round;
			post_rdma(b.qp[side], 1, opcode, &out, (const void *)at, b.mr->rkey);
			if (told)
				poll_success(b.cq, 2);
			while (*at != round)
				;
		}
		if (!told)
			poll_success(b.cq, 2);
	}
	close_bench(&b);
}

/* UV-0230 */
static void answer_by_memory(void)
{
	answer(IBV_WR_RDMA_WRITE);
}

static void answer_by_immediate(void)
{
	answer(IBV_WR_RDMA_WRITE_WITH_IMM);
}

CASES({"UV-0201", change_under_way, change_after_completion},
      {"UV-0202", overlap_receives, receive_side_by_side},
      {"UV-0203", post_receive_twice, receive_side_by_side},
      {"UV-0204", read_to_one_place, read_to_two_places},
      {"UV-0205", send_from_receive_buffer, send_from_another_buffer},
      {"UV-0206", change_posted_receive, change_receive_before_post},
      {"UV-0207", deregister_under_way, deregister_after_completion},
      {"UV-0208", deregister_posted, deregister_after_destroy},
      {"UV-0209", unmap_registered, unmap_deregistered},
      {"UV-0210", receive_into_unmapped, receive_into_mapped},
      {"UV-0211", receive_in_other_domain, receive_in_own_domain},
      {"UV-0212", receive_past_end, receive_to_end},
      {"UV-0213", receive_with_gone_key, receive_with_present_key},
      {"UV-0214", receive_without_local_write, receive_with_local_write},
      {"UV-0215", open_stack, keep_stack},
      {"UV-0216", register_many_times, register_once},
      {"UV-0217", grant_in_vain, grant_what_is_used},
      {"UV-0218", bind_nothing, bind_new_keys},
      {"UV-0219", reregister_under_way, reregister_after_completion},
      {"UV-0220", add_misaligned, add_aligned},
      {"UV-0221", add_without_room, add_aligned},
      {"UV-0222", register_each_buffer, register_all_buffers_at_once},
      {"UV-0223", bind_same_key, bind_new_keys},
      {"UV-0224", bind_nothing, bind_new_keys},
      {"UV-0225", send_adjacent_pieces, send_distant_pieces},
      {"UV-0226", send_empty_piece, send_distant_pieces},
      {"UV-0227", receive_into_overlapping_pieces, receive_into_pieces},
      {"UV-0228", open_everything, keep_everything},
      {"UV-0229", receive_without_key, receive_with_present_key},
      {"UV-0230", answer_by_memory, answer_by_immediate})
