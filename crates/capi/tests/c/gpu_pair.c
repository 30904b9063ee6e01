/* Two processes and memory of a GPU: every kind of work between them, in all pairings of memory, verified; what happens when
 * one cannot open the other's memory, or its driver fails. With "bench" as second argument it measures instead, beside the
 * driver's own copies. */
#include "bench.h"
#include "../../../../tests/gpu/driver.h"
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (size)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* What one process tells the other. */
struct told {
	uint32_t qpn, gpu_key, host_key;
	uint64_t gpu, host;
	CUipcMemHandle handle;
};

static void *driver;
static size_t size = 5 << 20;
static int in, out;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *gpu_region, *host_region;
static struct told here, there;
static unsigned char *bytes;

static void *entry_point(const char *name)
{
	void *found = dlsym(driver, name);

	NEED(found);
	return found;
}
#define CU(name) ((__typeof__(name) *)entry_point(#name))

/* One word at a time between the processes. */
static void say(int word)
{
	NEED(write(out, &word, sizeof word) == sizeof word);
}

static void hear(int expected)
{
	int word = -1;

	NEED(read(in, &word, sizeof word) == sizeof word);
	NEED(word == expected);
}

static void open_gpu(const char *library)
{
	CUdevice device;
	CUcontext gpu_context;

	driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!driver)
		fprintf(stderr, "%s\n", dlerror());
	NEED(driver);
	NEED(!CU(cuInit)(0) && !CU(cuDeviceGet)(&device, 0));
	NEED(!CU(cuDevicePrimaryCtxRetain)(&gpu_context, device) && !CU(cuCtxPushCurrent_v2)(gpu_context));
}

/* Memory of a kind: what `cuMemAlloc` gives, or what `cuMemCreate` made and other processes may have by a descriptor, which
 * is what NCCL uses. */
static int by_descriptor;

static CUdeviceptr allocate(void)
{
	CUdeviceptr gpu = 0;
	struct allocation_properties made = {.type = 1, .handle_types = 1, .location_type = 1};
	struct access_description access = {1, 0, 3};
	unsigned long long handle;

	if (!by_descriptor) {
		NEED(!CU(cuMemAlloc_v2)(&gpu, LENGTH));
		return gpu;
	}
	size = (size + (2 << 20) - 1) >> 21 << 21;
	NEED(!CU(cuMemCreate)(&handle, LENGTH, &made, 0) && !CU(cuMemAddressReserve)(&gpu, LENGTH, 0, 0, 0));
	NEED(!CU(cuMemMap)(gpu, LENGTH, 0, handle, 0) && !CU(cuMemSetAccess)(gpu, LENGTH, &access, 1));
	NEED(!CU(cuMemRelease)(handle));
	return gpu;
}

static void release(CUdeviceptr gpu)
{
	CHECK(!(by_descriptor ? CU(cuMemUnmap)(gpu, LENGTH) : CU(cuMemFree_v2)(gpu)));
}

static void meet(void)
{
	CUdeviceptr gpu;
	union ibv_gid gid;

	NEED((context = open_lo()) && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	NEED((gpu = allocate()) && (bytes = aligned_alloc(4096, LENGTH)));
	memset(bytes, 0, LENGTH);
	NEED((gpu_region = ibv_reg_mr(pd, (void *)gpu, LENGTH, ALL)) && (host_region = ibv_reg_mr(pd, bytes, LENGTH, ALL)));
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);

	NEED((qp = ibv_create_qp(pd, &init)) && !to_init(qp));
	here = (struct told){qp->qp_num, gpu_region->rkey, host_region->rkey, gpu, (uintptr_t)bytes, {{0}}};
	NEED(by_descriptor || !CU(cuIpcGetMemHandle)(&here.handle, gpu));
	NEED(write(out, &here, sizeof here) == sizeof here && read(in, &there, sizeof there) == sizeof there);
	/* As `connect_to`, with the longest packets. */
	int index = gid_index(context, &gid);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = there.qpn,
		.ah_attr = {.grh = {.dgid = gid, .sgid_index = (uint8_t)index, .hop_limit = 64}, .is_global = 1, .port_num = 1},
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
	};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .max_rd_atomic = 4, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7};

	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	NEED(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					      IBV_QP_MAX_QP_RD_ATOMIC));
	say(1);
	hear(1);
}

static unsigned char pattern(size_t i, unsigned seed)
{
	return (unsigned char)(i * 7 + i / 253 + seed);
}

static void fill(int gpu, size_t length, unsigned seed)
{
	unsigned char *staged = gpu ? malloc(length) : bytes;

	for (size_t i = 0; i < length; i++)
		staged[i] = pattern(i, seed);
	if (gpu) {
		/* The copy may be under way when the call returns. */
		NEED(!CU(cuMemcpyHtoD_v2)(here.gpu, staged, length) && !CU(cuCtxSynchronize)());
		free(staged);
	}
}

static int holds(int gpu, size_t length, unsigned seed)
{
	unsigned char *staged = gpu ? malloc(length) : bytes;
	size_t same = 0;

	if (gpu)
		NEED(!CU(cuMemcpyDtoH_v2)(staged, here.gpu, length));
	while (same < length && staged[same] == pattern(same, seed))
		same++;
	if (gpu)
		free(staged);
	if (same < length)
		fprintf(stderr, "%d: byte %zu of %zu is wrong\n", gpu, same, length);
	return same == length;
}

static struct ibv_sge mine(int gpu, size_t length)
{
	struct ibv_mr *mr = gpu ? gpu_region : host_region;
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = (uint32_t)length, .lkey = mr->lkey};

	return sge;
}

static int request(enum ibv_wr_opcode opcode, int from_gpu, int to_gpu, size_t length)
{
	struct ibv_sge sge = mine(from_gpu, length);

	return post(qp, 1, opcode, &sge, to_gpu ? there.gpu : there.host, to_gpu ? there.gpu_key : there.host_key);
}

static const size_t lengths[] = {1, 64, 4096, 65536, 65537, 1 << 20, (5 << 20) - 3};

/* The first process asks, the second looks; both know in which order. */
static void verify(int first)
{
	unsigned seed = 0;

	for (int kinds = 0; kinds < 4; kinds++) {
		int gpu_first = kinds & 1, gpu_second = kinds >> 1, gpu = first ? gpu_first : gpu_second;

		for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++, seed += 3) {
			size_t length = lengths[i];

			if (first) {
				fill(gpu, length, seed);
				NEED(!request(IBV_WR_RDMA_WRITE, gpu_first, gpu_second, length));
				CHECK(completion(cq).status == IBV_WC_SUCCESS);
				say(2);
				hear(3);
				NEED(!request(IBV_WR_RDMA_READ, gpu_first, gpu_second, length));
				CHECK(completion(cq).status == IBV_WC_SUCCESS);
				CHECK(holds(gpu, length, seed + 1));
				say(4);
				hear(5);
				fill(gpu, length, seed + 2);
				NEED(!request(IBV_WR_SEND, gpu_first, 0, length));
				CHECK(completion(cq).status == IBV_WC_SUCCESS);
				hear(11);
			} else {
				struct ibv_sge into = mine(gpu, length);

				hear(2);
				CHECK(holds(gpu, length, seed));
				fill(gpu, length, seed + 1);
				say(3);
				hear(4);
				NEED(!receive(qp, 9, &into));
				say(5);
				struct ibv_wc wc = completion(cq);

				CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == length && holds(gpu, length, seed + 2));
				say(11);
			}
		}
	}
}

/* What the stand-in can be told. The second process cannot open the first's memory: nothing is lost. Then its driver fails in
 * the middle: the first hears of it. */
static void faults(int first, int links_name)
{
	void (*fail)(const char *, int, CUresult) = (void (*)(const char *, int, CUresult))dlsym(driver, "stand_in_fail");
	unsigned long (*calls)(const char *) = (unsigned long (*)(const char *))dlsym(driver, "stand_in_calls");

	if (!fail)
		return;
	if (!first && links_name)
		CHECK(calls("cuMemcpyDtoDAsync_v2") > 0);
	if (first) {
		fill(1, LENGTH, 77);
		hear(6);
		NEED(!request(IBV_WR_RDMA_WRITE, 1, 1, LENGTH));
		CHECK(completion(cq).status == IBV_WC_REM_ACCESS_ERR);
		say(7);
	} else {
		fail("cuMemcpyDtoDAsync_v2", 0, CUDA_ERROR_ILLEGAL_ADDRESS);
		fail("cuMemcpyHtoDAsync_v2", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
		say(6);
		hear(7);
		fail("cuMemcpyDtoDAsync_v2", 0, 0);
		fail("cuMemcpyHtoDAsync_v2", 0, 0);
	}
}

/* Where copies inside the GPU have to wait for their turn, the next ones go by way of the host. It takes two, and a busy
 * machine may be late for the next, so it is tried more than once. */
static void turns(int first)
{
	const char *copy = "cuMemcpyDtoDAsync_v2";
	void (*hold)(const char *, int) = (void (*)(const char *, int))dlsym(driver, "stand_in_hold");
	unsigned long (*calls)(const char *) = (unsigned long (*)(const char *))dlsym(driver, "stand_in_calls");
	int seen = 0;

	for (int i = 0; hold && i < 50 && !seen; i++) {
		for (unsigned write = 0; write < 3; write++) {
			const char *detour = "cuMemcpyHtoDAsync_v2";
			int waits = write < 2;

			if (first) {
				fill(1, LENGTH, write);
				hear(13);
				NEED(!request(IBV_WR_RDMA_WRITE, 1, 1, LENGTH));
				CHECK(completion(cq).status == IBV_WC_SUCCESS);
				say(14);
				hear(15);
				continue;
			}
			unsigned long before = calls(copy), detours = calls(detour);

			hold(copy, waits);
			say(13);
			while (waits && calls(copy) == before && calls(detour) == detours)
				usleep(100);
			usleep(waits ? 3000 : 0);
			hold(copy, 0);
			hear(14);
			seen = calls(copy) == before;
			CHECK(holds(1, LENGTH, write));
			say(15);
		}
		if (!first)
			say(seen);
		else
			NEED(read(in, &seen, sizeof seen) == sizeof seen);
	}
	CHECK(!hold || seen);
}

/* The program opens the other's memory by itself, in its own context and beside the NIC: the driver opens it in one only. */
static void opened_by_both(void)
{
	CUdeviceptr other;

	CHECK(!CU(cuIpcOpenMemHandle_v2)(&other, there.handle, 1));
	CHECK(!CU(cuIpcCloseMemHandle)(other));
}

/* The second process is killed while the first has only a receive under way, which nothing would end. */
static void killed(int first)
{
	struct ibv_sge into = mine(1, 64);
	struct ibv_async_event event;

	if (!first) {
		hear(12);
		kill(getpid(), SIGKILL);
	}
	NEED(!request(IBV_WR_RDMA_WRITE, 1, 1, 64));
	CHECK(completion(cq).status == IBV_WC_SUCCESS);
	NEED(!receive(qp, 13, &into));
	say(12);
	struct ibv_wc wc = completion(cq);

	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 13);
	NEED(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp);
	ibv_ack_async_event(&event);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Microseconds per copy, one after the other. */
#define TIMED(rounds, copy)                                                        \
	({                                                                         \
		for (int i_ = 0; i_ < 3; i_++)                                     \
			copy;                                                      \
		double begin_ = now();                                             \
		for (int i_ = 0; i_ < (rounds); i_++)                              \
			copy;                                                      \
		(now() - begin_) / (rounds)*1e6;                                   \
	})

static void one(enum ibv_wr_opcode opcode, int from_gpu, int to_gpu, size_t length)
{
	NEED(!request(opcode, from_gpu, to_gpu, length));
	struct ibv_wc wc = completion(cq);

	if (wc.status)
		fprintf(stderr, "%zu bytes: %s\n", length, ibv_wc_status_str(wc.status));
	NEED(wc.status == IBV_WC_SUCCESS);
}

static void bench(int first)
{
	static const size_t measured[] = {64, 64 << 10, 1 << 20, 64 << 20};

	if (first) {
		CUdeviceptr other;
		CUstream stream;

		/* The engine of the second process is awake. */
		for (int i = 0; i < 50; i++)
			one(IBV_WR_RDMA_WRITE, 1, 1, 1 << 20);
		other = here.gpu;
		NEED(by_descriptor || !CU(cuIpcOpenMemHandle_v2)(&other, there.handle, 1));
		NEED(!CU(cuStreamCreate)(&stream, 1));
		for (unsigned i = 0; i < 4; i++) {
			size_t length = measured[i];
			int rounds = length > 1 << 20 ? 30 : 300;
			double write_us = TIMED(rounds, one(IBV_WR_RDMA_WRITE, 1, 1, length));
			double read_us = TIMED(rounds, one(IBV_WR_RDMA_READ, 1, 1, length));
			double to_host = TIMED(rounds, one(IBV_WR_RDMA_WRITE, 1, 0, length));
			double from_host = TIMED(rounds, one(IBV_WR_RDMA_WRITE, 0, 1, length));
			double host = TIMED(rounds, one(IBV_WR_RDMA_WRITE, 0, 0, length));
			double ipc = TIMED(rounds, ({
						   CU(cuMemcpyDtoDAsync_v2)(other, here.gpu, length, stream);
						   CU(cuStreamSynchronize)(stream);
					   }));
			double staged = TIMED(rounds, ({
						      CU(cuMemcpyDtoH_v2)(bytes, here.gpu, length);
						      CU(cuMemcpyHtoD_v2)(here.gpu, bytes, length);
					      }));

#define RATE(us) ((double)length / (us) / 1e3)
			printf("%8zu B: WRITE %.1f us %.2f GB/s | READ %.1f us %.2f | GPU to host %.1f us %.2f | host to GPU %.1f us "
			       "%.2f | host to host %.1f us %.2f | bare IPC %.1f us %.2f | cudaMemcpy through the host %.1f us %.2f\n",
			       length, write_us, RATE(write_us), read_us, RATE(read_us), to_host, RATE(to_host), from_host,
			       RATE(from_host), host, RATE(host), ipc, RATE(ipc), staged, RATE(staged));
			fflush(stdout);
		}
		say(8);
	} else {
		hear(8);
	}
}

int main(int argc, char **argv)
{
	int up[2], down[2];
	int measure = argc > 2 && !strcmp(argv[2], "bench");
	const char *link = getenv("UBIVERBS_LINK");

	int kills = argc > 2 && !strcmp(argv[2], "killed");

	by_descriptor = argc > 3 && !strcmp(argv[3], "created");
	if (measure)
		size = 64 << 20;
	if (kills)
		setenv("UBIVERBS_PEER_GONE", "fatal", 1);
	NEED(!pipe(up) && !pipe(down));
	/* Before there is a driver, as it does not outlive a fork. */
	pid_t child = fork();
	int first = child != 0;

	in = first ? up[0] : down[0];
	out = first ? down[1] : up[1];
	close(first ? up[1] : down[1]);
	close(first ? down[0] : up[0]);
	open_gpu(argc > 1 ? argv[1] : "libcuda.so.1");
	meet();
	if (kills) {
		int status = 0;

		killed(first);
		CHECK(!ibv_destroy_qp(qp) && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
		fprintf(stderr, "%s\n", failures ? "failed" : "done");
		return failures != 0;
	}
	if (measure)
		bench(first);
	else {
		int closed = argc > 2 && !strcmp(argv[2], "closed");
		int links_name = !closed && (!link || !strcmp(link, "shared"));
		void *fail = dlsym(driver, "stand_in_fail");

		if (!first && fail && closed)
			((void (*)(const char *, int, CUresult))fail)(
				by_descriptor ? "cuMemImportFromShareableHandle" : "cuIpcOpenMemHandle_v2", 0, 1);
		verify(first);
		if (links_name) {
			if (!by_descriptor)
				opened_by_both();
			turns(first);
		}
		faults(first, links_name);
	}
	say(10);
	hear(10);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(gpu_region) && !ibv_dereg_mr(host_region));
	release(here.gpu);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	if (first) {
		int status = -1;

		CHECK(waitpid(child, &status, 0) == child && status == 0);
		fprintf(stderr, "%s\n", failures ? "failed" : "done");
	}
	return failures != 0;
}
