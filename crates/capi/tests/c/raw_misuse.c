/* Calls about raw packets with nulls, wrong sizes, unknown flags and objects in use: each answers as its manual page
 * says, and changes nothing. */
#include "bench.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

struct rule {
	struct ibv_flow_attr attr;
	uint8_t parts[4096];
} __attribute__((packed, aligned(8)));

static struct rule rule_with(const void *part, uint16_t size, uint8_t count)
{
	struct rule rule = {.attr = {.type = IBV_FLOW_ATTR_NORMAL, .port = 1, .num_of_specs = count}};

	rule.attr.size = sizeof rule.attr;
	for (int i = 0; i < count; i++) {
		memcpy((uint8_t *)&rule + rule.attr.size, part, size);
		rule.attr.size += size;
	}
	return rule;
}

/* The errno of a flow that must be refused. */
static int refused(struct rule *rule)
{
	struct ibv_flow *flow = ibv_create_flow(qp, &rule->attr);

	if (!flow)
		return errno;
	CHECK(!ibv_destroy_flow(flow));
	return 0;
}

static void flows(void)
{
	struct ibv_flow_spec_eth eth = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof eth};
	struct ibv_flow_spec_action_tag tag = {IBV_FLOW_SPEC_ACTION_TAG, sizeof tag, 7};
	struct ibv_flow_spec_action_drop drop = {IBV_FLOW_SPEC_ACTION_DROP, sizeof drop};
	struct ibv_flow_spec_action_handle handle = {IBV_FLOW_SPEC_ACTION_HANDLE, sizeof handle, NULL};
	struct ibv_flow_spec_counter_action count = {IBV_FLOW_SPEC_ACTION_COUNT, sizeof count, NULL};
	struct ibv_flow_spec_ipv6 ipv6 = {.type = IBV_FLOW_SPEC_IPV6, .size = sizeof ipv6};
	struct ibv_flow_spec_ipv4 ipv4 = {.type = IBV_FLOW_SPEC_IPV4, .size = sizeof ipv4};
	struct rule rule = rule_with(&eth, sizeof eth, 1);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_UD);
	struct ibv_qp *other;

	CHECK(refused(&rule) == 0);
	CHECK(!ibv_create_flow(qp, NULL) && errno == EINVAL);
	rule.attr.comp_mask = 1;
	CHECK(refused(&rule) == EINVAL);
	rule.attr.comp_mask = 0;
	rule.attr.port = 2;
	CHECK(refused(&rule) == EINVAL);
	rule.attr.port = 1;
	rule.attr.type = 4;
	CHECK(refused(&rule) == EINVAL);
	rule.attr.type = IBV_FLOW_ATTR_NORMAL;
	rule.attr.flags = 1;
	CHECK(refused(&rule) == EINVAL);
	rule.attr.flags = 1 << 3;
	CHECK(refused(&rule) == EINVAL);
	rule.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
	CHECK(refused(&rule) == EOPNOTSUPP);
	rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	CHECK(refused(&rule) == 0);
	rule.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
	CHECK(refused(&rule) == EINVAL);
	rule = rule_with(&eth, sizeof eth, 10);
	CHECK(refused(&rule) == 0);
	rule = rule_with(&eth, sizeof eth, 11);
	CHECK(refused(&rule) == EINVAL);
	for (int size = 0; size < (int)sizeof eth; size++) {
		eth.size = size;
		rule = rule_with(&eth, sizeof eth, 1);
		CHECK(refused(&rule) == EINVAL);
	}
	eth.size = sizeof eth;
	for (int type = 0; type < 0x1200; type++) {
		struct {
			uint32_t type;
			uint16_t size;
			uint8_t rest[90];
		} any = {.type = type, .size = sizeof any};
		int base = type & ~IBV_FLOW_SPEC_INNER, inner = type != base;
		int known = base == 0x20 || (base >= 0x30 && base <= 0x32) || base == 0x34 || base == 0x40 || base == 0x41 ||
			    ((base == 0x50 || base == 0x51) && !inner) || base == 0x60 ||
			    ((base == 0x1000 || base == 0x1001) && !inner);
		int expected = known ? 0 : base == 0x1002 && !inner ? EOPNOTSUPP : EINVAL;

		rule = rule_with(&any, sizeof any, 1);
		CHECK(refused(&rule) == expected);
	}
	rule = rule_with(&tag, sizeof tag, 2); /* twice */
	CHECK(refused(&rule) == EINVAL);
	tag.tag_id = 1 << 24;
	rule = rule_with(&tag, sizeof tag, 1);
	CHECK(refused(&rule) == EINVAL);
	rule = rule_with(&drop, sizeof drop, 1);
	CHECK(refused(&rule) == 0);
	rule = rule_with(&handle, sizeof handle, 1);
	CHECK(refused(&rule) == EOPNOTSUPP);
	rule = rule_with(&count, sizeof count, 1);
	CHECK(refused(&rule) == EINVAL);
	ipv6.val.flow_label = htobe32(1 << 20);
	rule = rule_with(&ipv6, sizeof ipv6, 1);
	CHECK(refused(&rule) == EINVAL);
	/* Both versions of IP at once. */
	ipv6.val.flow_label = 0;
	rule = rule_with(&ipv6, sizeof ipv6, 1);
	memcpy((uint8_t *)&rule + rule.attr.size, &ipv4, sizeof ipv4);
	rule.attr.size += sizeof ipv4;
	rule.attr.num_of_specs = 2;
	CHECK(refused(&rule) == EINVAL);
	/* Queue pairs that have none. */
	rule = rule_with(&eth, sizeof eth, 1);
	other = ibv_create_qp(pd, &init);
	NEED(other != NULL);
	CHECK(!ibv_create_flow(other, &rule.attr) && errno == EOPNOTSUPP);
	CHECK(!ibv_destroy_qp(other));
	init.qp_type = IBV_QPT_RC;
	other = ibv_create_qp(pd, &init);
	NEED(other != NULL);
	CHECK(!ibv_create_flow(other, &rule.attr) && errno == EINVAL);
	CHECK(!ibv_destroy_qp(other));
	/* Twice destroyed. */
	struct ibv_flow *flow = ibv_create_flow(qp, &rule.attr);
	NEED(flow != NULL);
	CHECK(!ibv_destroy_flow(flow));
}

static void counters(void)
{
	struct ibv_counters_init_attr init = {0};
	struct ibv_counters *made;
	struct ibv_counter_attach_attr attach = {.counter_desc = IBV_COUNTER_BYTES, .index = 1};
	struct ibv_flow_spec_eth eth = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof eth};
	struct rule rule = rule_with(&eth, sizeof eth, 1);
	struct ibv_flow *flow = ibv_create_flow(qp, &rule.attr);
	uint64_t values[2] = {5, 5};

	NEED(flow != NULL);
	CHECK(!ibv_create_counters(context, NULL) && errno == EINVAL);
	init.comp_mask = 1;
	CHECK(!ibv_create_counters(context, &init) && errno == EINVAL);
	init.comp_mask = 0;
	made = ibv_create_counters(context, &init);
	NEED(made != NULL);
	CHECK(ibv_attach_counters_point_flow(made, NULL, NULL) == EINVAL);
	CHECK(ibv_attach_counters_point_flow(made, &attach, flow) == ENOTSUP);
	attach.counter_desc = 2;
	CHECK(ibv_attach_counters_point_flow(made, &attach, NULL) == ENOTSUP);
	attach.counter_desc = IBV_COUNTER_BYTES;
	attach.comp_mask = 1;
	CHECK(ibv_attach_counters_point_flow(made, &attach, NULL) == EINVAL);
	attach.comp_mask = 0;
	attach.index = 1 << 20;
	CHECK(ibv_attach_counters_point_flow(made, &attach, NULL) == EINVAL);
	attach.index = 1;
	CHECK(!ibv_attach_counters_point_flow(made, &attach, NULL));
	CHECK(ibv_read_counters(made, NULL, 2, 0) == EINVAL);
	CHECK(ibv_read_counters(made, values, 1, 0) == EINVAL);
	CHECK(ibv_read_counters(made, values, 2, 2) == EINVAL && values[0] == 5);
	CHECK(!ibv_read_counters(made, values, 2, IBV_READ_COUNTERS_ATTR_PREFER_CACHED) && !values[0] && !values[1]);
	CHECK(!ibv_destroy_counters(made) && !ibv_destroy_flow(flow));
}

static int no_wq(struct ibv_wq_init_attr attr)
{
	struct ibv_wq *wq = ibv_create_wq(context, &attr);

	if (!wq)
		return errno;
	CHECK(!ibv_destroy_wq(wq));
	return 0;
}

static void work_queues(void)
{
	struct ibv_wq_init_attr good = {.wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq}, attr = good;
	struct ibv_wq_attr change = {.attr_mask = 1 << 3};
	struct ibv_wq *wq;

	CHECK(no_wq(attr) == 0);
	attr.comp_mask = 2;
	CHECK(no_wq(attr) == EINVAL);
	attr = good;
	attr.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
	attr.create_flags = IBV_WQ_FLAGS_CVLAN_STRIPPING;
	CHECK(no_wq(attr) == 0);
	attr.create_flags = IBV_WQ_FLAGS_SCATTER_FCS;
	CHECK(no_wq(attr) == EOPNOTSUPP);
	attr.create_flags = 1 << 10;
	CHECK(no_wq(attr) == EINVAL);
	attr = good;
	attr.wq_type = 1;
	CHECK(no_wq(attr) == EINVAL);
	attr = good;
	attr.max_wr = 0;
	CHECK(no_wq(attr) == EINVAL);
	attr.max_wr = 1 << 30;
	CHECK(no_wq(attr) == EINVAL);
	attr = good;
	attr.max_sge = 1000;
	CHECK(no_wq(attr) == EINVAL);
	attr = good;
	attr.pd = NULL;
	CHECK(no_wq(attr) == EINVAL);
	attr = good;
	attr.cq = NULL;
	CHECK(no_wq(attr) == EINVAL);
	wq = ibv_create_wq(context, &good);
	NEED(wq != NULL);
	CHECK(ibv_modify_wq(wq, NULL) == EINVAL);
	CHECK(ibv_modify_wq(wq, &change) == EINVAL);
	change.attr_mask = IBV_WQ_ATTR_STATE;
	change.wq_state = IBV_WQS_UNKNOWN;
	CHECK(ibv_modify_wq(wq, &change) == EINVAL);
	change.wq_state = IBV_WQS_ERR; /* from RESET */
	CHECK(ibv_modify_wq(wq, &change) == EINVAL && wq->state == IBV_WQS_RESET);
	change.attr_mask = IBV_WQ_ATTR_FLAGS;
	change.flags_mask = IBV_WQ_FLAGS_DELAY_DROP;
	CHECK(ibv_modify_wq(wq, &change) == EOPNOTSUPP);
	change.flags_mask = change.flags = IBV_WQ_FLAGS_CVLAN_STRIPPING;
	CHECK(!ibv_modify_wq(wq, &change));
	/* Tables, and queue pairs that spread by them. */
	struct ibv_wq *two[] = {wq, wq}, *holed[] = {wq, NULL};
	struct ibv_rwq_ind_table_init_attr table_attr = {.log_ind_tbl_size = 1, .ind_tbl = two};
	struct ibv_rwq_ind_table *table;
	uint8_t key[40] = {1};
	struct ibv_qp_init_attr_ex best = {
		.pd = pd, .qp_type = IBV_QPT_RAW_PACKET,
		.rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = 40, .rx_hash_key = key,
				 .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
	}, init;

	CHECK(!ibv_create_rwq_ind_table(context, NULL) && errno == EINVAL);
	table_attr.ind_tbl = NULL;
	CHECK(!ibv_create_rwq_ind_table(context, &table_attr) && errno == EINVAL);
	table_attr.ind_tbl = holed;
	CHECK(!ibv_create_rwq_ind_table(context, &table_attr) && errno == EINVAL);
	table_attr.ind_tbl = two;
	table_attr.log_ind_tbl_size = 20;
	CHECK(!ibv_create_rwq_ind_table(context, &table_attr) && errno == EINVAL);
	table_attr.log_ind_tbl_size = 1;
	table_attr.comp_mask = 1;
	CHECK(!ibv_create_rwq_ind_table(context, &table_attr) && errno == EINVAL);
	table_attr.comp_mask = 0;
	table = ibv_create_rwq_ind_table(context, &table_attr);
	NEED(table != NULL);
	best.rwq_ind_tbl = table;
#define NO_QP(change, error)                                                         \
	do {                                                                         \
		init = best;                                                         \
		change;                                                              \
		CHECK(!ibv_create_qp_ex(context, &init) && errno == (error));        \
	} while (0)
	NO_QP(init.rwq_ind_tbl = NULL, EINVAL);
	NO_QP(init.comp_mask &= ~IBV_QP_INIT_ATTR_RX_HASH, EINVAL);
	NO_QP(init.comp_mask &= ~IBV_QP_INIT_ATTR_IND_TABLE, EINVAL);
	NO_QP(init.comp_mask &= ~IBV_QP_INIT_ATTR_PD, EINVAL);
	NO_QP(init.comp_mask |= 1 << 20, EINVAL);
	NO_QP(init.qp_type = IBV_QPT_RC, EOPNOTSUPP);
	NO_QP(init.cap.max_recv_wr = 1, EINVAL);
	NO_QP(init.cap.max_send_wr = 1, EOPNOTSUPP);
	NO_QP(init.rx_hash_conf.rx_hash_function = 2, EOPNOTSUPP);
	NO_QP(init.rx_hash_conf.rx_hash_key_len = 39, EINVAL);
	NO_QP(init.rx_hash_conf.rx_hash_key = NULL, EINVAL);
	NO_QP(init.rx_hash_conf.rx_hash_fields_mask = 1 << 20, EOPNOTSUPP);
	NO_QP(init.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV6, EINVAL);
	NO_QP(init.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER, EOPNOTSUPP);
	CHECK(ibv_destroy_wq(wq) == EBUSY);
	init = best;
	struct ibv_qp *spread = ibv_create_qp_ex(context, &init);
	NEED(spread != NULL);
	CHECK(ibv_destroy_rwq_ind_table(table) == EBUSY);
	CHECK(!ibv_destroy_qp(spread) && !ibv_destroy_rwq_ind_table(table) && !ibv_destroy_wq(wq));
}

int main(void)
{
	struct ibv_qp_init_attr init;

	context = open_lo();
	NEED(context != NULL);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	NEED(pd && cq);
	init = plain_init(NULL, IBV_QPT_RAW_PACKET);
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init = plain_init(cq, IBV_QPT_RAW_PACKET);
	init.cap.max_send_wr = 1 << 30;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init = plain_init(cq, IBV_QPT_RAW_PACKET);
	qp = ibv_create_qp(pd, &init);
	NEED(qp != NULL);
	flows();
	counters();
	work_queues();
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return failures != 0;
}
