/* What releases after 44 added to the connection manager, well used and badly: names looked up in the background,
 * events of the program's own, sets of descriptors; and options that both ends of a connection agree on. */
#include "connection.h"
#include "newer.h"
#include <pthread.h>
#include <rdma/rsocket.h>

#define FAILS(call, error)                                     \
	do {                                                   \
		errno = 0;                                     \
		CHECK((call) == -1 && errno == (error));       \
	} while (0)

static struct rdma_event_channel *here, *there;

static struct rdma_cm_id *fresh(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = NULL;

	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && id);
	return id;
}

static void names(void)
{
	struct rdma_cm_id *id = fresh(here);
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found = NULL, *again = NULL;

	FAILS(query_name(id, &found), ENOENT);
	CHECK(!resolve_name(id, "127.0.0.1", "7174", &hints));
	expect(here, NAME_RESOLVED, 0);
	/* One at a time, until the answer is fetched. */
	FAILS(resolve_name(id, "127.0.0.1", "7174", &hints), EBUSY);
	FAILS(query_name(id, NULL), EINVAL);
	CHECK(!query_name(id, &found) && found && found->ai_dst_len == sizeof(struct sockaddr_in) && !found->ai_next);
	struct sockaddr_in *address = (struct sockaddr_in *)found->ai_dst_addr;

	CHECK(address->sin_port == htons(7174) && address->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	CHECK(found->ai_port_space == RDMA_PS_TCP && found->ai_qp_type == IBV_QPT_RC);
	FAILS(query_name(id, &again), ENOENT);
	CHECK(!rdma_resolve_addr(id, found->ai_src_addr, found->ai_dst_addr, 2000));
	expect(here, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	rdma_freeaddrinfo(found);
	/* What is not found is told by an event, and then another may be looked up. */
	hints.ai_flags = RAI_NUMERICHOST | RAI_BY_DNS;
	CHECK(!resolve_name(id, "no address", NULL, &hints));
	expect(here, NAME_ERROR, -ENOENT);
	FAILS(query_name(id, &found), ENOENT);
	hints.ai_flags = RAI_PASSIVE;
	CHECK(!resolve_name(id, NULL, "7175", &hints));
	expect(here, NAME_RESOLVED, 0);
	CHECK(!query_name(id, &found) && found->ai_src_len && found->ai_flags & RAI_PASSIVE);
	rdma_freeaddrinfo(found);
	/* Addresses in the hints are copied: the program may change them at once. */
	struct sockaddr_in source = loopback(0);

	hints = (struct rdma_addrinfo){.ai_src_addr = (struct sockaddr *)&source, .ai_src_len = sizeof source};
	CHECK(!resolve_name(id, "127.0.0.1", "1", &hints));
	memset(&source, 0xff, sizeof source);
	expect(here, NAME_RESOLVED, 0);
	CHECK(!query_name(id, &found));
	CHECK(((struct sockaddr_in *)found->ai_src_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(found);
	/* Badly. */
	FAILS(resolve_name(NULL, "127.0.0.1", NULL, NULL), EINVAL);
	FAILS(resolve_name(id, NULL, NULL, NULL), EINVAL);
	hints = (struct rdma_addrinfo){.ai_flags = RAI_BY_SA};
	FAILS(resolve_name(id, NULL, NULL, &hints), EINVAL);
	FAILS(resolve_name(id, NULL, "service", &hints), EOPNOTSUPP);
	FAILS(resolve_name(id, "127.0.0.1", NULL, &hints), EOPNOTSUPP);
	hints.ai_flags |= RAI_BY_DNS;
	FAILS(resolve_name(id, NULL, "service", &hints), EOPNOTSUPP);
	hints = (struct rdma_addrinfo){.ai_qp_type = 77};
	FAILS(resolve_name(id, "127.0.0.1", NULL, &hints), EINVAL);
	hints = (struct rdma_addrinfo){.ai_src_addr = (struct sockaddr *)&source, .ai_src_len = 4096};
	FAILS(resolve_name(id, "127.0.0.1", NULL, &hints), EINVAL);
	FAILS(query_name(NULL, &found), EINVAL);
	/* An answer that nobody fetches goes with its id, and so does a question that is not answered yet. */
	for (int i = 0; i < 50; i++) {
		struct rdma_cm_id *gone = fresh(here);

		CHECK(!resolve_name(gone, "127.0.0.1", "1", NULL));
		if (i % 2)
			expect(here, NAME_RESOLVED, 0);
		CHECK(!rdma_destroy_id(gone));
	}
	CHECK(!rdma_destroy_id(id));
	CHECK(!readable(here->fd, 50));
	/* An id without a channel waits. */
	id = fresh(NULL);
	CHECK(!resolve_name(id, "127.0.0.1", "7174", NULL) && id->event && id->event->event == NAME_RESOLVED);
	CHECK(!query_name(id, &found));
	rdma_freeaddrinfo(found);
	hints = (struct rdma_addrinfo){.ai_flags = RAI_NUMERICHOST};
	FAILS(resolve_name(id, "no address", NULL, &hints), ENOENT);
	CHECK(!rdma_destroy_id(id));
}

static void own_events(void)
{
	struct rdma_cm_id *id = fresh(here);
	struct rdma_cm_event *event;
	uint64_t argument;

	CHECK(!write_event(id, USER_EVENT, -7, 0x123456789abcdef0));
	CHECK(!write_event(id, USER_EVENT, 0, 2));
	event = next(here, USER_EVENT);
	NEED(event);
	memcpy(&argument, &event->param, sizeof argument);
	CHECK(event->id == id && !event->listen_id && event->status == -7 && argument == 0x123456789abcdef0);
	rdma_ack_cm_event(event);
	/* They move with their id, and go with it. */
	CHECK(!rdma_migrate_id(id, there));
	expect(there, USER_EVENT, 0);
	CHECK(!write_event(id, USER_EVENT, 0, 3));
	FAILS(write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	FAILS(write_event(id, NAME_RESOLVED, 0, 0), EINVAL);
	FAILS(write_event(id, 19, 0, 0), EINVAL);
	FAILS(write_event(NULL, USER_EVENT, 0, 0), EINVAL);
	CHECK(!rdma_destroy_id(id) && !readable(there->fd, 50));
	CHECK(!strcmp(rdma_event_str(NAME_RESOLVED), "RDMA_CM_EVENT_ADDRINFO_RESOLVED"));
	CHECK(!strcmp(rdma_event_str(NAME_ERROR), "RDMA_CM_EVENT_ADDRINFO_ERROR"));
	/* The original has no name for what programs write. */
	CHECK(!strcmp(rdma_event_str(USER_EVENT), "UNKNOWN EVENT"));
}

static struct ibv_ece options_of(struct rdma_cm_id *id)
{
	struct ibv_ece ece = {0};

	CHECK(!ibv_query_ece(id->qp, &ece));
	return ece;
}

/* Connects two ids with queue pairs, the client's with these options. Answers the server. */
static struct rdma_cm_id *connected(struct rdma_cm_id *client, const uint32_t *options)
{
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
	struct rdma_cm_event *event;
	struct rdma_cm_id *server;

	give_queue_pair(client);
	if (options) {
		struct ibv_ece ece = {.vendor_id = options_of(client).vendor_id, .options = *options};

		CHECK(!ibv_set_ece(client->qp, &ece) && ece.options == *options);
	}
	CHECK(!rdma_connect(client, &param));
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(event);
	server = event->id;
	rdma_ack_cm_event(event);
	give_queue_pair(server);
	CHECK(!rdma_accept(server, &param));
	expect(here, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	return server;
}

/* Both ends have the options that both offered. */
static void agreement(void)
{
	static const uint32_t offers[] = {0, 1, 2, 3};
	uint16_t port;
	struct rdma_cm_id *listening = listener(there, RDMA_PS_TCP, &port);

	for (size_t i = 0; i <= sizeof offers / sizeof *offers; i++) {
		const uint32_t *offer = i < sizeof offers / sizeof *offers ? &offers[i] : NULL;
		uint32_t agreed = offer ? *offer : 3;
		struct rdma_cm_id *client = caller(here, RDMA_PS_TCP, port), *server = connected(client, offer);

		CHECK(options_of(client).options == agreed && options_of(server).options == agreed);
		CHECK(!rdma_disconnect(client));
		expect(there, RDMA_CM_EVENT_DISCONNECTED, 0);
		CHECK(!rdma_disconnect(server));
		expect(here, RDMA_CM_EVENT_DISCONNECTED, 0);
		destroy(client);
		destroy(server);
	}
	destroy(listening);
}

/* Queue pairs that are not the ids' own: the program carries the options, as rdma_set_local_ece(3) says. */
static void by_hand(void)
{
	uint16_t port;
	struct rdma_cm_id *listening = listener(there, RDMA_PS_TCP, &port), *server;
	struct rdma_cm_id *client = caller(here, RDMA_PS_TCP, port);
	struct ibv_pd *pd = ibv_alloc_pd(client->verbs);
	struct ibv_cq *cq = ibv_create_cq(client->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *mine = ibv_create_qp(pd, &init), *theirs = ibv_create_qp(pd, &init);
	struct ibv_ece offer, heard, answer;
	struct rdma_cm_event *event;

	NEED(mine && theirs && !ibv_query_ece(mine, &offer));
	offer.options = 2;
	CHECK(!rdma_set_local_ece(client, &offer));
	CHECK(!rdma_connect(client, &(struct rdma_conn_param){.qp_num = mine->qp_num, .responder_resources = 1}));
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(event);
	server = event->id;
	rdma_ack_cm_event(event);
	CHECK(!rdma_get_remote_ece(server, &heard) && heard.vendor_id == offer.vendor_id && heard.options == 2);
	CHECK(!ibv_set_ece(theirs, &heard) && heard.options == 2);
	CHECK(!ibv_query_ece(theirs, &answer) && !rdma_set_local_ece(server, &answer));
	CHECK(!rdma_accept(server, &(struct rdma_conn_param){.qp_num = theirs->qp_num, .responder_resources = 1}));
	expect(here, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	CHECK(!rdma_get_remote_ece(client, &heard) && heard.vendor_id == offer.vendor_id && heard.options == 2);
	CHECK(!ibv_set_ece(mine, &heard) && !ibv_query_ece(mine, &heard) && heard.options == 2);
	CHECK(!rdma_establish(client));
	expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(!rdma_disconnect(client));
	expect(there, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server) && !rdma_destroy_id(listening));
	CHECK(!ibv_destroy_qp(mine) && !ibv_destroy_qp(theirs) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

static void *rings_later(void *pipe_end)
{
	usleep(50000);
	CHECK(write(*(int *)pipe_end, "x", 1) == 1);
	return NULL;
}

/* Sets of descriptors: as with epoll. */
static void sets(void)
{
	int set = set_create(EPOLL_CLOEXEC), ends[2], others[2];
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1122334455667788}, told[4];
	struct rdma_cm_id *id = fresh(here);
	pthread_t thread;

	NEED(set >= 0 && !pipe(ends) && !pipe(others));
	CHECK(fcntl(set, F_GETFD) & FD_CLOEXEC);
	CHECK(set_wait(set, told, 4, 0) == 0 && set_wait(set, told, 4, 20) == 0);
	CHECK(!set_change(set, EPOLL_CTL_ADD, ends[0], &event));
	FAILS(set_change(set, EPOLL_CTL_ADD, ends[0], &event), EEXIST);
	FAILS(set_change(set, EPOLL_CTL_MOD, others[0], &event), ENOENT);
	FAILS(set_change(set, EPOLL_CTL_DEL, others[0], NULL), ENOENT);
	FAILS(set_change(set, EPOLL_CTL_ADD, others[0], NULL), EFAULT);
	FAILS(set_change(set, EPOLL_CTL_ADD, -1, &event), EBADF);
	FAILS(set_change(set, EPOLL_CTL_ADD, set, &event), EINVAL);
	FAILS(set_change(set, 77, others[0], &event), EINVAL);
	FAILS(set_change(ends[0], EPOLL_CTL_ADD, ends[1], &event), EINVAL);
	FAILS(set_wait(set, told, 0, 0), EINVAL);
	FAILS(set_wait(set, told, -1, 0), EINVAL);
	FAILS(set_wait(set, NULL, 1, 0), EFAULT);
	FAILS(set_wait(ends[0], told, 1, 0), EINVAL);
	FAILS(set_create(77), EINVAL);
	event.events = EPOLLIN | EPOLLET;
	FAILS(set_change(set, EPOLL_CTL_ADD, others[0], &event), EINVAL);
	/* What is ready is told as long as it is, with the program's data. */
	CHECK(!pthread_create(&thread, NULL, rings_later, &ends[1]));
	CHECK(set_wait(set, told, 4, SOON) == 1 && told[0].events == EPOLLIN && told[0].data.u64 == 0x1122334455667788);
	CHECK(!pthread_join(thread, NULL));
	CHECK(set_wait(set, told, 4, 0) == 1);
	event = (struct epoll_event){.events = EPOLLOUT, .data.u64 = 2};
	CHECK(!set_change(set, EPOLL_CTL_ADD, others[1], &event));
	CHECK(set_wait(set, told, 4, 0) == 2 && set_wait(set, told, 1, 0) == 1);
	CHECK(!set_change(set, EPOLL_CTL_DEL, ends[0], NULL) && !set_change(set, EPOLL_CTL_DEL, others[1], NULL));
	/* The connection manager's descriptors are like any other. */
	event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 3};
	CHECK(!set_change(set, EPOLL_CTL_ADD, here->fd, &event) && !set_wait(set, told, 4, 0));
	CHECK(!write_event(id, USER_EVENT, 0, 0) && set_wait(set, told, 4, SOON) == 1 && told[0].data.u64 == 3);
	expect(here, USER_EVENT, 0);
	CHECK(!rdma_destroy_id(id) && !rclose(set));
	FAILS(set_wait(set, told, 4, 0), EINVAL);
	close(ends[0]), close(ends[1]), close(others[0]), close(others[1]);
}

int main(void)
{
	here = rdma_create_event_channel();
	there = rdma_create_event_channel();
	NEED(here && there);
	names();
	own_events();
	agreement();
	by_hand();
	sets();
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
	return failures != 0;
}
