/* Posts work as the plan says: in lists, one by one, or built by calls. */
#include "soak.h"

#include <errno.h>
#include <string.h>

uint64_t work_id(const struct lane *lane, int qp, int half, bool receive, int index)
{
	return (uint64_t)lane->number << 56 | (uint64_t)(lane->round_number & 0xffff) << 32 | (uint64_t)qp << 20 | (uint64_t)half << 17 |
	       (uint64_t)receive << 16 | (uint64_t)index;
}

static int gather(struct lane *lane, const struct queue_pair *qp, int half, const struct op *op, struct ibv_sge *sge)
{
	for (int i = 0; i < op->pieces_used; i++) {
		sge[i].addr = (uintptr_t)(lane->pool.at + qp->out_base[half] + op->piece[i].at);
		sge[i].length = op->piece[i].length;
		/* Inline data needs no key, so a wrong one must not matter. */
		sge[i].lkey = op->inlined ? 0xdead : op->second_key ? lane->pool.local->lkey : lane->pool.whole->lkey;
	}
	return op->pieces_used;
}

static void place(const struct lane *lane, const struct queue_pair *qp, int half, const struct op *op, uint64_t *address, uint32_t *key)
{
	if (op->code == OP_SHARED_ADD) {
		*address = lane->remote_shared;
		*key = lane->remote_shared_key;
	} else if (op->window) {
		*address = qp->remote.window_at[half] + op->remote;
		*key = qp->remote.window_key[half];
	} else {
		*address = qp->remote.target[half] + op->remote;
		*key = qp->remote.key[half];
	}
}

static unsigned int flags_of(const struct op *op)
{
	return (op->signaled ? IBV_SEND_SIGNALED : 0) | (op->fenced ? IBV_SEND_FENCE : 0) | (op->inlined ? IBV_SEND_INLINE : 0) |
	       (op->solicited ? IBV_SEND_SOLICITED : 0);
}

static void build(struct lane *lane, struct queue_pair *qp, int half, int index, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
	const struct op *op = &qp->mine[half]->op[index];
	uint64_t address;
	uint32_t key;

	memset(wr, 0, sizeof *wr);
	wr->wr_id = work_id(lane, (int)(qp - lane->qp), half, false, index);
	wr->opcode = opcodes[op->code];
	wr->send_flags = flags_of(op);
	wr->sg_list = sge;
	wr->num_sge = gather(lane, qp, half, op, sge);
	place(lane, qp, half, op, &address, &key);
	if (op->code == OP_SEND_INV)
		wr->invalidate_rkey = qp->remote.window_key[0];
	else
		wr->imm_data = op->imm;
	if (qp->kind == KIND_XRC)
		wr->qp_type.xrc.remote_srqn = qp->remote.srq;
	if (qp->kind == KIND_UD) {
		wr->wr.ud.ah = qp->ah;
		wr->wr.ud.remote_qpn = qp->remote_qp;
		wr->wr.ud.remote_qkey = qp->qkey;
	} else if (op->code > OP_READ) {
		wr->wr.atomic.remote_addr = address;
		wr->wr.atomic.rkey = key;
		wr->wr.atomic.compare_add = op->code == OP_SWAP ? op->compare : op->operand;
		wr->wr.atomic.swap = op->operand;
	} else {
		wr->wr.rdma.remote_addr = address;
		wr->wr.rdma.rkey = key;
	}
}

static void call(struct lane *lane, struct queue_pair *qp, struct ibv_qp_ex *work, int half, int index)
{
	const struct op *op = &qp->mine[half]->op[index];
	struct ibv_sge sge[MAX_SGE];
	struct ibv_data_buf buffer[MAX_SGE];
	int pieces = gather(lane, qp, half, op, sge);
	uint64_t address;
	uint32_t key;

	work->wr_id = work_id(lane, (int)(qp - lane->qp), half, false, index);
	work->wr_flags = flags_of(op) & ~(unsigned int)IBV_SEND_INLINE;
	place(lane, qp, half, op, &address, &key);
	switch (op->code) {
	case OP_SEND:
		ibv_wr_send(work);
		break;
	case OP_SEND_IMM:
		ibv_wr_send_imm(work, op->imm);
		break;
	case OP_SEND_INV:
		ibv_wr_send_inv(work, qp->remote.window_key[0]);
		break;
	case OP_WRITE:
		ibv_wr_rdma_write(work, key, address);
		break;
	case OP_WRITE_IMM:
		ibv_wr_rdma_write_imm(work, key, address, op->imm);
		break;
	case OP_READ:
		ibv_wr_rdma_read(work, key, address);
		break;
	case OP_SWAP:
		ibv_wr_atomic_cmp_swp(work, key, address, op->compare, op->operand);
		break;
	default:
		ibv_wr_atomic_fetch_add(work, key, address, op->operand);
	}
	if (qp->kind == KIND_XRC)
		ibv_wr_set_xrc_srqn(work, qp->remote.srq);
	if (qp->kind == KIND_UD)
		ibv_wr_set_ud_addr(work, qp->ah, qp->remote_qp, qp->qkey);
	for (int i = 0; i < pieces; i++)
		buffer[i] = (struct ibv_data_buf){(void *)(uintptr_t)sge[i].addr, sge[i].length};
	if (op->inlined && pieces == 1)
		ibv_wr_set_inline_data(work, buffer->addr, buffer->length);
	else if (op->inlined)
		ibv_wr_set_inline_data_list(work, pieces, buffer);
	else if (pieces == 1)
		ibv_wr_set_sge(work, sge->lkey, sge->addr, sge->length);
	else
		ibv_wr_set_sge_list(work, pieces, sge);
}

/* Inline data has been taken when the call returns, so the program may put something else there. */
static void scribble(struct lane *lane, const struct queue_pair *qp, int half, const struct op *op)
{
	for (int i = 0; op->inlined && i < op->pieces_used; i++) {
		memset(lane->pool.at + qp->out_base[half] + op->piece[i].at, 0x5a, op->piece[i].length);
		memset(lane->pool.shadow + qp->out_base[half] + op->piece[i].at, 0x5a, op->piece[i].length);
	}
}

/* Posts the next few of a list, if there is room for them. */
bool post_some(struct lane *lane, int number, int half)
{
	struct queue_pair *qp = &lane->qp[number];
	struct progress *progress = &qp->progress[half];
	const struct stream *stream = qp->mine[half];
	int first = progress->posted, count, error;
	struct ibv_qp_ex *work = lane->epoch.calls[options.side] ? ibv_qp_to_qp_ex(qp->sends) : NULL;

	if (first == stream->ops)
		return false;
	count = stream->op[first].chain + 1;
	if (count > stream->ops - first)
		count = stream->ops - first;
	if (first + count - progress->retired > (int)lane->epoch.depth)
		return false;
	/* Told before it is true: completions may come before the call returns. */
	progress->posted = first + count;
	if (work) {
		ibv_wr_start(work);
		for (int i = first; i < first + count; i++)
			call(lane, qp, work, half, i);
		error = ibv_wr_complete(work);
	} else {
		struct ibv_send_wr wr[MAX_OPS], *bad = NULL;
		struct ibv_sge sge[MAX_OPS][MAX_SGE];

		for (int i = 0; i < count; i++) {
			build(lane, qp, half, first + i, &wr[i], sge[i]);
			wr[i].next = i + 1 < count ? &wr[i + 1] : NULL;
		}
		error = ibv_post_send(qp->sends, wr, &bad);
	}
	if (error)
		fail(lane, number, work_id(lane, number, half, false, first), "posting %d requests from a %s on answered %d", count,
		     code_names[stream->op[first].code], error);
	for (int i = first; i < first + count; i++)
		scribble(lane, qp, half, &stream->op[i]);
	step(lane, NULL);
	return true;
}

bool receive_some(struct lane *lane, struct receive_queue *queue)
{
	struct ibv_recv_wr wr[8], *bad = NULL;
	struct ibv_sge sge[8][MAX_SGE];
	int first = queue->posted, count = 0, error, index = MAX_QPS;

	for (int i = 0; i < lane->qps; i++)
		if (lane->own_queue[i] == queue)
			index = i;
	if (queue == lane->xrc_queue)
		index = MAX_QPS + 1;
	while (count < 8 && first + count < queue->total &&
	       (queue->all_ahead || first + count - queue->done < lane->round.receive_window[options.side])) {
		const struct receive *receive = &queue->receive[first + count];

		for (int p = 0; p < receive->pieces_used; p++)
			sge[count][p] = (struct ibv_sge){(uintptr_t)(lane->pool.at + queue->base + receive->piece[p].at),
							 receive->piece[p].length,
							 (first + p) & 1 ? lane->pool.whole->lkey : lane->pool.local->lkey};
		wr[count] = (struct ibv_recv_wr){.wr_id = work_id(lane, index, 0, true, first + count), .sg_list = sge[count],
						 .num_sge = receive->pieces_used};
		if (count)
			wr[count - 1].next = &wr[count];
		count++;
	}
	if (!count)
		return false;
	queue->posted = first + count;
	error = queue->srq ? ibv_post_srq_recv(queue->srq, wr, &bad) : ibv_post_recv(queue->qp, wr, &bad);
	if (error)
		fail(lane, index, wr->wr_id, "posting %d receives answered %d", count, error);
	step(lane, NULL);
	return true;
}
