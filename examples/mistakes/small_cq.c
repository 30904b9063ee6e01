/* A completion queue that holds less than what completes. */
#include "two_ends.h"

#define COUNT 16

int main(void)
{
	open_device();
	struct setup usual = { 0 }, small = { .cq_size = 4 }; /* MISTAKE: 16 SENDs complete before the first poll. */
	struct end a = make_end(small), b = make_end(usual);
	connect_ends(&a, usual, &b, usual);
	struct ibv_sge sge = piece(&a, 64);
	struct ibv_send_wr list[COUNT];
	for (int i = 0; i < COUNT; i++) {
		NEED(!post_receive(&b, i, 64 * i, 64));
		list[i] = (struct ibv_send_wr) { .wr_id = i, .next = i + 1 < COUNT ? &list[i + 1] : NULL, .sg_list = &sge,
						 .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	}
	post(&a, list[0]);
	nanosleep(&(struct timespec) { .tv_nsec = 300000000 }, NULL); /* something else to do */
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(a.cq, 1, &wc)) > 0)
		printf("work request %llu: %s\n", (unsigned long long) wc.wr_id, ibv_wc_status_str(wc.status));
	if (count < 0)
		printf("ibv_poll_cq: %s\n", strerror(errno));
	while (ibv_poll_cq(b.cq, 1, &wc) > 0)
		;
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
