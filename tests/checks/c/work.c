/* Work that fails: UV-01xx. The rule is the explanation. */
#include "common.h"

/* A SEND of memory under a key that never was. */
static void local_key_unknown(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64);

	out.lkey ^= 0x5a5a00;
	post_send(b.qp[0], 1, &out);
	poll_status(b.cq, IBV_WC_LOC_PROT_ERR);
	close_bench(&b);
}

static void local_key_known(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);

	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	poll_success(b.cq, 2);
	close_bench(&b);
}

CASES({"UV-0101", local_key_unknown, local_key_known})
