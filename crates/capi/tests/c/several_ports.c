/* Two NICs of two ports each: what tells the ports apart, connections and datagrams over the second one, what is refused for a
 * port that there is not, and a failure script that takes the second port down while the first goes on. */
#include "connection.h"
#include <infiniband/umad.h>

static const char script[] =
	"about = 'The second port of the first NIC is down for a while'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nfor = '300ms'\ndevice = 'ubi_0'\nport = 2\ndo = 'port-down'\n";

/* Ports of NICs are numbered through: two of each. */
static union ibv_gid gid_of(int nic, int port)
{
	union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = (uint8_t)(2 * nic + port)}};

	return gid;
}

static struct sockaddr_in address_of(int nic, int port, uint16_t number)
{
	struct sockaddr_in address = loopback(number);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)(2 * nic + port - 1));
	return address;
}

/* What the ports of a device say. */
static void describe(struct ibv_context *context, int nic)
{
	struct ibv_device_attr_ex attr_ex;
	struct ibv_gid_entry entries[8];
	struct ibv_gid_entry entry;
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint16_t pkey = 0;

	CHECK(!ibv_query_device_ex(context, NULL, &attr_ex) && attr_ex.phys_port_cnt_ex == 2);
	CHECK(attr_ex.orig_attr.phys_port_cnt == 2);
	CHECK(ibv_query_gid_table(context, entries, 8, 0) == 2);
	for (int number = 1; number <= 2; number++) {
		union ibv_gid wanted = gid_of(nic, number);

		CHECK(!ibv_query_port(context, (uint8_t)number, &port) && port.state == IBV_PORT_ACTIVE);
		CHECK(!ibv_query_gid(context, (uint8_t)number, 0, &gid) && !memcmp(&gid, &wanted, sizeof gid));
		CHECK(!ibv_query_pkey(context, (uint8_t)number, 0, &pkey) && pkey == 0xffff);
		CHECK(ibv_get_pkey_index(context, (uint8_t)number, pkey) == 0);
		CHECK(!ibv_query_gid_ex(context, (uint32_t)number, 0, &entry, 0) && entry.port_num == (uint32_t)number);
		CHECK(entries[number - 1].port_num == (uint32_t)number && !memcmp(&entries[number - 1].gid, &wanted, sizeof gid));
	}
	for (int number = 0; number <= 3; number += 3) {
		CHECK(ibv_query_port(context, (uint8_t)number, &port) == EINVAL);
		CHECK(ibv_query_gid(context, (uint8_t)number, 0, &gid) == -1 && errno == EINVAL);
		CHECK(ibv_query_pkey(context, (uint8_t)number, 0, &pkey) == -1 && errno == EINVAL);
		CHECK(ibv_get_pkey_index(context, (uint8_t)number, 0xffff) == -1 && errno == EINVAL);
		CHECK(ibv_query_gid_ex(context, (uint32_t)number, 0, &entry, 0) == EINVAL);
	}
}

/* One end of a connection: its NIC and port, and all that it needs. */
struct end {
	int nic, port;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_sge sge;
	char bytes[128];
};

static void make(struct end *end, struct ibv_context *context, enum ibv_qp_type type)
{
	end->pd = ibv_alloc_pd(context);
	end->cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	NEED(end->pd && end->cq);
	end->mr = ibv_reg_mr(end->pd, end->bytes, sizeof end->bytes, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = plain_init(end->cq, type);

	end->qp = ibv_create_qp(end->pd, &init);
	NEED(end->mr && end->qp);
	end->sge = (struct ibv_sge){(uintptr_t)end->bytes, sizeof end->bytes, end->mr->lkey};
}

static void unmake(struct end *end)
{
	CHECK(!ibv_destroy_qp(end->qp) && !ibv_destroy_cq(end->cq) && !ibv_dereg_mr(end->mr) && !ibv_dealloc_pd(end->pd));
}

static int begin(struct end *end, uint8_t port)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = port, .qkey = 0x11111111};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	return ibv_modify_qp(end->qp, &attr, mask | (end->qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

static int receiving(struct end *end, const struct end *peer, uint8_t port)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp->qp_num, .min_rnr_timer = 1,
		.ah_attr = {.grh = {.dgid = gid_of(peer->nic, peer->port), .hop_limit = 64}, .is_global = 1, .port_num = port},
	};

	return ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static void sending(struct end *end)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 1, .rnr_retry = 7};

	NEED(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void connect_ends(struct end ends[2], struct ibv_context *contexts[2])
{
	for (int i = 0; i < 2; i++)
		make(&ends[i], contexts[ends[i].nic], IBV_QPT_RC);
	for (int i = 0; i < 2; i++) {
		struct end *end = &ends[i];
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;

		CHECK(begin(end, 0) == EINVAL && begin(end, 3) == EINVAL);
		NEED(!begin(end, (uint8_t)end->port));
		CHECK(!ibv_query_qp(end->qp, &attr, IBV_QP_PORT, &init) && attr.port_num == end->port);
		/* The way begins at the port that INIT named. */
		CHECK(receiving(end, &ends[!i], (uint8_t)(3 - end->port)) == EINVAL);
		CHECK(receiving(end, &ends[!i], 3) == EINVAL);
		NEED(!receiving(end, &ends[!i], (uint8_t)end->port));
		sending(end);
	}
}

static enum ibv_wc_status say(struct end ends[2], const char *text)
{
	strcpy(ends[0].bytes, text);
	CHECK(!receive(ends[1].qp, 1, &ends[1].sge));
	CHECK(!post(ends[0].qp, 2, IBV_WR_SEND, &ends[0].sge, 0, 0));
	struct ibv_wc wc = completion(ends[0].cq);

	if (wc.status == IBV_WC_SUCCESS)
		CHECK(completion(ends[1].cq).status == IBV_WC_SUCCESS && !strcmp(ends[1].bytes, text));
	return wc.status;
}

/* A datagram says from which address it came: that of the port that its address handle names. */
static void datagrams(struct ibv_context *contexts[2])
{
	struct end ends[2] = {{.nic = 0, .port = 2}, {.nic = 1, .port = 2}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};

	for (int i = 0; i < 2; i++) {
		make(&ends[i], contexts[i], IBV_QPT_UD);
		NEED(!begin(&ends[i], 2));
		attr.qp_state = IBV_QPS_RTR;
		NEED(!ibv_modify_qp(ends[i].qp, &attr, IBV_QP_STATE));
		attr.qp_state = IBV_QPS_RTS;
		NEED(!ibv_modify_qp(ends[i].qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	}
	struct ibv_ah_attr to = {.grh = {.dgid = gid_of(1, 2), .hop_limit = 64}, .is_global = 1, .port_num = 3};

	CHECK(!ibv_create_ah(ends[0].pd, &to) && errno == EINVAL);
	to.port_num = 0;
	CHECK(!ibv_create_ah(ends[0].pd, &to) && errno == EINVAL);
	to.port_num = 2;
	struct ibv_ah *ah = ibv_create_ah(ends[0].pd, &to);
	struct ibv_sge sge = {(uintptr_t)ends[0].bytes, 8, ends[0].mr->lkey};
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};

	NEED(ah);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = ends[1].qp->qp_num;
	wr.wr.ud.remote_qkey = 0x11111111;
	CHECK(!receive(ends[1].qp, 1, &ends[1].sge));
	CHECK(!ibv_post_send(ends[0].qp, &wr, &bad) && completion(ends[0].cq).status == IBV_WC_SUCCESS);
	struct ibv_wc wc = completion(ends[1].cq);
	struct ibv_grh *grh = (struct ibv_grh *)ends[1].bytes;
	struct ibv_ah_attr back;

	CHECK(wc.status == IBV_WC_SUCCESS);
	CHECK(!ibv_init_ah_from_wc(contexts[1], 2, &wc, grh, &back) && back.port_num == 2);
	union ibv_gid from = gid_of(0, 2);

	CHECK(!memcmp(&back.grh.dgid, &from, sizeof from));
	CHECK(ibv_init_ah_from_wc(contexts[1], 3, &wc, grh, &back) == -1 && errno == EINVAL);
	CHECK(!ibv_destroy_ah(ah));
	for (int i = 0; i < 2; i++)
		unmake(&ends[i]);
}

/* An id is on the port whose address it has, and so is its queue pair. */
static void connections(void)
{
	struct rdma_event_channel *channels[2] = {rdma_create_event_channel(), rdma_create_event_channel()};
	struct sockaddr_in source = address_of(0, 2, 0), target = address_of(1, 2, 0);
	struct rdma_cm_id *id = NULL, *listening = NULL;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	NEED(channels[0] && channels[1] && !rdma_create_id(channels[1], &listening, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listening, (struct sockaddr *)&target) && !rdma_listen(listening, 1));
	CHECK(listening->port_num == 2 && !strcmp(ibv_get_device_name(listening->verbs->device), "ubi_1"));
	target = address_of(1, 2, rdma_get_src_port(listening));
	NEED(!rdma_create_id(channels[0], &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, (struct sockaddr *)&source, (struct sockaddr *)&target, 2000));
	expect(channels[0], RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(id->port_num == 2 && !strcmp(ibv_get_device_name(id->verbs->device), "ubi_0"));
	NEED(!rdma_resolve_route(id, 2000));
	expect(channels[0], RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	give_queue_pair(id);
	NEED(!rdma_connect(id, NULL));
	struct rdma_cm_event *event = next(channels[1], RDMA_CM_EVENT_CONNECT_REQUEST);

	NEED(event);
	struct rdma_cm_id *accepted = event->id;

	CHECK(!rdma_ack_cm_event(event) && accepted->port_num == 2);
	give_queue_pair(accepted);
	NEED(!rdma_accept(accepted, NULL));
	expect(channels[0], RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(channels[1], RDMA_CM_EVENT_ESTABLISHED, 0);
	for (int i = 0; i < 2; i++) {
		union ibv_gid wanted = gid_of(!i, 2);

		CHECK(!ibv_query_qp(i ? accepted->qp : id->qp, &attr, IBV_QP_PORT | IBV_QP_AV, &init));
		CHECK(attr.port_num == 2 && attr.ah_attr.port_num == 2);
		CHECK(!memcmp(&attr.ah_attr.grh.dgid, &wanted, sizeof wanted));
	}
	CHECK(!rdma_disconnect(id) && !rdma_disconnect(accepted));
	expect(channels[0], RDMA_CM_EVENT_DISCONNECTED, 0);
	expect(channels[1], RDMA_CM_EVENT_DISCONNECTED, 0);
	destroy(id);
	destroy(accepted);
	destroy(listening);
	rdma_destroy_event_channel(channels[0]);
	rdma_destroy_event_channel(channels[1]);
}

/* Management datagrams: a port by its number. */
static void management(void)
{
	char name[] = "ubi_1";
	union ibv_gid gid = gid_of(1, 2);
	__be64 guids[3] = {0};
	umad_port_t port;
	umad_ca_t ca;

	CHECK(!umad_get_ca(name, &ca) && ca.numports == 2 && ca.ports[1] && ca.ports[2] && !ca.ports[3]);
	CHECK(ca.ports[2]->portnum == 2 && ca.ports[2]->port_guid == gid.global.interface_id);
	CHECK(!umad_release_ca(&ca));
	CHECK(umad_get_ca_portguids(name, guids, 2) == -ENOMEM && umad_get_ca_portguids(name, guids, 3) == 3);
	CHECK(guids[2] == gid.global.interface_id && guids[1] != guids[2]);
	CHECK(!umad_get_port(name, 2, &port) && port.portnum == 2 && !umad_release_port(&port));
	CHECK(umad_get_port(name, 3, &port) < 0);
	int fd = umad_open_port(name, 2);

	CHECK(fd >= 0 && !umad_close_port(fd) && umad_open_port(name, 3) < 0);
}

/* The next event of the port, which must be that of the second one. */
static void hears(struct ibv_context *context, enum ibv_event_type kind)
{
	struct ibv_async_event event = {.event_type = -1};

	NEED(readable(context->async_fd, SOON) && !ibv_get_async_event(context, &event));
	CHECK(event.event_type == kind && event.element.port_num == 2);
	ibv_ack_async_event(&event);
}

static void goes_down(struct ibv_context *contexts[2], struct end first[2], struct end second[2])
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;

	CHECK(!ibv_query_device(contexts[0], &attr) && attr.phys_port_cnt == 2);
	hears(contexts[0], IBV_EVENT_PORT_ERR);
	CHECK(!ibv_query_port(contexts[0], 2, &port) && port.state == IBV_PORT_DOWN);
	CHECK(!ibv_query_port(contexts[0], 1, &port) && port.state == IBV_PORT_ACTIVE);
	CHECK(say(second, "nobody hears this") == IBV_WC_RETRY_EXC_ERR);
	CHECK(say(first, "the first port works") == IBV_WC_SUCCESS);
	hears(contexts[0], IBV_EVENT_PORT_ACTIVE);
	CHECK(!ibv_query_port(contexts[0], 2, &port) && port.state == IBV_PORT_ACTIVE);
	CHECK(!readable(contexts[1]->async_fd, 0));
}

int main(void)
{
	static struct end first[2] = {{.nic = 0, .port = 1}, {.nic = 1, .port = 2}};
	static struct end second[2] = {{.nic = 0, .port = 2}, {.nic = 1, .port = 1}};
	char path[] = "/tmp/ubiverbs-script-XXXXXX";
	struct ibv_context *contexts[2];
	int file = mkstemp(path), count = 0;

	NEED(file >= 0 && write(file, script, strlen(script)) == (ssize_t)strlen(script) && !close(file));
	NEED(!setenv("UBIVERBS_NICS", "2x2", 1) && !setenv("UBIVERBS_SCRIPT", path, 1));
	struct ibv_device **devices = ibv_get_device_list(&count);

	NEED(devices && count == 2);
	for (int i = 0; i < 2; i++) {
		NEED(contexts[i] = ibv_open_device(devices[i]));
		describe(contexts[i], i);
	}
	ibv_free_device_list(devices);
	unlink(path);
	connect_ends(first, contexts);
	connect_ends(second, contexts);
	CHECK(say(first, "over the first port") == IBV_WC_SUCCESS);
	CHECK(say(second, "over the second port") == IBV_WC_SUCCESS);
	datagrams(contexts);
	connections();
	management();
	goes_down(contexts, first, second);
	for (int i = 0; i < 2; i++) {
		unmake(&first[i]);
		unmake(&second[i]);
	}
	/* Ids keep what they have open; the program's own contexts go. */
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_close_device(contexts[i]));
	return failures != 0;
}
