/* A SEND from memory that is no longer registered. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 };
	struct end a = make_end(usual), b = make_end(usual);
	connect_ends(&a, usual, &b, usual);
	NEED(!post_receive(&b, 1, 0, SIZE));
	struct ibv_sge sge = piece(&a, 64);
	NEED(!ibv_dereg_mr(a.mr)); /* MISTAKE: the SEND below still names it. */
	a.mr = NULL;
	post(&a, (struct ibv_send_wr) { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED });
	wait_for(a.cq, 5);
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
