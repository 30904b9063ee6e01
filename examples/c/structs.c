/* The structs that every RDMA program meets, with what is in each of their fields while a connection is made and used. One
 * process plays both ends: the client's events come to one channel, the server's to another.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include "ends.h"

static char memory[256];

static const char *text(struct sockaddr *address)
{
	static char lines[4][64];
	static int turn;
	char *line = lines[turn++ % 4], ip[INET6_ADDRSTRLEN] = "";

	if (address->sa_family == AF_INET)
		inet_ntop(AF_INET, &((struct sockaddr_in *)address)->sin_addr, ip, sizeof(ip));
	else
		inet_ntop(AF_INET6, &((struct sockaddr_in6 *)address)->sin6_addr, ip, sizeof(ip));
	snprintf(line, 64, "%s port %d", ip, ntohs(((struct sockaddr_in *)address)->sin_port));
	return line;
}

static const char *set(const void *pointer)
{
	return pointer ? "set" : "NULL";
}

static void tell_id(const char *when, struct rdma_cm_id *id)
{
	printf("struct rdma_cm_id, %s:\n", when);
	printf("  verbs %s (%s), channel %s, context %p\n", set(id->verbs),
	       id->verbs ? ibv_get_device_name(id->verbs->device) : "no device yet", set(id->channel), id->context);
	printf("  qp %s, qp_type %d (IBV_QPT_RC is %d), pd %s, srq %s\n", set(id->qp), id->qp_type, IBV_QPT_RC,
	       set(id->pd), set(id->srq));
	printf("  route: from %s", text(rdma_get_local_addr(id)));
	printf(" to %s, %d path(s)\n", text(rdma_get_peer_addr(id)), id->route.num_paths);
	printf("  ps %#x (RDMA_PS_TCP is %#x), port_num %d, event %s\n", id->ps, RDMA_PS_TCP, id->port_num, set(id->event));
	printf("  send_cq %s, send_cq_channel %s, recv_cq %s, recv_cq_channel %s\n", set(id->send_cq),
	       set(id->send_cq_channel), set(id->recv_cq), set(id->recv_cq_channel));
}

/* Takes an event, tells its fields, and gives it back. Answers its id. */
static struct rdma_cm_id *take(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;

	NEED(rdma_get_cm_event(channel, &event) == 0);
	printf("struct rdma_cm_event: event %s, status %d, id %s, listen_id %s\n", rdma_event_str(event->event), event->status,
	       set(event->id), set(event->listen_id));
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST || event->event == RDMA_CM_EVENT_ESTABLISHED) {
		struct rdma_conn_param *conn = &event->param.conn;

		printf("  param.conn, struct rdma_conn_param: private_data_len %d, responder_resources %d, initiator_depth %d,\n"
		       "  flow_control %d, retry_count %d, rnr_retry_count %d, srq %d, qp_num %#x\n",
		       conn->private_data_len, conn->responder_resources, conn->initiator_depth, conn->flow_control,
		       conn->retry_count, conn->rnr_retry_count, conn->srq, conn->qp_num);
		if (conn->private_data_len)
			printf("  private_data \"%.16s\"\n", (const char *)conn->private_data);
	}
	NEED(event->event == wanted);
	struct rdma_cm_id *id = event->id;
	NEED(rdma_ack_cm_event(event) == 0);
	return id;
}

/* Protection domain, completion queue, queue pair and a registered buffer for an end. */
static struct ibv_mr *prepare(struct rdma_cm_id *id)
{
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2},
	};

	NEED(pd && cq);
	NEED(rdma_create_qp(id, pd, &attr) == 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	NEED(mr);
	return mr;
}

static void tell_addrinfo(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP}, *found;

	NEED(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found) == 0);
	printf("struct rdma_addrinfo, of 127.0.0.1 and 7471 with RAI_PASSIVE | RAI_NUMERICHOST:\n");
	printf("  ai_flags %#x, ai_family %d (AF_INET is %d), ai_qp_type %d (IBV_QPT_RC is %d), ai_port_space %#x\n",
	       found->ai_flags, found->ai_family, AF_INET, found->ai_qp_type, IBV_QPT_RC, found->ai_port_space);
	printf("  ai_src_len %u, ai_src_addr %s\n", found->ai_src_len, text(found->ai_src_addr));
	printf("  ai_dst_len %u, ai_dst_addr %s, ai_src_canonname %s, ai_dst_canonname %s\n", found->ai_dst_len,
	       set(found->ai_dst_addr), set(found->ai_src_canonname), set(found->ai_dst_canonname));
	printf("  ai_route_len %zu, ai_route %s, ai_connect_len %zu, ai_connect %s, ai_next %s\n", found->ai_route_len,
	       set(found->ai_route), found->ai_connect_len, set(found->ai_connect), set(found->ai_next));
	rdma_freeaddrinfo(found);

	struct rdma_addrinfo ud = {.ai_flags = RAI_NOROUTE, .ai_port_space = RDMA_PS_UDP};
	NEED(rdma_getaddrinfo("127.0.0.1", "7471", &ud, &found) == 0);
	printf("  with RDMA_PS_UDP and RAI_NOROUTE: ai_qp_type %d (IBV_QPT_UD is %d), ai_dst_addr %s\n", found->ai_qp_type,
	       IBV_QPT_UD, text(found->ai_dst_addr));
	rdma_freeaddrinfo(found);

	struct rdma_addrinfo six = {.ai_flags = RAI_FAMILY | RAI_NUMERICHOST, .ai_family = AF_INET6, .ai_port_space = RDMA_PS_TCP};
	NEED(rdma_getaddrinfo("::1", "7471", &six, &found) == 0);
	printf("  with RAI_FAMILY and AF_INET6: ai_family %d (AF_INET6 is %d)\n", found->ai_family, AF_INET6);
	rdma_freeaddrinfo(found);
}

int main(void)
{
	struct rdma_event_channel *here = rdma_create_event_channel(), *there = rdma_create_event_channel();
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct rdma_cm_id *listener, *client;

	NEED(here && there);
	printf("struct rdma_event_channel: fd %d\n", here->fd);
	NEED(rdma_create_id(there, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 && rdma_listen(listener, 1) == 0);
	address.sin_port = rdma_get_src_port(listener);
	NEED(rdma_create_id(here, &client, &address, RDMA_PS_TCP) == 0);
	tell_id("fresh from rdma_create_id", client);

	NEED(rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 2000) == 0);
	take(here, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(rdma_resolve_route(client, 2000) == 0);
	take(here, RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_mr *client_mr = prepare(client);
	struct rdma_conn_param param = {
		.private_data = "hello, server", .private_data_len = 14,
		.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7,
	};
	NEED(rdma_connect(client, &param) == 0);

	struct rdma_cm_id *server = take(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct ibv_mr *server_mr = prepare(server);
	NEED(post_receive(server->qp, 1, memory + 128, 64, server_mr->lkey) == 0);
	param.private_data = "hello, client";
	NEED(rdma_accept(server, &param) == 0);
	take(here, RDMA_CM_EVENT_ESTABLISHED);
	take(there, RDMA_CM_EVENT_ESTABLISHED);
	tell_id("connected", client);

	struct ibv_context *context = client->verbs;
	printf("struct ibv_context: device %s, ops %s, cmd_fd %d, async_fd %d, num_comp_vectors %d, mutex and abi_compat are the\n"
	       "  library's own\n", ibv_get_device_name(context->device), set((void *)(uintptr_t)context->ops.poll_cq), context->cmd_fd, context->async_fd,
	       context->num_comp_vectors);

	printf("struct ibv_mr: addr %s, length %zu, lkey %#x, rkey %#x, handle %u\n", set(client_mr->addr), client_mr->length,
	       client_mr->lkey, client_mr->rkey, client_mr->handle);
	/* Gathered from two places. */
	memcpy(memory, "gathered ", 9);
	memcpy(memory + 32, "from two", 9);
	struct ibv_sge pieces[] = {
		{(uintptr_t)memory, 9, client_mr->lkey},
		{(uintptr_t)memory + 32, 9, client_mr->lkey},
	};
	struct ibv_send_wr wr = {
		.wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = pieces, .num_sge = 2,
	}, *bad;
	for (int i = 0; i < 2; i++)
		printf("struct ibv_sge %d: addr %s, length %u, lkey %#x\n", i, set((void *)(uintptr_t)pieces[i].addr),
		       pieces[i].length, pieces[i].lkey);
	NEED(ibv_post_send(client->qp, &wr, &bad) == 0);
	struct ibv_wc wc = next_completion(server->qp->recv_cq);
	NEED(wc.status == IBV_WC_SUCCESS);
	printf("struct ibv_wc: wr_id %d, status %d (%s), opcode %d (IBV_WC_RECV is %d), byte_len %u, qp_num %#x, wc_flags %u\n",
	       (int)wc.wr_id, wc.status, ibv_wc_status_str(wc.status), wc.opcode, IBV_WC_RECV, wc.byte_len, wc.qp_num,
	       wc.wc_flags);
	printf("  \"%s\"\n", memory + 128);
	NEED(strcmp(memory + 128, "gathered from two") == 0);
	NEED(next_completion(client->qp->send_cq).status == IBV_WC_SUCCESS);

	NEED(rdma_disconnect(client) == 0);
	take(there, RDMA_CM_EVENT_DISCONNECTED);
	tell_addrinfo();
	return 0;
}
