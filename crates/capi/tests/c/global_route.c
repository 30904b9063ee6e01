/* Datagrams from one process to another: what the sender asked of the network is in the global route header that lies
 * before the payload, over IPv4 and IPv6 the same. The flow label is not sent, as Soft-RoCE does not send it either. */
#include "bench.h"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEY = 0x11111111, LENGTH = 100, HEADER = 40, FLOW_LABEL = 0x12345 };

/* Traffic classes, ECN bits left out: those are the NIC's, which says ECT(0), and the network's. */
static const struct {
	uint8_t traffic_class, hop_limit;
} cases[] = {{0, 64}, {0x68, 9}, {0xfc, 255}, {0x20, 1}};

#define CASES ((int)(sizeof cases / sizeof *cases))

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
};

static struct end make(void)
{
	struct end end = {.context = open_lo(), .memory = calloc(1, 4096)};

	NEED(end.context && end.memory);
	end.pd = ibv_alloc_pd(end.context);
	end.cq = ibv_create_cq(end.context, 64, NULL, NULL, 0);
	end.mr = ibv_reg_mr(end.pd, end.memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = plain_init(end.cq, IBV_QPT_UD);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};

	end.qp = ibv_create_qp(end.pd, &init);
	NEED(end.mr && end.qp && !to_init(end.qp) && !ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return end;
}

static void drop(struct end *end)
{
	CHECK(!ibv_destroy_qp(end->qp) && !ibv_dereg_mr(end->mr) && !ibv_destroy_cq(end->cq) && !ibv_dealloc_pd(end->pd));
	CHECK(!ibv_close_device(end->context));
	free(end->memory);
}

/* The address of the loopback in that family. */
static int gid_of(struct ibv_context *context, int family, union ibv_gid *gid)
{
	if (family == AF_INET)
		return gid_index(context, gid);
	for (int i = 0; i < 64; i++)
		if (!ibv_query_gid(context, 1, i, gid) && !memcmp(gid->raw, &in6addr_loopback, 16))
			return i;
	return -1;
}

/* One datagram for each word of the receiver. */
static int send_all(int socket)
{
	struct end end = make();
	uint32_t peer;

	memset(end.memory, 'd', LENGTH);
	NEED(read(socket, &peer, sizeof peer) == sizeof peer);
	for (int family = 0; family < 2; family++)
		for (int i = 0; i < CASES; i++) {
			struct ibv_ah_attr where = {.is_global = 1, .port_num = 1};
			int index = gid_of(end.context, family ? AF_INET6 : AF_INET, &where.grh.dgid);

			NEED(index >= 0);
			where.grh.sgid_index = index;
			where.grh.traffic_class = cases[i].traffic_class;
			where.grh.hop_limit = cases[i].hop_limit;
			where.grh.flow_label = FLOW_LABEL;
			struct ibv_ah *ah = ibv_create_ah(end.pd, &where);
			struct ibv_sge from = {(uintptr_t)end.memory, LENGTH, end.mr->lkey};
			struct ibv_send_wr wr = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
						 .wr.ud = {.ah = ah, .remote_qpn = peer, .remote_qkey = KEY}}, *bad;
			char word;

			NEED(ah && read(socket, &word, 1) == 1);
			CHECK(!ibv_post_send(end.qp, &wr, &bad) && completion(end.cq).status == IBV_WC_SUCCESS);
			CHECK(!ibv_destroy_ah(ah));
		}
	drop(&end);
	return failures != 0;
}

/* The forty bytes are an IPv6 header, or an IPv4 header in the second half of them. */
static void look(const uint8_t *header, int family, int i)
{
	int before = failures;

	if (family) {
		CHECK(header[0] >> 4 == 6);
		CHECK((((header[0] << 4 | header[1] >> 4) & 0xff) == (cases[i].traffic_class | 2)));
		CHECK(!(header[1] & 15) && !header[2] && !header[3]);
		CHECK(header[7] == cases[i].hop_limit);
		CHECK(!memcmp(header + 8, &in6addr_loopback, 16) && !memcmp(header + 24, &in6addr_loopback, 16));
	} else {
		static const uint8_t loopback[4] = {127, 0, 0, 1};

		CHECK(header[20] == 0x45 && header[21] == (cases[i].traffic_class | 2) && header[28] == cases[i].hop_limit);
		CHECK(!memcmp(header + 32, loopback, 4) && !memcmp(header + 36, loopback, 4));
	}
	if (failures != before)
		fprintf(stderr, "IPv%d, class %#x, hops %d: %02x %02x %02x %02x ... %02x\n", family ? 6 : 4, cases[i].traffic_class,
			cases[i].hop_limit, header[family ? 0 : 20], header[family ? 1 : 21], header[2], header[3], header[family ? 7 : 28]);
}

int main(void)
{
	int sockets[2], status = -1;

	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t sender = fork();

	if (sender == 0) {
		close(sockets[0]);
		_exit(send_all(sockets[1]));
	}
	close(sockets[1]);
	struct end end = make();
	union ibv_gid peer;

	NEED(write(sockets[0], &end.qp->qp_num, 4) == 4);
	for (int family = 0; family < 2; family++)
		for (int i = 0; i < CASES; i++) {
			struct ibv_sge to = {(uintptr_t)end.memory, HEADER + LENGTH, end.mr->lkey};

			memset(end.memory, 0xee, HEADER + LENGTH);
			NEED(!receive(end.qp, i, &to) && write(sockets[0], "s", 1) == 1);
			struct ibv_wc got = completion(end.cq);

			NEED(got.status == IBV_WC_SUCCESS && got.byte_len == HEADER + LENGTH && got.wc_flags & IBV_WC_GRH);
			CHECK(end.memory[HEADER] == 'd' && end.memory[HEADER + LENGTH - 1] == 'd');
			look(end.memory, family, i);
			/* What the way back is made of. */
			struct ibv_ah_attr back;

			CHECK(!ibv_init_ah_from_wc(end.context, 1, &got, (struct ibv_grh *)end.memory, &back));
			CHECK(gid_of(end.context, family ? AF_INET6 : AF_INET, &peer) == back.grh.sgid_index);
			CHECK(!memcmp(&back.grh.dgid, &peer, 16));
			CHECK((back.grh.traffic_class & 0xfc) == cases[i].traffic_class);
		}
	CHECK(waitpid(sender, &status, 0) == sender && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	drop(&end);
	return failures != 0;
}
