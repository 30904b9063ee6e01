/* Connections by the connection manager: one listener for all lanes, whose requests say which lane and queue pair they are for. */
#include "soak.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* How long anything of the connection manager may take; a peer may be stopped for some seconds meanwhile. */
#define SOON_MS 25000
#define REQUEST_BYTES 56
#define ANSWER_BYTES 136
#define REFUSAL_BYTES 100

/* What a request says; the rest of its private data is drawn. */
struct request {
	uint32_t lane, round, qp, number;
};

/* A request that its lane has not taken yet. */
struct letter {
	struct letter *next;
	struct rdma_cm_id *id;
	uint8_t data[REQUEST_BYTES];
	uint32_t length;
};

static pthread_mutex_t mail_lock = PTHREAD_MUTEX_INITIALIZER;
static struct letter *mail;
static struct rdma_event_channel *listening;
static struct rdma_event_channel *_Atomic lane_channel[MAX_LANES];

static struct sockaddr_storage where(const char *text, int port)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
	struct sockaddr_storage to = {0};
	char digits[16];

	snprintf(digits, sizeof digits, "%d", port);
	if (getaddrinfo(text, digits, &hints, &found))
		trouble("%s is no address", text);
	memcpy(&to, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return to;
}

static void *distribute(void *unused)
{
	struct rdma_cm_event *event;

	(void)unused;
	while (!rdma_get_cm_event(listening, &event)) {
		const void *data = event->listen_id->ps == RDMA_PS_UDP ? event->param.ud.private_data : event->param.conn.private_data;
		uint32_t length = event->listen_id->ps == RDMA_PS_UDP ? event->param.ud.private_data_len : event->param.conn.private_data_len;
		struct letter *letter;
		struct request request;

		if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
			/* A connection may end before its lane has taken it over, when the peer dies. */
			if (!options.peer_may_die)
				fail(NULL, -1, 0, "the listener heard %s (status %d)", rdma_event_str(event->event), event->status);
			rdma_ack_cm_event(event);
			continue;
		}
		if (!data || length < REQUEST_BYTES)
			fail(NULL, -1, 0, "a request with %u bytes of private data", length);
		letter = calloc(1, sizeof *letter);
		letter->id = event->id;
		letter->length = length;
		memcpy(letter->data, data, REQUEST_BYTES);
		memcpy(&request, data, sizeof request);
		rdma_ack_cm_event(event);
		if (request.lane >= (uint32_t)options.threads || !lane_channel[request.lane])
			fail(NULL, -1, 0, "a request for lane %u", request.lane);
		if (rdma_migrate_id(letter->id, lane_channel[request.lane]))
			fail(NULL, -1, 0, "rdma_migrate_id failed (errno %d)", errno);
		pthread_mutex_lock(&mail_lock);
		letter->next = mail;
		mail = letter;
		pthread_mutex_unlock(&mail_lock);
	}
	return NULL;
}

void cm_listen(void)
{
	static const enum rdma_port_space spaces[] = {RDMA_PS_TCP, RDMA_PS_UDP};
	struct sockaddr_storage at = where(options.address, options.port);
	pthread_t thread;

	if (!options.limits.cm)
		return;
	listening = rdma_create_event_channel();
	if (!listening)
		trouble("no event channel");
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id;

		if (rdma_create_id(listening, &id, NULL, spaces[i]) || rdma_bind_addr(id, (struct sockaddr *)&at) || rdma_listen(id, 128))
			trouble("cannot listen with the connection manager: %s", strerror(errno));
	}
	if (pthread_create(&thread, NULL, distribute, NULL))
		trouble("no thread");
}

void cm_open(struct lane *lane)
{
	if (!options.limits.cm)
		return;
	lane->cm_channel = rdma_create_event_channel();
	if (!lane->cm_channel)
		trouble("no event channel");
	lane_channel[lane->number] = lane->cm_channel;
}

/* The next event of a lane that is not about the aftermath; NULL when the peer is gone. */
static struct rdma_cm_event *next_event(struct lane *lane)
{
	uint64_t end = now_ms() + SOON_MS;
	struct rdma_cm_event *event;

	for (;;) {
		struct pollfd poll_fd = {.fd = lane->cm_channel->fd, .events = POLLIN};
		char byte;

		if (poll(&poll_fd, 1, 100) == 1) {
			if (rdma_get_cm_event(lane->cm_channel, &event))
				fail(lane, -1, 0, "rdma_get_cm_event failed (errno %d)", errno);
			step(lane, NULL);
			if (event->event != RDMA_CM_EVENT_TIMEWAIT_EXIT)
				return event;
			rdma_ack_cm_event(event);
		} else if (recv(lane->control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
			lost(lane, "the control channel was closed");
			return NULL;
		} else if (now_ms() > end) {
			fail(lane, -1, 0, "no event of the connection manager for %d seconds (%s)", SOON_MS / 1000, lane->doing);
		}
	}
}

/* Takes the event that must come next on an id. The caller acknowledges it. */
static struct rdma_cm_event *expect(struct lane *lane, int qp, struct rdma_cm_id *id, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = next_event(lane);

	if (!event || (event->event == kind && event->id == id))
		return event;
	if (options.peer_may_die && (event->event == RDMA_CM_EVENT_DISCONNECTED || event->event == RDMA_CM_EVENT_UNREACHABLE ||
				     event->event == RDMA_CM_EVENT_REJECTED || event->event == RDMA_CM_EVENT_CONNECT_ERROR)) {
		lost(lane, rdma_event_str(event->event));
		rdma_ack_cm_event(event);
		return NULL;
	}
	fail(lane, qp, 0, "%s (status %d)%s where %s was expected", rdma_event_str(event->event), event->status,
	     event->id == id ? "" : " of another id", rdma_event_str(kind));
}

static bool expect_plain(struct lane *lane, int qp, struct rdma_cm_id *id, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = expect(lane, qp, id, kind);

	if (event)
		rdma_ack_cm_event(event);
	return event;
}

static void draw_data(struct lane *lane, int qp, int what, uint8_t *data, uint32_t length)
{
	fill(data, key_of(key_of(lane->round.key, 800 + qp), what), 0, length);
}

static void check_data(struct lane *lane, int qp, int what, const void *data, uint32_t length, uint32_t skip, uint32_t sent)
{
	uint8_t expected[256];

	draw_data(lane, qp, what, expected, sent);
	if (!data || length < sent || memcmp((const uint8_t *)data + skip, expected + skip, sent - skip))
		fail(lane, qp, 0, "private data of message %d is not what the peer sent (%u bytes came, %u were sent)", what, length, sent);
	for (uint32_t i = sent; i < length; i++)
		if (((const uint8_t *)data)[i])
			fail(lane, qp, 0, "private data of message %d is not filled up with zeros", what);
}

enum { SAID_REQUEST, SAID_ANSWER, SAID_REFUSAL };

static bool refused_first(struct lane *lane, int qp)
{
	struct dice dice = {key_of(lane->round.key, 830 + qp)};

	return lane->qp[qp].kind == KIND_RC && chance(&dice, 15);
}

static struct rdma_conn_param parameters(struct lane *lane, int number, void *data, uint8_t length)
{
	struct dice dice = {key_of(lane->epoch.key, 850 + number)};
	uint8_t depth = (uint8_t)(1 + below(&dice, 8));

	return (struct rdma_conn_param){.private_data = data, .private_data_len = length, .responder_resources = depth,
					.initiator_depth = depth, .retry_count = 7, .rnr_retry_count = 7, .flow_control = 1};
}

static void be_patient(struct rdma_cm_id *id)
{
	uint8_t time = patience();

	rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &time, sizeof time);
}

static bool client_connect(struct lane *lane, int number)
{
	struct queue_pair *qp = &lane->qp[number];
	struct sockaddr_storage to = where(options.address, options.port), from = where(options.own_address ? options.own_address : options.address, 0);
	bool refused = refused_first(lane, number), datagrams = qp->kind == KIND_UD;
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	uint8_t data[REQUEST_BYTES];

	for (;;) {
		struct request request = {lane->number, lane->round_number, number, 0};
		struct rdma_conn_param param = parameters(lane, number, data, sizeof data);

		if (rdma_create_id(lane->cm_channel, &id, NULL, datagrams ? RDMA_PS_UDP : RDMA_PS_TCP))
			fail(lane, number, 0, "rdma_create_id failed (errno %d)", errno);
		if (rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&to, 5000))
			fail(lane, number, 0, "rdma_resolve_addr failed (errno %d)", errno);
		if (!expect_plain(lane, number, id, RDMA_CM_EVENT_ADDR_RESOLVED))
			return false;
		be_patient(id);
		if (rdma_resolve_route(id, 5000))
			fail(lane, number, 0, "rdma_resolve_route failed (errno %d)", errno);
		if (!expect_plain(lane, number, id, RDMA_CM_EVENT_ROUTE_RESOLVED))
			return false;
		create_pair(lane, number, id);
		request.number = qp->sends->qp_num;
		draw_data(lane, number, SAID_REQUEST, data, sizeof data);
		memcpy(data, &request, sizeof request);
		if (rdma_connect(id, &param))
			fail(lane, number, 0, "rdma_connect failed (errno %d)", errno);
		if (!refused)
			break;
		event = expect(lane, number, id, RDMA_CM_EVENT_REJECTED);
		if (!event)
			return false;
		check_data(lane, number, SAID_REFUSAL, event->param.conn.private_data, event->param.conn.private_data_len, 0, REFUSAL_BYTES);
		rdma_ack_cm_event(event);
		rdma_destroy_qp(id);
		rdma_destroy_id(id);
		qp->id = NULL;
		qp->sends = qp->receives = NULL;
		refused = false;
	}
	event = expect(lane, number, id, RDMA_CM_EVENT_ESTABLISHED);
	if (!event)
		return false;
	if (datagrams) {
		check_data(lane, number, SAID_ANSWER, event->param.ud.private_data, event->param.ud.private_data_len, 0, ANSWER_BYTES);
		qp->remote_qp = event->param.ud.qp_num;
		qp->qkey = event->param.ud.qkey;
		qp->ah = ibv_create_ah(lane->pd, &event->param.ud.ah_attr);
		if (!qp->ah)
			fail(lane, number, 0, "no address handle from an event (errno %d)", errno);
	} else {
		check_data(lane, number, SAID_ANSWER, event->param.conn.private_data, event->param.conn.private_data_len, 0, ANSWER_BYTES);
	}
	rdma_ack_cm_event(event);
	return true;
}

/* The request for a queue pair; NULL when the peer is gone. */
static struct letter *take_letter(struct lane *lane, int number)
{
	uint64_t end = now_ms() + SOON_MS;

	for (;;) {
		struct letter **at, *found = NULL;
		char byte;

		pthread_mutex_lock(&mail_lock);
		for (at = &mail; *at && !found; at = found ? at : &(*at)->next) {
			struct request request;

			memcpy(&request, (*at)->data, sizeof request);
			if (request.lane == (uint32_t)lane->number && request.round == (uint32_t)lane->round_number &&
			    request.qp == (uint32_t)number) {
				found = *at;
				*at = found->next;
				break;
			}
		}
		pthread_mutex_unlock(&mail_lock);
		if (found)
			return found;
		if (recv(lane->control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
			lost(lane, "the control channel was closed");
			return NULL;
		}
		if (now_ms() > end)
			fail(lane, number, 0, "no request of the peer for %d seconds", SOON_MS / 1000);
		poll(NULL, 0, 1);
	}
}

static bool server_connect(struct lane *lane, int number)
{
	struct queue_pair *qp = &lane->qp[number];
	bool refused = refused_first(lane, number), datagrams = qp->kind == KIND_UD;
	uint8_t data[ANSWER_BYTES];
	struct rdma_conn_param param = parameters(lane, number, data, sizeof data);
	struct request request;

	for (;;) {
		struct letter *letter = take_letter(lane, number);
		struct rdma_cm_id *id;

		if (!letter)
			return false;
		check_data(lane, number, SAID_REQUEST, letter->data, sizeof letter->data, sizeof request, REQUEST_BYTES);
		memcpy(&request, letter->data, sizeof request);
		id = letter->id;
		free(letter);
		if (!refused) {
			be_patient(id);
			create_pair(lane, number, id);
			break;
		}
		draw_data(lane, number, SAID_REFUSAL, data, REFUSAL_BYTES);
		if (rdma_reject(id, data, REFUSAL_BYTES) || rdma_destroy_id(id))
			fail(lane, number, 0, "rejecting failed (errno %d)", errno);
		refused = false;
	}
	draw_data(lane, number, SAID_ANSWER, data, sizeof data);
	if (datagrams) {
		struct ibv_ah_attr attr = {.grh = {.dgid = lane->peer_gid, .sgid_index = (uint8_t)own_gid_index, .hop_limit = 64},
					   .is_global = 1, .port_num = 1};

		param.qp_num = qp->sends->qp_num;
		qp->remote_qp = request.number;
		qp->qkey = RDMA_UDP_QKEY;
		qp->ah = ibv_create_ah(lane->pd, &attr);
		if (!qp->ah)
			fail(lane, number, 0, "no address handle (errno %d)", errno);
	}
	if (rdma_accept(qp->id, &param)) {
		if (options.peer_may_die) {
			lost(lane, "rdma_accept failed");
			return false;
		}
		fail(lane, number, 0, "rdma_accept failed (errno %d)", errno);
	}
	return datagrams || expect_plain(lane, number, qp->id, RDMA_CM_EVENT_ESTABLISHED);
}

/* Connections by the manager wait 655 ms for a receive that is not there yet, as with the kernel; rounds shall not take so long. */
static void hurry(struct lane *lane, int number)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .min_rnr_timer = 1};

	if (lane->qp[number].kind == KIND_RC && ibv_modify_qp(lane->qp[number].sends, &attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER))
		fail(lane, number, 0, "the RNR timer of a connected queue pair cannot be changed (errno %d)", errno);
}

bool cm_connect(struct lane *lane, int qp)
{
	step(lane, "connecting with the connection manager");
	if (!(options.side == CLIENT ? client_connect(lane, qp) : server_connect(lane, qp)))
		return false;
	hurry(lane, qp);
	return true;
}

/* Either side ends the connections, or both at once; both hear of each once. */
bool cm_disconnect(struct lane *lane)
{
	struct dice dice = {key_of(lane->round.key, 870)};
	int who = below(&dice, 3), left = 0;

	step(lane, who == 2 ? "disconnecting, both" : who == (int)options.side ? "disconnecting, here" : "disconnecting, there");
	for (int i = 0; i < lane->qps; i++) {
		if (!lane->qp[i].id || lane->qp[i].kind != KIND_RC)
			continue;
		left++;
		if ((who == 2 || who == (int)options.side) && rdma_disconnect(lane->qp[i].id))
			fail(lane, i, 0, "rdma_disconnect failed (errno %d)", errno);
	}
	for (bool heard[MAX_QPS] = {false}; left; left--) {
		struct rdma_cm_event *event = next_event(lane);
		int number = -1;

		if (!event)
			return false;
		for (int i = 0; i < lane->qps; i++)
			if (lane->qp[i].id == event->id)
				number = i;
		if (event->event != RDMA_CM_EVENT_DISCONNECTED || number < 0 || heard[number])
			fail(lane, number, 0, "%s (status %d) where disconnections were expected", rdma_event_str(event->event), event->status);
		heard[number] = true;
		rdma_ack_cm_event(event);
		/* Who was disconnected answers by doing the same; the other waits for that. */
		if (who != 2 && who != (int)options.side && rdma_disconnect(lane->qp[number].id))
			fail(lane, number, 0, "answering a disconnection failed (errno %d)", errno);
	}
	return true;
}
