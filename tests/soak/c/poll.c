/* Reads completions, in either way there is, and waits for their events. */
#include "soak.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

static void from_extended(struct ibv_cq_ex *cq, struct completion *to)
{
	memset(to, 0, sizeof *to);
	to->wr_id = cq->wr_id;
	to->status = cq->status;
	to->qp = ibv_wc_read_qp_num(cq);
	if (to->status)
		return;
	to->opcode = ibv_wc_read_opcode(cq);
	to->flags = ibv_wc_read_wc_flags(cq);
	to->length = ibv_wc_read_byte_len(cq);
	to->source = ibv_wc_read_src_qp(cq);
	if (to->flags & IBV_WC_WITH_INV)
		to->invalidated = ibv_wc_read_invalidated_rkey(cq);
	else
		to->imm = ibv_wc_read_imm_data(cq);
}

static int poll_extended(struct lane *lane, struct ibv_cq_ex *cq, struct completion *completion, int most)
{
	struct ibv_poll_cq_attr attr = {0};
	int error = ibv_start_poll(cq, &attr), count = 0;

	if (error == ENOENT)
		return 0;
	while (!error) {
		from_extended(cq, &completion[count++]);
		if (count == most)
			break;
		error = ibv_next_poll(cq);
	}
	if (error && error != ENOENT)
		fail(lane, -1, 0, "ibv_start_poll or ibv_next_poll answered %d", error);
	ibv_end_poll(cq);
	return count;
}

int poll_queue(struct lane *lane, struct completion_queue *queue, struct completion *completion, int most)
{
	struct ibv_wc wc[16];
	int count;

	if (most > 16)
		most = 16;
	if (queue->extended)
		return poll_extended(lane, queue->extended, completion, most);
	count = ibv_poll_cq(queue->cq, most, wc);
	if (count < 0 || count > most)
		fail(lane, -1, 0, "ibv_poll_cq answered %d of %d", count, most);
	for (int i = 0; i < count; i++)
		completion[i] = (struct completion){.wr_id = wc[i].wr_id, .status = wc[i].status, .opcode = wc[i].opcode,
						    .length = wc[i].byte_len, .imm = wc[i].imm_data, .invalidated = wc[i].imm_data,
						    .qp = wc[i].qp_num, .source = wc[i].src_qp, .flags = wc[i].wc_flags};
	return count;
}

void arm(struct lane *lane)
{
	for (int i = 0; i < lane->completion_queues; i++) {
		struct completion_queue *queue = &lane->completion_queue[i];
		int error = ibv_req_notify_cq(queue->cq, queue->receives_only && lane->round.solicited);

		if (error)
			fail(lane, -1, 0, "ibv_req_notify_cq answered %d", error);
	}
}

/* Whether an event came; events are acknowledged in heaps, since each acknowledgement takes a lock. */
bool wait_for_events(struct lane *lane, int milliseconds)
{
	struct pollfd poll_fd = {.fd = lane->channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;
	bool came = false;

	if (poll(&poll_fd, 1, milliseconds) <= 0)
		return false;
	while (!ibv_get_cq_event(lane->channel, &cq, &context)) {
		struct completion_queue *queue = context;

		if (queue < lane->completion_queue || queue >= lane->completion_queue + lane->completion_queues || queue->cq != cq)
			fail(lane, -1, 0, "an event of a completion queue that does not exist");
		came = true;
		if (++queue->events == 20) {
			ibv_ack_cq_events(cq, queue->events);
			queue->events = 0;
		}
	}
	if (errno != EAGAIN)
		fail(lane, -1, 0, "ibv_get_cq_event failed (errno %d)", errno);
	return came;
}
