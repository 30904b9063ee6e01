/* Two ends that cut messages into packets of different sizes. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 }, large = { .mtu = IBV_MTU_4096 }; /* MISTAKE: the peer has IBV_MTU_1024. */
	struct end a = make_end(usual), b = make_end(usual);
	connect_ends(&a, large, &b, usual);
	NEED(!post_receive(&b, 1, 0, SIZE));
	struct ibv_sge sge = piece(&a, SIZE);
	post(&a, (struct ibv_send_wr) { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED });
	wait_for(a.cq, 5);
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
