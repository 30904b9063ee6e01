/* A connection to a queue pair number that nobody has. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 };
	struct end a = make_end(usual), b = make_end(usual);
	struct setup wrong = { .peer_qpn = b.qp->qp_num + 100 }; /* MISTAKE: it should be b.qp->qp_num. */
	connect_ends(&a, wrong, &b, usual);
	NEED(!post_receive(&b, 1, 0, SIZE));
	struct ibv_sge sge = piece(&a, 64);
	post(&a, (struct ibv_send_wr) { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED });
	wait_for(a.cq, 5);
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
