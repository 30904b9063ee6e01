/* What releases after 44 added, well used and badly: DMA handles, regions by attributes, buffers, device memory by a
 * descriptor, options of queue pairs, completion counters. */
#define _GNU_SOURCE
#include "bench.h"
#include "newer.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[1 << 16] __attribute__((aligned(4096)));

/* A call that answers null with that errno. */
#define NONE(call, error)                                  \
	do {                                               \
		errno = 0;                                 \
		CHECK(!(call) && errno == (error));        \
	} while (0)

static void queries(void)
{
	struct ibv_device_attr_ex attr;
	struct ibv_port_attr port;
	uint64_t speed = 0;

	CHECK(!port_speed(context, 1, &speed) && !ibv_query_port(context, 1, &port));
	/* Both say the same: lanes of 25 Gbit/s, in units of 100 Mbit/s. */
	CHECK(port.active_width == 2 && port.active_speed == 32 && speed == 1000);
	CHECK(port_speed(context, 2, &speed) == EINVAL && port_speed(context, 0, &speed) == EINVAL);
	CHECK(port_speed(context, 257, &speed) == EINVAL);
	CHECK(port_speed(context, 1, NULL) == EINVAL && port_speed(NULL, 1, &speed) == EINVAL);
	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	CHECK((attr.odp_caps.per_transport_caps.rc_odp_caps & 0xff) == 0xff && (attr.xrc_odp_caps & 0xc0) == 0xc0);
	CHECK(!(attr.odp_caps.per_transport_caps.ud_odp_caps & 0xc0));
	CHECK(!strcmp(ibv_event_type_str(20), "Device link speed change"));
}

static void dma_handles(void)
{
	struct newer_dma_handle_attr attr = {0};
	struct newer_dma_handle *handle, *other;
	struct ibv_context *elsewhere = open_lo();
	cpu_set_t set;

	NEED(elsewhere && !sched_getaffinity(0, sizeof set, &set));
	while (!CPU_ISSET(attr.cpu_id, &set))
		attr.cpu_id++;
	attr.comp_mask = HANDLE_CPU | HANDLE_PH | HANDLE_MEM_TYPE;
	attr.ph = 3;
	attr.mem_type = 1;
	handle = alloc_handle(context, &attr);
	NEED(handle);
	attr.ph = 4;
	NONE(alloc_handle(context, &attr), EINVAL);
	/* What is not named does not count. */
	attr.comp_mask = HANDLE_CPU | HANDLE_MEM_TYPE;
	other = alloc_handle(context, &attr);
	CHECK(other && !dealloc_handle(other));
	attr.mem_type = 2;
	NONE(alloc_handle(context, &attr), EINVAL);
	attr.comp_mask = HANDLE_CPU;
	attr.cpu_id = 0xffff;
	NONE(alloc_handle(context, &attr), EPERM);
	attr.cpu_id = 0xffffffff;
	NONE(alloc_handle(context, &attr), EPERM);
	attr.comp_mask = 8;
	NONE(alloc_handle(context, &attr), EINVAL);
	NONE(alloc_handle(context, NULL), EINVAL);
	NONE(alloc_handle(NULL, &attr), EINVAL);

	struct newer_mr_attr region = {.length = 4096, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = MR_ADDR | MR_HANDLE,
				       .addr = memory, .handle = handle};
	struct ibv_mr *mr = reg_by_attr(pd, &region);

	CHECK(mr && dealloc_handle(handle) == EBUSY);
	CHECK(!ibv_dereg_mr(mr));
	region.access |= IBV_ACCESS_ON_DEMAND;
	NONE(reg_by_attr(pd, &region), EINVAL);
	region.access = IBV_ACCESS_LOCAL_WRITE;
	region.handle = NULL;
	NONE(reg_by_attr(pd, &region), EINVAL);
	attr.comp_mask = 0;
	region.handle = alloc_handle(elsewhere, &attr);
	NEED(region.handle);
	NONE(reg_by_attr(pd, &region), EINVAL);
	CHECK(!dealloc_handle(region.handle));
	CHECK(!dealloc_handle(handle) && dealloc_handle(handle) == ENOENT && dealloc_handle(NULL) == EINVAL);
	CHECK(!ibv_close_device(elsewhere));
}

static void regions_by_attributes(void)
{
	struct newer_mr_attr attr = {.length = 4096, .access = REMOTE, .comp_mask = MR_ADDR, .addr = memory};
	struct ibv_mr *mr = reg_by_attr(pd, &attr);

	CHECK(mr && mr->addr == memory && mr->length == 4096 && mr->pd == pd && mr->lkey && mr->context == context);
	CHECK(!ibv_dereg_mr(mr));
	attr.comp_mask |= MR_IOVA;
	attr.iova = 0x10000;
	mr = reg_by_attr(pd, &attr);
	CHECK(mr && mr->addr == memory && !ibv_dereg_mr(mr));
	/* All memory, on demand. */
	attr = (struct newer_mr_attr){.length = SIZE_MAX, .access = REMOTE | IBV_ACCESS_ON_DEMAND, .comp_mask = MR_ADDR};
	mr = reg_by_attr(pd, &attr);
	CHECK(mr && !ibv_dereg_mr(mr));
	attr.addr = memory;
	NONE(reg_by_attr(pd, &attr), EINVAL);
	/* Neither an address nor a descriptor, both, a descriptor without its offset, an offset without its descriptor. */
	static const uint64_t wrong[] = {0, MR_IOVA, MR_FD | MR_FD_OFFSET | MR_ADDR | MR_IOVA, MR_FD | MR_IOVA,
					 MR_FD | MR_FD_OFFSET, MR_ADDR | MR_FD_OFFSET, MR_ADDR | 64, 1ull << 63 | MR_ADDR};

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		attr = (struct newer_mr_attr){.length = 4096, .access = IBV_ACCESS_LOCAL_WRITE, .addr = memory};
		attr.comp_mask = wrong[i];
		NONE(reg_by_attr(pd, &attr), EINVAL);
	}
	attr.comp_mask = MR_ADDR;
	attr.access = IBV_ACCESS_REMOTE_WRITE;
	NONE(reg_by_attr(pd, &attr), EINVAL);
	attr.access = IBV_ACCESS_LOCAL_WRITE;
	attr.addr = NULL;
	NONE(reg_by_attr(pd, &attr), EFAULT);
	NONE(reg_by_attr(pd, NULL), EINVAL);
	NONE(reg_by_attr(NULL, &attr), EINVAL);
}

static void buffers(void)
{
	struct ibv_parent_domain_init_attr parent = {.pd = pd, .comp_mask = 4};
	struct ibv_pd *own = ibv_alloc_pd(context), *shared = ibv_alloc_parent_domain(context, &parent);
	struct newer_buffer *buffer = NULL;
	char *bytes = alloc_buffer(own, 10000, &buffer);
	struct ibv_mr *mr;

	NEED(own && shared && bytes && buffer);
	for (int i = 0; i < 10000; i++)
		CHECK(!bytes[i]);
	mr = reg_buffer(own, buffer, bytes + 4096, 5904, REMOTE);
	CHECK(mr && mr->addr == bytes + 4096 && mr->length == 5904);
	NONE(reg_buffer(own, buffer, bytes + 4096, 5905, REMOTE), EINVAL);
	NONE(reg_buffer(own, buffer, bytes - 1, 2, REMOTE), EINVAL);
	NONE(reg_buffer(own, buffer, bytes + 10001, 0, REMOTE), EINVAL);
	NONE(reg_buffer(own, buffer, bytes, SIZE_MAX, REMOTE), EINVAL);
	NONE(reg_buffer(pd, buffer, bytes, 4096, REMOTE), EINVAL);
	NONE(reg_buffer(shared, buffer, bytes, 4096, REMOTE), EINVAL);
	NONE(reg_buffer(own, NULL, bytes, 4096, REMOTE), EINVAL);
	NONE(reg_buffer(NULL, buffer, bytes, 4096, REMOTE), EINVAL);

	struct newer_mr_attr attr = {.length = 10, .access = REMOTE, .comp_mask = MR_BUFFER | MR_ADDR, .addr = bytes,
				     .buffer = buffer};
	struct ibv_mr *other = reg_by_attr(own, &attr);

	CHECK(other && !ibv_dereg_mr(other));
	attr.comp_mask = MR_BUFFER;
	NONE(reg_by_attr(own, &attr), EINVAL);
	attr.comp_mask = MR_BUFFER | MR_ADDR | MR_FD_OFFSET;
	NONE(reg_by_attr(own, &attr), EINVAL);
	errno = 0;
	CHECK(export_buffer(buffer) == -1 && errno == ENODATA);
	CHECK(export_buffer(NULL) == -1 && errno == EINVAL);
	/* The domain stays for its buffer, and memory that is registered for its region. */
	free_buffer(NULL);
	free_buffer(buffer);
	free_buffer(buffer);
	bytes[5000] = 1;
	CHECK(ibv_dealloc_pd(own) == EBUSY && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(own));
	bytes = alloc_buffer(shared, 1, &buffer);
	CHECK(bytes && ibv_dealloc_pd(shared) == EBUSY);
	free_buffer(buffer);
	CHECK(!ibv_dealloc_pd(shared));
	parent.comp_mask = 8;
	NONE(ibv_alloc_parent_domain(context, &parent), EINVAL);
	NONE(alloc_buffer(pd, 0, &buffer), EINVAL);
	NONE(alloc_buffer(pd, SIZE_MAX, &buffer), ENOMEM);
	NONE(alloc_buffer(pd, 1, NULL), EINVAL);
	NONE(alloc_buffer(NULL, 1, &buffer), EINVAL);
}

/* Device memory by a descriptor: the same bytes, also when the device memory is gone. */
static void descriptors(void)
{
	struct ibv_alloc_dm_attr dm_attr = {.length = 8192, .log_align_req = 14};
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	int fd = export_dm(dm), loose = memfd_create("loose", 0), zero = open("/dev/zero", O_RDWR);
	uint32_t word = 0x12345678, back = 0;

	NEED(dm && fd > 2 && loose > 2 && zero > 2);
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK(!ibv_memcpy_to_dm(dm, 4096, &word, 4));
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 4096, 4096, 0, fd, REMOTE);

	CHECK(mr && mr->addr == (void *)4096 && mr->length == 4096);
	/* Addresses count from the iova, and a program cannot move it to other memory. */
	struct ibv_sge sge = {.addr = 0, .length = 4, .lkey = mr->lkey};

	CHECK(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
	sge.addr = 4093;
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == ENOENT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 4096, 0) && errno == EOPNOTSUPP);
	char *view = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	CHECK(view != MAP_FAILED && !memcmp(view + 4096, &word, 4));
	memset(view, 7, 4);
	CHECK(!ibv_memcpy_from_dm(&back, dm, 0, 4) && back == 0x07070707);
	/* Nobody can take the memory from under the region. */
	CHECK(ftruncate(fd, 0) == -1);
	CHECK(!ibv_free_dm(dm) && !memcmp(view + 4096, &word, 4));
	CHECK(!ibv_dereg_mr(mr));

	struct newer_mr_attr attr = {.length = 100, .access = REMOTE, .comp_mask = MR_FD | MR_FD_OFFSET | MR_IOVA, .fd = fd,
				     .fd_offset = 8092, .iova = 4096 + 3996};

	mr = reg_by_attr(pd, &attr);
	CHECK(mr && !ibv_dereg_mr(mr));
	attr.length = 101;
	NONE(reg_by_attr(pd, &attr), EINVAL);
	attr.length = 100;
	attr.iova = 1;
	NONE(reg_by_attr(pd, &attr), EINVAL);
	NONE(ibv_reg_dmabuf_mr(pd, 0, 8193, 0, fd, REMOTE), EINVAL);
	NONE(ibv_reg_dmabuf_mr(pd, 0, 0, 0, fd, REMOTE), EINVAL);
	NONE(ibv_reg_dmabuf_mr(pd, UINT64_MAX & ~4095ull, 4096, 0, fd, REMOTE), EINVAL);
	NONE(ibv_reg_dmabuf_mr(pd, 0, SIZE_MAX, 0, fd, REMOTE), EINVAL);
	NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fd, REMOTE | IBV_ACCESS_ON_DEMAND), EINVAL);
	NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fd, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, REMOTE), EBADF);
	NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 12345, REMOTE), EBADF);
	NONE(ibv_reg_dmabuf_mr(NULL, 0, 4096, 0, fd, REMOTE), EINVAL);
	/* Memory that another process could make shorter, and no memory. */
	CHECK(!ftruncate(loose, 8192));
	NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, loose, REMOTE), EINVAL);
	NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, zero, REMOTE), EINVAL);
	munmap(view, 8192);
	CHECK(!close(fd) && !close(loose) && !close(zero));
	errno = 0;
	CHECK(export_dm(NULL) == -1 && errno == EINVAL);
}

static struct ibv_qp *new_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = plain_init(cq, type);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	NEED(qp);
	return qp;
}

/* FLUSH is bit 0, ATOMIC WRITE bit 1. */
static void options(void)
{
	struct ibv_qp *rc = new_qp(IBV_QPT_RC), *ud = new_qp(IBV_QPT_UD);
	struct ibv_ece ece, mine;

	memset(&mine, 0xff, sizeof mine);
	CHECK(!ibv_query_ece(rc, &mine) && mine.vendor_id && mine.options == 3 && !mine.comp_mask);
	CHECK(!ibv_query_ece(ud, &ece) && ece.vendor_id == mine.vendor_id && !ece.options);
	/* Of what a peer offers it takes what it knows, and says so. */
	ece = (struct ibv_ece){.vendor_id = mine.vendor_id, .options = 0xfffffffd};
	CHECK(!ibv_set_ece(rc, &ece) && ece.options == 1);
	CHECK(!ibv_query_ece(rc, &ece) && ece.options == 1);
	ece = (struct ibv_ece){.vendor_id = mine.vendor_id, .options = 3, .comp_mask = 1};
	CHECK(ibv_set_ece(rc, &ece) == EINVAL);
	ece = (struct ibv_ece){.vendor_id = 0x15b3, .options = 3};
	CHECK(ibv_set_ece(rc, &ece) == EINVAL);
	ece.vendor_id = 0;
	CHECK(ibv_set_ece(rc, &ece) == EOPNOTSUPP);
	CHECK(!ibv_query_ece(rc, &ece) && ece.options == 1);
	CHECK(ibv_set_ece(rc, NULL) == EINVAL && ibv_query_ece(rc, NULL) == EINVAL);
	CHECK(ibv_set_ece(NULL, &ece) == EINVAL && ibv_query_ece(NULL, &ece) == EINVAL);
	CHECK(!ibv_destroy_qp(rc) && !ibv_destroy_qp(ud));
}

static struct newer_counter *new_counter(uint32_t type)
{
	struct newer_counter_attr attr = {.type = type};
	struct newer_counter *counter = create_counter(context, &attr);

	NEED(counter && counter->context == context);
	return counter;
}

static uint64_t count(struct newer_counter *counter)
{
	uint64_t value = ~0ull;

	CHECK(!read_counter(counter, &value));
	return value;
}

static uint64_t errors(struct newer_counter *counter)
{
	uint64_t value = ~0ull;

	CHECK(!read_errors(counter, &value));
	return value;
}

/* Waits until a counter says so much. */
static void reaches(struct newer_counter *counter, uint64_t value)
{
	time_t end = time(NULL) + 60;
	struct ibv_wc wc;

	while (count(counter) != value && time(NULL) < end)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
	CHECK(count(counter) == value);
}

static void counters(void)
{
	struct newer_counter_caps caps;
	struct newer_counter_attr attr = {0};
	struct newer_counter *sends = new_counter(0), *writes = new_counter(1);
	struct newer_counter *receives = new_counter(0), *remote = new_counter(1);
	struct ibv_qp *one = new_qp(IBV_QPT_RC), *other = new_qp(IBV_QPT_RC);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE);
	struct newer_attach_attr attach;
	struct ibv_send_wr *bad;

	memset(&caps, 0xff, sizeof caps);
	CHECK(!counter_caps(context, &caps, sizeof caps) && caps.max_value == UINT64_MAX && caps.operations == 63);
	CHECK(caps.max_counters > 1000);
	CHECK(!counter_caps(context, &caps, 8));
	CHECK(counter_caps(context, NULL, 8) == EINVAL && counter_caps(NULL, &caps, 8) == EINVAL);
	/* By hand. */
	CHECK(!count(sends) && !errors(sends) && !set_counter(sends, 5) && !add_counter(sends, 7) && count(sends) == 12);
	CHECK(!set_errors(sends, 2) && !add_errors(sends, UINT64_MAX) && errors(sends) == 1);
	CHECK(!set_counter(sends, 0) && !set_errors(sends, 0));
	/* Badly. */
	attr.type = 2;
	NONE(create_counter(context, &attr), EINVAL);
	attr = (struct newer_counter_attr){.flags = 1};
	NONE(create_counter(context, &attr), EINVAL);
	attr = (struct newer_counter_attr){.comp_mask = 1};
	NONE(create_counter(context, &attr), EINVAL);
	NONE(create_counter(context, NULL), EINVAL);
	NONE(create_counter(NULL, &attr), EINVAL);
	CHECK(read_counter(sends, NULL) == EINVAL && read_counter(NULL, &caps.max_value) == EINVAL);
	CHECK(set_counter(NULL, 1) == EINVAL && add_errors(NULL, 1) == EINVAL && destroy_counter(NULL) == EINVAL);
	attach = (struct newer_attach_attr){.operations = 0};
	CHECK(attach_counter(one, sends, &attach) == EINVAL);
	attach.operations = 64 | COUNT_SEND;
	CHECK(attach_counter(one, sends, &attach) == ENOTSUP);
	attach = (struct newer_attach_attr){.operations = COUNT_SEND, .comp_mask = 1};
	CHECK(attach_counter(one, sends, &attach) == EINVAL);
	attach = (struct newer_attach_attr){.operations = COUNT_SEND};
	CHECK(attach_counter(one, sends, NULL) == EINVAL && attach_counter(one, NULL, &attach) == EINVAL);
	CHECK(attach_counter(NULL, sends, &attach) == EINVAL);
	/* Well: each kind of work of a queue pair has one counter at most. */
	attach.operations = COUNT_SEND | COUNT_READ;
	CHECK(!attach_counter(one, sends, &attach));
	attach.operations = COUNT_READ | COUNT_WRITE;
	CHECK(attach_counter(one, writes, &attach) == EBUSY);
	attach.operations = COUNT_WRITE;
	CHECK(!to_init(one) && !to_init(other) && !attach_counter(one, writes, &attach));
	attach.operations = COUNT_RECV;
	CHECK(!attach_counter(other, receives, &attach));
	attach.operations = COUNT_REMOTE_READ | COUNT_REMOTE_WRITE;
	CHECK(!attach_counter(other, remote, &attach));
	CHECK(!connect_to(one, other->qp_num) && !connect_to(other, one->qp_num));
	attach.operations = COUNT_RECV;
	CHECK(attach_counter(one, receives, &attach) == EINVAL);
	CHECK(destroy_counter(sends) == EBUSY);

	/* Work that leaves no completion: ten SENDs, three WRITEs of 1000 bytes, two READs of 100. */
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey};
	struct ibv_sge target = {.addr = (uintptr_t)memory + 32768, .length = 64, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};

	for (int i = 0; i < 10; i++)
		CHECK(!receive(other, 100 + i, &target) && !ibv_post_send(one, &wr, &bad));
	for (int i = 0; i < 10; i++) {
		struct ibv_wc wc = completion(cq);

		CHECK(wc.opcode == IBV_WC_RECV && wc.status == IBV_WC_SUCCESS);
	}
	reaches(sends, 10);
	CHECK(count(receives) == 10);
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 32768;
	wr.wr.rdma.rkey = mr->rkey;
	wr.opcode = IBV_WR_RDMA_WRITE;
	sge.length = 1000;
	for (int i = 0; i < 3; i++)
		CHECK(!ibv_post_send(one, &wr, &bad));
	reaches(writes, 3000);
	reaches(remote, 3000);
	wr.opcode = IBV_WR_RDMA_READ;
	sge.length = 100;
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_post_send(one, &wr, &bad));
	reaches(sends, 12);
	reaches(remote, 3200);
	CHECK(!errors(sends) && !errors(writes) && !errors(receives) && !errors(remote));
	/* And work that fails: a WRITE to where it may not, and what is flushed after it. */
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.rkey ^= 0x100;
	CHECK(!ibv_post_send(one, &wr, &bad));
	CHECK(completion(cq).status == IBV_WC_REM_ACCESS_ERR);
	wr.opcode = IBV_WR_SEND;
	CHECK(!ibv_post_send(one, &wr, &bad) && completion(cq).status == IBV_WC_WR_FLUSH_ERR);
	CHECK(errors(writes) == 1 && errors(sends) == 1 && count(writes) == 3000 && count(sends) == 12);
	/* A counter goes after its queue pairs. */
	CHECK(!ibv_destroy_qp(one) && destroy_counter(receives) == EBUSY && !ibv_destroy_qp(other));
	CHECK(!destroy_counter(sends) && destroy_counter(sends) == ENOENT && !destroy_counter(writes));
	CHECK(!destroy_counter(receives) && !destroy_counter(remote) && !ibv_dereg_mr(mr));
}

int main(void)
{
	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	NEED(pd && cq);
	queries();
	dma_handles();
	regions_by_attributes();
	buffers();
	descriptors();
	options();
	counters();
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return failures != 0;
}
