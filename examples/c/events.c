/* Connect by address, driven by events: the skeleton of every program that uses the connection manager.
 *
 *   events server [PORT]
 *   events client ADDRESS PORT
 *
 * The server serves any number of clients in one loop and ends with the last of them. Each side sends one message and prints the other's.
 * See events.md for what happens at each step.
 */
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include "need.h"

enum { LENGTH = 256, TIMEOUT_MS = 2000 };

/* What belongs to one connection. The connection manager carries the pointer in id->context. */
struct connection {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *receive_mr, *send_mr;
	char receive[LENGTH], send[LENGTH];
	int done; /* completions that were seen: one send, one receive */
};

/* Everything a queue pair needs, and a receive posted before the peer can send. */
static struct connection *prepare(struct rdma_cm_id *id)
{
	struct connection *c = calloc(1, sizeof(*c));

	NEED(c);
	c->id = id;
	id->context = c;
	NEED(c->pd = ibv_alloc_pd(id->verbs));
	NEED(c->channel = ibv_create_comp_channel(id->verbs));
	NEED(c->cq = ibv_create_cq(id->verbs, 16, NULL, c->channel, 0));
	NEED(ibv_req_notify_cq(c->cq, 0) == 0);

	struct ibv_qp_init_attr attr = {
		.send_cq = c->cq,
		.recv_cq = c->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	NEED(rdma_create_qp(id, c->pd, &attr) == 0);

	NEED(c->receive_mr = ibv_reg_mr(c->pd, c->receive, LENGTH, IBV_ACCESS_LOCAL_WRITE));
	NEED(c->send_mr = ibv_reg_mr(c->pd, c->send, LENGTH, 0));

	struct ibv_sge sge = {(uintptr_t)c->receive, LENGTH, c->receive_mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
	NEED(ibv_post_recv(id->qp, &wr, &bad) == 0);
	return c;
}

static void say(struct connection *c, const char *who)
{
	snprintf(c->send, LENGTH, "hello from the %s", who);
	struct ibv_sge sge = {(uintptr_t)c->send, (uint32_t)strlen(c->send) + 1, c->send_mr->lkey};
	struct ibv_send_wr wr = {
		.wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
	}, *bad;
	NEED(ibv_post_send(c->id->qp, &wr, &bad) == 0);
}

/* Waits until both completions are there: sleep on the channel, arm again, then poll until the queue is empty. */
static void finish(struct connection *c)
{
	while (c->done < 2) {
		struct ibv_cq *cq;
		void *context;
		struct ibv_wc wc;

		NEED(ibv_get_cq_event(c->channel, &cq, &context) == 0);
		ibv_ack_cq_events(cq, 1);
		NEED(ibv_req_notify_cq(cq, 0) == 0);
		while (ibv_poll_cq(cq, 1, &wc) > 0) {
			if (wc.status != IBV_WC_SUCCESS) {
				fprintf(stderr, "completion failed: %s\n", ibv_wc_status_str(wc.status));
				exit(1);
			}
			if (wc.opcode == IBV_WC_RECV)
				printf("received: %s\n", c->receive);
			c->done++;
		}
	}
}

static void destroy(struct connection *c)
{
	struct rdma_cm_id *id = c->id;

	rdma_destroy_qp(id);
	ibv_dereg_mr(c->receive_mr);
	ibv_dereg_mr(c->send_mr);
	ibv_destroy_cq(c->cq);
	ibv_destroy_comp_channel(c->channel);
	ibv_dealloc_pd(c->pd);
	rdma_destroy_id(id);
	free(c);
}

static int serve(const char *port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
	int served = 0, open = 0;

	NEED(channel);
	NEED(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	NEED(rdma_listen(listener, 10) == 0);
	printf("listening on port %d\n", ntohs(rdma_get_src_port(listener)));
	fflush(stdout);

	while (!served || open) {
		struct rdma_cm_event *event;

		NEED(rdma_get_cm_event(channel, &event) == 0);
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;
		rdma_ack_cm_event(event);

		switch (type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST: {
			struct rdma_conn_param param = {.initiator_depth = 1, .responder_resources = 1, .rnr_retry_count = 7};

			prepare(id);
			NEED(rdma_accept(id, &param) == 0);
			break;
		}
		case RDMA_CM_EVENT_ESTABLISHED:
			open++;
			served++;
			say(id->context, "server");
			finish(id->context);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_disconnect(id);
			destroy(id->context);
			open--;
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		default:
			fprintf(stderr, "unexpected: %s\n", rdma_event_str(type));
			return 1;
		}
	}
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(channel);
	return 0;
}

static int ask(const char *host, const char *port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct addrinfo *address;

	NEED(channel);
	NEED(getaddrinfo(host, port, NULL, &address) == 0);
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, address->ai_addr, TIMEOUT_MS) == 0);
	freeaddrinfo(address);

	for (;;) {
		struct rdma_cm_event *event;

		NEED(rdma_get_cm_event(channel, &event) == 0);
		enum rdma_cm_event_type type = event->event;
		int status = event->status;
		rdma_ack_cm_event(event);

		switch (type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED: /* now the id has a device: id->verbs */
			prepare(id);
			NEED(rdma_resolve_route(id, TIMEOUT_MS) == 0);
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED: {
			struct rdma_conn_param param = {
				.initiator_depth = 1, .responder_resources = 1, .retry_count = 7, .rnr_retry_count = 7,
			};
			NEED(rdma_connect(id, &param) == 0);
			break;
		}
		case RDMA_CM_EVENT_ESTABLISHED:
			say(id->context, "client");
			finish(id->context);
			NEED(rdma_disconnect(id) == 0);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			destroy(id->context);
			rdma_destroy_event_channel(channel);
			return 0;
		default:
			fprintf(stderr, "%s, status %d\n", rdma_event_str(type), status);
			return 1;
		}
	}
}

int main(int argc, char **argv)
{
	if (argc >= 2 && !strcmp(argv[1], "server"))
		return serve(argc > 2 ? argv[2] : "0");
	if (argc == 4 && !strcmp(argv[1], "client"))
		return ask(argv[2], argv[3]);
	fprintf(stderr, "usage: events server [PORT] | events client ADDRESS PORT\n");
	return 64;
}
