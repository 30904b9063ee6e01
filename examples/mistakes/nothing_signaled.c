/* A send queue that fills because no request asks for a completion. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 }, writable = { .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	struct end a = make_end(usual), b = make_end(writable);
	connect_ends(&a, usual, &b, usual);
	struct ibv_sge sge = piece(&a, 64);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t) b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	/* MISTAKE: no request has IBV_SEND_SIGNALED, so none ever leaves the queue. */
	for (wr.wr_id = 0; wr.wr_id < 17; wr.wr_id++)
		post(&a, wr);
	nanosleep(&(struct timespec) { .tv_nsec = 100000000 }, NULL); /* the WRITEs arrive */
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
