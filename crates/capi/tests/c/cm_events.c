/* The sequences of events on both sides of a connection, what comes with them, and what becomes of the queue pairs. */
#include "connection.h"
#include <endian.h>
#include <infiniband/ib.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

static struct rdma_event_channel *here, *there;

static int all(const void *data, size_t length, int byte)
{
	const uint8_t *bytes = data;

	for (size_t i = 0; i < length; i++)
		if (bytes[i] != byte)
			return 0;
	return 1;
}

/* What the peer said: our bytes, then zeros up to the field's end. */
static void private_data(const void *data, uint8_t length, uint8_t field, uint8_t sent, int byte)
{
	CHECK(length == field && data);
	if (length == field && data) {
		CHECK(all(data, sent, byte));
		CHECK(all((const uint8_t *)data + sent, field - sent, 0));
	}
}

struct ends {
	struct rdma_cm_id *listener, *client, *server;
};

/* A connection, up to the event that asks for it. */
static struct ends asked(uint8_t bytes_of_data)
{
	uint8_t data[56];
	struct rdma_conn_param parameters = {.private_data = data, .private_data_len = bytes_of_data, .responder_resources = 3,
					     .initiator_depth = 5, .flow_control = 1, .retry_count = 6, .rnr_retry_count = 4};
	struct rdma_cm_event *event;
	struct ends ends;
	uint16_t port;

	memset(data, 0x5a, sizeof data);
	ends.listener = listener(there, RDMA_PS_TCP, &port);
	ends.client = caller(here, RDMA_PS_TCP, port);
	give_queue_pair(ends.client);
	CHECK(state_of(ends.client) == IBV_QPS_INIT);
	CHECK(!rdma_connect(ends.client, &parameters));
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(event);
	ends.server = event->id;
	CHECK(event->listen_id == ends.listener && event->status == 0 && ends.server != ends.listener);
	CHECK(ends.server->context == &failures && ends.server->channel == there && ends.server->ps == RDMA_PS_TCP);
	CHECK(ends.server->verbs == ends.client->verbs && ends.server->port_num == 1 && ends.server->pd);
	CHECK(rdma_get_src_port(ends.server) == port && rdma_get_dst_port(ends.server) == rdma_get_src_port(ends.client));
	CHECK(rdma_get_dst_port(ends.client) == port);
	private_data(event->param.conn.private_data, event->param.conn.private_data_len, 56, bytes_of_data, 0x5a);
	/* Seen from here: what the peer answers is what we may ask. */
	CHECK(event->param.conn.responder_resources == 5 && event->param.conn.initiator_depth == 3);
	CHECK(event->param.conn.retry_count == 6 && event->param.conn.rnr_retry_count == 4 && event->param.conn.flow_control == 1);
	CHECK(event->param.conn.qp_num == ends.client->qp->qp_num);
	CHECK(!rdma_ack_cm_event(event));
	return ends;
}

static void accepted(struct ends *ends)
{
	uint8_t data[196];
	struct rdma_conn_param parameters = {.private_data = data, .private_data_len = sizeof data, .responder_resources = 5,
					     .initiator_depth = 3, .rnr_retry_count = 7};
	struct ibv_qp_init_attr init;
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr;

	memset(data, 0xa5, sizeof data);
	give_queue_pair(ends->server);
	CHECK(!rdma_accept(ends->server, &parameters));
	CHECK(state_of(ends->server) == IBV_QPS_RTS);
	event = next(here, RDMA_CM_EVENT_ESTABLISHED);
	NEED(event);
	CHECK(event->id == ends->client && event->status == 0);
	private_data(event->param.conn.private_data, event->param.conn.private_data_len, 196, sizeof data, 0xa5);
	CHECK(!rdma_ack_cm_event(event));
	expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(!ibv_query_qp(ends->client->qp, &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == ends->server->qp->qp_num);
	CHECK(attr.max_rd_atomic == 5 && attr.max_dest_rd_atomic == 3 && attr.retry_cnt == 6 && attr.rnr_retry == 7);
	CHECK(attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE && attr.qp_access_flags & IBV_ACCESS_REMOTE_READ);
	CHECK(!ibv_query_qp(ends->server->qp, &attr, IBV_QP_STATE, &init));
	CHECK(attr.dest_qp_num == ends->client->qp->qp_num && attr.max_rd_atomic == 3 && attr.max_dest_rd_atomic == 5);
}

static void gone(struct ends *ends)
{
	destroy(ends->client);
	destroy(ends->server);
	destroy(ends->listener);
	CHECK(!readable(here->fd, 0) && !readable(there->fd, 0));
}

static void connected(void)
{
	struct ends ends = asked(56);
	char text[16] = "over the wire", received[16] = "";
	struct ibv_mr *from, *to;
	struct ibv_wc wc;

	accepted(&ends);
	from = rdma_reg_msgs(ends.client, text, sizeof text);
	to = rdma_reg_msgs(ends.server, received, sizeof received);
	NEED(from && to);
	CHECK(!rdma_post_recv(ends.server, NULL, received, sizeof received, to));
	CHECK(!rdma_post_send(ends.client, NULL, text, sizeof text, from, IBV_SEND_SIGNALED));
	CHECK(rdma_get_send_comp(ends.client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(ends.server, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(text, received));
	/* The end: the one who asked for it is told when the other agrees. */
	CHECK(!rdma_post_recv(ends.client, NULL, text, sizeof text, from));
	CHECK(!rdma_disconnect(ends.client));
	CHECK(state_of(ends.client) == IBV_QPS_ERR);
	CHECK(rdma_get_recv_comp(ends.client, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	expect(there, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(state_of(ends.server) == IBV_QPS_RTS);
	CHECK(!readable(here->fd, 50));
	CHECK(!rdma_disconnect(ends.server));
	CHECK(state_of(ends.server) == IBV_QPS_ERR);
	expect(here, RDMA_CM_EVENT_DISCONNECTED, 0);
	rdma_dereg_mr(from);
	rdma_dereg_mr(to);
	gone(&ends);
}

/* Both end it at once: each is told once. */
static void crossing(void)
{
	struct ends ends = asked(0);

	accepted(&ends);
	CHECK(!rdma_disconnect(ends.client) && !rdma_disconnect(ends.server));
	expect(here, RDMA_CM_EVENT_DISCONNECTED, 0);
	expect(there, RDMA_CM_EVENT_DISCONNECTED, 0);
	gone(&ends);
}

static void rejected(void)
{
	struct ends ends = asked(1);
	struct rdma_cm_event *event;
	uint8_t data[148];

	memset(data, 0x77, sizeof data);
	CHECK(rdma_reject(ends.server, data, 149) == -1 && errno == EINVAL);
	CHECK(!rdma_reject(ends.server, data, sizeof data));
	event = next(here, RDMA_CM_EVENT_REJECTED);
	NEED(event);
	CHECK(event->status == 28);
	private_data(event->param.conn.private_data, event->param.conn.private_data_len, 148, sizeof data, 0x77);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(state_of(ends.client) == IBV_QPS_ERR);
	CHECK(rdma_accept(ends.server, NULL) == -1);
	gone(&ends);
	ends = asked(0);
	CHECK(!rdma_reject_ece(ends.server, NULL, 0));
	expect(here, RDMA_CM_EVENT_REJECTED, 35);
	gone(&ends);
}

/* A client that gives up before the server accepts: no event on an id of which the program has said nothing yet. */
static void given_up(void)
{
	struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
	struct ends ends = asked(0);
	struct rdma_cm_event *event;
	uint16_t port = rdma_get_src_port(ends.listener);
	int tries = 0;

	destroy(ends.client);
	/* An id at its end is disconnected already; before, there is nothing to disconnect. */
	while (rdma_disconnect(ends.server) && tries++ < SOON)
		usleep(1000);
	CHECK(tries < SOON);
	CHECK(!readable(there->fd, 0));
	ends.client = caller(here, RDMA_PS_TCP, port);
	give_queue_pair(ends.client);
	CHECK(!rdma_connect(ends.client, &parameters));
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(event);
	give_queue_pair(ends.server);
	CHECK(rdma_accept(ends.server, &parameters) == -1 && errno == EINVAL);
	CHECK(state_of(ends.server) == IBV_QPS_ERR);
	CHECK(rdma_reject(ends.server, NULL, 0) == -1 && errno == EINVAL);
	CHECK(!readable(there->fd, 50));
	destroy(ends.server);
	ends.server = event->id;
	CHECK(!rdma_ack_cm_event(event));
	give_queue_pair(ends.server);
	CHECK(!rdma_accept(ends.server, &parameters));
	expect(here, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	gone(&ends);
}

static int64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A request to a port without a listener is refused by the first answer, as kernels do, and not after a repetition. */
static void nobody_listens(enum rdma_port_space space, enum rdma_cm_event_type kind, int status)
{
	struct rdma_conn_param parameters = {.retry_count = 7};
	int64_t shortest = INT64_MAX;

	/* On a busy machine an answer may take a while, but not every time. */
	for (int tries = 0; tries < 10 && shortest >= 100; tries++) {
		uint16_t port;
		struct rdma_cm_id *id = listener(there, space, &port), *client = caller(here, space, port);
		int64_t began;

		/* Not before the client has a port, or it might be this one. */
		destroy(id);
		give_queue_pair(client);
		began = milliseconds();
		CHECK(!rdma_connect(client, &parameters));
		expect(here, kind, status);
		if (milliseconds() - began < shortest)
			shortest = milliseconds() - began;
		destroy(client);
	}
	CHECK(shortest < 100);
}

/* Whether one who listens a moment after it was asked is heard, by a peer that has a connection to this port. */
static int listens_late(enum rdma_port_space space)
{
	struct ends ends = asked(0);
	uint16_t port = rdma_get_src_port(ends.listener);
	struct rdma_cm_id *client, *late = NULL, *request;
	struct sockaddr_in address = loopback(port);
	struct rdma_cm_event *event;
	int heard = 0;

	accepted(&ends);
	/* Not before the client has a port, or it might be this one. */
	client = caller(here, space, port);
	destroy(ends.listener);
	give_queue_pair(client);
	CHECK(!rdma_connect(client, &(struct rdma_conn_param){.retry_count = 7}));
	usleep(5000);
	NEED(!rdma_create_id(there, &late, NULL, space));
	if (rdma_bind_addr(late, (struct sockaddr *)&address)) {
		/* Another program of the host has taken it in between. */
		CHECK(errno == EADDRNOTAVAIL || errno == EADDRINUSE);
		address.sin_port = 0;
		CHECK(!rdma_bind_addr(late, (struct sockaddr *)&address));
	}
	CHECK(!rdma_listen(late, 1));
	struct pollfd fds[] = {{.fd = here->fd, .events = POLLIN}, {.fd = there->fd, .events = POLLIN}};

	NEED(poll(fds, 2, SOON) > 0);
	if (fds[1].revents) {
		heard = 1;
		event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
		NEED(event);
		request = event->id;
		rdma_ack_cm_event(event);
		CHECK(!rdma_reject(request, NULL, 0));
		destroy(request);
	}
	NEED(!rdma_get_cm_event(here, &event));
	CHECK(event->event == (space == RDMA_PS_TCP ? RDMA_CM_EVENT_REJECTED : RDMA_CM_EVENT_UNREACHABLE));
	CHECK(event->status == (heard ? (space == RDMA_PS_TCP ? 28 : 2) : (space == RDMA_PS_TCP ? 8 : 1)));
	rdma_ack_cm_event(event);
	destroy(client);
	ends.listener = late;
	gone(&ends);
	return heard;
}

/* perftest's server listens anew for each connection. On a busy machine a moment may be too long, not every time. */
static void somebody_listens_late(enum rdma_port_space space)
{
	int heard = 0;

	for (int tries = 0; tries < 40 && !heard; tries++) {
		/* Until the machine is less busy. */
		usleep(tries * 10000);
		heard = listens_late(space);
	}
	CHECK(heard);
}

static void limits(void)
{
	struct ends ends = asked(0);
	uint8_t data[255] = {0};
	struct rdma_conn_param parameters = {.private_data = data, .private_data_len = 197};
	struct rdma_cm_id *client;
	struct ibv_device_attr device;

	CHECK(!ibv_query_device(ends.client->verbs, &device));
	give_queue_pair(ends.server);
	CHECK(rdma_accept(ends.server, &parameters) == -1 && errno == EINVAL);
	parameters.private_data_len = 0;
	if (device.max_qp_rd_atom < 254) {
		parameters.responder_resources = (uint8_t)(device.max_qp_rd_atom + 1);
		CHECK(rdma_accept(ends.server, &parameters) == -1 && errno == EINVAL);
	}
	gone(&ends);
	/* The client is told that nobody took it. */
	client = caller(here, RDMA_PS_TCP, htons(1));
	CHECK(rdma_connect(client, NULL) == -1 && errno == EINVAL);
	parameters = (struct rdma_conn_param){.private_data = data, .private_data_len = 57};
	CHECK(rdma_connect(client, &parameters) == -1 && errno == EINVAL);
	if (device.max_qp_init_rd_atom < 254) {
		parameters = (struct rdma_conn_param){.initiator_depth = (uint8_t)(device.max_qp_init_rd_atom + 1)};
		CHECK(rdma_connect(client, &parameters) == -1 && errno == EINVAL);
	}
	CHECK(rdma_accept(client, &parameters) == -1 && errno == EINVAL);
	CHECK(rdma_establish(client) == -1 && errno == EINVAL);
	CHECK(rdma_disconnect(client) == -1 && errno == EINVAL);
	destroy(client);
}

/* The most a device offers is what 0xff stands for. */
static void as_many_as_there_are(void)
{
	struct rdma_conn_param parameters = {.responder_resources = RDMA_MAX_RESP_RES, .initiator_depth = RDMA_MAX_INIT_DEPTH};
	struct ibv_device_attr device;
	struct rdma_cm_event *event;
	struct ends ends;
	uint16_t port;

	ends.listener = listener(there, RDMA_PS_TCP, &port);
	ends.client = caller(here, RDMA_PS_TCP, port);
	CHECK(!ibv_query_device(ends.client->verbs, &device));
	give_queue_pair(ends.client);
	CHECK(!rdma_connect(ends.client, &parameters));
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(event);
	ends.server = event->id;
	CHECK(event->param.conn.responder_resources == device.max_qp_init_rd_atom);
	CHECK(event->param.conn.initiator_depth == device.max_qp_rd_atom);
	rdma_ack_cm_event(event);
	give_queue_pair(ends.server);
	CHECK(!rdma_accept(ends.server, NULL));
	expect(here, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	gone(&ends);
}

/* Destroyed in every state; the other side is told, or there is none. */
static void destroyed(void)
{
	struct sockaddr_in address = loopback(0), peer = loopback(htons(9));
	struct rdma_cm_id *id;
	struct ends ends;
	uint16_t port;

	CHECK(!rdma_create_id(here, &id, NULL, RDMA_PS_TCP));
	destroy(id);
	CHECK(!rdma_create_id(here, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, (struct sockaddr *)&address));
	destroy(id);
	CHECK(!rdma_create_id(here, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 2000));
	/* With an event that nobody has taken. */
	destroy(id);
	CHECK(!readable(here->fd, 0));
	destroy(caller(here, RDMA_PS_TCP, htons(9)));
	destroy(listener(there, RDMA_PS_TCP, &port));
	/* While it asks. */
	ends = asked(0);
	destroy(ends.client);
	destroy(ends.server);
	destroy(ends.listener);
	/* Asked, and destroyed instead of an answer. */
	ends = asked(0);
	destroy(ends.server);
	expect(here, RDMA_CM_EVENT_REJECTED, 28);
	destroy(ends.client);
	destroy(ends.listener);
	/* A listener goes with what it was asked and nobody has looked at. */
	id = listener(there, RDMA_PS_TCP, &port);
	ends.client = caller(here, RDMA_PS_TCP, port);
	give_queue_pair(ends.client);
	CHECK(!rdma_connect(ends.client, &(struct rdma_conn_param){.retry_count = 1}));
	CHECK(readable(there->fd, SOON));
	destroy(id);
	CHECK(!readable(there->fd, 0));
	expect(here, RDMA_CM_EVENT_REJECTED, 28);
	destroy(ends.client);
	/* Connected, either side. */
	ends = asked(0);
	accepted(&ends);
	destroy(ends.client);
	expect(there, RDMA_CM_EVENT_DISCONNECTED, 0);
	destroy(ends.server);
	destroy(ends.listener);
	ends = asked(0);
	accepted(&ends);
	destroy(ends.server);
	expect(here, RDMA_CM_EVENT_DISCONNECTED, 0);
	gone(&(struct ends){ends.listener, ends.client, caller(here, RDMA_PS_TCP, htons(9))});
	/* Disconnecting, and disconnected. */
	ends = asked(0);
	accepted(&ends);
	CHECK(!rdma_disconnect(ends.client));
	gone(&ends);
}

static volatile int acknowledged;

static void *acknowledge_later(void *event)
{
	usleep(200000);
	acknowledged = 1;
	CHECK(!rdma_ack_cm_event(event));
	return NULL;
}

/* What was handed out must come back first. */
static void unacknowledged(void)
{
	struct sockaddr_in peer = loopback(htons(9));
	struct rdma_event_channel *elsewhere = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	pthread_t thread;

	for (int migrate = 0; migrate < 2; migrate++) {
		NEED(!rdma_create_id(here, &id, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 2000));
		event = next(here, RDMA_CM_EVENT_ADDR_RESOLVED);
		NEED(event);
		acknowledged = 0;
		pthread_create(&thread, NULL, acknowledge_later, event);
		if (migrate) {
			CHECK(!rdma_resolve_route(id, 2000) && readable(here->fd, SOON));
			CHECK(!rdma_migrate_id(id, elsewhere) && acknowledged && id->channel == elsewhere);
			/* What waited came along. */
			CHECK(!readable(here->fd, 0));
			expect(elsewhere, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
		}
		CHECK(!rdma_destroy_id(id) && acknowledged);
		pthread_join(thread, NULL);
	}
	rdma_destroy_event_channel(elsewhere);
}

/* A queue pair of the program's own: it does what the library does for others. */
static void external(void)
{
	struct rdma_cm_event *event;
	struct ends ends;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_pd *pd;
	uint16_t port;
	int mask;

	ends.listener = listener(there, RDMA_PS_TCP, &port);
	ends.client = caller(here, RDMA_PS_TCP, port);
	pd = ibv_alloc_pd(ends.client->verbs);
	cq = ibv_create_cq(ends.client->verbs, 16, NULL, NULL, 0);
	NEED(pd && cq);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_ece ece = {.vendor_id = 0x77, .options = 5};
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	CHECK(!rdma_set_local_ece(ends.client, &ece));
	CHECK(!rdma_connect(ends.client, &(struct rdma_conn_param){.qp_num = qp->qp_num, .responder_resources = 1, .initiator_depth = 1}));
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(event);
	ends.server = event->id;
	CHECK(event->param.conn.qp_num == qp->qp_num);
	rdma_ack_cm_event(event);
	memset(&ece, 0xff, sizeof ece);
	CHECK(!rdma_get_remote_ece(ends.server, &ece) && ece.vendor_id == 0x77 && ece.options == 5 && !ece.comp_mask);
	give_queue_pair(ends.server);
	CHECK(rdma_get_remote_ece(ends.server, &ece) == -1 && errno == EINVAL);
	CHECK(!rdma_accept(ends.server, &(struct rdma_conn_param){.responder_resources = 1, .initiator_depth = 1}));
	expect(here, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	/* The answer is about the vendor that was asked for: of its options this device has none. */
	memset(&ece, 0xff, sizeof ece);
	CHECK(!rdma_get_remote_ece(ends.client, &ece) && ece.vendor_id == 0x77 && !ece.options && !ece.comp_mask);
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		struct ibv_qp_attr attr = {.qp_state = state};

		CHECK(!rdma_init_qp_attr(ends.client, &attr, &mask) && mask & IBV_QP_STATE);
		CHECK(!ibv_modify_qp(qp, &attr, mask));
	}
	CHECK(!rdma_establish(ends.client));
	expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(!readable(here->fd, 50));
	CHECK(rdma_establish(ends.server) == -1 && errno == EINVAL);
	CHECK(!rdma_disconnect(ends.server));
	expect(here, RDMA_CM_EVENT_DISCONNECTED, 0);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	gone(&ends);
}

/* Datagrams: asked for a queue pair, and told of it. */
static void datagrams(void)
{
	uint8_t data[180];
	struct rdma_conn_param parameters = {.private_data = data, .private_data_len = sizeof data};
	struct rdma_cm_event *event;
	struct ends ends;
	uint16_t port;

	memset(data, 0x33, sizeof data);
	ends.listener = listener(there, RDMA_PS_UDP, &port);
	for (int refuse = 0; refuse < 2; refuse++) {
		ends.client = caller(here, RDMA_PS_UDP, port);
		give_queue_pair(ends.client);
		CHECK(state_of(ends.client) == IBV_QPS_RTS);
		parameters.private_data_len = 181;
		CHECK(rdma_connect(ends.client, &parameters) == -1 && errno == EINVAL);
		parameters.private_data_len = 180;
		CHECK(!rdma_connect(ends.client, &parameters));
		event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
		NEED(event);
		ends.server = event->id;
		private_data(event->param.ud.private_data, event->param.ud.private_data_len, 180, 180, 0x33);
		rdma_ack_cm_event(event);
		give_queue_pair(ends.server);
		parameters.private_data_len = 136;
		if (refuse) {
			CHECK(!rdma_reject(ends.server, data, 136));
			expect(here, RDMA_CM_EVENT_UNREACHABLE, 2);
		} else {
			CHECK(!rdma_accept(ends.server, &parameters));
			event = next(here, RDMA_CM_EVENT_ESTABLISHED);
			NEED(event);
			private_data(event->param.ud.private_data, event->param.ud.private_data_len, 136, 136, 0x33);
			CHECK(event->param.ud.qp_num == ends.server->qp->qp_num && event->param.ud.qkey == RDMA_UDP_QKEY);
			CHECK(event->param.ud.ah_attr.is_global && event->param.ud.ah_attr.port_num == 1);
			rdma_ack_cm_event(event);
			/* There is nothing to disconnect, and that is no error. */
			CHECK(!rdma_disconnect(ends.client) && !rdma_disconnect(ends.server));
			CHECK(state_of(ends.client) == IBV_QPS_ERR);
		}
		CHECK(!readable(there->fd, 0));
		destroy(ends.client);
		destroy(ends.server);
	}
	destroy(ends.listener);
}

/* An address of the loopback that is a GID, for a service of TCP's. */
static struct rdma_addrinfo *gid(int flags, const char *service)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST | RAI_FAMILY | flags, .ai_family = AF_IB,
				      .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC};
	struct rdma_addrinfo *found = NULL;

	NEED(!rdma_getaddrinfo("::ffff:127.0.0.1", service, &hints, &found) && found && found->ai_family == AF_IB);
	return found;
}

/* With GIDs for addresses requests do not begin with IP addresses, so all of the message is the program's. */
static void gids(void)
{
	uint8_t data[93];
	struct rdma_conn_param parameters = {.private_data = data, .private_data_len = sizeof data, .retry_count = 6};
	struct rdma_addrinfo *found = gid(RAI_PASSIVE, "0");
	struct sockaddr_ib *address;
	struct rdma_cm_event *event;
	struct ends ends;
	char service[8];
	uint16_t port;

	memset(data, 0x6b, sizeof data);
	NEED(!rdma_create_id(there, &ends.listener, &failures, RDMA_PS_TCP));
	CHECK(found->ai_src_len == sizeof *address);
	NEED(!rdma_bind_addr(ends.listener, found->ai_src_addr) && !rdma_listen(ends.listener, 8));
	rdma_freeaddrinfo(found);
	port = rdma_get_src_port(ends.listener);
	CHECK(port && ends.listener->route.addr.src_addr.sa_family == AF_IB);
	snprintf(service, sizeof service, "%u", ntohs(port));
	found = gid(0, service);
	address = (struct sockaddr_ib *)found->ai_dst_addr;
	NEED(found->ai_dst_len == sizeof *address && address);
	CHECK(be64toh(address->sib_sid) == ((uint64_t)RDMA_PS_TCP << 16 | ntohs(port)));
	NEED(!rdma_create_id(here, &ends.client, NULL, RDMA_PS_UDP));
	CHECK(rdma_resolve_addr(ends.client, NULL, found->ai_dst_addr, 2000) == -1 && errno == EINVAL);
	destroy(ends.client);
	NEED(!rdma_create_id(here, &ends.client, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(ends.client, NULL, found->ai_dst_addr, 2000));
	rdma_freeaddrinfo(found);
	expect(here, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(ends.client, 2000));
	expect(here, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(ends.client->route.addr.src_addr.sa_family == AF_IB && ends.client->route.addr.dst_addr.sa_family == AF_IB);
	CHECK(rdma_get_dst_port(ends.client) == port && rdma_get_src_port(ends.client));
	give_queue_pair(ends.client);
	CHECK(rdma_connect(ends.client, &parameters) == -1 && errno == EINVAL);
	parameters.private_data_len = 92;
	CHECK(!rdma_connect(ends.client, &parameters));
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(event);
	ends.server = event->id;
	private_data(event->param.conn.private_data, event->param.conn.private_data_len, 92, 92, 0x6b);
	address = (struct sockaddr_ib *)&ends.server->route.addr.dst_addr;
	CHECK(address->sib_family == AF_IB && !memcmp(&address->sib_addr, &ends.client->route.addr.addr.ibaddr.sgid, 16));
	CHECK(rdma_get_src_port(ends.server) == port);
	CHECK(!rdma_ack_cm_event(event));
	parameters.private_data_len = 0;
	give_queue_pair(ends.server);
	CHECK(!rdma_accept(ends.server, &parameters));
	expect(here, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	gone(&ends);
}

/* Connections in a row; every third ends before the next is asked for. */
#define IN_A_ROW 300
#define ENDS(at) ((at) % 3 == 2)

static void connects_in_a_row(int ports)
{
	struct rdma_conn_param parameters = {.retry_count = 6};
	struct rdma_cm_id *ids[IN_A_ROW] = {NULL};
	uint16_t port;

	NEED(read(ports, &port, sizeof port) == sizeof port);
	NEED((here = rdma_create_event_channel()));
	for (int i = 0; i < IN_A_ROW && !failures; i++) {
		ids[i] = caller(here, RDMA_PS_TCP, port);
		give_queue_pair(ids[i]);
		CHECK(!rdma_connect(ids[i], &parameters));
		expect(here, RDMA_CM_EVENT_ESTABLISHED, 0);
		if (ENDS(i)) {
			CHECK(!rdma_disconnect(ids[i]));
			destroy(ids[i]);
			ids[i] = NULL;
		}
	}
	/* The others stand until the peer has heard of all. */
	CHECK(read(ports, &port, sizeof port) == sizeof port);
	for (int i = 0; i < IN_A_ROW; i++)
		if (ids[i])
			destroy(ids[i]);
	rdma_destroy_event_channel(here);
	exit(failures != 0);
}

/* A peer's messages are told in the order in which it sent them: a connection stands, and is over, before it asks for the
   next. */
static void told_in_the_order_in_which_they_were_sent(pid_t child, int ports)
{
	struct rdma_conn_param parameters = {.rnr_retry_count = 7};
	struct rdma_cm_id *ids[IN_A_ROW], *listening;
	struct rdma_cm_event *event;
	uint16_t port;
	int status;

	listening = listener(there, RDMA_PS_TCP, &port);
	CHECK(write(ports, &port, sizeof port) == sizeof port);
	for (int i = 0; i < IN_A_ROW; i++) {
		event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
		NEED(event);
		ids[i] = event->id;
		rdma_ack_cm_event(event);
		give_queue_pair(ids[i]);
		CHECK(!rdma_accept(ids[i], &parameters));
		for (int ends = 0; ends <= ENDS(i); ends++) {
			event = next(there, ends ? RDMA_CM_EVENT_DISCONNECTED : RDMA_CM_EVENT_ESTABLISHED);
			NEED(event);
			CHECK(event->id == ids[i]);
			rdma_ack_cm_event(event);
		}
		if (ENDS(i))
			destroy(ids[i]);
	}
	CHECK(write(ports, &port, sizeof port) == sizeof port);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	for (int i = 0; i < IN_A_ROW; i++)
		if (!ENDS(i))
			destroy(ids[i]);
	destroy(listening);
}

int main(void)
{
	int ports[2];
	pid_t child;

	NEED(!pipe(ports));
	child = fork();
	if (!child) {
		close(ports[1]);
		connects_in_a_row(ports[0]);
	}
	here = rdma_create_event_channel();
	there = rdma_create_event_channel();
	NEED(here && there);
	told_in_the_order_in_which_they_were_sent(child, ports[1]);
	connected();
	crossing();
	rejected();
	given_up();
	nobody_listens(RDMA_PS_TCP, RDMA_CM_EVENT_REJECTED, 8);
	nobody_listens(RDMA_PS_UDP, RDMA_CM_EVENT_UNREACHABLE, 1);
	somebody_listens_late(RDMA_PS_TCP);
	somebody_listens_late(RDMA_PS_UDP);
	limits();
	as_many_as_there_are();
	destroyed();
	unacknowledged();
	external();
	datagrams();
	gids();
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
	return failures != 0;
}
