/* The states of a queue pair: each step of its life, what it may do there, and the steps that are refused.
 *
 *   RESET -> INIT -> RTR -> RTS -> SQD -> RTS -> ERR -> RESET        and with datagrams RTS -> SQE -> RTS
 */
#include <errno.h>
#include "ends.h"

static char memory[4096];

static const char *name(enum ibv_qp_state state)
{
	static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "UNKNOWN"};

	return names[state > IBV_QPS_UNKNOWN ? IBV_QPS_UNKNOWN : state];
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	NEED(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

/* Tells the state, and whether a receive and a send are taken there. */
static void tell(struct ibv_qp *qp, struct ibv_mr *mr, enum ibv_qp_state wanted)
{
	int receive = post_receive(qp, 1, memory, 64, mr->lkey);
	int send = post_send(qp, 2, memory, 64, mr->lkey);

	NEED(state_of(qp) == wanted);
	printf("%-5s  ibv_post_recv: %-16s  ibv_post_send: %s\n", name(state_of(qp)), receive ? strerror(receive) : "taken",
	       send ? strerror(send) : "taken");
}

static void refused(const char *what, int code)
{
	NEED(code == EINVAL);
	printf("       refused: %s (%s)\n", what, strerror(code));
}

/* A send that fails on an unreliable queue pair stops its send queue alone: a datagram reaches for no memory. */
static void stop_the_send_queue(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_qp *qp = create_qp(pd, cq, IBV_QPT_UD);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11111111};
	struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
	struct ibv_send_wr write = {
		.wr_id = 5, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
		.wr.rdma = {.remote_addr = (uintptr_t)memory, .rkey = mr->rkey},
	}, *bad;

	NEED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	NEED(to_state(qp, IBV_QPS_RTR) == 0);
	attr.qp_state = IBV_QPS_RTS;
	NEED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);

	NEED(ibv_post_send(qp, &write, &bad) == 0);
	struct ibv_wc wc = next_completion(cq);
	NEED(wc.status == IBV_WC_LOC_QP_OP_ERR && state_of(qp) == IBV_QPS_SQE);
	printf("SQE    a WRITE on a UD queue pair completed with: %s\n", ibv_wc_status_str(wc.status));
	NEED(post_receive(qp, 6, memory, 64, mr->lkey) == 0);
	NEED(ibv_post_send(qp, &write, &bad) == 0);
	wc = next_completion(cq);
	NEED(wc.status == IBV_WC_WR_FLUSH_ERR);
	printf("SQE    ibv_post_recv: taken            ibv_post_send: taken, and flushed at once\n");
	NEED(to_state(qp, IBV_QPS_RTS) == 0);
	printf("RTS    and it sends again\n");
	ibv_destroy_qp(qp);
}

int main(void)
{
	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);

	NEED(pd && cq && mr);
	struct ibv_qp *qp = create_qp(pd, cq, IBV_QPT_RC), *peer = create_qp(pd, cq, IBV_QPT_RC);

	tell(qp, mr, IBV_QPS_RESET);
	refused("RESET -> RTR", to_rtr(qp, peer->qp_num));
	refused("RESET -> RTS", to_rts(qp));

	NEED(to_init(qp) == 0 && to_init(peer) == 0);
	tell(qp, mr, IBV_QPS_INIT);
	refused("INIT -> RTS", to_rts(qp));

	NEED(to_rtr(qp, peer->qp_num) == 0 && to_rtr(peer, qp->qp_num) == 0);
	tell(qp, mr, IBV_QPS_RTR);

	/* The peer can take what is sent now. */
	NEED(to_rts(qp) == 0 && to_rts(peer) == 0);
	NEED(post_receive(peer, 3, memory + 1024, 64, mr->lkey) == 0);
	tell(qp, mr, IBV_QPS_RTS);
	for (int done = 0; done < 2; done++) { /* the send, and the peer's receive */
		struct ibv_wc wc = next_completion(cq);
		NEED(wc.status == IBV_WC_SUCCESS);
	}

	/* The send queue is drained: what is posted waits until the queue pair is in RTS again. */
	NEED(to_state(qp, IBV_QPS_SQD) == 0);
	NEED(post_receive(peer, 4, memory + 1024, 64, mr->lkey) == 0);
	tell(qp, mr, IBV_QPS_SQD);
	NEED(to_state(qp, IBV_QPS_RTS) == 0);
	for (int done = 0; done < 2; done++) {
		struct ibv_wc wc = next_completion(cq);
		NEED(wc.status == IBV_WC_SUCCESS);
	}
	printf("RTS    what was posted in SQD is done\n");

	/* Any state leads to ERR. What is outstanding, and what is posted there, is flushed. */
	NEED(to_state(qp, IBV_QPS_ERR) == 0);
	tell(qp, mr, IBV_QPS_ERR);
	int flushed = 0;
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) == 1) {
		NEED(wc.status == IBV_WC_WR_FLUSH_ERR);
		flushed++;
	}
	printf("ERR    %d work requests completed with: %s\n", flushed, ibv_wc_status_str(IBV_WC_WR_FLUSH_ERR));
	NEED(flushed >= 3);
	refused("ERR -> INIT", to_init(qp));

	NEED(to_state(qp, IBV_QPS_RESET) == 0);
	NEED(state_of(qp) == IBV_QPS_RESET);
	printf("RESET  and it can begin anew\n");
	stop_the_send_queue(pd, cq, mr);

	ibv_destroy_qp(qp);
	ibv_destroy_qp(peer);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
