/* A completion queue that holds less than what completes. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 }, small = { .cq_size = 4 }; /* MISTAKE: 8 SENDs complete before the first poll. */
	struct end a = make_end(small), b = make_end(usual);
	connect_ends(&a, usual, &b, usual);
	struct ibv_sge sge = piece(&a, 64);
	for (int i = 0; i < 8; i++)
		NEED(!post_receive(&b, i, 64 * i, 64));
	for (int i = 0; i < 8; i++)
		post(&a, (struct ibv_send_wr) { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
						.send_flags = IBV_SEND_SIGNALED });
	nanosleep(&(struct timespec) { .tv_nsec = 300000000 }, NULL); /* something else to do */
	while (wait_for(a.cq, 0.5) >= 0)
		;
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
