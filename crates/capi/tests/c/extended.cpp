// A C++ program with device memory, an extended completion queue with timestamps, and work requests built by calls.
#include "bench.h"
#include <memory>
#include <vector>

int main()
{
	ibv_context *context = open_lo();
	NEED(context);
	ibv_pd *pd = ibv_alloc_pd(context);

	ibv_alloc_dm_attr dm_attr{};
	dm_attr.length = 4096;
	ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	NEED(pd && dm);
	std::vector<char> text(64, 'x'), back(64, 0);
	CHECK(ibv_memcpy_to_dm(dm, 128, text.data(), text.size()) == 0);
	CHECK(ibv_memcpy_from_dm(back.data(), dm, 128, back.size()) == 0);
	CHECK(text == back);
	CHECK(ibv_memcpy_to_dm(dm, 2, text.data(), 4) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 4092, text.data(), 8) == EINVAL);
	ibv_mr *device = ibv_reg_dm_mr(pd, dm, 0, 4096, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	NEED(device);
	CHECK(ibv_free_dm(dm) == EBUSY);

	ibv_cq_init_attr_ex cq_attr{};
	cq_attr.cqe = 32;
	cq_attr.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	NEED(cq);
	ibv_poll_cq_attr poll_attr{};
	CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);
	cq_attr.wc_flags = IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO;
	ibv_cq_ex *other = ibv_create_cq_ex(context, &cq_attr);
	CHECK(other && !ibv_destroy_cq(ibv_cq_ex_to_cq(other)));
	cq_attr.wc_flags = 1 << 30;
	CHECK(!ibv_create_cq_ex(context, &cq_attr) && errno == EINVAL);

	ibv_qp_init_attr_ex init{};
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	init.cap.max_send_wr = init.cap.max_recv_wr = 8;
	init.cap.max_send_sge = init.cap.max_recv_sge = 2;
	init.cap.max_inline_data = 64;
	init.qp_type = IBV_QPT_RC;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.pd = pd;
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE;
	ibv_qp *a = ibv_create_qp_ex(context, &init), *b = ibv_create_qp_ex(context, &init);
	NEED(a && b);
	CHECK(to_init(a) == 0 && to_init(b) == 0 && connect_to(a, b->qp_num) == 0 && connect_to(b, a->qp_num) == 0);
	ibv_qp_ex *work = ibv_qp_to_qp_ex(a);
	NEED(work);

	std::vector<char> buffer(256, 0);
	ibv_mr *mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
	NEED(mr);
	ibv_values_ex before{};
	before.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	CHECK(ibv_query_rt_values_ex(context, &before) == 0);

	// Both at once: written inline to device memory, then read back from it.
	char inlined[] = "written and read";
	ibv_wr_start(work);
	work->wr_id = 1;
	work->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(work, device->rkey, 512);
	ibv_wr_set_inline_data(work, inlined, sizeof inlined);
	work->wr_id = 2;
	work->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	ibv_wr_rdma_read(work, device->rkey, 512);
	ibv_wr_set_sge(work, mr->lkey, reinterpret_cast<uintptr_t>(buffer.data()), sizeof inlined);
	memset(inlined, 0, 1);
	CHECK(ibv_wr_complete(work) == 0);

	int got = ENOENT;
	time_t end = time(nullptr) + 20;
	while (got == ENOENT && time(nullptr) < end)
		got = ibv_start_poll(cq, &poll_attr);
	NEED(got == 0);
	CHECK(cq->wr_id == 1 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
	uint64_t first = ibv_wc_read_completion_ts(cq);
	while ((got = ibv_next_poll(cq)) == ENOENT && time(nullptr) < end)
		;
	NEED(got == 0);
	CHECK(cq->wr_id == 2 && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_READ && ibv_wc_read_byte_len(cq) == sizeof inlined);
	CHECK(ibv_wc_read_qp_num(cq) == a->qp_num);
	uint64_t second = ibv_wc_read_completion_ts(cq);
	uint64_t wall = ibv_wc_read_completion_wallclock_ns(cq);
	ibv_end_poll(cq);
	uint64_t started = before.raw_clock.tv_sec * 1000000000ull + before.raw_clock.tv_nsec;
	timespec now{};
	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t wall_now = now.tv_sec * 1000000000ull + now.tv_nsec;
	CHECK(started <= first && first <= second && second - started < 20000000000ull);
	CHECK(wall <= wall_now && wall_now - wall < 20000000000ull);
	CHECK(!strcmp(buffer.data() + 1, "ritten and read") && buffer[0] == 'w');

	// Completions come one after the other by the system's clock, too, however close together; none comes from the future.
	uint64_t last = 0;
	for (int round = 0; round < 500 && !failures; round++) {
		ibv_wr_start(work);
		work->wr_flags = IBV_SEND_SIGNALED;
		for (int i = 0; i < 8; i++) {
			ibv_wr_rdma_write(work, device->rkey, 512);
			ibv_wr_set_inline_data(work, inlined, 1);
		}
		CHECK(ibv_wr_complete(work) == 0);
		end = time(nullptr) + 20;
		for (int i = 0; i < 8; i++) {
			do
				got = i ? ibv_next_poll(cq) : ibv_start_poll(cq, &poll_attr);
			while (got == ENOENT && time(nullptr) < end);
			NEED(got == 0);
			wall = ibv_wc_read_completion_wallclock_ns(cq);
			CHECK(wall >= last && ibv_wc_read_completion_wallclock_ns(cq) == wall);
			last = wall;
		}
		ibv_end_poll(cq);
		clock_gettime(CLOCK_REALTIME, &now);
		CHECK(last <= now.tv_sec * 1000000000ull + now.tv_nsec);
	}

	// What was not asked for at creation cannot be built; an aborted list posts nothing.
	ibv_wr_start(work);
	ibv_wr_send(work);
	CHECK(ibv_wr_complete(work) == EINVAL);
	ibv_wr_start(work);
	work->wr_id = 3;
	ibv_wr_rdma_read(work, device->rkey, 0);
	ibv_wr_abort(work);
	ibv_wr_start(work);
	CHECK(ibv_wr_complete(work) == 0);
	CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);

	// A list that does not fit posts nothing of it.
	ibv_wr_start(work);
	work->wr_flags = IBV_SEND_SIGNALED;
	for (int i = 0; i < 9; i++) {
		work->wr_id = 100 + i;
		ibv_wr_rdma_write(work, device->rkey, 0);
	}
	CHECK(ibv_wr_complete(work) == ENOMEM);
	CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);

	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(device) == 0);
	CHECK(ibv_free_dm(dm) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
