/* What every completion must be: of work that was posted, once, in order, with what the plan says. */
#include "soak.h"

#include <stdlib.h>
#include <string.h>

const char *status_name(enum ibv_wc_status status)
{
	return ibv_wc_status_str(status);
}

/* A peer that died, or queue pairs that were stopped on purpose, make work fail in these ways and no others. */
static void tolerate(struct lane *lane, int qp, const struct completion *completion)
{
	enum ibv_wc_status status = completion->status;
	bool silence = status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR;

	if (lane->stopped && (status == IBV_WC_WR_FLUSH_ERR || (silence && (lane->round.aborted || lane->gone))))
		return;
	/* The peer of an aborted round may be in the error state already, and answer nothing. */
	if (lane->round.aborted && status == IBV_WC_RETRY_EXC_ERR)
		return;
	if (silence && options.peer_may_die) {
		lost(lane, status_name(status));
		return;
	}
	fail(lane, qp, completion->wr_id, "ended with %s", status_name(status));
}

static void compare_pieces(struct lane *lane, int number, uint64_t id, uint32_t base, const struct op *op)
{
	const uint8_t *data = op->data;

	for (int i = 0; i < op->pieces_used; data += op->piece[i++].length)
		if (memcmp(lane->pool.at + base + op->piece[i].at, data, op->piece[i].length))
			fail(lane, number, id, "a %s of %u bytes fetched others than it should have, in piece %d", code_names[op->code],
			     op->length, i);
}

static void verify_send(struct lane *lane, int number, int half, int index, const struct completion *completion)
{
	static const enum ibv_wc_opcode opcodes[] = {IBV_WC_SEND, IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE,
						     IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD};
	struct queue_pair *qp = &lane->qp[number];
	struct progress *progress = &qp->progress[half];
	const struct stream *stream = qp->mine[half];
	const struct op *op = &stream->op[index];

	if (half >= qp->halves || index >= progress->posted)
		fail(lane, number, completion->wr_id, "a completion of a request that was not posted (%d were)", progress->posted);
	if (index < progress->next)
		fail(lane, number, completion->wr_id, "a second completion, or one out of order: number %d after %d", index, progress->next - 1);
	for (int i = progress->next; i < index; i++)
		if (stream->op[i].signaled || progress->failed)
			fail(lane, number, completion->wr_id, "number %d completed (%s) before number %d, which was%s signaled", index,
			     status_name(completion->status), i, stream->op[i].signaled ? "" : " not");
	if (completion->qp != qp->sends->qp_num)
		fail(lane, number, completion->wr_id, "qp_num is %x and not %x", completion->qp, qp->sends->qp_num);
	progress->next = index + 1;
	if (completion->status) {
		tolerate(lane, number, completion);
		progress->failed = true;
		return;
	}
	if (progress->failed)
		fail(lane, number, completion->wr_id, "success after a failure");
	if (!op->signaled)
		fail(lane, number, completion->wr_id, "a completion of a %s that was not signaled", code_names[op->code]);
	if (completion->opcode != opcodes[op->code])
		fail(lane, number, completion->wr_id, "opcode %d for a %s", completion->opcode, code_names[op->code]);
	if (fetches(op->code) && completion->length != op->length)
		fail(lane, number, completion->wr_id, "byte_len %u of a %s of %u bytes", completion->length, code_names[op->code], op->length);
	if (fetches(op->code) && op->code != OP_SHARED_ADD)
		compare_pieces(lane, number, completion->wr_id, qp->out_base[half], op);
	for (int i = progress->retired; i <= index; i++)
		lane->bytes += stream->op[i].length;
	lane->operations += index + 1 - progress->retired;
	progress->retired = index + 1;
}

/* Whether what a receive holds, from an offset on, are these bytes. */
static bool holds(struct lane *lane, const struct receive_queue *queue, const struct receive *receive, uint32_t skip, const uint8_t *data,
		  uint32_t length)
{
	for (int i = 0; i < receive->pieces_used && length; i++) {
		uint32_t at = receive->piece[i].at, have = receive->piece[i].length, some;

		if (skip >= have) {
			skip -= have;
			continue;
		}
		some = have - skip < length ? have - skip : length;
		if (memcmp(lane->pool.at + queue->base + at + skip, data, some))
			return false;
		data += some;
		length -= some;
		skip = 0;
	}
	return !length;
}

/* Why a completion cannot be the one of this message; NULL when it can. */
static const char *mismatch(struct lane *lane, struct queue_pair *qp, const struct op *op, const struct receive *receive,
			    const struct completion *completion)
{
	bool write = op->code == OP_WRITE_IMM, datagram = qp->kind == KIND_UD;
	unsigned int flags = completion->flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV | IBV_WC_GRH), expected = datagram ? IBV_WC_GRH : 0;

	if (op->code == OP_SEND_IMM || write)
		expected |= IBV_WC_WITH_IMM;
	if (op->code == OP_SEND_INV)
		expected |= IBV_WC_WITH_INV;
	if (completion->opcode != (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
		return "opcode";
	if (completion->length != op->length + (datagram ? GRH_BYTES : 0))
		return "byte_len";
	if (flags != expected)
		return "wc_flags";
	if ((expected & IBV_WC_WITH_IMM) && completion->imm != op->imm)
		return "imm_data";
	if ((expected & IBV_WC_WITH_INV) && completion->invalidated != qp->offer.window_key[0])
		return "invalidated_rkey";
	if (!write && !holds(lane, qp->queue, receive, datagram ? GRH_BYTES : 0, op->data, op->length))
		return "data";
	if (write && op->stable && memcmp(lane->pool.at + qp->target_base[0] + op->remote, op->data, op->length))
		return "written data";
	return NULL;
}

/* The first 40 bytes of a datagram: an IPv6 header, or an IPv4 header in the second half. */
static void verify_header(struct lane *lane, int number, const struct receive *receive, const struct completion *completion)
{
	struct queue_pair *qp = &lane->qp[number];
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	bool four = !memcmp(own_gid.raw, mapped, 12);
	uint32_t length = four ? 4 : 16, at = GRH_BYTES - 2 * length;

	if (completion->source != qp->remote_qp)
		fail(lane, number, completion->wr_id, "a datagram from %x and not from %x", completion->source, qp->remote_qp);
	if (!holds(lane, qp->queue, receive, at, lane->peer_gid.raw + 16 - length, length) ||
	    !holds(lane, qp->queue, receive, at + length, own_gid.raw + 16 - length, length))
		fail(lane, number, completion->wr_id, "the header of a datagram has other addresses than it should have");
}

static bool has_fault(const char *name)
{
	const char *faults = getenv("UBIVERBS_FAULTS");

	return !options.limits.lossless && faults && strstr(faults, name);
}

/* Whether the network, by the faults this process asked for, doubles and reorders what arrives here. A message of one packet is then delivered
 * twice or late on unreliable connections as well: a first packet always begins a message, whatever its number (IBA 9.8.2.2). And what
 * waits in a process that is stopped, on its way to another one, is overtaken by what takes the straight way. */
static bool disorder(void)
{
	return has_fault("dup") || has_fault("reorder") || (options.peer_may_stop && !options.limits.lossless);
}

static int find_message(struct lane *lane, int number, const struct receive *receive, const struct completion *completion)
{
	struct queue_pair *qp = &lane->qp[number];
	const struct stream *stream = qp->theirs[0];
	bool may_lose = !is_reliable(qp->kind) && !(options.limits.lossless && qp->kind == KIND_UC);
	const char *why = "there is none left";
	int next = qp->next_message, again = -1;
	bool any_order = qp->kind == KIND_UD || (qp->kind == KIND_UC && disorder());

	for (int i = any_order ? 0 : next; i < stream->consumers; i++) {
		why = mismatch(lane, qp, &stream->op[stream->consumer[i]], receive, completion);
		if (!why && any_order && qp->arrived[i])
			again = i;
		else if (!why)
			return i;
		if (!may_lose)
			break;
	}
	/* Networks may double datagrams, and nobody sorts them out. */
	if (again >= 0 && !options.limits.lossless && (qp->kind == KIND_UD || has_fault("dup")))
		return again;
	if (next < stream->consumers && !may_lose) {
		const struct op *op = &stream->op[stream->consumer[next]];

		fail(lane, number, completion->wr_id,
		     "the %s %s number %d (%u bytes, imm %x) has wrong %s: opcode %d, byte_len %u, flags %x, imm %x", kind_names[qp->kind],
		     code_names[op->code], stream->consumer[next], op->length, op->imm, why, completion->opcode, completion->length,
		     completion->flags, completion->imm);
	}
	fail(lane, number, completion->wr_id,
	     "no %s message of the peer after %d of %d is what arrived%s: opcode %d, byte_len %u, flags %x, imm %x (the last has wrong %s)",
	     kind_names[qp->kind], next, stream->consumers, again >= 0 ? " twice" : "", completion->opcode, completion->length,
	     completion->flags, completion->imm, why);
}

static void keep(struct lane *lane, const struct receive_queue *queue, const struct receive *receive, uint32_t length)
{
	for (int i = 0; i < receive->pieces_used && length; i++) {
		uint32_t at = queue->base + receive->piece[i].at, some = receive->piece[i].length < length ? receive->piece[i].length : length;

		memcpy(lane->pool.shadow + at, lane->pool.at + at, some);
		length -= some;
	}
}

static void verify_receive(struct lane *lane, int index_of_queue, int index, const struct completion *completion)
{
	struct receive_queue *queue = index_of_queue < MAX_QPS	  ? lane->own_queue[index_of_queue]
				      : index_of_queue == MAX_QPS ? lane->shared_queue
								  : lane->xrc_queue;
	const struct receive *receive;
	int number = -1, message;

	for (int i = 0; i < lane->qps; i++)
		if (lane->qp[i].receives->qp_num == completion->qp && lane->qp[i].queue == queue)
			number = i;
	if (!queue || number < 0)
		fail(lane, index_of_queue, completion->wr_id, "a receive with qp_num %x, which has no such queue", completion->qp);
	if (index >= queue->posted || queue->taken[index])
		fail(lane, number, completion->wr_id, "a completion of a receive that %s", queue->taken[index] ? "has had one" : "was not posted");
	if (!queue->shared && index != queue->done)
		fail(lane, number, completion->wr_id, "receive %d completed where %d is the next", index, queue->done);
	receive = &queue->receive[index];
	queue->taken[index] = true;
	if (completion->status) {
		if (queue->shared && ++lane->qp[number].begun > 1)
			fail(lane, number, completion->wr_id, "a second shared receive of a queue pair ended with %s",
			     status_name(completion->status));
		tolerate(lane, number, completion);
		queue->done++;
		return;
	}
	message = find_message(lane, number, receive, completion);
	if (lane->qp[number].kind == KIND_UD)
		verify_header(lane, number, receive, completion);
	else
		lane->qp[number].next_message = message + 1;
	lane->qp[number].arrivals += !lane->qp[number].arrived[message];
	lane->qp[number].arrived[message] = true;
	if (completion->opcode == IBV_WC_RECV)
		keep(lane, queue, receive, completion->length);
	lane->operations++;
	lane->bytes += completion->length;
	queue->done++;
}

void verify(struct lane *lane, const struct completion *completion)
{
	uint64_t id = completion->wr_id;
	int number = (int)(id >> 20 & 0xfff), half = (int)(id >> 17 & 7), index = (int)(id & 0xffff);
	bool receive = id >> 16 & 1;

	step(lane, NULL);
	lane->completions++;
	if (id >> 56 != (uint64_t)lane->number || (id >> 32 & 0xffff) != (uint64_t)(lane->round_number & 0xffff))
		fail(lane, -1, id, "a completion of another round or lane (status %s)", status_name(completion->status));
	if (number > MAX_QPS + 1 || (!receive && number >= lane->qps) || half > 1 || index >= (receive ? MAX_RECEIVES : MAX_OPS))
		fail(lane, -1, id, "a completion with a wr_id that nobody used (status %s)", status_name(completion->status));
	if (receive)
		verify_receive(lane, number, index, completion);
	else
		verify_send(lane, number, half, index, completion);
}

bool all_sent(struct lane *lane)
{
	for (int i = 0; i < lane->qps; i++)
		for (int half = 0; half < lane->qp[i].halves; half++)
			if (lane->qp[i].progress[half].next != lane->qp[i].mine[half]->ops)
				return false;
	return true;
}

bool all_received(struct lane *lane)
{
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];

		if ((is_reliable(qp->kind) || options.limits.lossless) && qp->arrivals != qp->theirs[0]->consumers)
			return false;
	}
	return true;
}

/* After everything was flushed: whatever was posted has been accounted for. Requests that were not signaled and succeeded say nothing. */
void verify_flushed(struct lane *lane)
{
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];

		for (int half = 0; half < qp->halves; half++) {
			struct progress *progress = &qp->progress[half];

			for (int n = progress->next; n < progress->posted; n++)
				if (progress->failed || qp->mine[half]->op[n].signaled)
					fail(lane, i, work_id(lane, i, half, false, n),
					     "number %d of %d posted (%s, %s) has no completion though its queue pair is in the error state", n,
					     progress->posted, kind_names[qp->kind], code_names[qp->mine[half]->op[n].code]);
		}
		if (lane->own_queue[i] && lane->own_queue[i]->done != lane->own_queue[i]->posted)
			fail(lane, i, work_id(lane, i, 0, true, lane->own_queue[i]->done),
			     "receive %d of %d posted has no completion though its queue pair is in the error state",
			     lane->own_queue[i]->done, lane->own_queue[i]->posted);
	}
}
