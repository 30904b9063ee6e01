/* Inline data longer than the queue pair takes. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 }, inlines = { .max_inline = 64 };
	struct end a = make_end(inlines), b = make_end(usual);
	connect_ends(&a, usual, &b, usual);
	NEED(!post_receive(&b, 1, 0, SIZE));
	struct ibv_sge sge = piece(&a, 2048); /* MISTAKE: max_inline_data is 64. */
	post(&a, (struct ibv_send_wr) { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE });
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
