/* One-sided work: the server offers a buffer and then does nothing; the client writes into it, reads it back and compares.
 *
 *   buffers server [PORT]
 *   buffers client ADDRESS PORT [BYTES]
 *
 * The offer (address, length and key of the buffer) travels in the private data of the connection: no message is needed. See buffers.md.
 */
#include <endian.h>
#include <netdb.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include "need.h"

enum { MOST = 1 << 20, TIMEOUT_MS = 2000 };

/* In network order: the two ends need not be alike. */
struct offer {
	uint64_t address;
	uint32_t key;
	uint32_t length;
};

/* The next event, which must be this one. What it carries is copied, for the event is given back at once. */
static struct rdma_cm_id *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type, struct offer *offer)
{
	struct rdma_cm_event *event;

	NEED(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type) {
		fprintf(stderr, "%s, status %d, instead of %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(type));
		exit(1);
	}
	struct rdma_cm_id *id = event->id;
	if (offer) {
		NEED(event->param.conn.private_data_len >= sizeof(*offer));
		memcpy(offer, event->param.conn.private_data, sizeof(*offer));
	}
	rdma_ack_cm_event(event);
	return id;
}

static void create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};
	NEED(rdma_create_qp(id, pd, &attr) == 0);
}

static int serve(const char *port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener, *id;
	struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
	static char buffer[MOST];

	NEED(channel);
	NEED(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	NEED(rdma_listen(listener, 1) == 0);
	printf("listening on port %d\n", ntohs(rdma_get_src_port(listener)));
	fflush(stdout);

	id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	NEED(pd && cq);
	create_qp(id, pd, cq);

	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, MOST, rights);
	NEED(mr);
	struct offer offer = {htobe64((uintptr_t)buffer), htobe32(mr->rkey), htobe32(MOST)};
	struct rdma_conn_param param = {
		.private_data = &offer,
		.private_data_len = sizeof(offer),
		.responder_resources = 1, /* the client may have one READ outstanding */
		.rnr_retry_count = 7,
	};
	NEED(rdma_accept(id, &param) == 0);
	expect(channel, RDMA_CM_EVENT_ESTABLISHED, NULL);
	/* From here on the client works alone, until it leaves. */
	expect(channel, RDMA_CM_EVENT_DISCONNECTED, NULL);
	printf("the client left this: %.40s\n", buffer);

	rdma_disconnect(id);
	rdma_destroy_qp(id);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	rdma_destroy_id(id);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(channel);
	return 0;
}

/* Posts one piece of one-sided work and spins until it is done. */
static void carry_out(struct rdma_cm_id *id, struct ibv_cq *cq, enum ibv_wr_opcode opcode, char *here, struct ibv_mr *mr,
		      const struct offer *there, uint32_t length)
{
	struct ibv_sge sge = {(uintptr_t)here, length, mr->lkey};
	struct ibv_send_wr wr = {
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = 1,
		.wr.rdma = {.remote_addr = be64toh(there->address), .rkey = be32toh(there->key)},
	}, *bad;
	struct ibv_wc wc;
	int found;

	NEED(ibv_post_send(id->qp, &wr, &bad) == 0);
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	NEED(found == 1);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s failed: %s\n", opcode == IBV_WR_RDMA_WRITE ? "WRITE" : "READ",
			ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static int ask(const char *host, const char *port, uint32_t length)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct addrinfo *address;
	struct offer offer;
	char *out = calloc(1, length), *back = calloc(1, length);

	NEED(channel && out && back);
	for (uint32_t i = 0; i < length; i++)
		out[i] = (char)('a' + i % 26);

	NEED(getaddrinfo(host, port, NULL, &address) == 0);
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, address->ai_addr, TIMEOUT_MS) == 0);
	freeaddrinfo(address);
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	NEED(rdma_resolve_route(id, TIMEOUT_MS) == 0);
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);

	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	NEED(pd && cq);
	create_qp(id, pd, cq);
	struct ibv_mr *out_mr = ibv_reg_mr(pd, out, length, 0);
	struct ibv_mr *back_mr = ibv_reg_mr(pd, back, length, IBV_ACCESS_LOCAL_WRITE);
	NEED(out_mr && back_mr);

	struct rdma_conn_param param = {.initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	NEED(rdma_connect(id, &param) == 0);
	expect(channel, RDMA_CM_EVENT_ESTABLISHED, &offer);
	printf("the server offers %u bytes\n", be32toh(offer.length));
	NEED(length <= be32toh(offer.length));

	carry_out(id, cq, IBV_WR_RDMA_WRITE, out, out_mr, &offer, length);
	carry_out(id, cq, IBV_WR_RDMA_READ, back, back_mr, &offer, length);
	int same = memcmp(out, back, length) == 0;
	printf("wrote %u bytes and read them back: %s\n", length, same ? "the same" : "NOT the same");

	NEED(rdma_disconnect(id) == 0);
	expect(channel, RDMA_CM_EVENT_DISCONNECTED, NULL);
	rdma_destroy_qp(id);
	ibv_dereg_mr(out_mr);
	ibv_dereg_mr(back_mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	free(out);
	free(back);
	return same ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc >= 2 && !strcmp(argv[1], "server"))
		return serve(argc > 2 ? argv[2] : "0");
	if (argc >= 4 && !strcmp(argv[1], "client")) {
		long length = argc > 4 ? atol(argv[4]) : 4096;

		if (length >= 1 && length <= MOST)
			return ask(argv[2], argv[3], (uint32_t)length);
	}
	fprintf(stderr, "usage: buffers server [PORT] | buffers client ADDRESS PORT [BYTES, 1 to %d]\n", MOST);
	return 64;
}
