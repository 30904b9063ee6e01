/* Rules of memory: UV-02xx. */
#include "common.h"

/* A SEND that waits, because the receiver is not ready, has its buffer changed under it. */
static void change_under_way(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	post_send(b.qp[0], 1, &out);
	b.buffer[7] = 'x';
	post_recv(b.qp[1], 2, &in);
	poll_success(b.cq, 2);
	close_bench(&b);
}

static void change_after_completion(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	poll_success(b.cq, 2);
	b.buffer[7] = 'x';
	close_bench(&b);
}

CASES({"UV-0201", change_under_way, change_after_completion})
