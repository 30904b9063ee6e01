/* What the programs that test the connection manager share: two ends in one process, each with a channel of its own. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include "bench.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <unistd.h>

/* How long an event may take that is on its way, in milliseconds. */
#define SOON 60000

static inline struct sockaddr_in loopback(uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	return address;
}

static inline int readable(int fd, int milliseconds)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, milliseconds) == 1;
}

/* The next event of a channel, which must be of that kind; NULL otherwise. */
static inline struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = NULL;

	if (!readable(channel->fd, SOON)) {
		fprintf(stderr, "no event where %s was expected\n", rdma_event_str(kind));
		failures++;
		return NULL;
	}
	CHECK(!rdma_get_cm_event(channel, &event) && event);
	if (event && event->event != kind) {
		fprintf(stderr, "%s (status %d) where %s was expected\n", rdma_event_str(event->event), event->status,
			rdma_event_str(kind));
		failures++;
		rdma_ack_cm_event(event);
		return NULL;
	}
	return event;
}

/* Takes an event of that kind, with that status. */
static inline void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type kind, int status)
{
	struct rdma_cm_event *event = next(channel, kind);

	if (event) {
		if (event->status != status)
			fprintf(stderr, "%s has status %d\n", rdma_event_str(kind), event->status);
		CHECK(event->status == status);
		CHECK(!rdma_ack_cm_event(event));
	}
}

/* An id that listens on a free port of the loopback, and the port. */
static inline struct rdma_cm_id *listener(struct rdma_event_channel *channel, enum rdma_port_space space, uint16_t *port)
{
	struct sockaddr_in address = loopback(0);
	struct rdma_cm_id *id = NULL;

	NEED(!rdma_create_id(channel, &id, &failures, space));
	NEED(!rdma_bind_addr(id, (struct sockaddr *)&address));
	NEED(!rdma_listen(id, 8));
	*port = rdma_get_src_port(id);
	CHECK(*port != 0);
	return id;
}

/* An id that knows the way to a port of the loopback. */
static inline struct rdma_cm_id *caller(struct rdma_event_channel *channel, enum rdma_port_space space, uint16_t port)
{
	struct sockaddr_in address = loopback(port);
	struct rdma_cm_id *id = NULL;

	NEED(!rdma_create_id(channel, &id, NULL, space));
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(id->verbs && id->pd && id->port_num == 1);
	NEED(!rdma_resolve_route(id, 2000));
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(id->route.num_paths == 1 && id->route.path_rec && id->route.path_rec->mtu >= IBV_MTU_256);
	return id;
}

static inline void give_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = id->qp_type,
	};

	NEED(!rdma_create_qp(id, NULL, &init));
	CHECK(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
}

static inline enum ibv_qp_state state_of(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_UNKNOWN};

	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

static inline void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq);
	CHECK(!rdma_destroy_id(id));
}

#endif
