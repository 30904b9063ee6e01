/* A WRITE to memory that its owner did not register for it. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 }, local_only = { .access = IBV_ACCESS_LOCAL_WRITE }; /* MISTAKE: no REMOTE_WRITE. */
	struct end a = make_end(usual), b = make_end(local_only);
	connect_ends(&a, usual, &b, usual);
	struct ibv_sge sge = piece(&a, 64);
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = (uintptr_t) b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	post(&a, wr);
	wait_for(a.cq, 5);
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
