/* A READ on a queue pair that may have none under way. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { 0 }, readable = { .access = IBV_ACCESS_REMOTE_READ };
	struct setup none = { .no_rd_atomic = 1 }; /* MISTAKE: max_rd_atomic is 0. */
	struct end a = make_end(usual), b = make_end(readable);
	connect_ends(&a, none, &b, usual);
	struct ibv_sge sge = piece(&a, 64);
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
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
