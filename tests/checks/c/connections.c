/* Queue pairs and how they are connected: UV-05xx. */
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* Sends 64 bytes from the first queue pair to the second, which has a receive for them. */
static void exchange(struct bench *b)
{
	struct ibv_sge out = piece(b, 0, 64), in = piece(b, 1024, 64);

	post_recv(b->qp[1], 2, &in);
	post_send(b->qp[0], 1, &out);
	poll_success(b->cq, 2);
}

/* Two queue pairs with these values, connected and taken down. */
static void connected_with(struct path one, struct path other)
{
	struct bench b = open_bench();

	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], one, b.qp[1], other);
	close_bench(&b);
}

/* The usual values do for most rules. */
static void usual(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	exchange(&b);
	close_bench(&b);
}

#define BREAK_WITH(name, field, value)                 \
	static void name(void)                         \
	{                                              \
		struct path path = usual_path();       \
                                                       \
		path.field = value;                    \
		connected_with(path, usual_path());    \
	}

BREAK_WITH(other_mtu, mtu, IBV_MTU_4096)
BREAK_WITH(other_psn, sq_psn, 78)
BREAK_WITH(no_retries, retry_cnt, 0)
BREAK_WITH(no_rnr_retries, rnr_retry, 0)
BREAK_WITH(no_timeout, timeout, 0)
BREAK_WITH(long_timeout, timeout, 28)
BREAK_WITH(short_timeout, timeout, 2)
BREAK_WITH(long_rnr_timer, min_rnr_timer, 0)

/* Waits until the program was told of a rule, where it is known where findings go: some are found by time alone. */
static void wait_for_finding(const char *rule)
{
	const char *path = getenv("UBIVERBS_FINDINGS");
	double end = seconds_now() + DEADLINE_SECONDS;
	static char text[1 << 16];

	while (path && seconds_now() < end) {
		FILE *file = fopen(path, "r");
		size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;

		if (file)
			fclose(file);
		text[length] = 0;
		if (strstr(text, rule))
			return;
		sleep_millis(20);
	}
}

/* Two processes, connected to each other; the first has that many READs under way, the second answers four. */
static void reads_between_processes(uint8_t reads)
{
	int to_child[2], to_parent[2];
	struct path path = usual_path();
	struct bench b;
	uint32_t peer;
	char done = 0;
	pid_t child;

	NEED(!pipe(to_child) && !pipe(to_parent));
	child = fork();
	NEED(child >= 0);
	if (child)
		path.max_rd_atomic = reads;
	b = open_bench();
	make_pair(&b, IBV_QPT_RC);
	NEED(write(child ? to_child[1] : to_parent[1], &b.qp[0]->qp_num, sizeof peer) == sizeof peer);
	NEED(read(child ? to_parent[0] : to_child[0], &peer, sizeof peer) == sizeof peer);
	connect_to(b.qp[0], peer, path);
	if (child) {
		if (reads > path.max_dest_rd_atomic)
			wait_for_finding("UV-0518");
		else
			sleep_millis(700);
		NEED(write(to_child[1], &done, 1) == 1);
		NEED(waitpid(child, NULL, 0) == child);
	} else {
		NEED(read(to_child[0], &done, 1) == 1);
	}
	close_bench(&b);
	if (!child)
		exit(0);
}

static void many_reads(void)
{
	reads_between_processes(16);
}

static void few_reads(void)
{
	reads_between_processes(4);
}

/* Sends a datagram to that queue pair with that key. */
static void send_datagram(struct bench *b, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct ibv_sge out = piece(b, 0, 64);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	NEED(!post(b->qp[0], &wr));
	poll_success(b->cq, 1);
}

static void datagram(bool to_datagrams, uint32_t qkey)
{
	struct bench b = open_pair(IBV_QPT_UD);
	struct ibv_sge in = piece(&b, 1024, 256);
	struct ibv_ah *ah = address_handle(b.pd);
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_RC);
	struct ibv_qp *other = ibv_create_qp(b.pd, &init);

	NEED(other);
	post_recv(b.qp[1], 2, &in);
	send_datagram(&b, ah, to_datagrams ? b.qp[1]->qp_num : other->qp_num, qkey);
	if (to_datagrams && qkey == usual_path().qkey)
		poll_success(b.cq, 1);
	NEED(!ibv_destroy_qp(other));
	NEED(!ibv_destroy_ah(ah));
	close_bench(&b);
}

static void other_qkey(void)
{
	datagram(true, 0x22222222);
}

static void same_qkey(void)
{
	datagram(true, usual_path().qkey);
}

static void datagram_to_rc(void)
{
	datagram(false, usual_path().qkey);
}

/* The checksum of a packet over IPv6 that no router changes, from the loopback to the loopback. */
static uint32_t invariant_crc(const uint8_t *packet, size_t length, uint16_t from, uint16_t to)
{
	uint8_t head[8 + 40 + 8];
	uint32_t crc = 0xffffffff;
	uint16_t udp_length = htons((uint16_t)(length + 12));

	memset(head, 0xff, sizeof head);
	head[8] = 0x6f;
	memcpy(head + 12, &udp_length, 2);
	head[14] = IPPROTO_UDP;
	memset(head + 16, 0, 32);
	head[31] = head[47] = 1;
	from = htons(from), to = htons(to);
	memcpy(head + 48, &from, 2);
	memcpy(head + 50, &to, 2);
	memcpy(head + 52, &udp_length, 2);
	for (size_t i = 0; i < sizeof head + length; i++) {
		uint8_t byte = i < sizeof head ? head[i] : packet[i - sizeof head];

		/* The fifth byte of the base header may be changed on the way. */
		crc ^= i == sizeof head + 4 ? 0xff : byte;
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
	}
	return ~crc;
}

/* A datagram as another host could send it, with that P_Key, through a plain socket from that port. */
static void send_packet(int fd, uint16_t from, uint32_t qpn, uint16_t pkey)
{
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback, .sin6_port = htons(4791)};
	uint8_t packet[12 + 8 + 64 + 4] = {0x64, 0x40, pkey >> 8, (uint8_t)pkey, 0, qpn >> 16, qpn >> 8, (uint8_t)qpn};
	uint32_t qkey = htonl(usual_path().qkey), crc;

	memcpy(packet + 12, &qkey, 4);
	packet[19] = 17;
	crc = invariant_crc(packet, sizeof packet - 4, from, 4791);
	memcpy(packet + sizeof packet - 4, &crc, 4);
	NEED(sendto(fd, packet, sizeof packet, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)sizeof packet);
}

static void packet_with(uint16_t pkey)
{
	struct bench b = open_pair(IBV_QPT_UD);
	struct ibv_sge in[2] = {piece(&b, 0, 256), piece(&b, 1024, 256)};
	struct sockaddr_in6 from = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
	socklen_t size = sizeof from;
	int fd = socket(AF_INET6, SOCK_DGRAM, 0);

	NEED(fd >= 0);
	NEED(!bind(fd, (struct sockaddr *)&from, sizeof from));
	NEED(!getsockname(fd, (struct sockaddr *)&from, &size));
	post_recv(b.qp[1], 1, &in[0]);
	post_recv(b.qp[1], 2, &in[1]);
	/* Packets of one socket come in order: when the second is there, the first was dealt with. */
	send_packet(fd, ntohs(from.sin6_port), b.qp[1]->qp_num, pkey);
	send_packet(fd, ntohs(from.sin6_port), b.qp[1]->qp_num, 0xffff);
	poll_success(b.cq, pkey == 0xffff ? 2 : 1);
	close(fd);
	close_bench(&b);
}

static void other_pkey(void)
{
	packet_with(0x8001);
}

static void same_pkey(void)
{
	packet_with(0xffff);
}

/* The peer is destroyed before the connection is made. */
static void no_such_peer(void)
{
	struct bench b = open_bench();
	uint32_t gone;

	make_pair(&b, IBV_QPT_RC);
	gone = b.qp[1]->qp_num;
	NEED(!ibv_destroy_qp(b.qp[1]));
	b.qp[1] = NULL;
	connect_to(b.qp[0], gone, usual_path());
	close_bench(&b);
}

/* The peer's number is converted once too often; its last byte makes that more than 24 bits. */
static void number_cut(void)
{
	struct bench b = open_bench();

	make_pair(&b, IBV_QPT_RC);
	connect_to(b.qp[0], htonl(b.qp[1]->qp_num | 1), usual_path());
	close_bench(&b);
}

/* A third queue pair is connected to one that has a peer. */
static void peer_of_another(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_RC);
	struct ibv_qp *third = ibv_create_qp(b.pd, &init);

	NEED(third);
	connect_to(third, b.qp[1]->qp_num, usual_path());
	NEED(!ibv_destroy_qp(third));
	close_bench(&b);
}

static void kinds_differ(void)
{
	struct bench b = open_bench();
	struct ibv_qp_init_attr rc = usual_qp(b.cq, IBV_QPT_RC), uc = usual_qp(b.cq, IBV_QPT_UC);

	NEED(b.qp[0] = ibv_create_qp(b.pd, &rc));
	NEED(b.qp[1] = ibv_create_qp(b.pd, &uc));
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	close_bench(&b);
}

/* To RTR with that address vector. */
static void to_rtr_by(struct ibv_qp *qp, uint32_t peer, int index, const union ibv_gid *to, uint8_t hop_limit)
{
	struct path path = usual_path();
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = path.mtu, .dest_qp_num = peer, .rq_psn = path.rq_psn,
		.ah_attr = {.grh = {.dgid = *to, .sgid_index = (uint8_t)index, .hop_limit = hop_limit}, .is_global = 1,
			    .port_num = 1},
		.max_dest_rd_atomic = path.max_dest_rd_atomic, .min_rnr_timer = path.min_rnr_timer,
	};

	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

/* The second end looks for the first where that is not; or the first has few hops. */
static void addressed(const char *expected, uint8_t hop_limit)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	union ibv_gid own, other;
	int index = gid_index(b.context, &own);

	make_pair(&b, IBV_QPT_RC);
	other = own;
	NEED(inet_pton(AF_INET, expected, other.raw + 12) == 1);
	to_init(b.qp[0], &path);
	to_init(b.qp[1], &path);
	to_rtr(b.qp[0], b.qp[1]->qp_num, &path);
	to_rtr_by(b.qp[1], b.qp[0]->qp_num, index, &other, hop_limit);
	close_bench(&b);
}

static void other_address(void)
{
	addressed("127.0.0.2", 64);
}

static void no_hops(void)
{
	addressed("127.0.0.2", 1);
}

static void enough_hops(void)
{
	addressed("127.0.0.2", 64);
}

/* An address handle from an IPv4 address to that address. */
static void handle_to(int family, const char *to)
{
	struct bench b = open_bench();
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
	struct ibv_ah *ah;

	attr.grh.sgid_index = (uint8_t)gid_index(b.context, &attr.grh.dgid);
	NEED(inet_pton(family, to, family == AF_INET ? attr.grh.dgid.raw + 12 : attr.grh.dgid.raw) == 1);
	ah = ibv_create_ah(b.pd, &attr);
	NEED(ah);
	NEED(!ibv_destroy_ah(ah));
	close_bench(&b);
}

static void other_family(void)
{
	handle_to(AF_INET6, "fd00::1");
}

static void same_family(void)
{
	handle_to(AF_INET, "127.0.0.1");
}

/* A network of its own, whose loopback has that address, too. */
static void own_network(const char *address)
{
	struct ifreq request = {.ifr_name = "lo"};
	struct sockaddr_in *place = (struct sockaddr_in *)&request.ifr_addr;
	int fd;

	if (unshare(CLONE_NEWNET))
		NEED(!unshare(CLONE_NEWUSER | CLONE_NEWNET));
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	NEED(fd >= 0);
	request.ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;
	NEED(!ioctl(fd, SIOCSIFFLAGS, &request));
	memset(&request, 0, sizeof request);
	strcpy(request.ifr_name, "lo:7");
	place->sin_family = AF_INET;
	NEED(inet_pton(AF_INET, address, &place->sin_addr) == 1);
	NEED(!ioctl(fd, SIOCSIFADDR, &request));
	close(fd);
}

/* A queue pair that sends from that address of the loopback. */
static void from_address(const char *address)
{
	struct bench b;
	struct path path = usual_path();
	union ibv_gid gid, own, to;
	int index = -1;

	own_network(address);
	b = open_bench();
	make_pair(&b, IBV_QPT_RC);
	gid_index(b.context, &to);
	NEED(inet_pton(AF_INET, "127.0.0.1", to.raw + 12) == 1);
	own = to;
	NEED(inet_pton(AF_INET, address, own.raw + 12) == 1);
	for (int i = 0; i < 64; i++)
		if (!ibv_query_gid(b.context, 1, i, &gid) && !memcmp(&gid, &own, sizeof gid))
			index = i;
	NEED(index >= 0);
	to_init(b.qp[0], &path);
	to_rtr_by(b.qp[0], b.qp[1]->qp_num, index, &to, 64);
	close_bench(&b);
}

static void link_local_source(void)
{
	from_address("169.254.7.7");
}

static void other_source(void)
{
	from_address("10.7.7.7");
}

/* A WRITE to a peer that was given these rights. */
static void write_with(unsigned int access, enum ibv_wc_status status)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 64);

	path.access = access;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], usual_path(), b.qp[1], path);
	post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &out, b.buffer + 2048, b.mr->rkey);
	poll_status(b.cq, status);
	close_bench(&b);
}

static void write_not_granted(void)
{
	write_with(IBV_ACCESS_REMOTE_READ, IBV_WC_REM_INV_REQ_ERR);
}

static void write_granted(void)
{
	write_with(IBV_ACCESS_REMOTE_WRITE, IBV_WC_SUCCESS);
}

/* A SEND that tries for ever, to a peer that posts a receive after that time, or once the rule was told. */
static void send_to_late(long millis, const char *rule)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	path.rnr_retry = 7;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], path, b.qp[1], path);
	post_send(b.qp[0], 1, &out);
	sleep_millis(millis);
	if (rule)
		wait_for_finding(rule);
	post_recv(b.qp[1], 2, &in);
	poll_success(b.cq, 2);
	close_bench(&b);
}

static void waits_for_receive(void)
{
	send_to_late(1000, "UV-0520");
}

static void first_receive_late(void)
{
	send_to_late(50, NULL);
}

/* The peer is in INIT when the work is posted. */
static void peer_not_ready(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	path.retry_cnt = 7;
	make_pair(&b, IBV_QPT_RC);
	to_init(b.qp[1], &path);
	post_recv(b.qp[1], 2, &in);
	connect_to(b.qp[0], b.qp[1]->qp_num, path);
	post_send(b.qp[0], 1, &out);
	to_rtr(b.qp[1], b.qp[0]->qp_num, &path);
	to_rts(b.qp[1], &path);
	poll_success(b.cq, 2);
	close_bench(&b);
}

/* A send before RTS is refused, and nobody looks. */
static void never_ready(void)
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

/* A datagram with a wrong key stops the send queue. */
static void stopped(bool starts_again)
{
	struct bench b = open_pair(IBV_QPT_UD);
	struct ibv_ah *ah = address_handle(b.pd);
	struct ibv_sge bad = piece(&b, 0, 64), good = piece(&b, 0, 64);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &bad);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE};

	bad.lkey ^= 0x5a5a00;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b.qp[1]->qp_num;
	wr.wr.ud.remote_qkey = usual_path().qkey;
	NEED(!post(b.qp[0], &wr));
	poll_status(b.cq, IBV_WC_LOC_PROT_ERR);
	if (starts_again)
		NEED(!ibv_modify_qp(b.qp[0], &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
	wr.sg_list = &good;
	NEED(!post(b.qp[0], &wr));
	poll_status(b.cq, starts_again ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR);
	NEED(!ibv_destroy_ah(ah));
	close_bench(&b);
}

static void sqe_not_handled(void)
{
	stopped(false);
}

static void sqe_handled(void)
{
	stopped(true);
}

/* A SEND under a key that never was puts the queue pair into error. */
static void failed(bool posts_on)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge bad = piece(&b, 0, 64), good = piece(&b, 1024, 64);

	bad.lkey ^= 0x5a5a00;
	post_send(b.qp[0], 1, &bad);
	poll_status(b.cq, IBV_WC_LOC_PROT_ERR);
	if (posts_on)
		post_recv(b.qp[0], 2, &good);
	close_bench(&b);
}

static void posted_in_error(void)
{
	failed(true);
}

static void not_posted_in_error(void)
{
	failed(false);
}

/* A WRITE that is refused puts both ends into error; only the one that sent it is told. */
static void refused_write(bool looks)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
	struct ibv_qp_init_attr init;

	post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &out, b.buffer + 2048, b.mr->rkey ^ 0x5a5a00);
	poll_status(b.cq, IBV_WC_REM_ACCESS_ERR);
	if (looks) {
		NEED(!ibv_query_qp(b.qp[1], &attr, IBV_QP_STATE, &init));
		NEED(attr.qp_state == IBV_QPS_ERR);
	}
	close_bench(&b);
}

static void error_not_seen(void)
{
	refused_write(false);
}

static void error_seen(void)
{
	refused_write(true);
}

/* A shared receive queue with so many receives takes two messages. */
static void shared(int receives)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_srq_init_attr wanted = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(b.pd, &wanted);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);
	struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &in, .num_sge = 1}, *bad;
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_RC);

	NEED(srq);
	init.srq = srq;
	init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
	path.rnr_retry = 7;
	make_pair_as(&b, init);
	connect_both(b.qp[0], path, b.qp[1], path);
	for (int i = 0; i < receives; i++)
		NEED(!ibv_post_srq_recv(srq, &wr, &bad));
	post_send(b.qp[0], 1, &out);
	post_send(b.qp[0], 2, &out);
	if (receives < 2) {
		sleep_millis(100);
		NEED(!ibv_post_srq_recv(srq, &wr, &bad));
	}
	poll_success(b.cq, 4);
	for (int i = 0; i < 2; i++) {
		NEED(!ibv_destroy_qp(b.qp[i]));
		b.qp[i] = NULL;
	}
	NEED(!ibv_destroy_srq(srq));
	close_bench(&b);
}

static void srq_ran_empty(void)
{
	shared(1);
}

static void srq_has_enough(void)
{
	shared(2);
}

/* A shared receive queue falls below its limit twice. */
static void limited(bool sets_again)
{
	struct bench b = open_bench();
	struct ibv_srq_init_attr wanted = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(b.pd, &wanted);
	struct ibv_srq_attr limit = {.srq_limit = 2};
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);
	struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &in, .num_sge = 1}, *bad;
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_RC);
	struct ibv_async_event event;

	NEED(srq);
	init.srq = srq;
	init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
	make_pair_as(&b, init);
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	NEED(!ibv_post_srq_recv(srq, &wr, &bad));
	NEED(!ibv_post_srq_recv(srq, &wr, &bad));
	NEED(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	for (int round = 0; round < 2; round++) {
		post_send(b.qp[0], 1, &out);
		poll_success(b.cq, 2);
		if (round == 0 || sets_again) {
			NEED(!ibv_get_async_event(b.context, &event));
			NEED(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
			ibv_ack_async_event(&event);
			NEED(!ibv_post_srq_recv(srq, &wr, &bad));
		}
		if (sets_again)
			NEED(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	}
	for (int i = 0; i < 2; i++) {
		NEED(!ibv_destroy_qp(b.qp[i]));
		b.qp[i] = NULL;
	}
	NEED(!ibv_destroy_srq(srq));
	close_bench(&b);
}

static void limit_not_set_again(void)
{
	limited(false);
}

static void limit_set_again(void)
{
	limited(true);
}

CASES({"UV-0501", other_mtu, usual}, {"UV-0502", other_psn, usual}, {"UV-0503", other_qkey, same_qkey},
      {"UV-0504", other_pkey, same_pkey}, {"UV-0505", no_such_peer, usual}, {"UV-0506", peer_of_another, usual},
      {"UV-0507", kinds_differ, usual}, {"UV-0508", other_address, usual}, {"UV-0509", other_family, same_family},
      {"UV-0510", link_local_source, other_source}, {"UV-0511", no_hops, enough_hops}, {"UV-0512", no_retries, usual},
      {"UV-0513", no_rnr_retries, usual}, {"UV-0514", no_timeout, usual}, {"UV-0515", long_timeout, usual},
      {"UV-0516", short_timeout, usual}, {"UV-0517", long_rnr_timer, usual}, {"UV-0518", many_reads, few_reads},
      {"UV-0519", write_not_granted, write_granted}, {"UV-0520", waits_for_receive, first_receive_late},
      {"UV-0521", peer_not_ready, usual}, {"UV-0522", never_ready, usual}, {"UV-0523", sqe_not_handled, sqe_handled},
      {"UV-0524", posted_in_error, not_posted_in_error}, {"UV-0525", error_not_seen, error_seen},
      {"UV-0526", datagram_to_rc, same_qkey}, {"UV-0527", first_receive_late, usual},
      {"UV-0528", srq_ran_empty, srq_has_enough}, {"UV-0529", limit_not_set_again, limit_set_again},
      {"UV-0530", number_cut, usual})
