/* Asynchronous events of a device, which no completion tells of: ibv_get_async_event and ibv_ack_async_event. Four are made
 * to happen here; the program asks for each on the descriptor context->async_fd.
 */
#include <poll.h>
#include "ends.h"

static char memory[4096];

/* Waits for an event of this type; others may come in between. */
static void expect(struct ibv_context *context, enum ibv_event_type wanted)
{
	enum ibv_event_type type;

	do {
		struct pollfd fd = {context->async_fd, POLLIN, 0};
		struct ibv_async_event event;

		NEED(poll(&fd, 1, 10000) == 1);
		NEED(ibv_get_async_event(context, &event) == 0);
		type = event.event_type;
		ibv_ack_async_event(&event); /* an object with events that are not acknowledged cannot be destroyed */
		printf("%s\n", ibv_event_type_str(type));
	} while (type != wanted);
}

int main(void)
{
	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);

	NEED(pd && cq && mr && srq);
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_send_sge = 1},
	};
	struct ibv_qp *a = create_qp(pd, cq, IBV_QPT_RC), *b = ibv_create_qp(pd, &attr);
	NEED(b);

	printf("IBV_EVENT_COMM_EST: a message came while the queue pair was still in RTR\n  ");
	NEED(to_init(a) == 0 && to_init(b) == 0);
	NEED(to_rtr(a, b->qp_num) == 0 && to_rtr(b, a->qp_num) == 0 && to_rts(a) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
		NEED(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	}
	NEED(post_send(a, 2, memory, 64, mr->lkey) == 0);
	expect(context, IBV_EVENT_COMM_EST);
	NEED(to_rts(b) == 0);

	printf("IBV_EVENT_SRQ_LIMIT_REACHED: fewer receives are left than the program wanted to know of\n  ");
	struct ibv_srq_attr limit = {.srq_limit = 1};
	NEED(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	NEED(post_send(a, 2, memory, 64, mr->lkey) == 0);
	expect(context, IBV_EVENT_SRQ_LIMIT_REACHED);

	printf("IBV_EVENT_SQ_DRAINED: the send queue was to be drained, and is\n  ");
	struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
	NEED(ibv_modify_qp(a, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
	expect(context, IBV_EVENT_SQ_DRAINED);

	printf("IBV_EVENT_QP_LAST_WQE_REACHED: a queue pair in error takes no more from its shared receive queue\n  ");
	NEED(to_state(b, IBV_QPS_ERR) == 0);
	expect(context, IBV_EVENT_QP_LAST_WQE_REACHED);

	ibv_destroy_qp(a);
	ibv_destroy_qp(b);
	ibv_destroy_srq(srq);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
