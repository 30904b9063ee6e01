/* What the programs with raw packets share: queue pairs, frames, flows. */
#ifndef RAW_H
#define RAW_H

#include "bench.h"

enum { ROOM = 2048, SLOTS = 32, BIG = 9000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
/* What was received, and what was sent: the two are in no order. */
static struct ibv_cq *cq, *sent;
static struct ibv_mr *mr;
static uint8_t memory[(SLOTS + 8) * ROOM];

static inline struct ibv_qp *ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	NEED(qp != NULL);
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	return qp;
}

static inline struct ibv_qp *raw_qp(void)
{
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RAW_PACKET);

	init.send_cq = sent;
	init.cap.max_inline_data = 256;
	return ready(ibv_create_qp(pd, &init));
}

static inline struct ibv_sge slot(int index, uint32_t length)
{
	struct ibv_sge sge = {(uintptr_t)memory + (size_t)index * ROOM, length, mr->lkey};
	return sge;
}

/* A UDP datagram in an Ethernet frame, with or without a tag, its checksums left open. */
static inline uint32_t frame(int index, uint8_t to, uint16_t tag, uint16_t source, uint16_t port, uint32_t data)
{
	uint8_t *p = memory + (size_t)index * ROOM;
	uint8_t *start = p;
	uint32_t udp = 8 + data, ip = 20 + udp;

	memset(p, 0, ROOM);
	memcpy(p, (uint8_t[]){2, 0, 0, 0, 0x77, to, 2, 0, 0, 0, 0x77, 0xee}, 12);
	p += 12;
	if (tag) {
		memcpy(p, (uint8_t[]){0x81, 0, tag >> 8, tag & 255}, 4);
		p += 4;
	}
	memcpy(p, (uint8_t[]){8, 0, 0x45, 0, ip >> 8, ip & 255, 0, 1, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2}, 22);
	p += 22;
	memcpy(p, (uint8_t[]){source >> 8, source & 255, port >> 8, port & 255, udp >> 8, udp & 255, 0, 1}, 8);
	for (uint32_t i = 0; i < data; i++)
		p[8 + i] = (uint8_t)(i * 7 + to);
	return (uint32_t)(p - start) + udp;
}

static inline int send_flags(struct ibv_qp *qp, int index, uint32_t length, int flags)
{
	struct ibv_sge sge = slot(index, length);
	struct ibv_send_wr wr = {.wr_id = 1000 + index, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED | flags};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int error = ibv_post_send(qp, &wr, &bad);

	if (error)
		return error;
	wc = completion(qp->send_cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.wr_id == wr.wr_id && wc.qp_num == qp->qp_num);
	return 0;
}

static inline int send_one(struct ibv_qp *qp, int index, uint32_t length)
{
	return send_flags(qp, index, length, 0);
}

static inline void post_slot(struct ibv_qp *qp, int index)
{
	struct ibv_sge sge = slot(index, ROOM);
	CHECK(!receive(qp, index, &sge));
}

/* Nothing completes for a while. */
static inline void quiet(struct ibv_cq *queue)
{
	struct timespec now, end;
	struct ibv_wc wc;

	clock_gettime(CLOCK_MONOTONIC, &end);
	do {
		CHECK(ibv_poll_cq(queue, 1, &wc) == 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - end.tv_sec) * 1000 + (now.tv_nsec - end.tv_nsec) / 1000000 < 100);
}

/* A flow with up to four parts. */
struct rule {
	struct ibv_flow_attr attr;
	uint8_t parts[256];
} __attribute__((packed, aligned(8)));

static inline void begin(struct rule *rule, enum ibv_flow_attr_type type, uint16_t priority)
{
	memset(rule, 0, sizeof *rule);
	rule->attr.type = type;
	rule->attr.priority = priority;
	rule->attr.port = 1;
	rule->attr.size = sizeof rule->attr;
}

static inline void add(struct rule *rule, const void *part, uint16_t size)
{
	memcpy((uint8_t *)rule + rule->attr.size, part, size);
	rule->attr.size += size;
	rule->attr.num_of_specs++;
}

static inline void add_eth(struct rule *rule, uint8_t to, uint16_t tag)
{
	struct ibv_flow_spec_eth spec = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof spec};

	memcpy(spec.val.dst_mac, (uint8_t[]){2, 0, 0, 0, 0x77, to}, 6);
	memset(spec.mask.dst_mac, 0xff, 6);
	if (tag) {
		spec.val.vlan_tag = htobe16(tag);
		spec.mask.vlan_tag = htobe16(0xfff);
	}
	add(rule, &spec, sizeof spec);
}

static inline void add_udp(struct rule *rule, uint16_t port)
{
	struct ibv_flow_spec_tcp_udp spec = {.type = IBV_FLOW_SPEC_UDP, .size = sizeof spec};

	spec.val.dst_port = htobe16(port);
	spec.mask.dst_port = 0xffff;
	add(rule, &spec, sizeof spec);
}

static inline struct ibv_flow *eth_flow(struct ibv_qp *qp, uint8_t to, uint16_t priority)
{
	struct rule rule;

	begin(&rule, IBV_FLOW_ATTR_NORMAL, priority);
	add_eth(&rule, to, 0);
	struct ibv_flow *flow = ibv_create_flow(qp, &rule.attr);
	NEED(flow != NULL);
	return flow;
}

/* Opens a device, with all that the tests share. */
static inline void open_all(struct ibv_context *opened)
{
	context = opened;
	NEED(context != NULL);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	sent = ibv_create_cq(context, 256, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	NEED(pd && cq && sent && mr);
}

static inline void close_all(void)
{
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(sent) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

#endif
