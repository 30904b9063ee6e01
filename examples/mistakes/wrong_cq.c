/* A program that looks for its completion in the wrong queue. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 }, writable = { .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	struct end a = make_end(usual), b = make_end(writable);
	connect_ends(&a, usual, &b, usual);
	struct ibv_sge sge = piece(&a, 64);
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = (uintptr_t) b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	post(&a, wr);
	wait_for(b.cq, 1); /* MISTAKE: it completes on a.cq. */
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
