/* What happens without a call, and what does not happen: UV-09xx. The rule is the explanation. */
#include "common.h"

#include <signal.h>

/* Longer than a queue pair may stand still before the checker reports it. */
#define A_WHILE_MILLIS 3500

/* Longer than an answer of a connection manager takes. */
#define ANSWER_MILLIS 12500

/* A message and a WRITE that work. */
static void all_is_well(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	poll_success(b.cq, 2);
	post_rdma(b.qp[0], 3, IBV_WR_RDMA_WRITE, &out, b.buffer + 3072, b.mr->rkey);
	poll_success(b.cq, 1);
	close_bench(&b);
}

static void peer_refused(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64);

	post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &out, b.buffer, b.mr->rkey ^ 0x5a5a00);
	poll_status(b.cq, IBV_WC_REM_ACCESS_ERR);
	close_bench(&b);
}

/* The first message comes while the receiver is in RTR. */
static void routine_event(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	make_pair(&b, IBV_QPT_RC);
	to_init(b.qp[1], &path);
	to_rtr(b.qp[1], b.qp[0]->qp_num, &path);
	post_recv(b.qp[1], 2, &in);
	connect_to(b.qp[0], b.qp[1]->qp_num, path);
	post_send(b.qp[0], 1, &out);
	poll_success(b.cq, 2);
	close_bench(&b);
}

/* More completions than the queue holds. */
static void async_error(void)
{
	struct bench b = open_bench();
	struct ibv_cq *small = ibv_create_cq(b.context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = usual_qp(small, IBV_QPT_RC);
	struct ibv_async_event event;
	struct ibv_sge out = piece(&b, 0, 8);

	NEED(small);
	init.cap.max_send_wr = 1024;
	make_pair_as(&b, init);
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	for (int i = 0; i < 1024; i++)
		post_rdma(b.qp[0], i, IBV_WR_RDMA_WRITE, &out, b.buffer + 1024, b.mr->rkey);
	do {
		NEED(!ibv_get_async_event(b.context, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_CQ_ERR);
	for (int i = 0; i < 2; i++)
		NEED(!ibv_destroy_qp(b.qp[i]));
	b.qp[0] = b.qp[1] = NULL;
	NEED(!ibv_destroy_cq(small));
	close_bench(&b);
}

/* The peer stays in INIT, and this side waits for ever. */
static void not_acknowledged(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 64);

	path.timeout = 0;
	make_pair(&b, IBV_QPT_RC);
	to_init(b.qp[1], &path);
	connect_to(b.qp[0], b.qp[1]->qp_num, path);
	post_send(b.qp[0], 1, &out);
	sleep_millis(A_WHILE_MILLIS);
	close_bench(&b);
}

/* Sends, and waits for ever for the peer to post a receive: UV-0911 here, UV-0914 there. */
static void peer_not_ready(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 64);

	path.rnr_retry = 7;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], path, b.qp[1], path);
	post_send(b.qp[0], 1, &out);
	sleep_millis(A_WHILE_MILLIS);
	close_bench(&b);
}

static void never_sent(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD};
	struct ibv_sge out = piece(&b, 0, 64);

	NEED(!ibv_modify_qp(b.qp[0], &attr, IBV_QP_STATE));
	post_send(b.qp[0], 1, &out);
	sleep_millis(A_WHILE_MILLIS);
	close_bench(&b);
}

/* Posts SENDs, for which the peer has no receives, until the queue is full. Every so many-th is signaled. */
static void fill_queue(int signaled_every)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 8);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);
	int posted = 0;

	path.rnr_retry = 7;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], path, b.qp[1], path);
	do {
		posted++;
		wr.send_flags = signaled_every && posted % signaled_every == 0 ? IBV_SEND_SIGNALED : 0;
	} while (posted < 10000 && !post(b.qp[0], &wr));
	NEED(posted < 10000);
	close_bench(&b);
}

static void nothing_signaled(void)
{
	fill_queue(0);
}

static void some_signaled(void)
{
	fill_queue(4);
}

/* A datagram with that key, into a receive of so many bytes; none is posted for 0. */
static void datagram(uint32_t qkey, uint32_t room, bool arrives)
{
	struct bench b = open_pair(IBV_QPT_UD);
	struct ibv_ah *ah = address_handle(b.pd);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, room);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

	if (room)
		post_recv(b.qp[1], 2, &in);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b.qp[1]->qp_num;
	wr.wr.ud.remote_qkey = qkey;
	NEED(!post(b.qp[0], &wr));
	poll_success(b.cq, arrives ? 2 : 1);
	if (!arrives)
		sleep_millis(300);
	NEED(!ibv_destroy_ah(ah));
	close_bench(&b);
}

static void key_mismatch(void)
{
	datagram(0x22222222, 256, false);
}

static void datagram_arrives(void)
{
	datagram(0x11111111, 256, true);
}

static void length(void)
{
	datagram(0x11111111, 64, false);
}

static void datagram_no_receive(void)
{
	datagram(0x11111111, 0, false);
}

static void psn_mismatch(void)
{
	struct bench b = open_bench();
	struct path other = usual_path();
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	other.rq_psn = 500000;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], usual_path(), b.qp[1], other);
	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	poll_one(b.cq);
	close_bench(&b);
}

/* A SEND to a queue pair number of this process that no queue pair has. */
static void unknown_pair(void)
{
	struct bench b = open_bench();
	struct ibv_sge out = piece(&b, 0, 64);

	make_pair(&b, IBV_QPT_RC);
	connect_to(b.qp[0], b.qp[1]->qp_num + 100, usual_path());
	post_send(b.qp[0], 1, &out);
	poll_status(b.cq, IBV_WC_RETRY_EXC_ERR);
	close_bench(&b);
}

static void wrong_state(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 64);

	make_pair(&b, IBV_QPT_RC);
	to_init(b.qp[1], &path);
	connect_to(b.qp[0], b.qp[1]->qp_num, path);
	post_send(b.qp[0], 1, &out);
	poll_status(b.cq, IBV_WC_RETRY_EXC_ERR);
	close_bench(&b);
}

static void write_forbidden(void)
{
	struct bench b = open_pair(IBV_QPT_UC);
	struct ibv_sge out = piece(&b, 0, 64);

	post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &out, b.buffer + 1024, b.mr->rkey ^ 0x5a5a00);
	poll_success(b.cq, 1);
	sleep_millis(300);
	close_bench(&b);
}

/* The receiver expects another address than the sender has. */
static void foreign_address(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_sge out = piece(&b, 0, 64);
	union ibv_gid gid;
	int index = gid_index(b.context, &gid);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = path.mtu, .rq_psn = path.rq_psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.grh = {.dgid = gid, .sgid_index = (uint8_t)index, .hop_limit = 64}, .is_global = 1, .port_num = 1},
	};

	make_pair(&b, IBV_QPT_RC);
	attr.dest_qp_num = b.qp[0]->qp_num;
	attr.ah_attr.grh.dgid.raw[15] = 2; /* 127.0.0.2 */
	to_init(b.qp[1], &path);
	NEED(!ibv_modify_qp(b.qp[1], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	connect_to(b.qp[0], b.qp[1]->qp_num, path);
	post_send(b.qp[0], 1, &out);
	poll_status(b.cq, IBV_WC_RETRY_EXC_ERR);
	close_bench(&b);
}

/* A reliable queue pair whose peer is an unreliable one. */
static void unreadable(void)
{
	struct bench b = open_bench();
	struct path path = usual_path();
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_UC);
	struct ibv_sge out = piece(&b, 0, 64);

	make_pair(&b, IBV_QPT_RC);
	NEED(!ibv_destroy_qp(b.qp[1]));
	b.qp[1] = ibv_create_qp(b.pd, &init);
	NEED(b.qp[1]);
	connect_to(b.qp[1], b.qp[0]->qp_num, path);
	connect_to(b.qp[0], b.qp[1]->qp_num, path);
	post_send(b.qp[0], 1, &out);
	poll_status(b.cq, IBV_WC_RETRY_EXC_ERR);
	close_bench(&b);
}

/* Many messages over a link that loses some: UV-0930 tells of the losses, UV-0933 of what repetition brings. */
static void lossy(void)
{
	struct bench b;
	struct path path = usual_path();
	struct ibv_sge out, in;

	setenv("UBIVERBS_LINK", "udp", 1);
	setenv("UBIVERBS_FAULTS", "drop=5%,dup=50%,seed=7", 1);
	b = open_bench();
	path.retry_cnt = 7;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], path, b.qp[1], path);
	out = piece(&b, 0, 64);
	in = piece(&b, 1024, 64);
	for (int i = 0; i < 100; i++) {
		post_recv(b.qp[1], 2, &in);
		post_send(b.qp[0], 1, &out);
		poll_success(b.cq, 2);
	}
	close_bench(&b);
}

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	NEED(!rdma_get_cm_event(channel, &event));
	if (event->event != kind)
		fprintf(stderr, "%s\n", rdma_event_str(event->event));
	NEED(event->event == kind);
	return event;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	NEED(!rdma_ack_cm_event(next_event(channel, kind)));
}

/* An id that is ready to connect to that port of 127.0.0.1. */
static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	struct ibv_qp_init_attr init = usual_qp(NULL, IBV_QPT_RC);
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, 1000));
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	NEED(!rdma_create_qp(id, NULL, &init));
	return id;
}

static void close_id(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	NEED(!rdma_destroy_id(id));
}

static struct rdma_cm_id *listening(struct rdma_event_channel *channel, uint16_t *port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(id, (struct sockaddr *)&address) && !rdma_listen(id, 4));
	*port = rdma_get_src_port(id);
	return id;
}

static struct rdma_conn_param usual_parameters(void)
{
	struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 3,
					     .rnr_retry_count = 3};

	return parameters;
}

/* An id without a channel connects to where nobody listens: the call waits for the event, and fails. What was posted is flushed. */
static void call_is_refused(void)
{
	struct rdma_conn_param parameters = usual_parameters();
	struct ibv_qp_init_attr init = usual_qp(NULL, IBV_QPT_RC);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7)};
	struct ibv_recv_wr receive = {.wr_id = 3}, *bad;
	struct rdma_cm_id *id;
	struct ibv_wc wc;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	NEED(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) && !rdma_resolve_route(id, 2000));
	NEED(!rdma_create_qp(id, NULL, &init) && !ibv_post_recv(id->qp, &receive, &bad));
	NEED(rdma_connect(id, &parameters) && errno == ECONNREFUSED);
	while (!ibv_poll_cq(id->recv_cq, 1, &wc))
		;
	NEED(wc.status == IBV_WC_WR_FLUSH_ERR);
	rdma_destroy_qp(id);
	NEED(!rdma_destroy_id(id));
}

static void nobody_listens(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param parameters = usual_parameters();
	struct rdma_cm_id *id = resolved(channel, htons(7));

	NEED(!rdma_connect(id, &parameters));
	expect(channel, RDMA_CM_EVENT_REJECTED);
	close_id(id);
	rdma_destroy_event_channel(channel);
	call_is_refused();
}

/* A server and a client in one process, whose request is accepted or rejected. `ends` has the client disconnect. */
static void meet(bool accepts, bool ends)
{
	struct rdma_event_channel *server = rdma_create_event_channel(), *client = rdma_create_event_channel();
	struct rdma_conn_param parameters = usual_parameters();
	struct ibv_qp_init_attr init = usual_qp(NULL, IBV_QPT_RC);
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener, *there, *here;
	uint16_t port;

	listener = listening(server, &port);
	here = resolved(client, port);
	NEED(!rdma_connect(here, &parameters));
	event = next_event(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	there = event->id;
	NEED(!rdma_ack_cm_event(event));
	if (accepts) {
		NEED(!rdma_create_qp(there, NULL, &init) && !rdma_accept(there, &parameters));
		expect(client, RDMA_CM_EVENT_ESTABLISHED);
		expect(server, RDMA_CM_EVENT_ESTABLISHED);
		if (ends) {
			NEED(!rdma_disconnect(here));
			expect(server, RDMA_CM_EVENT_DISCONNECTED);
			NEED(!rdma_disconnect(there));
		}
	} else {
		NEED(!rdma_reject(there, "no", 2));
		expect(client, RDMA_CM_EVENT_REJECTED);
	}
	close_id(here);
	close_id(there);
	close_id(listener);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

static void rejected_by_program(void)
{
	meet(false, false);
}

static void connected(void)
{
	meet(true, false);
}

static void disconnected(void)
{
	meet(true, true);
}

/* Two ids of a client name one queue pair: for the server the second request is of a connection that it has. */
static void not_connected(void)
{
	struct rdma_event_channel *server = rdma_create_event_channel(), *client = rdma_create_event_channel();
	struct rdma_conn_param parameters = usual_parameters();
	struct ibv_qp_init_attr init = usual_qp(NULL, IBV_QPT_RC);
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener, *there, *here, *again;
	uint16_t port;

	listener = listening(server, &port);
	here = resolved(client, port);
	NEED(!rdma_connect(here, &parameters));
	event = next_event(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	there = event->id;
	NEED(!rdma_ack_cm_event(event));
	NEED(!rdma_create_qp(there, NULL, &init) && !rdma_accept(there, &parameters));
	expect(client, RDMA_CM_EVENT_ESTABLISHED);
	expect(server, RDMA_CM_EVENT_ESTABLISHED);

	again = resolved(client, port);
	parameters.qp_num = here->qp->qp_num;
	rdma_destroy_qp(again);
	NEED(!rdma_connect(again, &parameters));
	expect(client, RDMA_CM_EVENT_REJECTED);

	close_id(again);
	close_id(here);
	close_id(there);
	close_id(listener);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

/* The server is another process, which is killed. */
static void peer_died(void)
{
	int up[2];
	uint16_t port;
	pid_t child;
	struct rdma_conn_param parameters = usual_parameters();

	NEED(!pipe(up));
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct ibv_qp_init_attr init = usual_qp(NULL, IBV_QPT_RC);
		struct rdma_cm_event *event;

		listening(channel, &port);
		NEED(write(up[1], &port, 2) == 2);
		event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		NEED(!rdma_create_qp(event->id, NULL, &init) && !rdma_accept(event->id, &parameters));
		NEED(!rdma_ack_cm_event(event));
		expect(channel, RDMA_CM_EVENT_ESTABLISHED);
		raise(SIGKILL);
	}
	NEED(read(up[0], &port, 2) == 2);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = resolved(channel, port);

	NEED(!rdma_connect(id, &parameters));
	expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	NEED(waitpid(child, NULL, 0) == child);
	close_id(id);
	rdma_destroy_event_channel(channel);
}

/* UV-0915: both ends have receives posted, and none begins. */
static void nobody_begins(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge in[2] = {piece(&b, 0, 64), piece(&b, 64, 64)};
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++)
		post_recv(b.qp[i], i, &in[i]);
	for (int waited = 0; waited < A_WHILE_MILLIS; waited += 10) {
		NEED(ibv_poll_cq(b.cq, 1, &wc) == 0);
		sleep_millis(10);
	}
	close_bench(&b);
}

/* UV-0948: the server is a process that is stopped, and as silent as a host that is not there. */
static void nobody_answers(void)
{
	struct rdma_conn_param parameters = usual_parameters();
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	uint16_t port;
	int up[2], status;
	pid_t child;

	NEED(!pipe(up));
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		listening(rdma_create_event_channel(), &port);
		NEED(write(up[1], &port, 2) == 2);
		raise(SIGSTOP);
		_exit(0);
	}
	NEED(read(up[0], &port, 2) == 2);
	NEED(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
	channel = rdma_create_event_channel();
	id = resolved(channel, port);
	NEED(!rdma_connect(id, &parameters));
	sleep_millis(ANSWER_MILLIS);
	NEED(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	close_id(id);
	rdma_destroy_event_channel(channel);
}

/* UV-0949: the server answers a disconnect when it has time. */
static void answer_late(void)
{
	struct rdma_event_channel *server = rdma_create_event_channel(), *client = rdma_create_event_channel();
	struct rdma_conn_param parameters = usual_parameters();
	struct ibv_qp_init_attr init = usual_qp(NULL, IBV_QPT_RC);
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener, *there, *here;
	uint16_t port;

	listener = listening(server, &port);
	here = resolved(client, port);
	NEED(!rdma_connect(here, &parameters));
	event = next_event(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	there = event->id;
	NEED(!rdma_ack_cm_event(event));
	NEED(!rdma_create_qp(there, NULL, &init) && !rdma_accept(there, &parameters));
	expect(client, RDMA_CM_EVENT_ESTABLISHED);
	expect(server, RDMA_CM_EVENT_ESTABLISHED);
	NEED(!rdma_disconnect(here));
	sleep_millis(ANSWER_MILLIS);
	expect(server, RDMA_CM_EVENT_DISCONNECTED);
	NEED(!rdma_disconnect(there));
	expect(client, RDMA_CM_EVENT_DISCONNECTED);
	close_id(here);
	close_id(there);
	close_id(listener);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

/* Polls without finding anything, for so long. */
static void poll_in_vain(struct ibv_cq *cq, int millis)
{
	struct ibv_wc wc;

	for (int waited = 0; waited < millis; waited += 10) {
		NEED(ibv_poll_cq(cq, 1, &wc) == 0);
		sleep_millis(10);
	}
}

/* UV-0916, and UV-0917 if a receive is posted: a WRITE whose completion is waited for. */
static void wait_for_a_write(unsigned int flags, bool has_receive)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 8), in = piece(&b, 1024, 64);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_RDMA_WRITE, &out);

	if (has_receive)
		post_recv(b.qp[0], 2, &in);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buffer + 2048;
	wr.wr.rdma.rkey = b.mr->rkey;
	wr.send_flags = flags;
	NEED(!post(b.qp[0], &wr));
	if (flags & IBV_SEND_SIGNALED)
		poll_success(b.cq, 1);
	else
		poll_in_vain(b.cq, has_receive ? 2 * A_WHILE_MILLIS : A_WHILE_MILLIS);
	close_bench(&b);
}

static void none_signaled(void)
{
	wait_for_a_write(0, false);
}

static void signaled(void)
{
	wait_for_a_write(IBV_SEND_SIGNALED, false);
}

static void none_signaled_with_receive(void)
{
	wait_for_a_write(0, true);
}

static void signaled_with_receive(void)
{
	wait_for_a_write(IBV_SEND_SIGNALED, true);
}

/* UV-0918: a receive waits for what a WRITE brings. */
static void receive_a_write(enum ibv_wr_opcode opcode)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 8), in = piece(&b, 1024, 64);

	post_recv(b.qp[1], 2, &in);
	post_rdma(b.qp[0], 1, opcode, &out, b.buffer + 2048, b.mr->rkey);
	poll_success(b.cq, opcode == IBV_WR_RDMA_WRITE ? 1 : 2);
	if (opcode == IBV_WR_RDMA_WRITE)
		poll_in_vain(b.cq, 2 * A_WHILE_MILLIS);
	close_bench(&b);
}

static void receive_without_immediate(void)
{
	receive_a_write(IBV_WR_RDMA_WRITE);
}

static void receive_with_immediate(void)
{
	receive_a_write(IBV_WR_RDMA_WRITE_WITH_IMM);
}

CASES({"UV-0901", peer_refused, all_is_well}, {"UV-0902", routine_event, all_is_well},
      {"UV-0903", async_error, all_is_well}, {"UV-0910", not_acknowledged, all_is_well},
      {"UV-0911", peer_not_ready, all_is_well}, {"UV-0912", never_sent, all_is_well},
      {"UV-0913", nothing_signaled, some_signaled}, {"UV-0914", peer_not_ready, all_is_well},
      {"UV-0915", nobody_begins, all_is_well}, {"UV-0916", none_signaled, signaled},
      {"UV-0917", none_signaled_with_receive, signaled_with_receive},
      {"UV-0918", receive_without_immediate, receive_with_immediate},
      {"UV-0920", key_mismatch, datagram_arrives}, {"UV-0922", psn_mismatch, all_is_well},
      {"UV-0923", unknown_pair, all_is_well}, {"UV-0924", wrong_state, all_is_well},
      {"UV-0925", length, datagram_arrives}, {"UV-0926", datagram_no_receive, datagram_arrives},
      {"UV-0927", write_forbidden, all_is_well}, {"UV-0928", foreign_address, all_is_well},
      {"UV-0929", unreadable, all_is_well}, {"UV-0930", lossy, all_is_well}, {"UV-0933", lossy, all_is_well},
      {"UV-0940", rejected_by_program, connected}, {"UV-0941", nobody_listens, connected},
      {"UV-0942", not_connected, connected}, {"UV-0945", peer_died, connected}, {"UV-0947", disconnected, rejected_by_program},
      {"UV-0948", nobody_answers, connected}, {"UV-0949", answer_late, disconnected})
