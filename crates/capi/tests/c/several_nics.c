/* Four NICs in place of the host's devices: what tells them apart, a message from one to another inside a process, and a
 * connection between processes, whose addresses choose the devices of both ends. */
#include "connection.h"
#include <sys/wait.h>

#define COUNT 4

static struct sockaddr_in nic(int position, uint16_t port)
{
	struct sockaddr_in address = loopback(port);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)position);
	return address;
}

/* The GID of a NIC is that of its address, in entry 0. */
static union ibv_gid gid_of(int position)
{
	union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = (uint8_t)(position + 1)}};

	return gid;
}

static int is_on(struct rdma_cm_id *id, int position)
{
	char name[16];

	snprintf(name, sizeof name, "ubi_%d", position);
	return id->verbs && !strcmp(ibv_get_device_name(id->verbs->device), name);
}

static void list(struct ibv_context *contexts[COUNT])
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);

	NEED(devices && count == COUNT);
	for (int i = 0; i < COUNT; i++) {
		union ibv_gid gid, wanted = gid_of(i);
		struct ibv_port_attr port;
		char name[16];

		snprintf(name, sizeof name, "ubi_%d", i);
		CHECK(!strcmp(ibv_get_device_name(devices[i]), name));
		contexts[i] = ibv_open_device(devices[i]);
		NEED(contexts[i]);
		CHECK(!ibv_query_gid(contexts[i], 1, 0, &gid) && !memcmp(&gid, &wanted, sizeof gid));
		CHECK(!ibv_query_gid(contexts[i], 1, 1, &gid) && !gid.global.subnet_prefix && !gid.global.interface_id);
		CHECK(!ibv_query_port(contexts[i], 1, &port) && port.state == IBV_PORT_ACTIVE);
		for (int other = 0; other < i; other++) {
			CHECK(ibv_get_device_guid(devices[i]) != ibv_get_device_guid(devices[other]));
			CHECK(ibv_get_device_index(devices[i]) != ibv_get_device_index(devices[other]));
		}
	}
	ibv_free_device_list(devices);
}

static void to_rts(struct ibv_qp *qp, struct ibv_qp *peer, int position)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .min_rnr_timer = 1,
		.ah_attr = {.grh = {.dgid = gid_of(position), .hop_limit = 64}, .is_global = 1, .port_num = 1},
	};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7};

	NEED(!to_init(qp));
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	NEED(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					      IBV_QP_MAX_QP_RD_ATOMIC));
}

/* From the first to the third. */
static void inside(struct ibv_context *contexts[COUNT])
{
	static char bytes[2][64] = {"from one NIC to another"};
	static const int nics[2] = {0, 2};
	struct ibv_pd *pd[2];
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	struct ibv_mr *mr[2];
	struct ibv_sge sge[2];

	for (int i = 0; i < 2; i++) {
		pd[i] = ibv_alloc_pd(contexts[nics[i]]);
		cq[i] = ibv_create_cq(contexts[nics[i]], 8, NULL, NULL, 0);
		mr[i] = ibv_reg_mr(pd[i], bytes[i], sizeof bytes[i], IBV_ACCESS_LOCAL_WRITE);
		NEED(pd[i] && cq[i] && mr[i]);
		struct ibv_qp_init_attr init = plain_init(cq[i], IBV_QPT_RC);

		qp[i] = ibv_create_qp(pd[i], &init);
		NEED(qp[i]);
		sge[i] = (struct ibv_sge){(uintptr_t)bytes[i], sizeof bytes[i], mr[i]->lkey};
	}
	to_rts(qp[1], qp[0], nics[0]);
	CHECK(!receive(qp[1], 1, &sge[1]));
	to_rts(qp[0], qp[1], nics[1]);
	CHECK(!post(qp[0], 2, IBV_WR_SEND, &sge[0], 0, 0));
	CHECK(completion(cq[0]).status == IBV_WC_SUCCESS);
	CHECK(completion(cq[1]).status == IBV_WC_SUCCESS && !memcmp(bytes[0], bytes[1], sizeof bytes[0]));
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(qp[i]) && !ibv_destroy_cq(cq[i]) && !ibv_dereg_mr(mr[i]) && !ibv_dealloc_pd(pd[i]));
}

/* Says something and hears it again; the other end hears it first. */
static void talk(struct rdma_cm_id *id, struct ibv_mr *mr, char *text, int first)
{
	struct ibv_wc wc = {0};

	for (int turn = 0; turn < 2; turn++) {
		if ((turn == 0) == first) {
			CHECK(!rdma_post_send(id, NULL, text, 64, mr, IBV_SEND_SIGNALED));
			CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		} else {
			CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 64);
		}
	}
	CHECK(!strcmp(text, "over the second"));
}

/* From the second to the fourth: another process. */
static void client(uint16_t port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in source = nic(1, 0), destination = nic(3, port);
	char text[64] = "over the second";
	union ibv_gid wanted = gid_of(1);
	struct rdma_cm_id *id = NULL;

	NEED(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, (struct sockaddr *)&source, (struct sockaddr *)&destination, 2000));
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(is_on(id, 1) && !memcmp(&id->route.addr.addr.ibaddr.sgid, &wanted, sizeof wanted));
	NEED(!rdma_resolve_route(id, 2000));
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	give_queue_pair(id);
	struct ibv_mr *mr = rdma_reg_msgs(id, text, sizeof text);

	NEED(mr && !rdma_post_recv(id, NULL, text, sizeof text, mr));
	NEED(!rdma_connect(id, NULL));
	expect(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	talk(id, mr, text, 1);
	CHECK(!rdma_disconnect(id));
	expect(channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(!rdma_dereg_mr(mr));
	destroy(id);
	rdma_destroy_event_channel(channel);
}

static void server(int tell)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in address = nic(3, 0);
	struct rdma_cm_id *listening = NULL;
	char text[64] = "";

	NEED(channel && !rdma_create_id(channel, &listening, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listening, (struct sockaddr *)&address));
	CHECK(is_on(listening, 3));
	NEED(!rdma_listen(listening, 1));
	uint16_t port = rdma_get_src_port(listening);

	NEED(write(tell, &port, sizeof port) == sizeof port);
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);

	NEED(event);
	struct rdma_cm_id *id = event->id;

	CHECK(!rdma_ack_cm_event(event) && is_on(id, 3));
	give_queue_pair(id);
	struct ibv_mr *mr = rdma_reg_msgs(id, text, sizeof text);

	NEED(mr && !rdma_post_recv(id, NULL, text, sizeof text, mr) && !rdma_accept(id, NULL));
	expect(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	talk(id, mr, text, 0);
	expect(channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(!rdma_disconnect(id) && !rdma_dereg_mr(mr));
	destroy(id);
	destroy(listening);
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	struct ibv_context *contexts[COUNT];
	int told[2], status = 1;
	uint16_t port = 0;

	NEED(!setenv("UBIVERBS_NICS", "4", 1) && !pipe(told));
	pid_t child = fork();

	NEED(child >= 0);
	if (!child) {
		close(told[1]);
		NEED(read(told[0], &port, sizeof port) == sizeof port);
		client(port);
		return failures != 0;
	}
	close(told[0]);
	server(told[1]);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	list(contexts);
	inside(contexts);
	/* The loopback's usual address is of the first, and chooses no device before the peer is known. */
	struct rdma_cm_id *id = NULL;
	struct sockaddr_in address = nic(0, 0);

	NEED(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, (struct sockaddr *)&address));
	CHECK(!id->verbs && !rdma_destroy_id(id));
	for (int i = 0; i < COUNT; i++)
		CHECK(!ibv_close_device(contexts[i]));
	return failures != 0;
}
