/* Threads that make, use and destroy everything at the same time, in contexts of their own and in a common one. */
#include "bench.h"
#include <pthread.h>

#define THREADS 6
#define ROUNDS 150
#define MESSAGES 40

static struct ibv_context *common;

static void round_of(struct ibv_context *context, unsigned seed)
{
	char *memory = calloc(1, 8192);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 2 * MESSAGES, NULL, channel, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	struct ibv_sge from = {(uintptr_t)memory, 64, mr->lkey}, to = {(uintptr_t)memory + 4096, 64, mr->lkey};

	NEED(memory && pd && channel && cq && mr && a && b);
	CHECK(!to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	for (unsigned i = 0; i < MESSAGES; i++) {
		memset(memory, (int)(seed + i), 64);
		CHECK(!ibv_req_notify_cq(cq, 0));
		CHECK(!receive(b, i, &to) && !post(a, i, IBV_WR_SEND, &from, 0, 0));
		struct ibv_cq *found;
		void *found_context;

		if (i % 8 == 0) {
			CHECK(!ibv_get_cq_event(channel, &found, &found_context) && found == cq);
			ibv_ack_cq_events(cq, 1);
		}
		CHECK(completion(cq).status == IBV_WC_SUCCESS && completion(cq).status == IBV_WC_SUCCESS);
		CHECK(memory[4096] == (char)(seed + i) && memory[4096 + 63] == (char)(seed + i));
	}
	/* One end goes with work under way. */
	if (seed % 2) {
		post(a, 1, IBV_WR_RDMA_WRITE, &from, (uintptr_t)memory + 4096, mr->rkey);
		receive(b, 1, &to);
	}
	CHECK(!ibv_destroy_qp(seed % 3 ? a : b));
	CHECK(!ibv_destroy_qp(seed % 3 ? b : a));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	free(memory);
}

static void *thread(void *number)
{
	unsigned seed = (unsigned)(uintptr_t)number * 1000;

	for (unsigned round = 0; round < ROUNDS && !failures; round++) {
		struct ibv_context *context = round % 2 ? common : open_lo();

		NEED(context);
		round_of(context, seed + round);
		if (context != common)
			CHECK(!ibv_close_device(context));
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];

	common = open_lo();
	NEED(common);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, thread, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(!ibv_close_device(common));
	printf("%d failures\n", failures);
	return failures != 0;
}
