/* The verbs objects of an epoch: completion queues, shared receive queues, queue pairs, and how queue pairs are connected by hand. */
#include "soak.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static void address_to_gid(const char *text, union ibv_gid *gid)
{
	memset(gid, 0, sizeof *gid);
	if (inet_pton(AF_INET6, text, gid->raw) == 1)
		return;
	gid->raw[10] = gid->raw[11] = 0xff;
	if (inet_pton(AF_INET, text, gid->raw + 12) != 1)
		trouble("%s is no address", text);
}

static bool has_gid(struct ibv_context *context)
{
	struct ibv_port_attr port;
	union ibv_gid gid;

	if (ibv_query_port(context, 1, &port))
		return false;
	for (int i = 0; i < port.gid_tbl_len; i++)
		if (!ibv_query_gid(context, 1, i, &gid) && !memcmp(&gid, &own_gid, sizeof gid)) {
			own_gid_index = i;
			return true;
		}
	return false;
}

/* Packets as long as was asked for, but not longer than the interface carries: no queue pair comes up with more. */
static void take_mtu_of_port(void)
{
	struct ibv_port_attr port;

	if (ibv_query_port(device, 1, &port))
		trouble("the port cannot be asked");
	if (options.limits.mtu > 128u << port.active_mtu)
		options.limits.mtu = 128u << port.active_mtu;
}

/* The connection manager has contexts of its own, and wants all that belongs to its ids to be of them. */
void find_device(void)
{
	int count = 0;
	const char *own = options.own_address ? options.own_address : options.address;
	struct ibv_device **list = NULL;
	struct ibv_context **contexts = NULL;

	address_to_gid(own, &own_gid);
	if (options.limits.cm)
		contexts = rdma_get_devices(&count);
	else
		list = ibv_get_device_list(&count);
	for (int i = 0; i < count && !device; i++) {
		struct ibv_context *context = contexts ? contexts[i] : ibv_open_device(list[i]);

		if (context && has_gid(context))
			device = context;
		else if (context && list)
			ibv_close_device(context);
	}
	if (list)
		ibv_free_device_list(list);
	if (!device)
		trouble("none of %d devices has the address %s", count, own);
	take_mtu_of_port();
}

static struct ibv_cq *plain_queue(struct lane *lane, int index)
{
	return lane->completion_queue[index].cq;
}

static void create_completion_queue(struct lane *lane, bool receives_only)
{
	struct completion_queue *queue = &lane->completion_queue[lane->completion_queues++];
	int entries = lane->qps * (2 * (int)lane->epoch.depth + MAX_OPS + 16) + 64;

	memset(queue, 0, sizeof *queue);
	queue->receives_only = receives_only;
	if (lane->epoch.extended[options.side] && (lane->completion_queues & 1)) {
		struct ibv_cq_init_attr_ex init = {.cqe = (uint32_t)entries, .channel = lane->channel, .wc_flags = IBV_WC_STANDARD_FLAGS,
						   .cq_context = queue};

		queue->extended = ibv_create_cq_ex(device, &init);
		queue->cq = queue->extended ? ibv_cq_ex_to_cq(queue->extended) : NULL;
	} else {
		queue->cq = ibv_create_cq(device, entries, queue, lane->channel, 0);
	}
	if (!queue->cq)
		fail(lane, -1, 0, "no completion queue of %d (errno %d)", entries, errno);
}

static struct receive_queue *new_queue(bool shared, bool ahead)
{
	struct receive_queue *queue = calloc(1, sizeof *queue);

	queue->shared = shared;
	queue->all_ahead = ahead;
	return queue;
}

static void create_shared_queues(struct lane *lane)
{
	bool xrc = false, unreliable = false, own = lane->epoch.shared_receives[options.side];

	for (int i = 0; i < lane->qps; i++) {
		xrc |= lane->epoch.kind[i] == KIND_XRC;
		unreliable |= !is_reliable(lane->epoch.kind[i]);
	}
	if (own) {
		struct ibv_srq_init_attr init = {.attr = {.max_wr = MAX_RECEIVES, .max_sge = lane->epoch.sges}};

		lane->shared_queue = new_queue(true, unreliable);
		lane->shared_queue->srq = ibv_create_srq(lane->pd, &init);
		if (!lane->shared_queue->srq)
			fail(lane, -1, 0, "no shared receive queue (errno %d)", errno);
	}
	if (xrc) {
		struct ibv_xrcd_init_attr domain = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
		struct ibv_srq_init_attr_ex init = {
			.attr = {.max_wr = MAX_RECEIVES, .max_sge = lane->epoch.sges}, .srq_type = IBV_SRQT_XRC, .pd = lane->pd,
			.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		};

		lane->xrcd = ibv_open_xrcd(device, &domain);
		init.xrcd = lane->xrcd;
		init.cq = plain_queue(lane, lane->completion_queues > 1 ? 1 : 0);
		lane->xrc_queue = new_queue(true, false);
		lane->xrc_queue->srq = lane->xrcd ? ibv_create_srq_ex(device, &init) : NULL;
		if (!lane->xrc_queue->srq)
			fail(lane, -1, 0, "no XRC domain or queue (errno %d)", errno);
	}
}

void epoch_open(struct lane *lane)
{
	int mode = lane->epoch.queues_mode[options.side];

	step(lane, "creating objects");
	lane->qps = lane->epoch.qps;
	lane->completion_queues = 0;
	lane->channel = NULL;
	if (lane->epoch.events[options.side]) {
		lane->channel = ibv_create_comp_channel(device);
		if (!lane->channel)
			fail(lane, -1, 0, "no completion channel (errno %d)", errno);
		fcntl(lane->channel->fd, F_SETFL, fcntl(lane->channel->fd, F_GETFL) | O_NONBLOCK);
	}
	for (int i = 0; i < (mode == 2 ? lane->qps : 1); i++) {
		create_completion_queue(lane, false);
		if (mode)
			create_completion_queue(lane, true);
	}
	create_shared_queues(lane);
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];

		memset(qp, 0, sizeof *qp);
		qp->kind = lane->epoch.kind[i];
		qp->halves = lane->epoch.split[i] ? 2 : 1;
		qp->send_queue = mode == 2 ? 2 * i : 0;
		qp->receive_queue_index = mode == 2 ? 2 * i + 1 : mode;
		for (int half = 0; half < qp->halves; half++) {
			qp->mine[half] = calloc(1, sizeof(struct stream));
			qp->theirs[half] = calloc(1, sizeof(struct stream));
		}
		/* Datagrams that come twice take receives from others, who would then wait for ever. */
		if (qp->kind == KIND_XRC)
			qp->queue = lane->xrc_queue;
		else if (lane->shared_queue && (options.limits.lossless || !lane->shared_queue->all_ahead || !is_reliable(qp->kind)))
			qp->queue = lane->shared_queue;
		else
			qp->queue = lane->own_queue[i] = new_queue(false, !is_reliable(qp->kind));
		/* The others are made with the ids of the connection manager. */
		if (!options.limits.cm || qp->kind == KIND_UC || qp->kind == KIND_XRC)
			create_pair(lane, i, NULL);
	}
}

void create_pair(struct lane *lane, int number, struct rdma_cm_id *id)
{
	static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND};
	static const uint64_t all_calls = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
					  IBV_QP_EX_WITH_SEND_WITH_IMM;
	static const uint64_t more_calls = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	static const uint64_t rc_calls = IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
	struct queue_pair *qp = &lane->qp[number];
	const struct epoch_plan *epoch = &lane->epoch;
	struct ibv_qp_init_attr_ex init = {
		.send_cq = plain_queue(lane, qp->send_queue), .recv_cq = plain_queue(lane, qp->receive_queue_index),
		.cap = {.max_send_wr = epoch->depth * 2 + 2, .max_recv_wr = MAX_OPS + 4, .max_send_sge = epoch->sges,
			.max_recv_sge = epoch->sges, .max_inline_data = epoch->inline_size},
		.qp_type = types[qp->kind], .sq_sig_all = epoch->signal_all[options.side], .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = lane->pd,
	};

	if (lane->shared_queue && qp->queue == lane->shared_queue) {
		init.srq = lane->shared_queue->srq;
		init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
	}
	if (qp->kind == KIND_XRC) {
		init.recv_cq = NULL;
		init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
	}
	if (epoch->calls[options.side]) {
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = qp->kind == KIND_UD   ? IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM
				      : qp->kind == KIND_UC ? all_calls
				      : qp->kind == KIND_RC ? all_calls | more_calls | rc_calls
							    : all_calls | more_calls;
	}
	if (id) {
		qp->sends = rdma_create_qp_ex(id, &init) ? NULL : id->qp;
		qp->id = id;
	} else {
		qp->sends = ibv_create_qp_ex(device, &init);
	}
	qp->receives = qp->sends;
	if (qp->kind == KIND_XRC && qp->sends) {
		struct ibv_qp_init_attr_ex target = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = lane->xrcd};

		qp->receives = ibv_create_qp_ex(device, &target);
	}
	if (!qp->sends || !qp->receives)
		fail(lane, number, 0, "no %s queue pair (errno %d)", kind_names[qp->kind], errno);
	if (init.cap.max_inline_data < epoch->inline_size || init.cap.max_send_sge < epoch->sges)
		fail(lane, number, 0, "a queue pair with less than was asked for: inline %u, pieces %u", init.cap.max_inline_data,
		     init.cap.max_send_sge);
	if (lane->own_queue[number])
		lane->own_queue[number]->qp = qp->receives;
}

static void free_queue(struct lane *lane, struct receive_queue **queue)
{
	if (*queue && (*queue)->srq && ibv_destroy_srq((*queue)->srq))
		fail(lane, -1, 0, "ibv_destroy_srq failed (errno %d)", errno);
	free(*queue);
	*queue = NULL;
}

void epoch_close(struct lane *lane)
{
	step(lane, "destroying objects");
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];

		if (qp->receives && qp->receives != qp->sends && ibv_destroy_qp(qp->receives))
			fail(lane, i, 0, "ibv_destroy_qp failed (errno %d)", errno);
		if (qp->id) {
			rdma_destroy_qp(qp->id);
			if (rdma_destroy_id(qp->id))
				fail(lane, i, 0, "rdma_destroy_id failed (errno %d)", errno);
		} else if (qp->sends && ibv_destroy_qp(qp->sends)) {
			fail(lane, i, 0, "ibv_destroy_qp failed (errno %d)", errno);
		}
		if (qp->ah)
			ibv_destroy_ah(qp->ah);
		for (int half = 0; half < qp->halves; half++) {
			free_stream(qp->mine[half]);
			free_stream(qp->theirs[half]);
			free(qp->mine[half]);
			free(qp->theirs[half]);
		}
		free_queue(lane, &lane->own_queue[i]);
	}
	free_queue(lane, &lane->shared_queue);
	free_queue(lane, &lane->xrc_queue);
	for (int i = 0; i < lane->completion_queues; i++) {
		struct completion_queue *queue = &lane->completion_queue[i];

		if (queue->events)
			ibv_ack_cq_events(queue->cq, queue->events);
		if (ibv_destroy_cq(queue->cq))
			fail(lane, -1, 0, "ibv_destroy_cq failed (errno %d)", errno);
	}
	if (lane->channel && ibv_destroy_comp_channel(lane->channel))
		fail(lane, -1, 0, "ibv_destroy_comp_channel failed (errno %d)", errno);
	if (lane->xrcd && ibv_close_xrcd(lane->xrcd))
		fail(lane, -1, 0, "ibv_close_xrcd failed (errno %d)", errno);
	lane->channel = NULL;
	lane->xrcd = NULL;
	lane->qps = lane->completion_queues = 0;
}

void to_state(struct lane *lane, enum ibv_qp_state state)
{
	for (int i = 0; i < lane->qps; i++) {
		struct ibv_qp_attr attr = {.qp_state = state};
		struct queue_pair *qp = &lane->qp[i];

		if (qp->sends && ibv_modify_qp(qp->sends, &attr, IBV_QP_STATE))
			fail(lane, i, 0, "cannot move a queue pair to state %d (errno %d)", state, errno);
		if (qp->receives && qp->receives != qp->sends && ibv_modify_qp(qp->receives, &attr, IBV_QP_STATE))
			fail(lane, i, 0, "cannot move an XRC target to state %d (errno %d)", state, errno);
	}
}

/* Eight times this long a peer may be silent: two seconds, which is soon enough for one that died; half a minute for one that was stopped. */
uint8_t patience(void)
{
	return options.peer_may_stop ? 20 : options.limits.lossless ? 18 : 16;
}

int bring_up(struct ibv_qp *qp, const struct way *way)
{
	enum ibv_qp_type type = qp->qp_type;
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT, mtu = IBV_MTU_256;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = way->qkey,
				   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};

	if (type == IBV_QPT_UC)
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	if (ibv_modify_qp(qp, &attr, mask | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)))
		return 1;
	for (uint32_t size = 256; size < options.limits.mtu; size *= 2)
		mtu++;
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = way->qp, .rq_psn = way->peer_psn,
		.ah_attr = {.grh = {.dgid = way->gid, .sgid_index = (uint8_t)own_gid_index, .hop_limit = 64}, .is_global = 1, .port_num = 1},
		.max_dest_rd_atomic = way->fetches, .min_rnr_timer = 1,
	};
	mask = IBV_QP_STATE;
	if (type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (ibv_modify_qp(qp, &attr, mask))
		return 2;
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = way->own_psn, .timeout = patience(), .retry_cnt = 7,
				    .rnr_retry = way->rnr_retry, .max_rd_atomic = way->fetches};
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_TIMEOUT;
	return ibv_modify_qp(qp, &attr, mask) ? 3 : 0;
}

/* Often so near the end of the numbers that they wrap. */
/* Near the end of the numbers, now and then, so that they go round. Not where packets come late: one of a round before would be taken for one of this. */
static uint32_t sequence_number(struct lane *lane, int qp, enum side side)
{
	struct dice dice = {key_of(key_of(lane->round.key, 500 + qp), side)};

	return options.limits.lossless && chance(&dice, 40) ? 0xffffff - below(&dice, 40) : (uint32_t)draw(&dice) & 0xffffff;
}

static void connect_by_hand(struct lane *lane, int number, const union ibv_gid *gid)
{
	struct queue_pair *qp = &lane->qp[number];
	struct dice dice = {key_of(lane->epoch.key, 600 + number)};
	struct way way = {.qp = qp->remote.receive_qp, .own_psn = sequence_number(lane, number, options.side),
			  .peer_psn = sequence_number(lane, number, options.side == SERVER ? CLIENT : SERVER),
			  .gid = *gid, .fetches = (uint8_t)(1 + below(&dice, 8)), .rnr_retry = 7};
	int error;

	qp->qkey = way.qkey = (uint32_t)draw(&dice) & 0x7fffffff;
	qp->remote_qp = way.qp;
	error = bring_up(qp->sends, &way);
	if (!error && qp->kind == KIND_XRC) {
		way.qp = qp->remote.send_qp;
		error = bring_up(qp->receives, &way);
	}
	if (error)
		fail(lane, number, 0, "a %s queue pair does not come up: step %d (errno %d)", kind_names[qp->kind], error, errno);
	if (qp->kind == KIND_UD && !qp->ah) {
		struct ibv_ah_attr attr = {.grh = {.dgid = *gid, .sgid_index = (uint8_t)own_gid_index, .hop_limit = 64}, .is_global = 1,
					   .port_num = 1};

		qp->ah = ibv_create_ah(lane->pd, &attr);
		if (!qp->ah)
			fail(lane, number, 0, "no address handle (errno %d)", errno);
	}
}

bool epoch_connect(struct lane *lane)
{
	struct {
		union ibv_gid gid;
		uint32_t number[MAX_QPS][3];
	} mine, theirs;

	memset(&mine, 0, sizeof mine);
	mine.gid = own_gid;
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];

		if (!qp->sends)
			continue;
		mine.number[i][0] = qp->sends->qp_num;
		mine.number[i][1] = qp->receives->qp_num;
		if (qp->kind == KIND_XRC && ibv_get_srq_num(lane->xrc_queue->srq, &mine.number[i][2]))
			fail(lane, i, 0, "an XRC queue has no number");
	}
	step(lane, "exchanging queue pair numbers");
	if (!exchange(lane, &mine, &theirs, sizeof mine))
		return false;
	lane->peer_gid = theirs.gid;
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];

		qp->remote.send_qp = theirs.number[i][0];
		qp->remote.receive_qp = theirs.number[i][1];
		qp->remote.srq = theirs.number[i][2];
		step(lane, "connecting");
		if (!options.limits.cm || qp->kind == KIND_UC || qp->kind == KIND_XRC)
			connect_by_hand(lane, i, &theirs.gid);
		else if (!qp->id && !cm_connect(lane, i))
			return false;
	}
	return meet(lane, "connected");
}
