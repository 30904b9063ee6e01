/* Work that fails: UV-01xx. The rule is the explanation. */
#include "common.h"
#include "../../gpu/driver.h"
#include <dlfcn.h>

static const int ALL_RIGHTS =
	IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/* A message, a WRITE, a READ and an atomic that all work. */
static void all_is_well_on(struct bench *b)
{
	struct ibv_sge out = piece(b, 0, 64), in = piece(b, 1024, 64), eight = piece(b, 2048, 8);

	post_recv(b->qp[1], 2, &in);
	post_send(b->qp[0], 1, &out);
	poll_success(b->cq, 2);
	post_rdma(b->qp[0], 3, IBV_WR_RDMA_WRITE, &out, b->buffer + 3072, b->mr->rkey);
	poll_success(b->cq, 1);
	post_rdma(b->qp[0], 4, IBV_WR_RDMA_READ, &out, b->buffer + 3072, b->mr->rkey);
	poll_success(b->cq, 1);
	post_rdma(b->qp[0], 5, IBV_WR_ATOMIC_FETCH_AND_ADD, &eight, b->buffer + 3072, b->mr->rkey);
	poll_success(b->cq, 1);
}

static void all_is_well(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	all_is_well_on(&b);
	close_bench(&b);
}

/* Polls until that status comes; what comes before may be the other side's. */
static void poll_until(struct bench *b, enum ibv_wc_status status)
{
	for (int i = 0; i < 4; i++)
		if (poll_one(b->cq).status == status)
			return;
	NEED(!"the status");
}

/* Memory of its own, registered in that domain with these rights. */
static struct ibv_mr *extra_memory(struct ibv_pd *pd, size_t size, int access)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	NEED(memory != MAP_FAILED);
	mr = ibv_reg_mr(pd, memory, size, access);
	NEED(mr);
	return mr;
}

static struct ibv_sge all_of(const struct ibv_mr *mr, uint32_t length)
{
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = length, .lkey = mr->lkey};

	return sge;
}

/* A SEND of that piece, which fails here. */
static void send_fails(struct bench *b, struct ibv_sge *out, enum ibv_wc_status status)
{
	post_send(b->qp[0], 1, out);
	poll_status(b->cq, status);
}

static void local_key_unknown(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64);

	out.lkey ^= 0x5a5a00;
	send_fails(&b, &out, IBV_WC_LOC_PROT_ERR);
	close_bench(&b);
}

static void local_out_of_bounds(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, BUFFER_SIZE - 32, 64);

	send_fails(&b, &out, IBV_WC_LOC_PROT_ERR);
	close_bench(&b);
}

static void local_other_domain(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_pd *other = ibv_alloc_pd(b.context);
	struct ibv_mr *mr = extra_memory(other, 4096, ALL_RIGHTS);
	struct ibv_sge out = all_of(mr, 64);

	send_fails(&b, &out, IBV_WC_LOC_PROT_ERR);
	NEED(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(other));
	close_bench(&b);
}

/* A receive into memory that may only be read. Its sender is told that the peer cannot store the message: UV-0132. */
static void receive_not_writable(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mr *mr = extra_memory(b.pd, 4096, 0);
	struct ibv_sge out = piece(&b, 0, 64), in = all_of(mr, 64);

	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	poll_until(&b, IBV_WC_REM_OP_ERR);
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

static void local_not_there(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mr *mr = extra_memory(b.pd, 4096, ALL_RIGHTS | IBV_ACCESS_ON_DEMAND);
	struct ibv_sge out = all_of(mr, 64);

	NEED(!munmap(mr->addr, 4096));
	send_fails(&b, &out, IBV_WC_LOC_PROT_ERR);
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

/* Memory of a GPU, on the stand-in for its driver that lies beside the program. */
static struct ibv_mr *freed_gpu_memory(struct ibv_pd *pd)
{
	static const char name[] = "/libcuda.so.1";
	char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof name);
	CUcontext context;
	CUdeviceptr gpu;

	NEED(length > 0);
	path[length] = 0;
	memcpy(strrchr(path, '/'), name, sizeof name);
	void *driver = dlopen(path, RTLD_NOW);

	NEED(driver);
#define CU(call) ((__typeof__(call) *)dlsym(driver, #call))
	NEED(!CU(cuInit)(0) && !CU(cuCtxCreate_v2)(&context, 0, 0) && !CU(cuMemAlloc_v2)(&gpu, 4096));
	struct ibv_mr *mr = ibv_reg_mr(pd, (void *)gpu, 4096, ALL_RIGHTS);

	NEED(mr && !CU(cuMemFree_v2)(gpu));
	return mr;
}

static void local_gpu(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mr *mr = freed_gpu_memory(b.pd);
	struct ibv_sge out = all_of(mr, 64);

	send_fails(&b, &out, IBV_WC_LOC_PROT_ERR);
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

static void window_refused(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
				   .bind_info = {.mr = b.mr, .addr = (uintptr_t)b.buffer, .length = 64,
						 .mw_access_flags = IBV_ACCESS_REMOTE_READ}};

	NEED(mw && !ibv_bind_mw(b.qp[0], mw, &bind));
	poll_status(b.cq, IBV_WC_MW_BIND_ERR);
	NEED(!ibv_dealloc_mw(mw));
	close_bench(&b);
}

/* The receive is shorter than the message: UV-0110 at the receiver, UV-0129 at the sender. */
static void receive_too_short(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 100), in = piece(&b, 1024, 64);

	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	poll_until(&b, IBV_WC_REM_INV_REQ_ERR);
	close_bench(&b);
}

static void send_datagram(uint32_t length, enum ibv_wc_status status)
{
	struct bench b = open_pair(IBV_QPT_UD);
	struct ibv_mr *mr = extra_memory(b.pd, 1 << 16, ALL_RIGHTS);
	struct ibv_ah *ah = address_handle(b.pd);
	struct ibv_sge out = all_of(mr, length), in = piece(&b, 0, 1024);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

	post_recv(b.qp[1], 2, &in);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b.qp[1]->qp_num;
	wr.wr.ud.remote_qkey = usual_path().qkey;
	NEED(!post(b.qp[0], &wr));
	if (status == IBV_WC_SUCCESS)
		poll_success(b.cq, 2);
	else
		poll_status(b.cq, status);
	NEED(!ibv_destroy_ah(ah) && !ibv_dereg_mr(mr));
	close_bench(&b);
}

static void datagram_too_long(void)
{
	send_datagram(1 << 14, IBV_WC_LOC_LEN_ERR);
}

static void datagram_fits(void)
{
	send_datagram(64, IBV_WC_SUCCESS);
}

static void atomic_too_short(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge four = piece(&b, 0, 4);

	post_rdma(b.qp[0], 1, IBV_WR_ATOMIC_FETCH_AND_ADD, &four, b.buffer + 1024, b.mr->rkey);
	poll_status(b.cq, IBV_WC_LOC_LEN_ERR);
	close_bench(&b);
}

/* A WRITE of 64 bytes to there, which the peer refuses. */
static void write_refused(struct bench *b, const void *remote, uint32_t rkey, enum ibv_wc_status status)
{
	struct ibv_sge out = piece(b, 0, 64);

	post_rdma(b->qp[0], 1, IBV_WR_RDMA_WRITE, &out, remote, rkey);
	poll_status(b->cq, status);
}

static void remote_key_unknown(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	write_refused(&b, b.buffer, b.mr->rkey ^ 0x5a5a00, IBV_WC_REM_ACCESS_ERR);
	close_bench(&b);
}

/* UV-0137 */
static void local_key_shown(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	NEED(b.mr->lkey != b.mr->rkey);
	write_refused(&b, b.buffer, b.mr->lkey, IBV_WC_REM_ACCESS_ERR);
	close_bench(&b);
}

/* Over UDP no reason comes with the refusal. */
static void remote_access(void)
{
	setenv("UBIVERBS_LINK", "udp", 1);
	remote_key_unknown();
}

static void remote_out_of_bounds(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	write_refused(&b, b.buffer + BUFFER_SIZE - 32, b.mr->rkey, IBV_WC_REM_ACCESS_ERR);
	close_bench(&b);
}

static void remote_other_domain(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_pd *other = ibv_alloc_pd(b.context);
	struct ibv_mr *mr = extra_memory(other, 4096, ALL_RIGHTS);

	write_refused(&b, mr->addr, mr->rkey, IBV_WC_REM_ACCESS_ERR);
	NEED(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(other));
	close_bench(&b);
}

static void remote_region_forbids(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mr *mr = extra_memory(b.pd, 4096, IBV_ACCESS_LOCAL_WRITE);

	write_refused(&b, mr->addr, mr->rkey, IBV_WC_REM_ACCESS_ERR);
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

static void remote_pair_forbids(void)
{
	struct bench b = open_bench();
	struct path closed = usual_path();

	closed.access = 0;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], usual_path(), b.qp[1], closed);
	write_refused(&b, b.buffer, b.mr->rkey, IBV_WC_REM_INV_REQ_ERR);
	close_bench(&b);
}

static void remote_invalid(void)
{
	setenv("UBIVERBS_LINK", "udp", 1);
	remote_pair_forbids();
}

static void atomic_misaligned(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge eight = piece(&b, 0, 8);

	post_rdma(b.qp[0], 1, IBV_WR_ATOMIC_FETCH_AND_ADD, &eight, b.buffer + 1028, b.mr->rkey);
	poll_status(b.cq, IBV_WC_REM_INV_REQ_ERR);
	close_bench(&b);
}

static void window_unbound(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);

	NEED(mw);
	write_refused(&b, b.buffer, mw->rkey, IBV_WC_REM_ACCESS_ERR);
	NEED(!ibv_dealloc_mw(mw));
	close_bench(&b);
}

static void remote_not_there(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mr *mr = extra_memory(b.pd, 4096, ALL_RIGHTS | IBV_ACCESS_ON_DEMAND);

	NEED(!munmap(mr->addr, 4096));
	write_refused(&b, mr->addr, mr->rkey, IBV_WC_REM_ACCESS_ERR);
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

static void remote_gpu(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_mr *mr = freed_gpu_memory(b.pd);

	write_refused(&b, mr->addr, mr->rkey, IBV_WC_REM_ACCESS_ERR);
	NEED(!ibv_dereg_mr(mr));
	close_bench(&b);
}

/* A READ over a connection made with these values. */
static void read_fails(struct path mine, struct path theirs, uint32_t length, enum ibv_wc_status status)
{
	struct bench b = open_bench();
	struct ibv_sge in = piece(&b, 0, length);

	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], mine, b.qp[1], theirs);
	post_rdma(b.qp[0], 1, IBV_WR_RDMA_READ, &in, b.buffer + 2048, b.mr->rkey);
	poll_status(b.cq, status);
	close_bench(&b);
}

static void too_many_reads(void)
{
	struct path none = usual_path();

	none.max_dest_rd_atomic = 0;
	read_fails(usual_path(), none, 64, IBV_WC_REM_INV_REQ_ERR);
}

static void no_reads_allowed(void)
{
	struct path none = usual_path();

	none.max_rd_atomic = 0;
	read_fails(none, usual_path(), 64, IBV_WC_LOC_QP_OP_ERR);
}

/* The request names the peer's memory where a datagram has its address handle. */
static void not_carried(void)
{
	struct bench b = open_pair(IBV_QPT_UD);
	struct ibv_sge out = piece(&b, 0, 64);

	post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &out, b.buffer + 2048, b.mr->rkey);
	poll_status(b.cq, IBV_WC_LOC_QP_OP_ERR);
	close_bench(&b);
}

static void bad_answer(void)
{
	struct path small = usual_path();

	small.mtu = IBV_MTU_512;
	read_fails(small, usual_path(), 2048, IBV_WC_BAD_RESP_ERR);
}

static void malformed(void)
{
	struct bench b = open_bench();
	struct path small = usual_path();
	struct ibv_sge out = piece(&b, 0, 2048), in = piece(&b, 2048, 2048);

	small.mtu = IBV_MTU_512;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], usual_path(), b.qp[1], small);
	post_recv(b.qp[1], 2, &in);
	post_send(b.qp[0], 1, &out);
	poll_until(&b, IBV_WC_REM_INV_REQ_ERR);
	close_bench(&b);
}

static void no_answer(void)
{
	struct bench b = open_bench();
	struct ibv_sge out = piece(&b, 0, 64);

	make_pair(&b, IBV_QPT_RC);
	connect_to(b.qp[0], b.qp[1]->qp_num, usual_path());
	send_fails(&b, &out, IBV_WC_RETRY_EXC_ERR);
	close_bench(&b);
}

/* The peer is another process, which takes one message and ends. */
static void peer_gone(void)
{
	int down[2], up[2];
	uint32_t mine, theirs;
	char byte = 0;
	pid_t child;

	NEED(!pipe(down) && !pipe(up));
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		struct bench b = open_bench();
		struct ibv_sge in = piece(&b, 0, 64);

		make_pair(&b, IBV_QPT_RC);
		mine = b.qp[0]->qp_num;
		NEED(write(up[1], &mine, 4) == 4 && read(down[0], &theirs, 4) == 4);
		connect_to(b.qp[0], theirs, usual_path());
		post_recv(b.qp[0], 1, &in);
		NEED(write(up[1], &byte, 1) == 1);
		poll_success(b.cq, 1);
		_exit(0);
	}
	struct bench b = open_bench();
	struct ibv_sge out = piece(&b, 0, 64);

	make_pair(&b, IBV_QPT_RC);
	mine = b.qp[0]->qp_num;
	NEED(read(up[0], &theirs, 4) == 4 && write(down[1], &mine, 4) == 4 && read(up[0], &byte, 1) == 1);
	connect_to(b.qp[0], theirs, usual_path());
	post_send(b.qp[0], 1, &out);
	poll_success(b.cq, 1);
	NEED(waitpid(child, NULL, 0) == child);
	post_send(b.qp[0], 2, &out);
	poll_status(b.cq, IBV_WC_RETRY_EXC_ERR);
	close_bench(&b);
}

static void no_receive(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64);

	send_fails(&b, &out, IBV_WC_RNR_RETRY_EXC_ERR);
	close_bench(&b);
}

static void peer_message_bad(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64), in = piece(&b, 1024, 64);
	struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND_WITH_INV, &out);

	wr.invalidate_rkey = 0x123400;
	post_recv(b.qp[1], 2, &in);
	NEED(!post(b.qp[0], &wr));
	poll_until(&b, IBV_WC_REM_INV_REQ_ERR);
	close_bench(&b);
}

static void flushed(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 64);

	post_send(b.qp[0], 1, &out);
	post_send(b.qp[0], 2, &out);
	poll_status(b.cq, IBV_WC_RNR_RETRY_EXC_ERR);
	poll_status(b.cq, IBV_WC_WR_FLUSH_ERR);
	close_bench(&b);
}

/* Adds a tagged buffer and deletes it, so many times. */
static void delete_tag(int times)
{
	struct bench b = open_bench();
	struct ibv_srq_init_attr_ex init = {
		.attr = {.max_wr = 16, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
		.srq_type = IBV_SRQT_TM, .pd = b.pd, .cq = b.cq, .tm_cap = {.max_num_tags = 4, .max_ops = 4},
	};
	struct ibv_srq *srq = ibv_create_srq_ex(b.context, &init);
	struct ibv_sge in = piece(&b, 0, 64);
	struct ibv_ops_wr add = {.wr_id = 1, .opcode = IBV_WR_TAG_ADD, .flags = IBV_OPS_SIGNALED,
				 .tm = {.add = {.recv_wr_id = 2, .sg_list = &in, .num_sge = 1, .tag = 7, .mask = ~0ull}}};
	struct ibv_ops_wr delete = {.wr_id = 3, .opcode = IBV_WR_TAG_DEL, .flags = IBV_OPS_SIGNALED};
	struct ibv_ops_wr *bad;

	NEED(srq && !ibv_post_srq_ops(srq, &add, &bad));
	poll_success(b.cq, 1);
	delete.tm.handle = add.tm.handle;
	for (int i = 0; i < times; i++) {
		NEED(!ibv_post_srq_ops(srq, &delete, &bad));
		poll_status(b.cq, i == 0 ? IBV_WC_SUCCESS : IBV_WC_TM_ERR);
	}
	NEED(!ibv_destroy_srq(srq));
	close_bench(&b);
}

static void delete_tag_twice(void)
{
	delete_tag(2);
}

static void delete_tag_once(void)
{
	delete_tag(1);
}

CASES({"UV-0101", local_key_unknown, all_is_well}, {"UV-0102", local_out_of_bounds, all_is_well},
      {"UV-0103", local_other_domain, all_is_well}, {"UV-0104", receive_not_writable, all_is_well},
      {"UV-0106", local_not_there, all_is_well}, {"UV-0107", local_gpu, all_is_well}, {"UV-0108", window_refused, all_is_well},
      {"UV-0110", receive_too_short, all_is_well}, {"UV-0111", datagram_too_long, datagram_fits},
      {"UV-0112", atomic_too_short, all_is_well}, {"UV-0120", remote_access, all_is_well},
      {"UV-0137", local_key_shown, all_is_well}, {"UV-0121", remote_key_unknown, all_is_well}, {"UV-0122", remote_out_of_bounds, all_is_well},
      {"UV-0123", remote_other_domain, all_is_well}, {"UV-0124", remote_region_forbids, all_is_well},
      {"UV-0125", remote_pair_forbids, all_is_well}, {"UV-0126", atomic_misaligned, all_is_well},
      {"UV-0127", window_unbound, all_is_well}, {"UV-0128", remote_not_there, all_is_well},
      {"UV-0129", receive_too_short, all_is_well}, {"UV-0130", too_many_reads, all_is_well},
      {"UV-0131", remote_invalid, all_is_well}, {"UV-0132", receive_not_writable, all_is_well},
      {"UV-0133", malformed, all_is_well}, {"UV-0134", remote_gpu, all_is_well}, {"UV-0136", bad_answer, all_is_well},
      {"UV-0140", no_answer, all_is_well}, {"UV-0141", peer_gone, all_is_well},
      {"UV-0142", no_receive, all_is_well}, {"UV-0145", no_reads_allowed, all_is_well},
      {"UV-0146", not_carried, all_is_well},
      {"UV-0150", peer_message_bad, all_is_well}, {"UV-0160", flushed, all_is_well},
      {"UV-0165", delete_tag_twice, delete_tag_once})
