/* Threads with little stack. A call that needs more is refused; it never ends the process. With what the documents ask
 * for, everything works. */
#include "bench.h"
#include <limits.h>
#include <pthread.h>

static struct ibv_qp *pair[2];
static struct ibv_cq *cq;
static char memory[64];
static struct ibv_sge sge;

static int refused(int error)
{
	return error == ENOMEM || error == -1;
}

/* Whether the work was done, or all of it was refused. */
static void *data_path(void *done)
{
	struct ibv_wc wc;

	*(int *)done = 0;
	for (int i = 0; i < 100; i++) {
		int error = receive(pair[1], 1, &sge);
		if (error) {
			CHECK(refused(error) && refused(post(pair[0], 2, IBV_WR_SEND, &sge, 0, 0)));
			CHECK(ibv_poll_cq(cq, 1, &wc) <= 0);
			return NULL;
		}
		CHECK(post(pair[0], 2, IBV_WR_SEND, &sge, 0, 0) == 0);
		CHECK(completion(cq).status == IBV_WC_SUCCESS && completion(cq).status == IBV_WC_SUCCESS);
	}
	*(int *)done = 1;
	return NULL;
}

static void *opening(void *done)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;

	*(int *)done = context != NULL;
	CHECK(context || errno == ENOMEM);
	if (context)
		CHECK(ibv_close_device(context) == 0);
	if (list)
		ibv_free_device_list(list);
	return NULL;
}

static int with_stack(size_t size, void *(*work)(void *))
{
	pthread_attr_t attributes;
	pthread_t thread;
	int done = -1;

	NEED(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, size) == 0);
	NEED(pthread_create(&thread, &attributes, work, &done) == 0);
	NEED(pthread_join(thread, NULL) == 0);
	return done;
}

int main(void)
{
	struct ibv_context *context;
	size_t least = PTHREAD_STACK_MIN;

	/* The first that opens a device does the most. */
	with_stack(least, opening);
	with_stack(32 << 10, opening);
	CHECK(with_stack(256 << 10, opening) == 1);
	context = open_lo();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	NEED(pd && mr && cq);
	sge = (struct ibv_sge){(uintptr_t)memory, sizeof memory, mr->lkey};
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
		pair[i] = ibv_create_qp(pd, &init);
		NEED(pair[i] && to_init(pair[i]) == 0);
	}
	NEED(connect_to(pair[0], pair[1]->qp_num) == 0 && connect_to(pair[1], pair[0]->qp_num) == 0);
	for (size_t size = least; size < (64 << 10); size += 4096)
		with_stack(size, data_path);
	CHECK(with_stack(64 << 10, data_path) == 1);
	return failures != 0;
}
