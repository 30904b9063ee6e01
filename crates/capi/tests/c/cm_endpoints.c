/* Ids that wait for their own events, and endpoints: connecting, being refused, datagrams, shared receive queues, XRC. */
#include "connection.h"
#include <netdb.h>
#include <pthread.h>

static struct rdma_addrinfo *find(const char *node, const char *port, int flags, int space, int type)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = space, .ai_qp_type = type}, *found = NULL;
	int error = rdma_getaddrinfo(node, port, &hints, &found);

	if (error)
		fprintf(stderr, "%s\n", gai_strerror(error));
	NEED(!error && found);
	CHECK(found->ai_qp_type == type && found->ai_port_space == space && !found->ai_next && !found->ai_route_len);
	CHECK(flags & RAI_PASSIVE ? found->ai_src_len && !found->ai_dst_len : !found->ai_src_len && found->ai_dst_len);
	return found;
}

static struct ibv_qp_init_attr small(void)
{
	struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1},
					.sq_sig_all = 1};
	return init;
}

struct service {
	struct rdma_cm_id *listener;
	int space, passive, active;
	/* What becomes of the first who asks. */
	int reject;
	char port[8];
};

static uint32_t number_of(struct ibv_srq *srq)
{
	uint32_t number = 0;

	CHECK(!ibv_get_srq_num(srq, &number));
	return htonl(number);
}

/* Takes one who asks, receives a message of it, and waits for the end. */
static void *serve(void *argument)
{
	struct service *service = argument;
	struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1};
	struct rdma_cm_id *id = NULL;
	char text[56] = "";
	struct ibv_mr *mr;
	struct ibv_wc wc;
	uint32_t number;

	NEED(!rdma_get_request(service->listener, &id));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && id->channel != service->listener->channel);
	CHECK(id->qp && id->qp->qp_type == (enum ibv_qp_type)service->passive);
	if (service->reject) {
		CHECK(!rdma_reject(id, NULL, 0));
		rdma_destroy_ep(id);
		return NULL;
	}
	if (service->passive == IBV_QPT_XRC_RECV) {
		struct ibv_srq_init_attr init = {.attr = {.max_wr = 2, .max_sge = 1}};

		NEED(!rdma_create_srq(id, NULL, &init) && id->srq);
		number = number_of(id->srq);
		parameters.private_data = &number;
		parameters.private_data_len = sizeof number;
	}
	mr = rdma_reg_msgs(id, text, sizeof text);
	NEED(mr);
	CHECK(!rdma_post_recv(id, NULL, text, sizeof text, mr));
	CHECK(!rdma_accept(id, &parameters));
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	/* Before a datagram there are forty bytes of address. */
	CHECK(!strcmp(text + (service->passive == IBV_QPT_UD ? 40 : 0), "hello"));
	if (service->passive != IBV_QPT_UD)
		CHECK(!rdma_disconnect(id) && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	return NULL;
}

static void call(struct service *service)
{
	struct rdma_addrinfo *found = find("127.0.0.1", service->port, 0, service->space, service->active);
	struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
	struct ibv_qp_init_attr init = small();
	struct rdma_cm_id *id = NULL;
	char text[16] = "hello";
	struct ibv_mr *mr;
	struct ibv_wc wc;

	NEED(!rdma_create_ep(&id, found, NULL, &init));
	rdma_freeaddrinfo(found);
	CHECK(id->qp && id->qp->qp_type == (enum ibv_qp_type)service->active && id->event);
	if (service->reject) {
		CHECK(rdma_connect(id, &parameters) == -1 && errno == ECONNREFUSED);
		CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 28);
		rdma_destroy_ep(id);
		return;
	}
	mr = rdma_reg_msgs(id, text, sizeof text);
	NEED(mr);
	CHECK(!rdma_connect(id, &parameters));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	if (service->active == IBV_QPT_UD) {
		struct ibv_ah *ah = ibv_create_ah(id->pd, &id->event->param.ud.ah_attr);

		NEED(ah);
		CHECK(!rdma_post_ud_send(id, NULL, text, sizeof text, mr, 0, ah, id->event->param.ud.qp_num));
		CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		ibv_destroy_ah(ah);
	} else {
		struct ibv_sge sge = {.addr = (uintptr_t)text, .length = sizeof text, .lkey = mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

		if (service->active == IBV_QPT_XRC_SEND)
			wr.qp_type.xrc.remote_srqn = ntohl(*(const uint32_t *)id->event->param.conn.private_data);
		CHECK(!ibv_post_send(id->qp, &wr, &bad));
		CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(!rdma_disconnect(id) && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	}
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
}

static void service(int space, int passive, int active, int reject)
{
	struct rdma_addrinfo *found = find("127.0.0.1", "0", RAI_PASSIVE, space, passive);
	struct service service = {.space = space, .passive = passive, .active = active, .reject = reject};
	struct ibv_qp_init_attr init = small();
	pthread_t thread;

	NEED(!rdma_create_ep(&service.listener, found, NULL, &init));
	rdma_freeaddrinfo(found);
	CHECK(!service.listener->qp && service.listener->channel);
	NEED(!rdma_listen(service.listener, 0));
	snprintf(service.port, sizeof service.port, "%d", ntohs(rdma_get_src_port(service.listener)));
	pthread_create(&thread, NULL, serve, &service);
	call(&service);
	pthread_join(thread, NULL);
	rdma_destroy_ep(service.listener);
}

static void refused(void)
{
	struct rdma_addrinfo *found = find("127.0.0.1", "0", RAI_PASSIVE, RDMA_PS_TCP, IBV_QPT_RC);
	struct ibv_qp_init_attr init = small();
	struct rdma_cm_id *id = NULL;
	char port[8];

	/* A port that is free. */
	NEED(!rdma_create_ep(&id, found, NULL, &init));
	rdma_freeaddrinfo(found);
	CHECK(rdma_get_request(id, NULL) == -1 && errno == EINVAL);
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(id)));
	rdma_destroy_ep(id);
	found = find("127.0.0.1", port, 0, RDMA_PS_TCP, IBV_QPT_RC);
	NEED(!rdma_create_ep(&id, found, NULL, &init));
	CHECK(rdma_connect(id, NULL) == -1 && errno == ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 8);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(found);
	CHECK(rdma_create_ep(&id, NULL, NULL, &init) == -1 && errno == EINVAL);
}

/* An id moves from a hidden channel to a program's, and back. */
static void moving(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in peer = loopback(htons(9));
	struct rdma_cm_id *id = NULL, *other = NULL;

	NEED(channel && !rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(id->channel && id->channel->fd >= 0);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 2000));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED && id->verbs);
	CHECK(rdma_migrate_id(id, NULL) == -1 && errno == EINVAL);
	CHECK(!rdma_migrate_id(id, channel) && id->channel == channel && !id->event);
	CHECK(!rdma_resolve_route(id, 2000));
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(rdma_get_request(id, &other) == -1 && errno == EINVAL);
	CHECK(!rdma_migrate_id(id, NULL) && id->channel != channel);
	CHECK(!rdma_destroy_id(id));
	/* A hidden channel that does not block makes its id not wait either. */
	NEED(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	peer.sin_addr.s_addr = htonl(INADDR_ANY);
	peer.sin_port = 0;
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&peer) && !id->verbs && !rdma_listen(id, 0));
	fcntl(id->channel->fd, F_SETFL, fcntl(id->channel->fd, F_GETFL) | O_NONBLOCK);
	CHECK(rdma_get_request(id, &other) == -1 && errno == EAGAIN);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	service(RDMA_PS_TCP, IBV_QPT_RC, IBV_QPT_RC, 0);
	service(RDMA_PS_TCP, IBV_QPT_RC, IBV_QPT_RC, 1);
	service(RDMA_PS_UDP, IBV_QPT_UD, IBV_QPT_UD, 0);
	service(RDMA_PS_IB, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, 0);
	refused();
	moving();
	return failures != 0;
}
