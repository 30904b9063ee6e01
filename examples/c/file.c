/* Sends a file with WRITE with immediate: the data goes straight into the server's buffer, and the immediate value tells how much came.
 *
 *   file server DIRECTORY [PORT]
 *   file client ADDRESS PORT FILE
 *
 * The server stores one file in DIRECTORY and ends. See file.md.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <libgen.h>
#include <netdb.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include "need.h"

enum { CHUNK = 1 << 20, TIMEOUT_MS = 2000 };

/* SENDs from the server to the client: first where to write, then "go on" after each chunk, at last "done". */
struct message {
	uint32_t kind;
	uint32_t key;
	uint64_t address;
};

enum { BUFFER = 1, GO_ON = 2, DONE = 3 };

struct side {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *chunk_mr, *message_mr;
	char *chunk;
	struct message message;
};

static struct rdma_cm_id *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	NEED(rdma_get_cm_event(channel, &event) == 0);
	struct rdma_cm_id *id = event->id;
	if (event->event != type) {
		fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
		exit(1);
	}
	rdma_ack_cm_event(event);
	return id;
}

static void prepare(struct side *s, struct rdma_cm_id *id)
{
	s->id = id;
	NEED(s->pd = ibv_alloc_pd(id->verbs));
	NEED(s->channel = ibv_create_comp_channel(id->verbs));
	NEED(s->cq = ibv_create_cq(id->verbs, 16, NULL, s->channel, 0));
	NEED(ibv_req_notify_cq(s->cq, 0) == 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
	};
	NEED(rdma_create_qp(id, s->pd, &attr) == 0);
	NEED(s->chunk = malloc(CHUNK));
	NEED(s->chunk_mr = ibv_reg_mr(s->pd, s->chunk, CHUNK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	NEED(s->message_mr = ibv_reg_mr(s->pd, &s->message, sizeof(s->message), IBV_ACCESS_LOCAL_WRITE));
}

static void destroy(struct side *s)
{
	rdma_destroy_qp(s->id);
	ibv_dereg_mr(s->chunk_mr);
	ibv_dereg_mr(s->message_mr);
	ibv_destroy_cq(s->cq);
	ibv_destroy_comp_channel(s->channel);
	ibv_dealloc_pd(s->pd);
	rdma_destroy_id(s->id);
	free(s->chunk);
}

/* The next completion of one kind; of others only that they went well. */
static struct ibv_wc completion(struct side *s, enum ibv_wc_opcode wanted)
{
	for (;;) {
		struct ibv_wc wc;

		while (ibv_poll_cq(s->cq, 1, &wc) > 0) {
			if (wc.status != IBV_WC_SUCCESS) {
				fprintf(stderr, "completion failed: %s\n", ibv_wc_status_str(wc.status));
				exit(1);
			}
			if (wc.opcode == wanted)
				return wc;
		}
		struct ibv_cq *cq;
		void *context;
		NEED(ibv_get_cq_event(s->channel, &cq, &context) == 0);
		ibv_ack_cq_events(cq, 1);
		NEED(ibv_req_notify_cq(cq, 0) == 0);
	}
}

/* A receive without a buffer: a WRITE with immediate consumes one, but its data goes elsewhere. */
static void receive_immediate(struct side *s)
{
	struct ibv_recv_wr wr = {.wr_id = 1}, *bad;

	NEED(ibv_post_recv(s->id->qp, &wr, &bad) == 0);
}

static void receive_message(struct side *s)
{
	struct ibv_sge sge = {(uintptr_t)&s->message, sizeof(s->message), s->message_mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *bad;

	NEED(ibv_post_recv(s->id->qp, &wr, &bad) == 0);
}

static void say(struct side *s, uint32_t kind)
{
	s->message = (struct message){htobe32(kind), htobe32(s->chunk_mr->rkey), htobe64((uintptr_t)s->chunk)};
	struct ibv_sge sge = {(uintptr_t)&s->message, sizeof(s->message), s->message_mr->lkey};
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
	}, *bad;

	NEED(ibv_post_send(s->id->qp, &wr, &bad) == 0);
	completion(s, IBV_WC_SEND);
}

/* Writes the first `length` bytes of the chunk into the server's, and tells it so with the immediate value. */
static void put(struct side *s, const struct message *where, uint32_t length)
{
	struct ibv_sge sge = {(uintptr_t)s->chunk, length, s->chunk_mr->lkey};
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = length ? 1 : 0,
		.imm_data = htonl(length),
		.wr.rdma = {.remote_addr = be64toh(where->address), .rkey = be32toh(where->key)},
	}, *bad;

	NEED(ibv_post_send(s->id->qp, &wr, &bad) == 0);
	completion(s, IBV_WC_RDMA_WRITE);
}

static int serve(const char *directory, const char *port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
	struct rdma_conn_param param = {.rnr_retry_count = 7};
	struct side s = {0};
	char path[4096];

	NEED(channel);
	NEED(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	NEED(rdma_listen(listener, 1) == 0);
	printf("listening on port %d\n", ntohs(rdma_get_src_port(listener)));
	fflush(stdout);

	prepare(&s, expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST));
	receive_immediate(&s);
	NEED(rdma_accept(s.id, &param) == 0);
	expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	say(&s, BUFFER);

	/* The first chunk is the file's name. */
	uint32_t length = ntohl(completion(&s, IBV_WC_RECV_RDMA_WITH_IMM).imm_data);
	NEED(length > 0 && length < 256 && !memchr(s.chunk, '/', length) && s.chunk[0] != '.');
	NEED(snprintf(path, sizeof(path), "%s/%.*s", directory, (int)length, s.chunk) < (int)sizeof(path));
	FILE *file = fopen(path, "wb");
	NEED(file);

	uint64_t total = 0;
	for (;;) {
		receive_immediate(&s);
		say(&s, GO_ON);
		length = ntohl(completion(&s, IBV_WC_RECV_RDMA_WITH_IMM).imm_data);
		if (length == 0)
			break;
		NEED(length <= CHUNK && fwrite(s.chunk, 1, length, file) == length);
		total += length;
	}
	NEED(fclose(file) == 0);
	printf("%s: %llu bytes\n", path, (unsigned long long)total);
	say(&s, DONE);

	expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	rdma_disconnect(s.id);
	destroy(&s);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(channel);
	return 0;
}

static int ask(const char *host, const char *port, char *name)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
	struct rdma_cm_id *id;
	struct addrinfo *address;
	struct side s = {0};
	FILE *file = fopen(name, "rb");

	NEED(channel);
	NEED(file);
	NEED(getaddrinfo(host, port, NULL, &address) == 0);
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, address->ai_addr, TIMEOUT_MS) == 0);
	freeaddrinfo(address);
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(rdma_resolve_route(id, TIMEOUT_MS) == 0);
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	prepare(&s, id);
	receive_message(&s);
	NEED(rdma_connect(id, &param) == 0);
	expect(channel, RDMA_CM_EVENT_ESTABLISHED);

	completion(&s, IBV_WC_RECV);
	struct message where = s.message;
	NEED(be32toh(where.kind) == BUFFER);

	const char *short_name = basename(name);
	uint32_t length = (uint32_t)strlen(short_name);
	memcpy(s.chunk, short_name, length);
	uint64_t total = 0;
	int more = 1;
	for (;;) {
		/* Posted before the chunk goes out, for the answer comes at once. */
		receive_message(&s);
		put(&s, &where, length);
		completion(&s, IBV_WC_RECV);
		if (be32toh(s.message.kind) == DONE)
			break;
		NEED(more && be32toh(s.message.kind) == GO_ON);
		length = (uint32_t)fread(s.chunk, 1, CHUNK, file);
		NEED(!ferror(file));
		total += length;
		more = length > 0;
	}
	printf("sent %llu bytes\n", (unsigned long long)total);

	NEED(rdma_disconnect(id) == 0);
	expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	destroy(&s);
	rdma_destroy_event_channel(channel);
	fclose(file);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 3 && !strcmp(argv[1], "server"))
		return serve(argv[2], argc > 3 ? argv[3] : "0");
	if (argc == 5 && !strcmp(argv[1], "client"))
		return ask(argv[2], argv[3], argv[4]);
	fprintf(stderr, "usage: file server DIRECTORY [PORT] | file client ADDRESS PORT FILE\n");
	return 64;
}
