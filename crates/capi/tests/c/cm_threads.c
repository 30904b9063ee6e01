/* Many connections at once: two threads take events from one channel, others connect, and ids go while events of theirs are under way. */
#include "connection.h"
#include <pthread.h>
#include <stdatomic.h>

enum { CLIENTS = 4, ROUNDS = 60 };

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listening;
static atomic_int requests, ends;
static uint16_t port;

static void serve_one(struct rdma_cm_event *event)
{
	struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1};
	struct rdma_cm_id *id = event->id;
	enum rdma_cm_event_type kind = event->event;

	switch (kind) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		/* The acknowledgement is the listener's business; the id may go before it. */
		if (atomic_fetch_add(&requests, 1) % 5 == 4) {
			CHECK(!rdma_reject(id, "no", 2));
			CHECK(!rdma_destroy_id(id));
			atomic_fetch_add(&ends, 1);
			CHECK(!rdma_ack_cm_event(event));
			return;
		}
		give_queue_pair(id);
		/* It fails if the one who asked has given up meanwhile. */
		if (rdma_accept(id, &parameters)) {
			destroy(id);
			atomic_fetch_add(&ends, 1);
		}
		CHECK(!rdma_ack_cm_event(event));
		return;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_CONNECT_ERROR:
		CHECK(!rdma_ack_cm_event(event));
		rdma_disconnect(id);
		destroy(id);
		atomic_fetch_add(&ends, 1);
		return;
	default:
		CHECK(!rdma_ack_cm_event(event));
	}
}

static void *serve(void *unused)
{
	struct rdma_cm_event *event;

	while (atomic_load(&ends) < CLIENTS * ROUNDS)
		if (readable(channel->fd, 100) && !rdma_get_cm_event(channel, &event))
			serve_one(event);
	return unused;
}

static void *call(void *number)
{
	struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
	struct sockaddr_in address = loopback(port);

	for (int round = 0; round < ROUNDS; round++) {
		struct rdma_cm_id *id = NULL;

		NEED(!rdma_create_id(NULL, &id, number, RDMA_PS_TCP));
		NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) && !rdma_resolve_route(id, 2000));
		give_queue_pair(id);
		if (rdma_connect(id, &parameters))
			CHECK(errno == ECONNREFUSED);
		else if (round % 3)
			CHECK(!rdma_disconnect(id));
		/* Otherwise it just goes. */
		destroy(id);
	}
	return NULL;
}

int main(void)
{
	pthread_t servers[2], clients[CLIENTS];

	channel = rdma_create_event_channel();
	NEED(channel);
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	listening = listener(channel, RDMA_PS_TCP, &port);
	for (int i = 0; i < 2; i++)
		pthread_create(&servers[i], NULL, serve, NULL);
	for (int i = 0; i < CLIENTS; i++)
		pthread_create(&clients[i], NULL, call, NULL);
	for (int i = 0; i < CLIENTS; i++)
		pthread_join(clients[i], NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(servers[i], NULL);
	destroy(listening);
	rdma_destroy_event_channel(channel);
	CHECK(requests == CLIENTS * ROUNDS && ends == CLIENTS * ROUNDS);
	return failures != 0;
}
