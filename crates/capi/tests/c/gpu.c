/* Memory of a GPU: registered by its pointer and by its descriptor, moved by every kind of work beside other memory, and what
 * happens when the driver fails in the middle. The driver is loaded as a program loads it; the stand-in can be told to fail. */
#include "bench.h"
#include "../../../../tests/gpu/driver.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (3ul << 20)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static void *driver;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *left, *right;
static CUcontext gpu_context;

static void *entry_point(const char *name)
{
	void *found = dlsym(driver, name);

	NEED(found);
	return found;
}
#define CU(name) ((__typeof__(name) *)entry_point(#name))

static CUdeviceptr allocate(size_t size)
{
	CUdeviceptr address = 0;

	NEED(!CU(cuMemAlloc_v2)(&address, size));
	return address;
}

static unsigned char pattern(size_t i, unsigned seed)
{
	return (unsigned char)(i * 7 + i / 253 + seed);
}

static void fill(CUdeviceptr address, size_t size, unsigned seed)
{
	unsigned char *bytes = malloc(size);

	for (size_t i = 0; i < size; i++)
		bytes[i] = pattern(i, seed);
	/* The copy may be under way when the call returns. */
	NEED(!CU(cuMemcpyHtoD_v2)(address, bytes, size) && !CU(cuCtxSynchronize)());
	free(bytes);
}

/* Whether a kernel would see the pattern there. */
static int holds(CUdeviceptr address, size_t size, unsigned seed)
{
	unsigned char *bytes = malloc(size);
	size_t same = 0;

	NEED(!CU(cuMemcpyDtoH_v2)(bytes, address, size));
	while (same < size && bytes[same] == pattern(same, seed))
		same++;
	free(bytes);
	if (same < size)
		fprintf(stderr, "byte %zu of %zu is wrong\n", same, size);
	return same == size;
}

static void make_pair(void)
{
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);

	NEED((left = ibv_create_qp(pd, &init)) && (right = ibv_create_qp(pd, &init)));
	NEED(!to_init(left) && !to_init(right));
	NEED(!connect_to(left, right->qp_num) && !connect_to(right, left->qp_num));
}

static void drop_pair(void)
{
	struct ibv_wc wc;

	CHECK(!ibv_destroy_qp(left) && !ibv_destroy_qp(right));
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

static struct ibv_sge part(struct ibv_mr *mr, uint64_t address, uint32_t length)
{
	struct ibv_sge sge = {.addr = address, .length = length, .lkey = mr->lkey};

	return sge;
}

static struct ibv_mr *region(CUdeviceptr address, size_t size)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, (void *)address, size, ALL);

	NEED(mr);
	CHECK(mr->addr == (void *)address && mr->length == size);
	return mr;
}

static void success(uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = completion(cq);

	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == id && wc.opcode == opcode);
}

static void every_kind_of_work(void)
{
	CUdeviceptr here = allocate(LENGTH), there = allocate(LENGTH);
	struct ibv_mr *source = region(here, LENGTH), *target = region(there, LENGTH);
	size_t lengths[] = {1, 64, 1000, 4096, 65536, 1 << 20, LENGTH};

	make_pair();
	for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		size_t length = lengths[i];
		struct ibv_sge from = part(source, here, (uint32_t)length), into = part(target, there, (uint32_t)length);
		struct ibv_wc wc[2];

		fill(here, length, i);
		NEED(!post(left, 1, IBV_WR_RDMA_WRITE, &from, there, target->rkey));
		success(1, IBV_WC_RDMA_WRITE);
		CHECK(holds(there, length, i));

		fill(there, length, i + 100);
		NEED(!post(left, 2, IBV_WR_RDMA_READ, &from, there, target->rkey));
		success(2, IBV_WC_RDMA_READ);
		CHECK(holds(here, length, i + 100));

		fill(here, length, i + 200);
		NEED(!receive(right, 4, &into) && !post(left, 3, IBV_WR_SEND, &from, 0, 0));
		for (int j = 0; j < 2; j++) {
			wc[j] = completion(cq);
			CHECK(wc[j].status == IBV_WC_SUCCESS);
			if (wc[j].wr_id == 4)
				CHECK(wc[j].byte_len == length && holds(there, length, i + 200));
		}
	}
	/* An address is taken when there is one for it: to the last byte and not one beyond. */
	struct ibv_sge from = part(source, here, 8);

	NEED(!post(left, 5, IBV_WR_RDMA_WRITE, &from, there + LENGTH - 8, target->rkey));
	success(5, IBV_WC_RDMA_WRITE);
	NEED(!post(left, 6, IBV_WR_RDMA_WRITE, &from, there + LENGTH - 7, target->rkey));
	CHECK(completion(cq).status == IBV_WC_REM_ACCESS_ERR);
	drop_pair();
	CHECK(!ibv_dereg_mr(source) && !ibv_dereg_mr(target));
	CU(cuMemFree_v2)(here);
	CU(cuMemFree_v2)(there);
}

/* Lists whose parts are in both kinds of memory, and atomic operations. */
static void mixed(void)
{
	static unsigned char bytes[8192], back[8192];
	CUdeviceptr gpu = allocate(8192);
	struct ibv_mr *mr = region(gpu, 8192), *host = ibv_reg_mr(pd, bytes, sizeof bytes, ALL);
	struct ibv_mr *other = ibv_reg_mr(pd, back, sizeof back, ALL);
	struct ibv_send_wr wr = {.wr_id = 1, .num_sge = 3, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;

	NEED(host && other);
	make_pair();
	fill(gpu, 8192, 5);
	for (int i = 0; i < 8192; i++)
		bytes[i] = pattern((size_t)i, 9);
	struct ibv_sge list[] = {part(mr, gpu + 100, 1000), part(host, (uintptr_t)bytes + 10, 3001), part(mr, gpu, 99)};

	wr.sg_list = list;
	wr.wr.rdma.remote_addr = (uintptr_t)back;
	wr.wr.rdma.rkey = other->rkey;
	NEED(!ibv_post_send(left, &wr, &bad));
	success(1, IBV_WC_RDMA_WRITE);
	for (size_t i = 0; i < 4100; i++) {
		unsigned char expected = i < 1000 ? pattern(i + 100, 5) : i < 4001 ? pattern(i - 1000 + 10, 9) : pattern(i - 4001, 5);

		if (back[i] != expected) {
			fprintf(stderr, "byte %zu\n", i);
			CHECK(0);
			break;
		}
	}
	/* Received into both. */
	struct ibv_sge into[] = {part(other, (uintptr_t)back, 50), part(mr, gpu + 4096, 3000), part(other, (uintptr_t)back + 50, 50)};
	struct ibv_recv_wr receive_wr = {.wr_id = 2, .sg_list = into, .num_sge = 3}, *bad_receive;
	struct ibv_sge whole = part(host, (uintptr_t)bytes, 3100);

	NEED(!ibv_post_recv(right, &receive_wr, &bad_receive) && !post(left, 3, IBV_WR_SEND, &whole, 0, 0));
	CHECK(completion(cq).status == IBV_WC_SUCCESS && completion(cq).status == IBV_WC_SUCCESS);
	unsigned char middle[3000];

	CHECK(!CU(cuMemcpyDtoH_v2)(middle, gpu + 4096, 3000));
	CHECK(!memcmp(back, bytes, 50) && !memcmp(middle, bytes + 50, 3000) && !memcmp(back + 50, bytes + 3050, 50));

	/* Atomic operations on GPU memory are done, and their answers may go there too. */
	uint64_t word = 40, before = 0;

	CHECK(!CU(cuMemcpyHtoD_v2)(gpu + 64, &word, 8) && !CU(cuCtxSynchronize)());
	struct ibv_sge answer = part(mr, gpu + 8, 8);
	struct ibv_send_wr atomic = {.wr_id = 4, .sg_list = &answer, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				     .send_flags = IBV_SEND_SIGNALED};

	atomic.wr.atomic.remote_addr = gpu + 64;
	atomic.wr.atomic.rkey = mr->rkey;
	atomic.wr.atomic.compare_add = 2;
	NEED(!ibv_post_send(left, &atomic, &bad));
	success(4, IBV_WC_FETCH_ADD);
	CHECK(!CU(cuMemcpyDtoH_v2)(&word, gpu + 64, 8) && word == 42);
	CHECK(!CU(cuMemcpyDtoH_v2)(&before, gpu + 8, 8) && before == 40);

	/* The processor reads inline data, and cannot read this. */
	struct ibv_sge inline_part = part(mr, gpu, 16);
	struct ibv_send_wr inlined = {.wr_id = 5, .sg_list = &inline_part, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				      .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};

	inlined.wr.rdma.remote_addr = (uintptr_t)back;
	inlined.wr.rdma.rkey = other->rkey;
	CHECK(ibv_post_send(left, &inlined, &bad) == EINVAL && bad == &inlined);
	drop_pair();
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(host) && !ibv_dereg_mr(other));
	CU(cuMemFree_v2)(gpu);
}

static void by_descriptor_and_iova(void)
{
	CUdeviceptr gpu = allocate(LENGTH);
	int fd = -1;

	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0) && errno == EBADF);
	NEED(!CU(cuMemGetHandleForAddressRange)(&fd, gpu, LENGTH, 1, 0) && fd >= 0);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 4096, 8192, gpu + 4096, fd, ALL);
	struct ibv_mr *moved = ibv_reg_mr_iova2(pd, (void *)gpu, LENGTH, 0x10000, ALL);

	NEED(mr && moved);
	make_pair();
	fill(gpu, 8192, 3);
	struct ibv_sge from = part(moved, 0x10000, 8192);

	NEED(!post(left, 1, IBV_WR_RDMA_WRITE, &from, gpu + 4096, mr->rkey));
	success(1, IBV_WC_RDMA_WRITE);
	CHECK(holds(gpu + 4096, 4096, 3));
	drop_pair();
	/* Longer than the descriptor, or at an address that is no GPU's. */
	CHECK(!ibv_reg_dmabuf_mr(pd, 4096, LENGTH, gpu + 4096, fd, ALL));
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fd, ALL));
	close(fd);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(moved));
	CU(cuMemFree_v2)(gpu);
}

static void bad_ranges(void)
{
	CUdeviceptr gpu = allocate(8192);

	errno = 0;
	CHECK(!ibv_reg_mr(pd, (void *)(gpu + 4096), LENGTH, ALL) && errno == EFAULT);
	CU(cuMemFree_v2)(gpu);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, (void *)gpu, 4096, ALL) && errno == EFAULT);
	pid_t child = fork();

	if (!child) {
		struct ibv_context *own = open_lo();
		struct ibv_pd *domain = own ? ibv_alloc_pd(own) : NULL;

		/* Ends without what its parent left. */
		_exit(!domain || ibv_reg_mr(domain, (void *)gpu, 4096, ALL) || errno != EFAULT);
	}
	int status = -1;

	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* What fails at the sender fails there; what fails at the receiver, the sender hears of. */
static void failing(void (*fail)(const char *, int, CUresult))
{
	CUdeviceptr here = allocate(1 << 20), there = allocate(1 << 20);
	struct ibv_mr *source = region(here, 1 << 20), *target = region(there, 1 << 20);
	struct ibv_sge from = part(source, here, 1 << 20);
	struct {
		const char *call;
		int after;
		enum ibv_wr_opcode opcode;
		enum ibv_wc_status status;
	} cases[] = {
		{"cuMemcpyDtoHAsync_v2", 0, IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR},
		{"cuMemcpyDtoHAsync_v2", 1, IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR},
		{"cuMemcpyHtoDAsync_v2", 0, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR},
		{"cuMemcpyHtoDAsync_v2", 1, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR},
		{"cuMemcpyDtoHAsync_v2", 0, IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR},
		{"cuMemcpyHtoDAsync_v2", 0, IBV_WR_RDMA_READ, IBV_WC_LOC_PROT_ERR},
		{"cuMemcpyDtoHAsync_v2", 0, IBV_WR_SEND, IBV_WC_LOC_PROT_ERR},
		{"cuMemcpyHtoDAsync_v2", 0, IBV_WR_SEND, IBV_WC_REM_OP_ERR},
	};

	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ibv_sge into = part(target, there, 1 << 20);

		make_pair();
		if (cases[i].opcode == IBV_WR_SEND)
			NEED(!receive(right, 2, &into));
		fail(cases[i].call, cases[i].after, CUDA_ERROR_ILLEGAL_ADDRESS);
		NEED(!post(left, 1, cases[i].opcode, &from, there, target->rkey));
		struct ibv_wc wc = completion(cq);

		if (cases[i].status == IBV_WC_REM_OP_ERR && wc.wr_id == 2) {
			/* The receiver hears of it first. */
			CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
			wc = completion(cq);
		}
		if (wc.status != cases[i].status)
			fprintf(stderr, "case %u: %s\n", i, ibv_wc_status_str(wc.status));
		CHECK(wc.wr_id == 1 && wc.status == cases[i].status);
		fail(cases[i].call, 0, 0);
		drop_pair();
	}
	CHECK(!ibv_dereg_mr(source) && !ibv_dereg_mr(target));
	CU(cuMemFree_v2)(here);
	CU(cuMemFree_v2)(there);
}

/* Each copy is begun by one call, and waited for by another; the number is of those between the two, and some constant. */
static unsigned long copies_under_way(unsigned long (*calls)(const char *))
{
	unsigned long begun = calls("cuMemcpyDtoHAsync_v2") + calls("cuMemcpyHtoDAsync_v2");

	return begun - calls("cuStreamSynchronize");
}

/* A call of the driver that does not return, as while `cudaFree` waits in the driver for a kernel that waits for the work: the
 * work fails, and when the driver returns everything goes on. */
static void held(void (*hold)(const char *, int), unsigned long (*calls)(const char *))
{
	CUdeviceptr here = allocate(1 << 20), there = allocate(1 << 20);
	struct ibv_mr *source = region(here, 1 << 20), *target = region(there, 1 << 20);
	struct ibv_sge from = part(source, here, 1 << 20);
	struct {
		const char *call;
		enum ibv_wc_status status;
	} cases[] = {{"cuMemcpyDtoHAsync_v2", IBV_WC_LOC_PROT_ERR}, {"cuMemcpyHtoDAsync_v2", IBV_WC_REM_ACCESS_ERR}};

	for (unsigned i = 0; i < 2; i++) {
		unsigned long idle = copies_under_way(calls);

		make_pair();
		hold(cases[i].call, 1);
		NEED(!post(left, 1, IBV_WR_RDMA_WRITE, &from, there, target->rkey));
		struct ibv_wc wc = completion(cq);

		hold(cases[i].call, 0);
		CHECK(wc.wr_id == 1 && wc.status == cases[i].status);
		drop_pair();
		/* A copy that the driver took too long for may still write. */
		while (copies_under_way(calls) != idle)
			sched_yield();
	}
	make_pair();
	fill(here, 1 << 20, 11);
	NEED(!post(left, 2, IBV_WR_RDMA_WRITE, &from, there, target->rkey));
	success(2, IBV_WC_RDMA_WRITE);
	CHECK(holds(there, 1 << 20, 11));
	drop_pair();
	CHECK(!ibv_dereg_mr(source) && !ibv_dereg_mr(target));
	CU(cuMemFree_v2)(here);
	CU(cuMemFree_v2)(there);
}

/* Memory that is freed, and a context that is destroyed, while it is registered. */
static void freed_and_destroyed(void)
{
	CUdeviceptr gpu = allocate(1 << 20), other = allocate(1 << 20);
	struct ibv_mr *source = region(gpu, 1 << 20), *target = region(other, 1 << 20);
	struct ibv_sge from = part(source, gpu, 4096);
	CUcontext popped;

	make_pair();
	CHECK(!CU(cuMemFree_v2)(gpu));
	NEED(!post(left, 1, IBV_WR_RDMA_WRITE, &from, other, target->rkey));
	CHECK(completion(cq).status == IBV_WC_LOC_PROT_ERR);
	drop_pair();
	make_pair();
	CHECK(!CU(cuCtxPopCurrent_v2)(&popped) && !CU(cuCtxDestroy_v2)(gpu_context));
	from = part(target, other, 4096);
	NEED(!post(left, 1, IBV_WR_RDMA_WRITE, &from, other, target->rkey));
	CHECK(completion(cq).status == IBV_WC_LOC_PROT_ERR);
	drop_pair();
	CHECK(!ibv_dereg_mr(source) && !ibv_dereg_mr(target));
}

/* A failure script lets the first copy fail: one of the source, for the sender. The next ones work. */
static void struck(void)
{
	CUdeviceptr here = allocate(1 << 20), there = allocate(1 << 20);
	struct ibv_mr *source = region(here, 1 << 20), *target = region(there, 1 << 20);
	struct ibv_sge from = part(source, here, 1 << 20);

	fill(here, 1 << 20, 9);
	make_pair();
	NEED(!post(left, 1, IBV_WR_RDMA_WRITE, &from, there, target->rkey));
	CHECK(completion(cq).status == IBV_WC_LOC_PROT_ERR);
	drop_pair();
	make_pair();
	NEED(!post(left, 1, IBV_WR_RDMA_WRITE, &from, there, target->rkey));
	success(1, IBV_WC_RDMA_WRITE);
	CHECK(holds(there, 1 << 20, 9));
	drop_pair();
	CHECK(!ibv_dereg_mr(source) && !ibv_dereg_mr(target));
	CU(cuMemFree_v2)(here);
	CU(cuMemFree_v2)(there);
}

int main(int argc, char **argv)
{
	/* Milliseconds until a call of the driver is given up. */
	setenv("UBIVERBS_GPU_PATIENCE", "1000", 0);
	driver = dlopen(argc > 1 ? argv[1] : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!driver) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	CUdevice device;

	NEED(!CU(cuInit)(0) && !CU(cuDeviceGet)(&device, 0));
	NEED(!CU(cuCtxCreate_v2)(&gpu_context, 0, device));
	NEED((context = open_lo()) && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	if (argc > 2) {
		struck();
		CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
		return failures != 0;
	}
	every_kind_of_work();
	mixed();
	by_descriptor_and_iova();
	bad_ranges();
	void (*fail)(const char *, int, CUresult) = (void (*)(const char *, int, CUresult))dlsym(driver, "stand_in_fail");

	if (fail) {
		failing(fail);
		held((void (*)(const char *, int))dlsym(driver, "stand_in_hold"),
		     (unsigned long (*)(const char *))dlsym(driver, "stand_in_calls"));
	}
	freed_and_destroyed();
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	fprintf(stderr, "%s\n", failures ? "failed" : "done");
	return failures != 0;
}
