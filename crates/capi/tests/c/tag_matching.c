/* Shared receive queues that match tags: what matches what, in which order, what completes, and what is refused. All of
 * it twice: completions read one by one from an extended queue, which has the tag of a message, and by ibv_poll_cq. */
#include "bench.h"
#include <infiniband/tm_types.h>
#include <endian.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TAGS = 32, BUFFER = 1 << 20, SLOT = 2048, HEADERS = sizeof(struct ibv_tmh) + sizeof(struct ibv_rvh) };
#define ALL UINT64_MAX
#define MATCH IBV_WC_TM_MATCH
#define DATA IBV_WC_TM_DATA_VALID

/* A completion, however it was read. */
struct seen {
	uint64_t wr_id, tag;
	uint32_t bytes, priv;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	unsigned int flags;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static int extended;
/* Packets get lost: a refusal as well, and then the peer just does not answer. */
static int lossy;

/* Two ends in one process. The second receives from a queue that matches tags. */
static struct ibv_cq *send_cq, *fin_cq, *tag_cq;
static struct ibv_srq *srq;
static struct ibv_qp *sender, *receiver;
static uint8_t *out, *in;
static struct ibv_mr *out_mr, *in_mr;
static uint32_t handled;

static int poll_one(struct ibv_cq *cq, struct seen *seen)
{
	struct ibv_poll_cq_attr attr = {};
	struct ibv_wc_tm_info info;
	struct ibv_wc wc;
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;

	memset(seen, 0, sizeof *seen);
	if (!extended || cq != tag_cq) {
		if (ibv_poll_cq(cq, 1, &wc) != 1)
			return 0;
		*seen = (struct seen){.wr_id = wc.wr_id, .bytes = wc.byte_len, .status = wc.status, .opcode = wc.opcode,
				      .flags = wc.wc_flags};
		return 1;
	}
	if (ibv_start_poll(ex, &attr))
		return 0;
	ibv_wc_read_tm_info(ex, &info);
	*seen = (struct seen){.wr_id = ex->wr_id, .tag = info.tag, .priv = info.priv, .bytes = ibv_wc_read_byte_len(ex),
			      .status = ex->status, .opcode = ibv_wc_read_opcode(ex), .flags = ibv_wc_read_wc_flags(ex)};
	ibv_end_poll(ex);
	return 1;
}

static struct seen next(struct ibv_cq *cq)
{
	struct seen seen;
	time_t end = time(NULL) + 60;
	int got = 0;

	while (!got && time(NULL) < end)
		got = poll_one(cq, &seen);
	CHECK(got);
	return seen;
}

/* The next completion of the queue that matches tags is this, and well. */
#define EXPECT(id, kind, with, length, the_tag)                                                               \
	do {                                                                                                  \
		struct seen seen_ = next(tag_cq);                                                             \
		if (seen_.wr_id != (id) || seen_.status || seen_.opcode != (kind) || seen_.flags != (unsigned)(with) || \
		    seen_.bytes != (uint32_t)(length) || (extended && seen_.tag != (the_tag)))               \
			fprintf(stderr, "wr %lu status %d opcode %d flags %x bytes %u tag %lx\n", seen_.wr_id, \
				seen_.status, seen_.opcode, seen_.flags, seen_.bytes, seen_.tag);             \
		CHECK(seen_.wr_id == (id));                                                                   \
		CHECK(seen_.status == IBV_WC_SUCCESS && seen_.opcode == (kind));                              \
		CHECK(seen_.flags == (unsigned)(with) && seen_.bytes == (uint32_t)(length));                  \
		CHECK(!extended || seen_.tag == (the_tag));                                                   \
	} while (0)

static void sent(void)
{
	struct seen seen = next(send_cq);

	CHECK(seen.status == IBV_WC_SUCCESS && seen.opcode == IBV_WC_SEND);
}

static int refused(enum ibv_wc_status status, enum ibv_wc_status refusal)
{
	return status == refusal || (lossy && status == IBV_WC_RETRY_EXC_ERR);
}

static struct ibv_srq *make_srq(struct ibv_srq_init_attr_ex change, uint32_t comp_mask)
{
	change.attr.max_wr = 64;
	change.attr.max_sge = 1;
	change.comp_mask = comp_mask;
	return ibv_create_srq_ex(context, &change);
}

#define TM_MASK (IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM)

static struct ibv_qp *make_pair(struct ibv_cq *cq, struct ibv_srq *from)
{
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *qp;

	init.srq = from;
	init.recv_cq = fin_cq;
	qp = ibv_create_qp(pd, &init);
	NEED(qp && !to_init(qp));
	return qp;
}

static void connect_ends(void)
{
	sender = make_pair(send_cq, NULL);
	receiver = make_pair(send_cq, srq);
	NEED(!connect_to(sender, receiver->qp_num) && !connect_to(receiver, sender->qp_num));
}

static void part_ends(void)
{
	NEED(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver));
}

static void set_up(void)
{
	struct ibv_cq_init_attr_ex ex = {.cqe = 1024, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO};
	struct ibv_srq_init_attr_ex tm = {.srq_type = IBV_SRQT_TM, .pd = pd, .tm_cap = {.max_num_tags = TAGS, .max_ops = 16}};

	handled = 0;
	send_cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
	fin_cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
	tag_cq = extended ? ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &ex)) : ibv_create_cq(context, 1024, NULL, NULL, 0);
	NEED(send_cq && fin_cq && tag_cq);
	tm.cq = tag_cq;
	srq = make_srq(tm, TM_MASK);
	NEED(srq);
	connect_ends();
}

static void tear_down(void)
{
	part_ends();
	CHECK(ibv_destroy_cq(tag_cq) == EBUSY);
	CHECK(!ibv_destroy_srq(srq));
	CHECK(!ibv_destroy_cq(tag_cq) && !ibv_destroy_cq(send_cq) && !ibv_destroy_cq(fin_cq));
}

/* An ordinary receive for the queue that matches tags: slot `id` of the first half of the memory. */
static void receive_any(uint64_t id)
{
	struct ibv_sge sge = {.addr = (uintptr_t)in + id * SLOT, .length = SLOT, .lkey = in_mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

static int operate(struct ibv_ops_wr *wr)
{
	struct ibv_ops_wr *bad = NULL;
	int error = ibv_post_srq_ops(srq, wr, &bad);

	CHECK(!error || bad == wr);
	return error;
}

/* Adds a buffer of `length` bytes at `offset`. */
static uint32_t add(uint64_t id, uint64_t tag, uint64_t mask, size_t offset, uint32_t length, int flags)
{
	struct ibv_sge sge = {.addr = (uintptr_t)in + offset, .length = length, .lkey = in_mr->lkey};
	struct ibv_ops_wr wr = {.wr_id = 1000 + id, .opcode = IBV_WR_TAG_ADD, .flags = flags | IBV_OPS_TM_SYNC};

	wr.tm.unexpected_cnt = handled;
	wr.tm.add.recv_wr_id = id;
	wr.tm.add.sg_list = &sge;
	wr.tm.add.num_sge = 1;
	wr.tm.add.tag = tag;
	wr.tm.add.mask = mask;
	CHECK(!operate(&wr));
	return wr.tm.handle;
}

static int del(uint64_t id, uint32_t handle)
{
	struct ibv_ops_wr wr = {.wr_id = id, .opcode = IBV_WR_TAG_DEL, .flags = IBV_OPS_SIGNALED};

	wr.tm.handle = handle;
	return operate(&wr);
}

static void tell(uint32_t count, unsigned int flags)
{
	struct ibv_ops_wr wr = {.wr_id = 77, .opcode = IBV_WR_TAG_SYNC, .flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC};

	wr.tm.unexpected_cnt = count;
	CHECK(!operate(&wr));
	EXPECT(77, IBV_WC_TM_SYNC, flags, 0, 0);
}

static void put_header(uint8_t *at, int opcode, uint64_t tag)
{
	struct ibv_tmh tmh = {.opcode = opcode, .app_ctx = htobe32(4711), .tag = htobe64(tag)};

	memcpy(at, &tmh, sizeof tmh);
}

/* Sends the first bytes of `out`. */
static void send_out(uint32_t length)
{
	struct ibv_sge sge = {.addr = (uintptr_t)out, .length = length, .lkey = out_mr->lkey};

	CHECK(!post(sender, 1, IBV_WR_SEND, length ? &sge : NULL, 0, 0));
}

static void send_eager(uint64_t tag, const char *text)
{
	put_header(out, IBV_TMH_EAGER, tag);
	strcpy((char *)out + sizeof(struct ibv_tmh), text);
	send_out(sizeof(struct ibv_tmh) + strlen(text));
	sent();
}

/* Asks for a rendezvous with `length` bytes of the second half of `out`. */
static void ask(uint64_t tag, uint32_t rkey, uint32_t length)
{
	struct ibv_rvh rvh = {.va = htobe64((uintptr_t)out + BUFFER), .rkey = htobe32(rkey), .len = htobe32(length)};

	put_header(out, IBV_TMH_RNDV, tag);
	memcpy(out + sizeof(struct ibv_tmh), &rvh, sizeof rvh);
	send_out(HEADERS);
}

static void matching(void)
{
	int i;

	set_up();
	for (i = 0; i < 6; i++)
		receive_any(i);
	add(10, 5, ALL, BUFFER, 100, IBV_OPS_SIGNALED);
	EXPECT(1010, IBV_WC_TM_ADD, 0, 0, 0);
	add(11, 0x100, 0xff00, BUFFER + 100, 100, 0);
	add(12, 5, ALL, BUFFER + 200, 100, 0);
	add(13, 0, 0, BUFFER + 300, 100, 0);

	send_eager(0x1ab, "by mask");
	EXPECT(11, IBV_WC_TM_RECV, MATCH | DATA, 7, 0x1ab);
	CHECK(!memcmp(in + BUFFER + 100, "by mask", 7));
	send_eager(5, "first");
	EXPECT(10, IBV_WC_TM_RECV, MATCH | DATA, 5, 5);
	send_eager(5, "second");
	EXPECT(12, IBV_WC_TM_RECV, MATCH | DATA, 6, 5);
	send_eager(5, "");
	EXPECT(13, IBV_WC_TM_RECV, MATCH | DATA, 0, 5);
	CHECK(!memcmp(in + BUFFER, "first", 5) && !memcmp(in + BUFFER + 200, "second", 6));

	/* Nothing is left: software gets it, header and all, and says so. */
	send_eager(5, "third");
	EXPECT(0, IBV_WC_TM_RECV, 0, 21, 0);
	CHECK(in[0] == IBV_TMH_EAGER && in[15] == 5 && !memcmp(in + 16, "third", 5));
	add(14, 5, ALL, BUFFER, 100, IBV_OPS_SIGNALED);
	EXPECT(1014, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ, 0, 0);
	send_eager(5, "fourth");
	EXPECT(1, IBV_WC_TM_RECV, 0, 22, 0);
	tell(1, IBV_WC_TM_SYNC_REQ);
	handled = 2;
	tell(handled, 0);
	send_eager(5, "fifth");
	EXPECT(14, IBV_WC_TM_RECV, MATCH | DATA, 5, 5);

	/* What has no tag, or none that can be read, is software's and not counted. */
	put_header(out, IBV_TMH_NO_TAG, 5);
	send_out(20);
	sent();
	EXPECT(2, IBV_WC_TM_NO_TAG, 0, 20, 0);
	send_out(0);
	sent();
	EXPECT(3, IBV_WC_TM_NO_TAG, 0, 0, 0);
	add(15, 5, ALL, BUFFER, 100, 0);
	put_header(out, IBV_TMH_EAGER, 5);
	send_out(15);
	sent();
	EXPECT(4, IBV_WC_TM_NO_TAG, 0, 15, 0);
	put_header(out, IBV_TMH_RNDV, 5);
	send_out(HEADERS - 1);
	sent();
	EXPECT(5, IBV_WC_TM_NO_TAG, 0, HEADERS - 1, 0);
	send_eager(5, "still there");
	EXPECT(15, IBV_WC_TM_RECV, MATCH | DATA, 11, 5);
	tear_down();
}

static void long_messages(void)
{
	const uint32_t header = sizeof(struct ibv_tmh);

	set_up();
	for (uint32_t length = 1000; length < BUFFER; length = length * 3 + 1) {
		add(1, 9, ALL, BUFFER, BUFFER, 0);
		for (uint32_t i = 0; i < length; i++)
			out[header + i] = (uint8_t)(i * 7 + length);
		put_header(out, IBV_TMH_EAGER, 9);
		send_out(header + length);
		sent();
		if (header + length <= 1024) {
			EXPECT(1, IBV_WC_TM_RECV, MATCH | DATA, length, 9);
		} else {
			EXPECT(1, IBV_WC_TM_RECV, MATCH, 0, 9);
			EXPECT(1, IBV_WC_TM_RECV, DATA, length, 0);
		}
		CHECK(!memcmp(out + header, in + BUFFER, length));
	}
	/* A buffer that is too small fails with its queue pair. */
	add(2, 9, ALL, BUFFER, 3, 0);
	put_header(out, IBV_TMH_EAGER, 9);
	send_out(header + 4);
	CHECK(refused(next(send_cq).status, IBV_WC_REM_INV_REQ_ERR));
	struct seen seen = next(tag_cq);
	CHECK(seen.wr_id == 2 && seen.status == IBV_WC_LOC_LEN_ERR);
	tear_down();
}

static void deleting(void)
{
	uint32_t first, second;
	struct seen seen;

	set_up();
	receive_any(0);
	first = add(1, 5, ALL, BUFFER, 100, 0);
	second = add(2, 5, ALL, BUFFER, 100, 0);
	CHECK(!del(50, first));
	EXPECT(50, IBV_WC_TM_DEL, 0, 0, 0);
	send_eager(5, "for the second");
	EXPECT(2, IBV_WC_TM_RECV, MATCH | DATA, 14, 5);
	CHECK(!del(51, second));
	seen = next(tag_cq);
	CHECK(seen.wr_id == 51 && seen.opcode == IBV_WC_TM_DEL && seen.status == IBV_WC_TM_ERR);
	CHECK(!strcmp(ibv_wc_status_str(seen.status), "TM error"));
	send_eager(5, "for nobody");
	EXPECT(0, IBV_WC_TM_RECV, 0, 26, 0);
	tear_down();
}

/* Rendezvous of every size, with the sender told each time. */
static void rendezvous(void)
{
	struct ibv_sge fin = {.addr = (uintptr_t)out + SLOT, .length = HEADERS, .lkey = out_mr->lkey};
	struct seen seen;

	set_up();
	for (uint32_t length = 1; length <= BUFFER; length *= 4) {
		add(3, 9, ALL, BUFFER, length, 0);
		CHECK(!receive(sender, 33, &fin));
		for (uint32_t i = 0; i < length; i++)
			out[BUFFER + i] = (uint8_t)(i * 5 + length);
		memset(out + SLOT, 0, HEADERS);
		memset(in + BUFFER, 0xee, BUFFER);
		ask(9, out_mr->rkey, length);
		sent();
		EXPECT(3, IBV_WC_TM_RECV, MATCH, 0, 9);
		EXPECT(3, IBV_WC_TM_RECV, DATA, length, 0);
		CHECK(!memcmp(out + BUFFER, in + BUFFER, length));
		CHECK(length == BUFFER || in[BUFFER + length] == 0xee);
		seen = next(fin_cq);
		CHECK(seen.wr_id == 33 && seen.opcode == IBV_WC_RECV && seen.bytes == HEADERS);
		CHECK(out[SLOT] == IBV_TMH_FIN && !memcmp(out + SLOT + 1, out + 1, HEADERS - 1));
	}
	/* The buffer is too small, and gets the headers: software goes on. */
	add(4, 9, ALL, BUFFER, 100, 0);
	ask(9, out_mr->rkey, 101);
	sent();
	seen = next(tag_cq);
	CHECK(seen.wr_id == 4 && seen.status == IBV_WC_TM_RNDV_INCOMPLETE && seen.opcode == IBV_WC_TM_RECV);
	CHECK(seen.flags == (MATCH | DATA) && seen.bytes == HEADERS && !memcmp(in + BUFFER, out, HEADERS));
	CHECK(!extended || (seen.tag == 9 && seen.priv == 4711));
	/* Matches nothing: software gets all of it. */
	receive_any(0);
	ask(10, out_mr->rkey, 100);
	sent();
	EXPECT(0, IBV_WC_TM_RECV, 0, HEADERS, 0);
	CHECK(!memcmp(in, out, HEADERS));
	handled = 1;
	tell(handled, 0);
	/* A key that the sender does not have: the READ fails, and both queue pairs with it. */
	add(5, 9, ALL, BUFFER, 100, 0);
	add(6, 9, ALL, BUFFER, 100, 0);
	ask(9, out_mr->rkey ^ 0x5500, 100);
	EXPECT(5, IBV_WC_TM_RECV, MATCH, 0, 9);
	seen = next(tag_cq);
	CHECK(seen.wr_id == 5 && refused(seen.status, IBV_WC_REM_ACCESS_ERR));
	/* The other buffer belongs to the queue, which others use on. */
	seen = next(send_cq);
	part_ends();
	while (poll_one(send_cq, &seen))
		;
	connect_ends();
	send_eager(9, "again");
	EXPECT(6, IBV_WC_TM_RECV, MATCH | DATA, 5, 9);
	tear_down();
}

/* The program deregisters what it has added: nothing is written there. */
static void deregistered(int opcode)
{
	struct ibv_mr *mr = in_mr;
	struct seen seen;

	set_up();
	in_mr = ibv_reg_mr(pd, in, 2 * BUFFER, IBV_ACCESS_LOCAL_WRITE);
	NEED(in_mr);
	memset(in + BUFFER, 0x11, 100);
	add(8, 9, ALL, BUFFER, 100, 0);
	NEED(!ibv_dereg_mr(in_mr));
	in_mr = mr;
	if (opcode == IBV_TMH_RNDV) {
		ask(9, out_mr->rkey, 100);
		EXPECT(8, IBV_WC_TM_RECV, MATCH, 0, 9);
	} else {
		put_header(out, IBV_TMH_EAGER, 9);
		send_out(80);
	}
	seen = next(tag_cq);
	CHECK(seen.wr_id == 8 && seen.status == IBV_WC_LOC_PROT_ERR);
	for (int i = 0; i < 100; i++)
		CHECK(in[BUFFER + i] == 0x11);
	tear_down();
}

/* Both ends match tags: what ends a rendezvous is a message without a tag. */
static void both_match(void)
{
	set_up();
	part_ends();
	sender = make_pair(send_cq, srq);
	receiver = make_pair(send_cq, srq);
	NEED(!connect_to(sender, receiver->qp_num) && !connect_to(receiver, sender->qp_num));
	receive_any(0);
	add(3, 9, ALL, BUFFER, 100, 0);
	memset(out + BUFFER, 0x3c, 100);
	ask(9, out_mr->rkey, 100);
	sent();
	EXPECT(3, IBV_WC_TM_RECV, MATCH, 0, 9);
	struct seen a = next(tag_cq), b = next(tag_cq), fin = a.opcode == IBV_WC_TM_NO_TAG ? a : b;

	CHECK(fin.opcode == IBV_WC_TM_NO_TAG && fin.bytes == HEADERS && in[0] == IBV_TMH_FIN);
	CHECK((a.flags | b.flags) == DATA && (a.opcode == IBV_WC_TM_RECV || b.opcode == IBV_WC_TM_RECV));
	CHECK(in[BUFFER] == 0x3c && in[BUFFER + 99] == 0x3c);
	tear_down();
}

enum { RACES = 3000 };

/* Sends one message for each tag, as fast as it can. */
static void *send_races(void *unused)
{
	for (uint64_t tag = 0; tag < RACES; tag++) {
		put_header(out, IBV_TMH_EAGER, tag);
		send_out(sizeof(struct ibv_tmh));
		sent();
	}
	return unused;
}

/* Buffers are added and deleted while messages arrive for them: each message has its buffer, or that is deleted. */
static void races(void)
{
	static uint8_t deleted[RACES], lost[RACES], taken[RACES], unexpected[RACES];
	pthread_t thread;
	uint64_t added = 0, ended = 0, messages = 0;
	uint32_t handles[RACES];

	memset(deleted, 0, RACES), memset(lost, 0, RACES), memset(taken, 0, RACES), memset(unexpected, 0, RACES);
	set_up();
	for (int i = 0; i < 64; i++)
		receive_any(i);
	NEED(!pthread_create(&thread, NULL, send_races, NULL));
	time_t end = time(NULL) + 60;

	while ((ended < RACES || messages < RACES) && time(NULL) < end) {
		struct seen seen;

		/* Few at a time, so that there is always room for more. */
		if (added < RACES && added - ended < 8) {
			handles[added] = add(5000 + added, added, ALL, BUFFER, 16, 0);
			if (added >= 4)
				CHECK(!del(100000 + added - 4, handles[added - 4]));
			added++;
			if (added == RACES)
				for (int i = 4; i > 0; i--)
					CHECK(!del(100000 + RACES - i, handles[RACES - i]));
		}
		if (!poll_one(tag_cq, &seen))
			continue;
		if (seen.opcode == IBV_WC_TM_DEL) {
			CHECK(seen.wr_id >= 100000 && seen.wr_id < 100000 + RACES);
			(seen.status ? lost : deleted)[seen.wr_id - 100000]++;
			ended++;
		} else if (seen.flags & MATCH) {
			CHECK(seen.flags == (MATCH | DATA) && !seen.status);
			taken[seen.wr_id - 5000]++;
			messages++;
		} else {
			uint64_t tag;

			CHECK(seen.opcode == IBV_WC_TM_RECV && !seen.status && seen.wr_id < 64);
			memcpy(&tag, in + seen.wr_id * SLOT + 8, 8);
			unexpected[be64toh(tag)]++;
			messages++;
			receive_any(seen.wr_id);
			handled++;
		}
	}
	CHECK(!pthread_join(thread, NULL));
	CHECK(ended == RACES && messages == RACES);
	for (int i = 0; i < RACES; i++) {
		CHECK(deleted[i] + lost[i] == 1 && taken[i] + unexpected[i] == 1);
		CHECK(lost[i] == taken[i]);
		if (failures)
			break;
	}
	tear_down();
}

/* The sender stops as soon as it has asked, and is killed when its message was matched: the buffer fails. */
static void killed_peer(void)
{
	int to_child[2], to_parent[2];
	uint32_t numbers[3];
	struct seen seen;
	pid_t child;

	NEED(!pipe(to_child) && !pipe(to_parent));
	fflush(NULL);
	child = fork();
	NEED(child >= 0);
	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	out = calloc(2, BUFFER), in = calloc(2, BUFFER);
	out_mr = ibv_reg_mr(pd, out, 2 * BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	in_mr = ibv_reg_mr(pd, in, 2 * BUFFER, IBV_ACCESS_LOCAL_WRITE);
	NEED(pd && out_mr && in_mr);
	if (!child) {
		send_cq = fin_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
		NEED(send_cq);
		sender = make_pair(send_cq, NULL);
		numbers[0] = sender->qp_num;
		NEED(write(to_parent[1], numbers, 4) == 4 && read(to_child[0], numbers, 4) == 4);
		NEED(!connect_to(sender, numbers[0]));
		NEED(write(to_parent[1], numbers, 4) == 4 && read(to_child[0], numbers, 4) == 4);
		/* The first message waits for the link, and would wait for ever for one that is stopped. */
		send_eager(8, "hello");
		ask(9, out_mr->rkey, BUFFER);
		raise(SIGSTOP);
		_exit(0);
	}
	set_up();
	part_ends();
	receiver = make_pair(send_cq, srq);
	add(2, 8, ALL, 0, 16, 0);
	add(3, 9, ALL, BUFFER, BUFFER, 0);
	numbers[0] = receiver->qp_num;
	NEED(write(to_child[1], numbers, 4) == 4 && read(to_parent[0], numbers + 1, 4) == 4);
	NEED(!connect_to(receiver, numbers[1]));
	NEED(read(to_parent[0], numbers + 1, 4) == 4 && write(to_child[1], numbers, 4) == 4);
	EXPECT(2, IBV_WC_TM_RECV, MATCH | DATA, 5, 8);
	EXPECT(3, IBV_WC_TM_RECV, MATCH, 0, 9);
	NEED(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	seen = next(tag_cq);
	/* It may have answered before it stopped, and then what tells it so cannot be told. */
	CHECK(seen.wr_id == 3 && (seen.status == IBV_WC_RETRY_EXC_ERR || (!seen.status && seen.bytes == BUFFER)));
	sender = make_pair(send_cq, NULL);
	tear_down();
}

static void refusals(void)
{
	struct ibv_device_attr_ex attr;
	struct ibv_sge sge = {.addr = (uintptr_t)in, .length = 8, .lkey = in_mr->lkey};
	struct ibv_ops_wr wr = {.opcode = IBV_WR_TAG_SYNC}, chain[TAGS + 1], *bad;
	struct ibv_srq_init_attr plain = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_srq *other;

	NEED(!ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.tm_caps.flags == IBV_TM_CAP_RC && attr.tm_caps.max_rndv_hdr_size >= HEADERS);
	CHECK(attr.tm_caps.max_num_tags >= TAGS && attr.tm_caps.max_ops >= 16 && attr.tm_caps.max_sge >= 1);

	set_up();
	struct ibv_srq_init_attr_ex good = {.srq_type = IBV_SRQT_TM, .pd = pd, .cq = tag_cq,
					    .tm_cap = {.max_num_tags = 1, .max_ops = 1}}, wrong = good;

#define REFUSED(call) (errno = 0, !(call) && errno == EINVAL)
	CHECK(REFUSED(make_srq(good, TM_MASK & ~IBV_SRQ_INIT_ATTR_CQ)));
	CHECK(REFUSED(make_srq(good, TM_MASK & ~IBV_SRQ_INIT_ATTR_TM)));
	CHECK(REFUSED(make_srq(good, TM_MASK & ~IBV_SRQ_INIT_ATTR_PD)));
	CHECK(REFUSED(make_srq(good, TM_MASK | 1 << 20)));
	wrong.cq = NULL;
	CHECK(REFUSED(make_srq(wrong, TM_MASK)));
	wrong = good, wrong.pd = NULL;
	CHECK(REFUSED(make_srq(wrong, TM_MASK)));
	wrong = good, wrong.tm_cap.max_num_tags = 0;
	CHECK(REFUSED(make_srq(wrong, TM_MASK)));
	wrong.tm_cap.max_num_tags = attr.tm_caps.max_num_tags + 1;
	CHECK(REFUSED(make_srq(wrong, TM_MASK)));
	wrong = good, wrong.tm_cap.max_ops = attr.tm_caps.max_ops + 1;
	CHECK(REFUSED(make_srq(wrong, TM_MASK)));
	good.tm_cap.max_num_tags = attr.tm_caps.max_num_tags, good.tm_cap.max_ops = attr.tm_caps.max_ops;
	other = make_srq(good, TM_MASK);
	CHECK(other && !ibv_destroy_srq(other));

	for (int type = IBV_QPT_UC; type <= IBV_QPT_UD; type++) {
		struct ibv_qp_init_attr init = plain_init(send_cq, type);

		init.srq = srq;
		CHECK(REFUSED(ibv_create_qp(pd, &init)));
	}

	other = ibv_create_srq(pd, &plain);
	NEED(other);
	bad = NULL;
	CHECK(ibv_post_srq_ops(other, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(!ibv_destroy_srq(other));
	CHECK(!ibv_post_srq_ops(srq, NULL, &bad));
	wr.opcode = 3;
	CHECK(operate(&wr) == EINVAL);
	wr.opcode = IBV_WR_TAG_SYNC, wr.flags = 4;
	CHECK(operate(&wr) == EINVAL);
	wr.opcode = IBV_WR_TAG_ADD, wr.flags = 0, wr.tm.add.num_sge = 1;
	CHECK(operate(&wr) == EINVAL);
	wr.tm.add.sg_list = &sge, wr.tm.add.num_sge = -1;
	CHECK(operate(&wr) == EINVAL);
	wr.tm.add.num_sge = attr.tm_caps.max_sge + 1;
	CHECK(operate(&wr) == EINVAL);
	wr.tm.add.num_sge = 0, wr.tm.add.sg_list = NULL;
	CHECK(!operate(&wr));
	CHECK(!ibv_post_srq_ops(srq, &wr, NULL));

	/* As many as there may be, and then no more, until one goes. */
	memset(chain, 0, sizeof chain);
	for (int i = 0; i <= TAGS; i++) {
		chain[i].opcode = IBV_WR_TAG_ADD;
		chain[i].tm.add.tag = 1;
		chain[i].next = i < TAGS ? &chain[i + 1] : NULL;
	}
	CHECK(ibv_post_srq_ops(srq, chain, &bad) == ENOMEM && bad == &chain[TAGS - 2]);
	CHECK(!del(1, chain[0].tm.handle));
	EXPECT(1, IBV_WC_TM_DEL, 0, 0, 0);
	chain[TAGS].next = NULL;
	CHECK(!ibv_post_srq_ops(srq, &chain[TAGS], &bad));
	CHECK(ibv_post_srq_ops(srq, &chain[TAGS], &bad) == ENOMEM);
	tear_down();
}

int main(void)
{
	lossy = getenv("UBIVERBS_FAULTS") != NULL;
	/* Before this process has a NIC, which a fork would leave it without. */
	fflush(NULL);
	pid_t apart = fork();

	if (!apart) {
		extended = 1;
		killed_peer();
		return failures != 0;
	}
	int ended;

	CHECK(waitpid(apart, &ended, 0) == apart && ended == 0);
	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	out = calloc(2, BUFFER), in = calloc(2, BUFFER);
	NEED(pd && out && in);
	out_mr = ibv_reg_mr(pd, out, 2 * BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	in_mr = ibv_reg_mr(pd, in, 2 * BUFFER, IBV_ACCESS_LOCAL_WRITE);
	NEED(out_mr && in_mr);
	for (extended = 0; extended < 2; extended++) {
		refusals();
		matching();
		long_messages();
		deleting();
		rendezvous();
		deregistered(IBV_TMH_EAGER);
		deregistered(IBV_TMH_RNDV);
		both_match();
		races();
	}
	CHECK(!ibv_dereg_mr(out_mr) && !ibv_dereg_mr(in_mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return failures != 0;
}
