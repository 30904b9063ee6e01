/* The connection manager: UV-07xx. Both ends are in one process, each on a channel of its own. */
#include "common.h"

#include <arpa/inet.h>
#include <poll.h>

/* What a connection is made with, and how it ends. Zeros are the usual. */
struct wanted {
	enum rdma_port_space space;
	uint8_t client_reads, server_reads;
	uint8_t retry_count;
	/* The server posts its receive only after the client has sent. */
	bool receives_late;
	/* The server sends before it knows that the client is ready. */
	bool sends_early;
};

/* Two ends of a connection. */
struct ends {
	struct rdma_event_channel *channel[2];
	struct rdma_cm_id *listener, *client, *server;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	char *buffer;
	/* Of a client for datagrams: how to reach the server. */
	struct rdma_ud_param ud;
};

enum { CLIENT, SERVER };

/* The next event of a channel, which must be this one, acknowledged unless it is kept. */
static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;

	NEED(poll(&ready, 1, DEADLINE_SECONDS * 1000) == 1);
	NEED(!rdma_get_cm_event(channel, &event));
	if (event->event != type)
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(type));
	NEED(event->event == type);
	return event;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	NEED(!rdma_ack_cm_event(next_event(channel, type)));
}

static struct sockaddr_in loopback(uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port};

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

/* A listener and a client; nothing is resolved yet. */
static struct ends open_ends(enum rdma_port_space space)
{
	struct ends e = {0};
	struct sockaddr_in any = loopback(0);

	for (int i = 0; i < 2; i++)
		NEED(e.channel[i] = rdma_create_event_channel());
	NEED(!rdma_create_id(e.channel[SERVER], &e.listener, NULL, space));
	NEED(!rdma_bind_addr(e.listener, (struct sockaddr *)&any));
	NEED(!rdma_listen(e.listener, 4));
	NEED(!rdma_create_id(e.channel[CLIENT], &e.client, NULL, space));
	return e;
}

static void resolve_address(struct ends *e)
{
	struct sockaddr_in to = loopback(rdma_get_src_port(e->listener));

	NEED(!rdma_resolve_addr(e->client, NULL, (struct sockaddr *)&to, 2000));
}

static void resolve(struct ends *e)
{
	resolve_address(e);
	expect(e->channel[CLIENT], RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(e->client, 2000));
	expect(e->channel[CLIENT], RDMA_CM_EVENT_ROUTE_RESOLVED);
}

/* A queue pair for an id, in the domain that both ends share. */
static void make_qp(struct ends *e, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = id->ps == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	if (!e->pd) {
		NEED(e->pd = ibv_alloc_pd(id->verbs));
		NEED(e->buffer = calloc(1, BUFFER_SIZE));
		NEED(e->mr = ibv_reg_mr(e->pd, e->buffer, BUFFER_SIZE, IBV_ACCESS_LOCAL_WRITE));
	}
	NEED(!rdma_create_qp(id, e->pd, &init));
}

static void post_receive(struct ends *e, struct rdma_cm_id *id)
{
	struct ibv_sge in = {.addr = (uintptr_t)e->buffer + 1024, .length = 256, .lkey = e->mr->lkey};

	post_recv(id->qp, 2, &in);
}

static void post_message(struct ends *e, struct rdma_cm_id *id)
{
	struct ibv_sge out = {.addr = (uintptr_t)e->buffer, .length = 64, .lkey = e->mr->lkey};

	post_send(id->qp, 1, &out);
}

/* Takes the request of the client, and leaves its id in `server`. */
static void take_request(struct ends *e)
{
	struct rdma_cm_event *event = next_event(e->channel[SERVER], RDMA_CM_EVENT_CONNECT_REQUEST);

	e->server = event->id;
	NEED(!rdma_ack_cm_event(event));
}

static struct rdma_conn_param parameters(uint8_t reads, uint8_t retries)
{
	struct rdma_conn_param param = {.responder_resources = reads, .initiator_depth = reads, .retry_count = retries,
					.rnr_retry_count = 7};

	return param;
}

/* The client has asked, and the server has heard it. */
static struct ends asked(struct wanted want)
{
	struct ends e = open_ends(want.space ? want.space : RDMA_PS_TCP);
	struct rdma_conn_param param =
		parameters(want.client_reads ? want.client_reads : 1, want.retry_count ? want.retry_count : 7);

	resolve(&e);
	make_qp(&e, e.client);
	post_receive(&e, e.client);
	NEED(!rdma_connect(e.client, &param));
	take_request(&e);
	return e;
}

/* The server accepts. */
static struct ends connected_as(struct wanted want)
{
	struct ends e = asked(want);
	struct rdma_conn_param param = parameters(want.server_reads ? want.server_reads : 1, 7);

	make_qp(&e, e.server);
	if (!want.receives_late)
		post_receive(&e, e.server);
	param.qp_num = e.server->qp->qp_num;
	NEED(!rdma_accept(e.server, &param));
	if (want.sends_early)
		post_message(&e, e.server);
	if (want.space == RDMA_PS_UDP) {
		struct rdma_cm_event *event = next_event(e.channel[CLIENT], RDMA_CM_EVENT_ESTABLISHED);

		e.ud = event->param.ud;
		NEED(!rdma_ack_cm_event(event));
		return e;
	}
	expect(e.channel[CLIENT], RDMA_CM_EVENT_ESTABLISHED);
	expect(e.channel[SERVER], RDMA_CM_EVENT_ESTABLISHED);
	return e;
}

static struct ends connected(void)
{
	return connected_as((struct wanted){0});
}

/* Both ends have agreed that the connection ends. */
static void disconnect(struct ends *e)
{
	NEED(!rdma_disconnect(e->client));
	expect(e->channel[SERVER], RDMA_CM_EVENT_DISCONNECTED);
	NEED(!rdma_disconnect(e->server));
	expect(e->channel[CLIENT], RDMA_CM_EVENT_DISCONNECTED);
}

static void destroy(struct rdma_cm_id **id)
{
	if (!*id)
		return;
	if ((*id)->qp)
		rdma_destroy_qp(*id);
	NEED(!rdma_destroy_id(*id));
	*id = NULL;
}

/* Destroys everything that is there. */
static void close_ends(struct ends *e)
{
	destroy(&e->client);
	destroy(&e->server);
	destroy(&e->listener);
	if (e->pd) {
		NEED(!ibv_dereg_mr(e->mr));
		NEED(!ibv_dealloc_pd(e->pd));
		free(e->buffer);
	}
	for (int i = 0; i < 2; i++)
		if (e->channel[i])
			rdma_destroy_event_channel(e->channel[i]);
}

/* A connection as it should be: the client sends, the server receives. */
static void usual(void)
{
	struct ends e = connected();

	post_message(&e, e.client);
	poll_success(e.client->send_cq, 1);
	poll_success(e.server->recv_cq, 1);
	disconnect(&e);
	close_ends(&e);
}

static void route_before_address(void)
{
	struct ends e = open_ends(RDMA_PS_TCP);

	resolve_address(&e);
	NEED(!rdma_resolve_route(e.client, 2000));
	expect(e.channel[CLIENT], RDMA_CM_EVENT_ADDR_RESOLVED);
	expect(e.channel[CLIENT], RDMA_CM_EVENT_ROUTE_RESOLVED);
	close_ends(&e);
}

static void connect_before_route(void)
{
	struct ends e = open_ends(RDMA_PS_TCP);
	struct rdma_conn_param param = parameters(1, 7);

	resolve_address(&e);
	expect(e.channel[CLIENT], RDMA_CM_EVENT_ADDR_RESOLVED);
	make_qp(&e, e.client);
	NEED(!rdma_resolve_route(e.client, 2000));
	NEED(!rdma_connect(e.client, &param));
	expect(e.channel[CLIENT], RDMA_CM_EVENT_ROUTE_RESOLVED);
	take_request(&e);
	NEED(!rdma_reject(e.server, NULL, 0));
	expect(e.channel[CLIENT], RDMA_CM_EVENT_REJECTED);
	close_ends(&e);
}

/* Acknowledges an event in a moment. */
static void *acknowledge_later(void *event)
{
	sleep_millis(300);
	NEED(!rdma_ack_cm_event(event));
	return NULL;
}

/* Another thread acknowledges, or the program would hang. */
static void destroy_waits(void)
{
	struct ends e = open_ends(RDMA_PS_TCP);
	pthread_t thread;

	resolve_address(&e);
	NEED(!pthread_create(&thread, NULL, acknowledge_later,
			     next_event(e.channel[CLIENT], RDMA_CM_EVENT_ADDR_RESOLVED)));
	destroy(&e.client);
	NEED(!pthread_join(thread, NULL));
	close_ends(&e);
}

static void acknowledged_twice(void)
{
	struct ends e = open_ends(RDMA_PS_TCP);
	struct rdma_cm_event *event;

	resolve_address(&e);
	event = next_event(e.channel[CLIENT], RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_ack_cm_event(event));
	NEED(rdma_ack_cm_event(event));
	close_ends(&e);
}

/* The event, and with it the id, is left to the end of the process. */
static void never_acknowledged(void)
{
	struct ends e = open_ends(RDMA_PS_TCP);

	resolve_address(&e);
	next_event(e.channel[CLIENT], RDMA_CM_EVENT_ADDR_RESOLVED);
	destroy(&e.listener);
}

/* The server hears the request and ends. */
static void request_not_answered(void)
{
	asked((struct wanted){0});
}

static void request_rejected(void)
{
	struct ends e = asked((struct wanted){0});

	NEED(!rdma_reject(e.server, NULL, 0));
	expect(e.channel[CLIENT], RDMA_CM_EVENT_REJECTED);
	close_ends(&e);
}

/* The server hears of the end and does nothing. */
static void disconnect_not_answered(void)
{
	struct ends e = connected();

	NEED(!rdma_disconnect(e.client));
	expect(e.channel[SERVER], RDMA_CM_EVENT_DISCONNECTED);
}

static void destroyed_connected(void)
{
	struct ends e = connected();

	close_ends(&e);
}

static void receives_after_accept(void)
{
	struct ends e = connected_as((struct wanted){.receives_late = true});

	post_message(&e, e.client);
	sleep_millis(50);
	post_receive(&e, e.server);
	poll_success(e.client->send_cq, 1);
	poll_success(e.server->recv_cq, 1);
	disconnect(&e);
	close_ends(&e);
}

static void more_reads_than_offered(void)
{
	struct ends e = connected_as((struct wanted){.client_reads = 1, .server_reads = 8});

	disconnect(&e);
	close_ends(&e);
}

static void many_retries(void)
{
	struct ends e = connected_as((struct wanted){.retry_count = 15});

	disconnect(&e);
	close_ends(&e);
}

/* The client forgets its queue pair. */
static void no_queue_pair(void)
{
	struct ends e = open_ends(RDMA_PS_TCP);
	struct rdma_conn_param param = parameters(1, 7);

	resolve(&e);
	NEED(!rdma_connect(e.client, &param));
	take_request(&e);
	NEED(!rdma_reject(e.server, NULL, 0));
	expect(e.channel[CLIENT], RDMA_CM_EVENT_REJECTED);
	close_ends(&e);
}

/* The queue pair of the client is destroyed after its id. */
static void pair_left_behind(void)
{
	struct ends e = connected();
	struct ibv_qp *qp = e.client->qp;

	disconnect(&e);
	NEED(!rdma_destroy_id(e.client));
	e.client = NULL;
	NEED(!ibv_destroy_qp(qp));
	close_ends(&e);
}

/* The program moves a queue pair of the connection manager to INIT once more. */
static void moved_by_hand(void)
{
	struct ends e = open_ends(RDMA_PS_TCP);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	resolve(&e);
	make_qp(&e, e.client);
	NEED(!ibv_modify_qp(e.client->qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	close_ends(&e);
}

/* A datagram to the server, with its key or another one. */
static void datagram(bool own_key)
{
	struct ends e = connected_as((struct wanted){.space = RDMA_PS_UDP});
	struct ibv_sge out = {.addr = (uintptr_t)e.buffer, .length = 64, .lkey = e.mr->lkey};
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);
	struct ibv_ah *ah = ibv_create_ah(e.pd, &e.ud.ah_attr);

	NEED(ah);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = e.ud.qp_num;
	wr.wr.ud.remote_qkey = own_key ? e.ud.qkey : 0x11111111;
	NEED(!post(e.client->qp, &wr));
	poll_success(e.client->send_cq, 1);
	if (own_key)
		poll_success(e.server->recv_cq, 1);
	NEED(!ibv_destroy_ah(ah));
	close_ends(&e);
}

static void other_qkey(void)
{
	datagram(false);
}

static void own_qkey(void)
{
	datagram(true);
}

/* A client for datagrams joins a group. */
static void joined(bool leaves)
{
	struct ends e = open_ends(RDMA_PS_UDP);
	struct sockaddr_in group = {.sin_family = AF_INET};

	group.sin_addr.s_addr = htonl(0xef070707);
	resolve(&e);
	make_qp(&e, e.client);
	NEED(!rdma_join_multicast(e.client, (struct sockaddr *)&group, NULL));
	expect(e.channel[CLIENT], RDMA_CM_EVENT_MULTICAST_JOIN);
	if (!leaves) {
		/* The queue pair cannot be destroyed while it is attached to the group, and stays. */
		destroy(&e.client);
		return;
	}
	NEED(!rdma_leave_multicast(e.client, (struct sockaddr *)&group));
	close_ends(&e);
}

static void group_not_left(void)
{
	joined(false);
}

static void group_left(void)
{
	joined(true);
}

static void sends_after_end(void)
{
	struct ends e = connected();

	disconnect(&e);
	post_message(&e, e.client);
	poll_status(e.client->send_cq, IBV_WC_WR_FLUSH_ERR);
	close_ends(&e);
}

static void sends_before_established(void)
{
	struct ends e = connected_as((struct wanted){.sends_early = true});

	poll_success(e.server->send_cq, 1);
	poll_success(e.client->recv_cq, 1);
	disconnect(&e);
	close_ends(&e);
}

static void channel_destroyed_early(void)
{
	struct ends e = open_ends(RDMA_PS_TCP);

	rdma_destroy_event_channel(e.channel[CLIENT]);
	e.channel[CLIENT] = NULL;
	close_ends(&e);
}

/* The server says by which key its memory is reached, and the client writes there. UV-0721: it reads the key in time, or
 * after it gave the event back. UV-0722: the server says how long that is, or 0. */
static void tell_key(bool in_time, uint8_t length)
{
	struct ends e = asked((struct wanted){0});
	struct rdma_conn_param param = parameters(1, 7);
	struct ibv_sge out;
	struct rdma_cm_event *event, copy;
	uint32_t key = 0;

	make_qp(&e, e.server);
	post_receive(&e, e.server);
	param.private_data = &e.mr->rkey;
	param.private_data_len = length;
	NEED(!rdma_accept(e.server, &param));
	event = next_event(e.channel[CLIENT], RDMA_CM_EVENT_ESTABLISHED);
	copy = *event;
	NEED(copy.param.conn.private_data_len >= length);
	if (length && in_time)
		memcpy(&key, copy.param.conn.private_data, sizeof key);
	NEED(!rdma_ack_cm_event(event));
	if (length && !in_time)
		memcpy(&key, copy.param.conn.private_data, sizeof key);
	expect(e.channel[SERVER], RDMA_CM_EVENT_ESTABLISHED);
	out = (struct ibv_sge){.addr = (uintptr_t)e.buffer, .length = 8, .lkey = e.mr->lkey};
	if (length) {
		post_rdma(e.client->qp, 3, IBV_WR_RDMA_WRITE, &out, e.buffer + 512, key);
		/* The region grants it in no case. */
		NEED(poll_one(e.client->send_cq).status == IBV_WC_REM_ACCESS_ERR);
	}
	disconnect(&e);
	close_ends(&e);
}

static void used_after_ack(void)
{
	tell_key(false, 4);
}

static void used_before_ack(void)
{
	tell_key(true, 4);
}

static void empty_private_data(void)
{
	tell_key(true, 0);
}

CASES({"UV-0701", route_before_address, usual}, {"UV-0702", connect_before_route, usual},
      {"UV-0703", destroy_waits, usual}, {"UV-0704", acknowledged_twice, usual}, {"UV-0705", never_acknowledged, usual},
      {"UV-0706", request_not_answered, request_rejected}, {"UV-0707", disconnect_not_answered, usual},
      {"UV-0708", destroyed_connected, usual}, {"UV-0709", receives_after_accept, usual},
      {"UV-0710", more_reads_than_offered, usual}, {"UV-0711", many_retries, usual}, {"UV-0712", pair_left_behind, usual},
      {"UV-0714", moved_by_hand, usual}, {"UV-0715", other_qkey, own_qkey},
      {"UV-0716", group_not_left, group_left}, {"UV-0717", sends_after_end, usual},
      {"UV-0718", sends_before_established, usual}, {"UV-0719", channel_destroyed_early, usual},
      {"UV-0720", no_queue_pair, usual}, {"UV-0721", used_after_ack, used_before_ack},
      {"UV-0722", empty_private_data, used_before_ack})
