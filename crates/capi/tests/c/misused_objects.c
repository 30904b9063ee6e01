/* Objects that a program misuses: it overwrites their handles, destroys them twice, and makes more than there may be. Each
 * time it hears of it, and nothing is freed that is not there. */
#include "bench.h"
#include <rdma/rdma_cma.h>
#include <unistd.h>

static char memory[4096];
static struct ibv_context *context;

static struct ibv_ah *new_ah(struct ibv_pd *pd)
{
	union ibv_gid gid;
	int index = gid_index(context, &gid);
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = index}};

	return ibv_create_ah(pd, &attr);
}

static struct ibv_srq *new_srq(struct ibv_pd *pd)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 1, .max_sge = 1}};

	return ibv_create_srq(pd, &init);
}

/* Does CALL while the object's handle is another, and once more when it is right again. */
#define WITH_ANOTHER_HANDLE(object, call)         \
	do {                                      \
		uint32_t right = (object)->handle; \
		(object)->handle = ~right;         \
		CHECK((call) == ENOENT);           \
		(object)->handle = right;          \
	} while (0)

static void overwritten_handles(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_srq *srq = new_srq(pd);
	struct ibv_ah *ah = new_ah(pd);
	struct ibv_alloc_dm_attr dm_attr = {.length = 64};
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	struct ibv_qp_attr attr = {0};
	struct ibv_srq_attr srq_attr = {.srq_limit = 1};

	NEED(pd && cq && mr && mw && qp && srq && ah && dm);
	WITH_ANOTHER_HANDLE(qp, to_init(qp));
	WITH_ANOTHER_HANDLE(qp, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	WITH_ANOTHER_HANDLE(qp, ibv_destroy_qp(qp));
	WITH_ANOTHER_HANDLE(srq, ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT));
	WITH_ANOTHER_HANDLE(srq, ibv_query_srq(srq, &srq_attr));
	WITH_ANOTHER_HANDLE(srq, ibv_destroy_srq(srq));
	WITH_ANOTHER_HANDLE(cq, ibv_resize_cq(cq, 16));
	WITH_ANOTHER_HANDLE(cq, ibv_destroy_cq(cq));
	WITH_ANOTHER_HANDLE(cq, ibv_create_qp(pd, &init) ? 0 : errno);
	WITH_ANOTHER_HANDLE(mr, ibv_dereg_mr(mr));
	WITH_ANOTHER_HANDLE(mw, ibv_dealloc_mw(mw));
	WITH_ANOTHER_HANDLE(ah, ibv_destroy_ah(ah));
	WITH_ANOTHER_HANDLE(dm, ibv_free_dm(dm));
	WITH_ANOTHER_HANDLE(pd, ibv_dealloc_pd(pd));
	WITH_ANOTHER_HANDLE(pd, ibv_reg_mr(pd, memory, 8, 0) ? 0 : errno);
	WITH_ANOTHER_HANDLE(pd, new_ah(pd) ? 0 : errno);
	WITH_ANOTHER_HANDLE(pd, new_srq(pd) ? 0 : errno);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_dealloc_mw(mw));
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_ah(ah) && !ibv_free_dm(dm) && !ibv_dealloc_pd(pd));
}

/* Those that are destroyed by a function of the library; for others the header looks at the object first. */
static void destroyed_twice(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_srq *srq = new_srq(pd);
	struct ibv_ah *ah = new_ah(pd);
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct sockaddr_in anywhere = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_cm_id *id;
	struct ibv_context *other = ibv_import_device(dup(context->cmd_fd));

	NEED(pd && channel && cq && mr && qp && srq && ah && other && events);
	NEED(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	/* An object of another kind is none of this one. */
	CHECK(ibv_destroy_cq((struct ibv_cq *)qp) == ENOENT);
	CHECK(!ibv_destroy_qp(qp) && ibv_destroy_qp(qp) == ENOENT);
	CHECK(!ibv_destroy_srq(srq) && ibv_destroy_srq(srq) == ENOENT);
	CHECK(!ibv_destroy_cq(cq) && ibv_destroy_cq(cq) == ENOENT);
	CHECK(!ibv_destroy_comp_channel(channel) && ibv_destroy_comp_channel(channel) == ENOENT);
	CHECK(!ibv_dereg_mr(mr) && ibv_dereg_mr(mr) == ENOENT);
	CHECK(!ibv_destroy_ah(ah) && ibv_destroy_ah(ah) == ENOENT);
	CHECK(!ibv_dealloc_pd(pd) && ibv_dealloc_pd(pd) == ENOENT);
	CHECK(!rdma_destroy_id(id) && rdma_destroy_id(id) == -1 && errno == ENOENT);
	/* perftest 4.5-0.17 tries again with an id from memory that it has freed. */
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&anywhere, 1000) == -1 && errno == ENOENT);
	id = (struct rdma_cm_id *)0x5a5a5a5a5a5a5a50;
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&anywhere, 1000) == -1 && errno == ENOENT);
	CHECK(!ibv_close_device(other) && ibv_close_device(other) == ENOENT);
	rdma_destroy_event_channel(events);
}

static void too_many(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_device_attr device;

	NEED(pd && !ibv_query_device(context, &device));
	struct ibv_ah **ahs = calloc(device.max_ah, sizeof *ahs);
	struct ibv_srq **srqs = calloc(device.max_srq, sizeof *srqs);
	int count = 0;

	NEED(ahs && srqs);
	while (count < device.max_ah && (ahs[count] = new_ah(pd)))
		count++;
	CHECK(count == device.max_ah);
	errno = 0;
	CHECK(!new_ah(pd) && errno == ENOMEM);
	CHECK(!ibv_destroy_ah(ahs[0]) && (ahs[0] = new_ah(pd)));
	while (count)
		CHECK(!ibv_destroy_ah(ahs[--count]));
	while (count < device.max_srq && (srqs[count] = new_srq(pd)))
		count++;
	CHECK(count == device.max_srq);
	errno = 0;
	CHECK(!new_srq(pd) && errno == ENOMEM);
	CHECK(!ibv_destroy_srq(srqs[0]) && (srqs[0] = new_srq(pd)));
	while (count)
		CHECK(!ibv_destroy_srq(srqs[--count]));
	free(ahs), free(srqs);
	CHECK(!ibv_dealloc_pd(pd));
}

int main(void)
{
	context = open_lo();
	NEED(context);
	overwritten_handles();
	destroyed_twice();
	too_many();
	CHECK(!ibv_close_device(context));
	printf("%d failures\n", failures);
	return failures != 0;
}
