/* Forks under traffic: four threads use, make and destroy everything, and the main thread forks. Children use what they
 * inherit, destroy it, become another program, end in good order, or open a device of their own. None may hang, whatever
 * locks the threads held that a child does not have. The argument is how many are forked. */
#include "bench.h"
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
/* Seconds after which a child hangs. */
#define PATIENCE 30

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *a, *b;
	char memory[4096];
};

static struct side traffic[THREADS];
static struct rdma_event_channel *events;
static struct rdma_cm_id *id;
static volatile int stop;

static void make(struct side *side, struct ibv_context *context)
{
	side->context = context;
	side->pd = ibv_alloc_pd(context);
	side->channel = ibv_create_comp_channel(context);
	side->cq = ibv_create_cq(context, 16, NULL, side->channel, 0);
	side->mr = ibv_reg_mr(side->pd, side->memory, sizeof side->memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	NEED(side->pd && side->channel && side->cq && side->mr);
	struct ibv_qp_init_attr init = plain_init(side->cq, IBV_QPT_RC);

	side->a = ibv_create_qp(side->pd, &init);
	side->b = ibv_create_qp(side->pd, &init);
	NEED(side->a && side->b && !to_init(side->a) && !to_init(side->b));
	NEED(!connect_to(side->a, side->b->qp_num) && !connect_to(side->b, side->a->qp_num));
}

static void exchange(struct side *side)
{
	struct ibv_sge from = {(uintptr_t)side->memory, 64, side->mr->lkey}, to = {(uintptr_t)side->memory + 64, 64, side->mr->lkey};

	CHECK(!receive(side->b, 1, &to) && !post(side->a, 2, IBV_WR_SEND, &from, 0, 0));
	CHECK(completion(side->cq).status == IBV_WC_SUCCESS && completion(side->cq).status == IBV_WC_SUCCESS);
}

static void unmake(struct side *side)
{
	CHECK(!ibv_destroy_qp(side->a) && !ibv_destroy_qp(side->b) && !ibv_destroy_cq(side->cq));
	CHECK(!ibv_destroy_comp_channel(side->channel) && !ibv_dereg_mr(side->mr) && !ibv_dealloc_pd(side->pd));
}

static void *use(void *argument)
{
	struct side *side = argument, *own = calloc(1, sizeof *own);

	for (unsigned round = 0; !stop && !failures; round++) {
		exchange(side);
		struct rdma_event_channel *channel = side - traffic >= 2 ? rdma_create_event_channel() : NULL;

		if (side - traffic == 3 && round % 16 == 0) {
			make(own, side->context);
			unmake(own);
		}
		if (channel)
			rdma_destroy_event_channel(channel);
	}
	free(own);
	return NULL;
}

/* What was inherited answers at once, and says that it is of no use here. */
static void use_inherited(void)
{
	struct side *side = &traffic[rand() % THREADS];
	struct ibv_sge sge = {(uintptr_t)side->memory, 64, side->mr->lkey};
	struct ibv_wc wc;
	struct ibv_port_attr port;
	struct ibv_async_event event;
	struct ibv_cq *cq;
	struct rdma_cm_event *cm_event;
	void *cq_context;

	CHECK(post(side->a, 1, IBV_WR_SEND, &sge, 0, 0) == EIO);
	CHECK(receive(side->b, 1, &sge) == EIO);
	errno = 0;
	CHECK(ibv_poll_cq(side->cq, 1, &wc) == -1 && errno == EIO);
	CHECK(ibv_req_notify_cq(side->cq, 0) == EIO);
	CHECK(ibv_get_cq_event(side->channel, &cq, &cq_context) == -1 && errno == EIO);
	ibv_ack_cq_events(side->cq, 1);
	CHECK(ibv_get_async_event(side->context, &event) == -1 && errno == EIO);
	CHECK(ibv_query_port(side->context, 1, &port) == EIO);
	CHECK(!ibv_alloc_pd(side->context) && errno == EIO);
	CHECK(!ibv_reg_mr(side->pd, side->memory, 64, 0) && errno == EIO);
	CHECK(!ibv_create_cq(side->context, 4, NULL, NULL, 0) && errno == EIO);
	CHECK(rdma_get_cm_event(events, &cm_event) == -1 && errno == EIO);
	CHECK(rdma_listen(id, 1) == -1 && errno == EIO);
	CHECK(!strcmp(ibv_get_device_name(side->context->device), "ubi_lo"));
}

static void destroy_inherited(void)
{
	struct side *side = &traffic[rand() % THREADS];

	CHECK(ibv_destroy_qp(side->a) == EIO && ibv_destroy_qp(side->b) == EIO);
	CHECK(ibv_destroy_cq(side->cq) == EIO && ibv_destroy_comp_channel(side->channel) == EIO);
	CHECK(ibv_dereg_mr(side->mr) == EIO && ibv_dealloc_pd(side->pd) == EIO);
	CHECK(rdma_destroy_id(id) == -1 && errno == EIO);
	rdma_destroy_event_channel(events);
	CHECK(!ibv_close_device(side->context));
}

static void open_own(void)
{
	struct side *own = calloc(1, sizeof *own);
	struct rdma_event_channel *channel = rdma_create_event_channel();

	NEED(channel);
	rdma_destroy_event_channel(channel);
	struct ibv_context *context = open_lo();

	NEED(context);
	make(own, context);
	for (int i = 0; i < 10; i++)
		exchange(own);
	unmake(own);
	CHECK(!ibv_close_device(context));
	free(own);
}

static void child(int kind)
{
	alarm(PATIENCE);
	failures = 0;
	switch (kind) {
	case 0:
		use_inherited();
		_exit(failures != 0);
	case 1:
		destroy_inherited();
		_exit(failures != 0);
	case 2:
		execl("/bin/true", "true", NULL);
		_exit(1);
	case 3:
		/* Exit handlers. */
		exit(0);
	case 4:
		use_inherited();
		open_own();
		exit(failures != 0);
	}
	/* A child's child, which inherits from both. */
	destroy_inherited();
	pid_t grandchild = fork();
	int status = -1;

	if (grandchild == 0) {
		alarm(PATIENCE);
		use_inherited();
		exit(failures != 0);
	}
	CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
	_exit(failures != 0);
}

int main(int count, char **arguments)
{
	static const char *const names[] = {"uses", "destroys", "becomes another", "ends", "opens its own", "forks"};
	int forks = count > 1 ? atoi(arguments[1]) : 1000, wrong[6] = {0};
	pthread_t threads[THREADS];
	struct ibv_context *context = open_lo();

	NEED(context);
	events = rdma_create_event_channel();
	NEED(events && !rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	for (int i = 0; i < THREADS; i++)
		make(&traffic[i], context);
	for (int i = 0; i < THREADS; i++)
		NEED(!pthread_create(&threads[i], NULL, use, &traffic[i]));
	for (int i = 0; i < forks && !failures; i++) {
		/* Few open devices: that takes as long as ten others do. */
		int kind = i % 50 == 0 ? 4 : i % 50 == 25 ? 5 : i % 4;
		pid_t pid = fork();

		if (pid == 0) {
			srand((unsigned)i);
			child(kind);
		}
		int status = -1;

		CHECK(waitpid(pid, &status, 0) == pid);
		if (status) {
			fprintf(stderr, "fork %d: a child that %s %s (%#x)\n", i, names[kind],
				WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "hangs" : "fails", status);
			wrong[kind]++;
		}
		/* A child that hangs takes as long as thirty thousand that do not. */
		if (wrong[kind] > 2)
			break;
	}
	stop = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 6; i++)
		CHECK(!wrong[i]);
	for (int i = 0; i < THREADS; i++)
		unmake(&traffic[i]);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(events);
	CHECK(!ibv_close_device(context));
	printf("%d forks, %d failures\n", forks, failures);
	return failures != 0;
}
