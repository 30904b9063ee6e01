/* Threads that are cancelled while they wait for an event end, and the process goes on: the channel can be used by others, no lock of the library
 * stays taken, no event is lost, and cleanup handlers run and may call the library. */
#include "bench.h"
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#define ROUNDS 1000

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct rdma_event_channel *cm;
static struct ibv_qp *a, *b;
static sem_t began;
static atomic_int cleaned, in_vain;

static void wait_for_completion(void)
{
	struct ibv_cq *found;
	void *found_context;

	CHECK(!ibv_get_cq_event(channel, &found, &found_context) && found == cq);
	ibv_ack_cq_events(found, 1);
}

static void wait_for_asynchronous(void)
{
	struct ibv_async_event event;

	CHECK(!ibv_get_async_event(context, &event));
	ibv_ack_async_event(&event);
}

static void wait_for_connection(void)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(cm, &event));
	rdma_ack_cm_event(event);
}

static void (*const waits[])(void) = {wait_for_completion, wait_for_asynchronous, wait_for_connection};

/* Runs in the thread that ends. What it calls takes the locks that the call took that it ended in. */
static void clean_up(void *unused)
{
	struct ibv_wc wc;
	struct ibv_cq *own = ibv_create_cq(context, 1, NULL, channel, 0);

	(void)unused;
	CHECK(own && !ibv_destroy_cq(own));
	CHECK(ibv_poll_cq(cq, 1, &wc) >= 0);
	cleaned++;
}

static void *waits_for_ever(void *wait)
{
	pthread_cleanup_push(clean_up, NULL);
	sem_post(&began);
	for (;;)
		((void (*)(void))wait)();
	pthread_cleanup_pop(0);
	return NULL;
}

static void *waits_with_cancellation_disabled(void *wait)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	sem_post(&began);
	((void (*)(void))wait)();
	/* As it was. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	CHECK(before == PTHREAD_CANCEL_DISABLE);
	in_vain++;
	return NULL;
}

/* One message; its completions are polled. */
static void message(void)
{
	CHECK(!receive(b, 1, NULL) && !post(a, 2, IBV_WR_SEND, NULL, 0, 0));
	completion(cq), completion(cq);
}

static void cause_completion(void)
{
	CHECK(!ibv_req_notify_cq(cq, 0));
	message();
}

static void cause_asynchronous(void)
{
	struct ibv_cq *small = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = plain_init(small, IBV_QPT_RC);
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};

	/* The last receive of a queue pair in error that has a shared queue. */
	init.srq = srq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	NEED(small && srq && qp);
	CHECK(!to_init(qp) && !ibv_modify_qp(qp, &error, IBV_QP_STATE));
	/* The event is taken by another thread; until it is acknowledged this waits. */
	while (!in_vain)
		usleep(1000);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(small));
}

static void cause_connection(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(cm, &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
	while (!in_vain)
		usleep(1000);
	CHECK(!rdma_destroy_id(id));
}

static void (*const causes[])(void) = {cause_completion, cause_asynchronous, cause_connection};

static void begin(pthread_t *thread, void *(*run)(void *), void (*wait)(void))
{
	NEED(!pthread_create(thread, NULL, run, (void *)wait));
	sem_wait(&began);
}

static void cancel(pthread_t thread)
{
	void *result = NULL;

	CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
}

/* Before the call, in it, and after it has begun to sleep: the delay is of all lengths. */
static void cancelled_again_and_again(void (*wait)(void))
{
	pthread_t thread;

	for (int round = 0; round < ROUNDS; round++) {
		begin(&thread, waits_for_ever, wait);
		usleep(round % 10 * 20);
		cancel(thread);
		CHECK(cleaned == round + 1);
		if (failures)
			return;
	}
	cleaned = 0;
}

/* Of several threads one drives for the others; whichever goes, the others get their events. */
static void the_others_go_on(void)
{
	enum { THREADS = 4 };
	pthread_t threads[THREADS];

	for (int round = 0; round < 50 && !failures; round++) {
		for (int i = 0; i < THREADS; i++)
			begin(&threads[i], waits_for_ever, wait_for_completion);
		for (int i = 0; i < THREADS; i++) {
			cause_completion();
			cancel(threads[(round + i) % THREADS]);
		}
	}
	cleaned = 0;
}

/* A thread may also be cancelled while it makes other calls: it does not end there. */
static void *works_for_ever(void *unused)
{
	sem_post(&began);
	for (;;) {
		message();
		struct ibv_cq *own = ibv_create_cq(context, 1, NULL, NULL, 0);

		CHECK(own && !ibv_destroy_cq(own));
		pthread_testcancel();
	}
	return unused;
}

int main(void)
{
	pthread_t thread;

	sem_init(&began, 0, 0);
	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cm = rdma_create_event_channel();
	cq = ibv_create_cq(context, 16, NULL, channel, 0);
	NEED(pd && channel && cm && cq);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);

	a = ibv_create_qp(pd, &init), b = ibv_create_qp(pd, &init);
	NEED(a && b && !to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	message();
	/* That the connection stands, for one. */
	struct ibv_async_event event;

	fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
	while (!ibv_get_async_event(context, &event))
		ibv_ack_async_event(&event);
	fcntl(context->async_fd, F_SETFL, 0);

	for (int i = 0; i < 3; i++) {
		cancelled_again_and_again(waits[i]);
		NEED(!failures);
		/* Another thread can use it; one that does not want to be cancelled is not. */
		in_vain = 0;
		begin(&thread, waits_with_cancellation_disabled, waits[i]);
		CHECK(!pthread_cancel(thread));
		causes[i]();
		CHECK(!pthread_join(thread, NULL) && in_vain == 1);
	}
	the_others_go_on();
	for (int round = 0; round < 100; round++) {
		begin(&thread, works_for_ever, NULL);
		usleep(round % 10 * 50);
		cancel(thread);
	}
	message();
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	rdma_destroy_event_channel(cm);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	printf("%d failures\n", failures);
	return failures != 0;
}
