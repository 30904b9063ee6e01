/* ibv_cq and ibv_cq_ex: the same work completes on a plain completion queue and on an extended one, which tells more.
 * A program that can use either keeps both in a union, as perftest and rdma-core's ibv_rc_pingpong do.
 */
#include <errno.h>
#include <inttypes.h>
#include "ends.h"

enum { LENGTH = 64 };

static char memory[4096];

struct queue {
	int extended;
	union {
		struct ibv_cq *cq;
		struct ibv_cq_ex *cq_ex;
	} cq_s;
};

static struct ibv_cq *plain(struct queue *queue)
{
	return queue->extended ? ibv_cq_ex_to_cq(queue->cq_s.cq_ex) : queue->cq_s.cq;
}

/* Two messages: enough for a difference of times. */
static void exchange(struct ibv_pd *pd, struct queue *queue, struct ibv_mr *mr)
{
	struct ibv_qp *a = create_qp(pd, plain(queue), IBV_QPT_RC), *b = create_qp(pd, plain(queue), IBV_QPT_RC);
	int left = 4;

	join(a, b);
	for (int i = 0; i < 2; i++) {
		NEED(post_receive(b, 10 + i, memory + 1024 + i * LENGTH, LENGTH, mr->lkey) == 0);
		NEED(post_send(a, 20 + i, memory, LENGTH, mr->lkey) == 0);
	}
	if (!queue->extended) {
		/* struct ibv_wc is copied out, all of it, whatever is needed. */
		while (left) {
			struct ibv_wc wc = next_completion(queue->cq_s.cq);

			NEED(wc.status == IBV_WC_SUCCESS);
			printf("ibv_cq:    wr_id %2" PRIu64 ", %s, %u bytes\n", wc.wr_id,
			       wc.opcode == IBV_WC_RECV ? "receive" : "send", wc.opcode == IBV_WC_RECV ? wc.byte_len : 0);
			left--;
		}
	} else {
		/* Only what was asked for when the queue was made is read, one field by one call, between start and end. */
		struct ibv_cq_ex *cq = queue->cq_s.cq_ex;
		struct ibv_poll_cq_attr attr = {0};
		uint64_t first = 0;

		while (left) {
			int result = ibv_start_poll(cq, &attr);

			if (result == ENOENT)
				continue;
			NEED(result == 0);
			do {
				uint64_t time = ibv_wc_read_completion_ts(cq);

				NEED(cq->status == IBV_WC_SUCCESS);
				first = first ? first : time;
				printf("ibv_cq_ex: wr_id %2" PRIu64 ", %s, at %" PRIu64 " ns, %" PRIu64 " ns after the first\n",
				       cq->wr_id, ibv_wc_read_opcode(cq) == IBV_WC_RECV ? "receive" : "send", time, time - first);
				NEED(time != 0);
				left--;
			} while (ibv_next_poll(cq) == 0);
			ibv_end_poll(cq);
		}
	}
	ibv_destroy_qp(a);
	ibv_destroy_qp(b);
}

int main(void)
{
	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 64,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	struct queue queues[] = {
		{0, {.cq = ibv_create_cq(context, 64, NULL, NULL, 0)}},
		{1, {.cq_ex = ibv_create_cq_ex(context, &attr)}},
	};

	NEED(pd && mr);
	for (int i = 0; i < 2; i++) {
		NEED(plain(&queues[i]));
		exchange(pd, &queues[i], mr);
		NEED(ibv_destroy_cq(plain(&queues[i])) == 0);
	}
	ibv_dereg_mr(mr);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
