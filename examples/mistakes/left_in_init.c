/* A SEND on a queue pair that was never brought to RTS. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 };
	struct end a = make_end(usual), b = make_end(usual);
	to_init(&a, usual); /* MISTAKE: connect_ends goes on to RTR and RTS. */
	to_init(&b, usual);
	struct ibv_sge sge = piece(&a, 64);
	post(&a, (struct ibv_send_wr) { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED });
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
