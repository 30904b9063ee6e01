/* Every kind of RC work between two peers, and every byte of it looked at: perftest looks at none, and the pingpongs at one in a page.
 * The client asks, the server checks what became of its memory; they take turns over TCP. "every step" at the end means that all was well.
 *
 *   data_check -d DEVICE -g GID_INDEX -p PORT [SERVER]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	REGION = 1 << 20,
	LENGTH = 300007,     /* many packets, and a last one that needs padding */
	HERE = 3,            /* where data lies at the client */
	THERE = 4099,        /* and at the server: neither aligned */
	COUNTER = REGION - 64,
	ADDITIONS = 200,
};

struct address {
	union ibv_gid gid;
	uint64_t base;
	uint32_t qpn, psn, rkey, mtu;
};

static int peer, is_client;
static unsigned char *memory;
static struct ibv_mr *region;
static struct ibv_cq *completions;
static struct ibv_qp *pair;
static struct address theirs;
static const char *step = "the start";

#define REQUIRE(what) \
	do { \
		if (!(what)) { \
			printf("failed in %s: %s (line %d, errno %d)\n", step, #what, __LINE__, errno); \
			exit(1); \
		} \
	} while (0)

/* Bytes that differ with their place and with the step they belong to. */
static unsigned char pattern(uint32_t seed, uint32_t place)
{
	uint32_t mixed = (place + 1) * 2654435761u ^ seed * 40503u;

	return (unsigned char)(mixed >> 13);
}

static void fill(uint32_t at, uint32_t length, uint32_t seed)
{
	for (uint32_t i = 0; i < length; i++)
		memory[at + i] = pattern(seed, i);
}

/* Nothing may be written outside of what was asked for, so the bytes around it are looked at too. */
static void expect(uint32_t at, uint32_t length, uint32_t seed)
{
	for (uint32_t i = 0; i < length; i++) {
		if (memory[at + i] != pattern(seed, i)) {
			printf("failed in %s: invalid data, byte %u of %u is %02x\n", step, i, length, memory[at + i]);
			exit(1);
		}
	}
	REQUIRE(memory[at - 1] == 0xee && memory[at + length] == 0xee);
}

static void clear(void)
{
	memset(memory, 0xee, REGION);
}

static void exchange(const void *mine, void *other, size_t size)
{
	REQUIRE(write(peer, mine, size) == (ssize_t)size);
	for (size_t got = 0; got < size;) {
		ssize_t n = read(peer, (char *)other + got, size - got);

		REQUIRE(n > 0);
		got += (size_t)n;
	}
}

/* Returns when both sides are here. */
static void meet(const char *next)
{
	char byte = 0;

	exchange(&byte, &byte, 1);
	step = next;
}

static struct ibv_wc completion(enum ibv_wc_status status)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(completions, 1, &wc)) == 0)
		;
	REQUIRE(n == 1);
	if (wc.status != status) {
		printf("failed in %s: completed with %s\n", step, ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

static struct ibv_sge piece(uint32_t at, uint32_t length)
{
	struct ibv_sge sge = {.addr = (uintptr_t)memory + at, .length = length, .lkey = region->lkey};

	return sge;
}

static void post(struct ibv_send_wr wr, struct ibv_sge *list, int count)
{
	struct ibv_send_wr *bad;

	wr.sg_list = list;
	wr.num_sge = count;
	wr.send_flags |= IBV_SEND_SIGNALED;
	REQUIRE(ibv_post_send(pair, &wr, &bad) == 0);
}

static struct ibv_send_wr remote(enum ibv_wr_opcode opcode, uint32_t at)
{
	struct ibv_send_wr wr = {.opcode = opcode, .wr.rdma = {.remote_addr = theirs.base + at, .rkey = theirs.rkey}};

	return wr;
}

static void receive(struct ibv_sge *list, int count)
{
	struct ibv_recv_wr wr = {.sg_list = list, .num_sge = count}, *bad;

	REQUIRE(ibv_post_recv(pair, &wr, &bad) == 0);
}

static void write_step(void)
{
	struct ibv_sge all = piece(HERE, LENGTH);

	clear();
	meet("WRITE");
	if (is_client) {
		fill(HERE, LENGTH, 1);
		post(remote(IBV_WR_RDMA_WRITE, THERE), &all, 1);
		completion(IBV_WC_SUCCESS);
	}
	meet("looking at what WRITE wrote");
	if (!is_client)
		expect(THERE, LENGTH, 1);
}

static void read_step(void)
{
	struct ibv_sge all = piece(HERE, LENGTH);

	meet("preparing READ");
	clear();
	if (!is_client)
		fill(THERE, LENGTH, 2);
	meet("READ");
	if (is_client) {
		post(remote(IBV_WR_RDMA_READ, THERE), &all, 1);
		completion(IBV_WC_SUCCESS);
		expect(HERE, LENGTH, 2);
	}
	meet("after READ");
}

/* From three pieces into two. With `late`, the receive is posted when the message has been refused already (RNR). */
static void send_step(int late)
{
	struct ibv_sge from[3] = {piece(HERE, 1001), piece(HERE + 1001, 0x10000), piece(HERE + 1001 + 0x10000, 77)};
	struct ibv_sge into[2] = {piece(THERE, 30001), piece(THERE + 30001, LENGTH - 30001)};
	uint32_t length = 1001 + 0x10000 + 77, seed = late ? 4 : 3;
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(0x01020304)};
	struct ibv_wc wc;

	clear();
	if (!is_client && !late)
		receive(into, 2);
	meet(late ? "SEND to who is not ready" : "SEND with immediate");
	if (is_client) {
		fill(HERE, length, seed);
		post(wr, from, 3);
		completion(IBV_WC_SUCCESS);
	} else {
		if (late) {
			usleep(100000);
			receive(into, 2);
		}
		wc = completion(IBV_WC_SUCCESS);
		REQUIRE(wc.opcode == IBV_WC_RECV && wc.byte_len == length);
		REQUIRE((wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == htonl(0x01020304));
		REQUIRE(wc.qp_num == pair->qp_num);
		expect(THERE, length, seed);
	}
	meet("after SEND");
}

static void write_with_immediate_step(void)
{
	struct ibv_sge all = piece(HERE, 5000);
	struct ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE_WITH_IMM, THERE);
	struct ibv_wc wc;

	clear();
	if (!is_client)
		receive(NULL, 0);
	meet("WRITE with immediate");
	if (is_client) {
		fill(HERE, 5000, 5);
		wr.imm_data = htonl(0xa0b0c0d0);
		post(wr, &all, 1);
		completion(IBV_WC_SUCCESS);
	} else {
		wc = completion(IBV_WC_SUCCESS);
		REQUIRE(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 5000 && wc.imm_data == htonl(0xa0b0c0d0));
		expect(THERE, 5000, 5);
	}
	meet("after WRITE with immediate");
}

static uint64_t atomic(enum ibv_wr_opcode opcode, uint64_t compare_or_add, uint64_t swap)
{
	struct ibv_sge result = piece(64, 8);
	struct ibv_send_wr wr = {.opcode = opcode};
	uint64_t before;

	wr.wr.atomic.remote_addr = theirs.base + COUNTER;
	wr.wr.atomic.rkey = theirs.rkey;
	wr.wr.atomic.compare_add = compare_or_add;
	wr.wr.atomic.swap = swap;
	post(wr, &result, 1);
	completion(IBV_WC_SUCCESS);
	memcpy(&before, memory + 64, 8);
	return before;
}

static void atomic_step(void)
{
	uint64_t value = 0x1122334455667788, final = 0xfedcba9876543210;

	clear();
	memcpy(memory + COUNTER, &value, 8);
	meet("atomics");
	if (is_client) {
		for (uint64_t i = 1; i <= ADDITIONS; i++) {
			REQUIRE(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i << 30, 0) == value);
			value += i << 30;
		}
		REQUIRE(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, value + 1, 0) == value);
		REQUIRE(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, value, final) == value);
	}
	meet("looking at what atomics left");
	if (!is_client)
		REQUIRE(memcmp(memory + COUNTER, &final, 8) == 0);
}

/* The last step: it ends the queue pairs. */
static void refusal_step(void)
{
	struct ibv_sge all = piece(HERE, 3000);
	struct ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, THERE);

	clear();
	meet("WRITE with a key that is none");
	if (is_client) {
		fill(HERE, 3000, 6);
		wr.wr.rdma.rkey ^= 0xff;
		post(wr, &all, 1);
		completion(IBV_WC_REM_ACCESS_ERR);
	}
	meet("looking at what must not be written");
	for (int i = 0; !is_client && i < REGION; i++)
		REQUIRE(memory[i] == 0xee);
}

static void join(const char *server, int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	is_client = server != NULL;
	REQUIRE(listener >= 0);
	if (is_client) {
		REQUIRE(inet_pton(AF_INET, server, &address.sin_addr) == 1);
		REQUIRE(connect(listener, (struct sockaddr *)&address, sizeof(address)) == 0);
		peer = listener;
		return;
	}
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 1) == 0);
	REQUIRE((peer = accept(listener, NULL, NULL)) >= 0);
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	REQUIRE(list);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	return NULL;
}

static void set_up(const char *device, int gid_index)
{
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_context *context = open_device(device);
	struct ibv_port_attr port;
	struct ibv_pd *pd;
	struct address ours = {.psn = (uint32_t)getpid() & 0xffffff};

	REQUIRE(context && (pd = ibv_alloc_pd(context)));
	REQUIRE((memory = aligned_alloc(4096, REGION)));
	REQUIRE((region = ibv_reg_mr(pd, memory, REGION, rights)));
	REQUIRE((completions = ibv_create_cq(context, 64, NULL, NULL, 0)));
	struct ibv_qp_init_attr create = {
		.send_cq = completions, .recv_cq = completions, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 3, .max_recv_sge = 2},
	};
	REQUIRE((pair = ibv_create_qp(pd, &create)));
	REQUIRE(ibv_query_gid(context, 1, gid_index, &ours.gid) == 0);
	REQUIRE(ibv_query_port(context, 1, &port) == 0);
	ours.mtu = port.active_mtu;
	ours.qpn = pair->qp_num;
	ours.rkey = region->rkey;
	ours.base = (uintptr_t)memory;

	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)rights};
	REQUIRE(!ibv_modify_qp(pair, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	exchange(&ours, &theirs, sizeof(ours));
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = ours.mtu < theirs.mtu ? ours.mtu : theirs.mtu, .dest_qp_num = theirs.qpn, .rq_psn = theirs.psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1,
			    .grh = {.dgid = theirs.gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}},
	};
	REQUIRE(!ibv_modify_qp(pair, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = ours.psn, .timeout = 14, .retry_cnt = 7,
				  .rnr_retry = 7, .max_rd_atomic = 4};
	REQUIRE(!ibv_modify_qp(pair, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(int count, char **words)
{
	const char *device = "";
	int option, gid_index = 0, port = 0;

	while ((option = getopt(count, words, "d:g:p:")) != -1) {
		switch (option) {
		case 'd': device = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'p': port = atoi(optarg); break;
		default: return 2;
		}
	}
	join(words[optind], port);
	set_up(device, gid_index);
	write_step();
	read_step();
	send_step(0);
	send_step(1);
	write_with_immediate_step();
	atomic_step();
	refusal_step();
	meet("the end");
	puts("every step as it should be");
	return 0;
}
