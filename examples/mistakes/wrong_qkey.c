/* A datagram with a Q_Key that the receiver does not have. */
#include "two_ends.h"

int main(void)
{
	open_device();
	struct setup usual = { .type = IBV_QPT_UD };
	struct end a = make_end(usual), b = make_end(usual);
	connect_ends(&a, usual, &b, usual);
	NEED(!post_receive(&b, 1, 0, SIZE));
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1,
				    .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(a.pd, &attr);
	NEED(ah);
	struct ibv_sge sge = piece(&a, 64);
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b.qp->qp_num;
	wr.wr.ud.remote_qkey = 0x22222222; /* MISTAKE: the receiver has 0x11111111. */
	post(&a, wr);
	wait_for(a.cq, 5);
	wait_for(b.cq, 0.5);
	NEED(!ibv_destroy_ah(ah));
	close_end(&a);
	close_end(&b);
	close_device();
	return 0;
}
