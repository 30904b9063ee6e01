/* Every event of the connection manager that this NIC has, each made to happen: fourteen of the sixteen names. Of the other
 * two, ROUTE_ERROR comes where a subnet administrator is asked (InfiniBand), ADDR_CHANGE from a bonded pair of cards.
 *
 *   cm_events ADDRESS-WITHOUT-DEVICE ADDRESS-OF-A-DEVICE COMMAND
 *
 * COMMAND takes the interface of that device away. The script `namespace` beside this file has such interfaces.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include "ends.h"

static struct rdma_event_channel *here, *there;
static int seen[RDMA_CM_EVENT_TIMEWAIT_EXIT + 1];

/* The next event of a channel, told and given back; its id is what matters. */
static struct rdma_cm_id *next(struct rdma_event_channel *channel, enum rdma_cm_event_type *type)
{
	struct pollfd fd = {channel->fd, POLLIN, 0};
	struct rdma_cm_event *event;

	NEED(poll(&fd, 1, 30000) == 1);
	NEED(rdma_get_cm_event(channel, &event) == 0);
	struct rdma_cm_id *id = event->id;
	*type = event->event;
	if (*type <= RDMA_CM_EVENT_TIMEWAIT_EXIT && !seen[*type]++)
		printf("%-30s status %d\n", rdma_event_str(*type), event->status);
	NEED(rdma_ack_cm_event(event) == 0);
	return id;
}

static struct rdma_cm_id *take(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	enum rdma_cm_event_type type;
	struct rdma_cm_id *id = next(channel, &type);

	if (type != wanted) {
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(type), rdma_event_str(wanted));
		exit(1);
	}
	return id;
}

static struct sockaddr_in at(const char *ip, uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port};

	NEED(inet_pton(AF_INET, ip, &address.sin_addr) == 1);
	return address;
}

static struct rdma_cm_id *listen_in(enum rdma_port_space space)
{
	struct sockaddr_in address = at("127.0.0.1", 0);
	struct rdma_cm_id *id;

	NEED(rdma_create_id(there, &id, NULL, space) == 0);
	NEED(rdma_bind_addr(id, (struct sockaddr *)&address) == 0 && rdma_listen(id, 4) == 0);
	return id;
}

/* An id that knows its way to a listener. */
static struct rdma_cm_id *resolved(enum rdma_port_space space, uint16_t port)
{
	struct sockaddr_in address = at("127.0.0.1", port);
	struct rdma_cm_id *id;

	NEED(rdma_create_id(here, &id, NULL, space) == 0);
	NEED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
	take(here, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(rdma_resolve_route(id, 2000) == 0);
	take(here, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static void give_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	NEED(cq && rdma_create_qp(id, NULL, &attr) == 0);
}

static void end(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	NEED(rdma_destroy_id(id) == 0);
}

/* ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, ESTABLISHED, DISCONNECTED, TIMEWAIT_EXIT: the life of a connection. */
static void connection(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = resolved(RDMA_PS_TCP, rdma_get_src_port(listener)), *server;
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
	enum rdma_cm_event_type type;

	give_qp(client, IBV_QPT_RC);
	NEED(rdma_connect(client, &param) == 0);
	server = take(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	give_qp(server, IBV_QPT_RC);
	NEED(rdma_accept(server, &param) == 0);
	take(here, RDMA_CM_EVENT_ESTABLISHED);
	take(there, RDMA_CM_EVENT_ESTABLISHED);
	NEED(rdma_disconnect(client) == 0);
	take(there, RDMA_CM_EVENT_DISCONNECTED);
	NEED(rdma_disconnect(server) == 0);
	take(here, RDMA_CM_EVENT_DISCONNECTED);
	do
		next(here, &type);
	while (type != RDMA_CM_EVENT_TIMEWAIT_EXIT);
	end(client);
	end(server);
}

/* CONNECT_RESPONSE instead of ESTABLISHED: the id has no queue pair, so the program makes its own ready and says so. */
static void own_queue_pair(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = resolved(RDMA_PS_TCP, rdma_get_src_port(listener)), *server;
	struct ibv_pd *pd = ibv_alloc_pd(client->verbs);
	struct ibv_cq *cq = ibv_create_cq(client->verbs, 16, NULL, NULL, 0);

	NEED(pd && cq);
	struct ibv_qp *qp = create_qp(pd, cq, IBV_QPT_RC);
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7, .qp_num = qp->qp_num};
	NEED(rdma_connect(client, &param) == 0);
	server = take(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	give_qp(server, IBV_QPT_RC);
	NEED(rdma_accept(server, &param) == 0);
	take(here, RDMA_CM_EVENT_CONNECT_RESPONSE);
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		struct ibv_qp_attr attr = {.qp_state = state};
		int mask;

		NEED(rdma_init_qp_attr(client, &attr, &mask) == 0 && ibv_modify_qp(qp, &attr, mask) == 0);
	}
	NEED(rdma_establish(client) == 0);
	take(there, RDMA_CM_EVENT_ESTABLISHED);
	ibv_destroy_qp(qp);
	end(client);
	take(there, RDMA_CM_EVENT_DISCONNECTED);
	end(server);
}

/* CONNECT_ERROR: the answer came, but the queue pair cannot follow it. */
static void cannot_follow(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = resolved(RDMA_PS_TCP, rdma_get_src_port(listener)), *server;
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};

	give_qp(client, IBV_QPT_RC);
	NEED(rdma_connect(client, &param) == 0);
	NEED(to_state(client->qp, IBV_QPS_ERR) == 0);
	server = take(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	give_qp(server, IBV_QPT_RC);
	NEED(rdma_accept(server, &param) == 0);
	take(here, RDMA_CM_EVENT_CONNECT_ERROR);
	end(client);
	end(server);
}

/* REJECTED: by the server. UNREACHABLE: a datagram service says no, which datagrams hear so. */
static void refused(struct rdma_cm_id *listener, enum rdma_port_space space, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_id *client = resolved(space, rdma_get_src_port(listener));
	struct rdma_conn_param param = {.retry_count = 7};

	give_qp(client, space == RDMA_PS_TCP ? IBV_QPT_RC : IBV_QPT_UD);
	NEED(rdma_connect(client, &param) == 0);
	struct rdma_cm_id *request = take(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(rdma_reject(request, NULL, 0) == 0);
	NEED(rdma_destroy_id(request) == 0);
	take(here, wanted);
	end(client);
}

/* MULTICAST_JOIN for each group, until the system allows no more of them: MULTICAST_ERROR. */
static void groups(void)
{
	struct rdma_cm_id *id = resolved(RDMA_PS_UDP, htons(1));
	enum rdma_cm_event_type type = RDMA_CM_EVENT_MULTICAST_JOIN;

	give_qp(id, IBV_QPT_UD);
	for (int i = 1; type == RDMA_CM_EVENT_MULTICAST_JOIN; i++) {
		char name[32];

		NEED(i < 250);
		snprintf(name, sizeof(name), "239.77.1.%d", i);
		struct sockaddr_in group = at(name, 0);
		NEED(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == 0);
		next(here, &type);
	}
	NEED(type == RDMA_CM_EVENT_MULTICAST_ERROR);
	end(id);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: cm_events ADDRESS-WITHOUT-DEVICE ADDRESS-OF-A-DEVICE COMMAND\n");
		return 64;
	}
	NEED((here = rdma_create_event_channel()) && (there = rdma_create_event_channel()));
	struct rdma_cm_id *streams = listen_in(RDMA_PS_TCP), *services = listen_in(RDMA_PS_UDP), *id;

	connection(streams);
	own_queue_pair(streams);
	cannot_follow(streams);
	refused(streams, RDMA_PS_TCP, RDMA_CM_EVENT_REJECTED);
	refused(services, RDMA_PS_UDP, RDMA_CM_EVENT_UNREACHABLE);
	groups();

	/* ADDR_ERROR: an address of an interface that is no device for us. */
	struct sockaddr_in nowhere = at(argv[1], htons(1)), somewhere = at(argv[2], htons(1));
	NEED(rdma_create_id(here, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&nowhere, 2000) == 0);
	take(here, RDMA_CM_EVENT_ADDR_ERROR);
	end(id);

	/* DEVICE_REMOVAL: the interface of an id's device goes away. */
	NEED(rdma_create_id(here, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(id, (struct sockaddr *)&somewhere) == 0 && id->verbs);
	fflush(stdout);
	NEED(system(argv[3]) == 0);
	take(here, RDMA_CM_EVENT_DEVICE_REMOVAL);
	end(id);

	int count = 0;
	for (int i = 0; i <= RDMA_CM_EVENT_TIMEWAIT_EXIT; i++) {
		if (!seen[i])
			printf("%-30s not on this device\n", rdma_event_str(i));
		count += seen[i] > 0;
	}
	printf("%d of %d events were seen\n", count, RDMA_CM_EVENT_TIMEWAIT_EXIT + 1);
	return count == 14 ? 0 : 1;
}
