/* multicast DEVICE GROUP send|receive COUNT: sends so many datagrams to a group, or waits for as many and looks at every byte. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEY 0x1ee7
#define LENGTH 900
#define DEPTH 64

static char memory[DEPTH][1024];

static void need(int condition, const char *what)
{
	if (!condition) {
		perror(what);
		exit(1);
	}
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	return NULL;
}

/* The first address of the device that is of the group's family. */
static int source(struct ibv_context *context, int v6)
{
	static const uint8_t mapped[12] = {[10] = 0xff, 0xff};
	union ibv_gid gid;

	for (int i = 0; !ibv_query_gid(context, 1, i, &gid); i++) {
		int nothing = !gid.global.subnet_prefix && !gid.global.interface_id;

		if (!nothing && v6 == !!memcmp(gid.raw, mapped, 12))
			return i;
	}
	return -1;
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 60;
	int got;

	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		need(time(NULL) < end, "nothing completes");
	need(got == 1 && wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
	return wc;
}

static void fill(char *text, int number)
{
	for (int i = 0; i < LENGTH; i++)
		text[i] = (char)(number * 7 + i);
}

int main(int count, char **words)
{
	need(count == 5, "multicast DEVICE GROUP send|receive COUNT");
	int v6 = !!strchr(words[2], ':'), sends = !strcmp(words[3], "send"), number = atoi(words[4]);
	union ibv_gid group = {.raw = {[10] = 0xff, 0xff}};

	need(inet_pton(v6 ? AF_INET6 : AF_INET, words[2], group.raw + (v6 ? 0 : 12)) == 1, words[2]);
	struct ibv_context *context = open_device(words[1]);
	need(context != NULL, words[1]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .qkey = KEY, .port_num = 1};

	need(pd && cq && mr && qp, "objects");
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");

	if (sends) {
		struct ibv_ah_attr where = {.is_global = 1, .port_num = 1, .grh = {.dgid = group, .hop_limit = 5}};
		where.grh.sgid_index = source(context, v6);
		struct ibv_ah *ah = ibv_create_ah(pd, &where);

		need(ah != NULL, "address handle");
		for (int i = 0; i < number; i++) {
			struct ibv_sge sge = {(uintptr_t)memory[0], LENGTH, mr->lkey};
			struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(i),
						 .send_flags = IBV_SEND_SIGNALED,
						 .wr.ud = {.ah = ah, .remote_qpn = 0xffffff, .remote_qkey = KEY}}, *bad;

			fill(memory[0], i);
			need(!ibv_post_send(qp, &wr, &bad), "post_send");
			completion(cq);
		}
		need(!ibv_destroy_ah(ah) && !ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "the end");
		need(!ibv_close_device(context), "close");
		printf("sent %d\n", number);
		return 0;
	}
	need(number <= DEPTH, "at most 64");
	for (int i = 0; i < number; i++) {
		struct ibv_sge sge = {(uintptr_t)memory[i], sizeof memory[i], mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

		need(!ibv_post_recv(qp, &wr, &bad), "post_recv");
	}
	need(!ibv_attach_mcast(qp, &group, 0), "attach");
	printf("in the group\n");
	fflush(stdout);
	for (int i = 0; i < number; i++) {
		struct ibv_wc wc = completion(cq);
		char wanted[LENGTH], *got = memory[wc.wr_id];
		const char *sent_to = got + (v6 ? 24 : 36);

		fill(wanted, ntohl(wc.imm_data));
		need(wc.byte_len == LENGTH + 40 && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && (int)ntohl(wc.imm_data) == i, "completion");
		need(!memcmp(got + 40, wanted, LENGTH), "bytes");
		need(!memcmp(sent_to, group.raw + (v6 ? 0 : 12), v6 ? 16 : 4), "the group's address before them");
	}
	need(!ibv_detach_mcast(qp, &group, 0), "detach");
	need(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "the end");
	printf("got %d\n", number);
	return 0;
}
