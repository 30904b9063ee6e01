/* Memory of the device: a peer reads and counts in memory that no pointer of the program leads to.
 *
 *   device_memory server [PORT]
 *   device_memory client ADDRESS PORT
 *
 * The server keeps a counter and a text in device memory; the client reads the text and adds to the counter. Both sides use synchronous ids:
 * calls wait for their event, and rdma_verbs.h has short forms of the verbs. See device_memory.md.
 */
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include "need.h"

enum { SIZE = 4096, TEXT_AT = 64, ADDITIONS = 10 };

struct offer {
	uint64_t length;
	uint32_t key;
};

/* Copies to and from the device are of whole words of four bytes. */
static const char text[32] = "this text is in the device";

static struct rdma_addrinfo *address(const char *host, const char *port, int flags)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;

	NEED(rdma_getaddrinfo((char *)host, (char *)port, &hints, &found) == 0);
	return found;
}

static struct ibv_qp_init_attr queues(void)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	return attr;
}

static int serve(const char *port)
{
	struct ibv_qp_init_attr attr = queues();
	struct rdma_addrinfo *where = address(NULL, port, RAI_PASSIVE);
	struct rdma_cm_id *listener, *id;

	NEED(rdma_create_ep(&listener, where, NULL, &attr) == 0);
	rdma_freeaddrinfo(where);
	NEED(rdma_listen(listener, 1) == 0);
	printf("listening on port %d\n", be16toh(rdma_get_src_port(listener)));
	fflush(stdout);
	NEED(rdma_get_request(listener, &id) == 0);

	/* The device says how much it has, then lends some of it. */
	struct ibv_device_attr_ex device;
	NEED(ibv_query_device_ex(id->verbs, NULL, &device) == 0);
	printf("the device has %llu bytes of its own\n", (unsigned long long)device.max_dm_size);
	struct ibv_alloc_dm_attr wanted = {.length = SIZE};
	struct ibv_dm *dm = ibv_alloc_dm(id->verbs, &wanted);
	NEED(dm);

	/* It has no address here: bytes go in and out by copies. */
	uint64_t counter = 0;
	NEED(ibv_memcpy_to_dm(dm, 0, &counter, sizeof(counter)) == 0);
	NEED(ibv_memcpy_to_dm(dm, TEXT_AT, text, sizeof(text)) == 0);

	/* For peers it is a region like any other, whose addresses begin at zero. */
	unsigned int rights = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
			      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *mr = ibv_reg_dm_mr(id->pd, dm, 0, SIZE, rights);
	NEED(mr);

	struct offer offer = {htobe64(SIZE), htobe32(mr->rkey)};
	struct rdma_conn_param param = {
		.private_data = &offer, .private_data_len = sizeof(offer), .responder_resources = 4, .rnr_retry_count = 7,
	};
	/* The client says "done" with an empty message. Who accepts should be ready to receive. */
	struct ibv_wc wc;
	NEED(rdma_post_recvv(id, NULL, NULL, 0) == 0);
	NEED(rdma_accept(id, &param) == 0);
	NEED(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	NEED(ibv_memcpy_from_dm(&counter, dm, 0, sizeof(counter)) == 0);
	printf("the client counted to %llu\n", (unsigned long long)counter);

	rdma_disconnect(id);
	ibv_dereg_mr(mr);
	ibv_free_dm(dm);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	return counter == ADDITIONS ? 0 : 1;
}

static void succeed(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	NEED(rdma_get_send_comp(id, &wc) == 1);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "completion failed: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static int ask(const char *host, const char *port)
{
	struct ibv_qp_init_attr attr = queues();
	struct rdma_addrinfo *where = address(host, port, 0);
	struct rdma_cm_id *id;
	struct offer offer;
	static uint64_t words[SIZE / 8];

	NEED(rdma_create_ep(&id, where, NULL, &attr) == 0);
	rdma_freeaddrinfo(where);
	struct ibv_mr *mr = rdma_reg_msgs(id, words, sizeof(words));
	NEED(mr);
	struct rdma_conn_param param = {.initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7};
	NEED(rdma_connect(id, &param) == 0);
	/* The event that ended the wait is still there, with what the server said. */
	memcpy(&offer, id->event->param.conn.private_data, sizeof(offer));
	uint32_t key = be32toh(offer.key);
	NEED(be64toh(offer.length) == SIZE);

	NEED(rdma_post_read(id, NULL, words, sizeof(words), mr, 0, 0, key) == 0);
	succeed(id);
	printf("read: %s\n", (char *)words + TEXT_AT);
	int same = strcmp((char *)words + TEXT_AT, text) == 0;

	for (int i = 0; i < ADDITIONS; i++) {
		struct ibv_sge sge = {(uintptr_t)words, 8, mr->lkey};
		struct ibv_send_wr wr = {
			.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
			.sg_list = &sge,
			.num_sge = 1,
			.wr.atomic = {.remote_addr = 0, .rkey = key, .compare_add = 1},
		}, *bad;

		NEED(ibv_post_send(id->qp, &wr, &bad) == 0);
		succeed(id);
		NEED(words[0] == (uint64_t)i); /* what it was before */
	}
	printf("added 1, %d times\n", ADDITIONS);

	NEED(rdma_post_sendv(id, NULL, NULL, 0, 0) == 0);
	succeed(id);
	rdma_disconnect(id);
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	return same ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc >= 2 && !strcmp(argv[1], "server"))
		return serve(argc > 2 ? argv[2] : "0");
	if (argc == 4 && !strcmp(argv[1], "client"))
		return ask(argv[2], argv[3]);
	fprintf(stderr, "usage: device_memory server [PORT] | device_memory client ADDRESS PORT\n");
	return 64;
}
