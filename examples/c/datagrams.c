/* Datagrams: one unreliable queue pair, an address handle, and the short form rdma_post_ud_send. The server's number and
 * address come with the event of the connection manager (struct rdma_ud_param), and no connection is left behind.
 */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include "ends.h"

enum { GRH = 40, LENGTH = 64 };

static char out[LENGTH] = "a datagram", in[GRH + LENGTH];

static struct rdma_cm_event *take(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;

	NEED(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != wanted) {
		fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
		exit(1);
	}
	return event;
}

static void prepare(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};

	NEED(cq && rdma_create_qp(id, NULL, &attr) == 0);
}

int main(void)
{
	struct rdma_event_channel *here = rdma_create_event_channel(), *there = rdma_create_event_channel();
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct rdma_cm_id *listener, *client;

	NEED(here && there);
	NEED(rdma_create_id(there, &listener, NULL, RDMA_PS_UDP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 && rdma_listen(listener, 1) == 0);
	address.sin_port = rdma_get_src_port(listener);

	NEED(rdma_create_id(here, &client, NULL, RDMA_PS_UDP) == 0);
	NEED(rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 2000) == 0);
	rdma_ack_cm_event(take(here, RDMA_CM_EVENT_ADDR_RESOLVED));
	NEED(rdma_resolve_route(client, 2000) == 0);
	rdma_ack_cm_event(take(here, RDMA_CM_EVENT_ROUTE_RESOLVED));
	prepare(client);
	struct rdma_conn_param param = {0};
	NEED(rdma_connect(client, &param) == 0); /* asks for the service's queue pair: SIDR_REQ */

	struct rdma_cm_event *event = take(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;
	rdma_ack_cm_event(event);
	prepare(server);
	struct ibv_mr *in_mr = rdma_reg_msgs(server, in, sizeof(in));
	NEED(in_mr && rdma_post_recv(server, (void *)1, in, sizeof(in), in_mr) == 0);
	param.qp_num = server->qp->qp_num;
	NEED(rdma_accept(server, &param) == 0); /* SIDR_REP */

	event = take(here, RDMA_CM_EVENT_ESTABLISHED);
	struct rdma_ud_param *ud = &event->param.ud;
	printf("struct rdma_ud_param: qp_num %#x, qkey %#x, ah_attr: is_global %d, port_num %d, dlid %d\n", ud->qp_num, ud->qkey,
	       ud->ah_attr.is_global, ud->ah_attr.port_num, ud->ah_attr.dlid);
	struct ibv_ah *ah = ibv_create_ah(client->pd, &ud->ah_attr);
	uint32_t qpn = ud->qp_num;
	NEED(ah && qpn == server->qp->qp_num);
	rdma_ack_cm_event(event);

	struct ibv_mr *out_mr = rdma_reg_msgs(client, out, sizeof(out));
	NEED(out_mr);
	NEED(rdma_post_ud_send(client, (void *)2, out, sizeof(out), out_mr, IBV_SEND_SIGNALED, ah, qpn) == 0);
	struct ibv_wc wc = next_completion(server->qp->recv_cq);
	NEED(wc.status == IBV_WC_SUCCESS && wc.byte_len == GRH + LENGTH);
	printf("received %u bytes: %d of GRH, then \"%s\", from queue pair %#x\n", wc.byte_len, GRH, in + GRH, wc.src_qp);
	NEED(wc.src_qp == client->qp->qp_num && strcmp(in + GRH, out) == 0);
	NEED(next_completion(client->qp->send_cq).status == IBV_WC_SUCCESS);

	ibv_destroy_ah(ah);
	rdma_dereg_mr(out_mr);
	rdma_dereg_mr(in_mr);
	return 0;
}
