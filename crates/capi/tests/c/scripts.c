/* An ordinary program, for failure scripts to break: it says what every call, completion and event told it. */
#include "bench.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGES 8

static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[4096];

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void say_events(int milliseconds)
{
	struct pollfd poll_fd = {.fd = context->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	while (poll(&poll_fd, 1, milliseconds) == 1 && !ibv_get_async_event(context, &event)) {
		printf("event %d\n", event.event_type);
		ibv_ack_async_event(&event);
		milliseconds = 0;
	}
}

static void say_state(const char *name, struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	printf("%s state %d\n", name, attr.qp_state);
}

/* Registers memory so often. */
static void registers(int count)
{
	for (int i = 1; i <= count; i++) {
		struct ibv_mr *mr;
		double start = seconds();

		errno = 0;
		mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
		printf("ibv_reg_mr %d: %s%s\n", i, mr ? "fine" : strerror(errno), seconds() - start > 0.25 ? ", late" : "");
		if (mr)
			CHECK(!ibv_dereg_mr(mr));
	}
}

/* Sends messages from one queue pair to another, and says how each ended. What does not end in a while never does. */
static void sends(enum ibv_qp_type type, int wait)
{
	struct ibv_cq *send_cq = ibv_create_cq(context, 64, NULL, NULL, 0), *receive_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge piece = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
	struct ibv_qp_init_attr init = plain_init(send_cq, type);
	double last = seconds(), begun = seconds();
	struct ibv_qp *a, *b;
	int told = 0;

	init.recv_cq = receive_cq;
	a = ibv_create_qp(pd, &init);
	b = ibv_create_qp(pd, &init);
	NEED(a && b);
	CHECK(!to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	for (int i = 1; i <= MESSAGES; i++)
		CHECK(!receive(b, i, &piece));
	for (int i = 1; i <= MESSAGES; i++) {
		int error = post(a, i, IBV_WR_SEND, &piece, 0, 0);

		if (error)
			printf("ibv_post_send %d: %s\n", i, strerror(error));
	}
	while (told < 2 * MESSAGES && seconds() - last < wait) {
		struct ibv_wc wc;

		for (int queue = 0; queue < 2; queue++) {
			if (ibv_poll_cq(queue ? receive_cq : send_cq, 1, &wc) != 1)
				continue;
			told++;
			last = seconds();
			printf("%s %d: status %d vendor %u%s\n", queue ? "receive" : "send", (int)wc.wr_id, wc.status, wc.vendor_err,
			       last - begun > 0.25 ? ", late" : "");
		}
	}
	say_events(told < 2 * MESSAGES ? 100 : 0);
	say_state("a", a);
	say_state("b", b);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(send_cq) && !ibv_destroy_cq(receive_cq));
	CHECK(!ibv_dereg_mr(mr));
}

/* A child that is forked in the middle of a failure opens the device anew, and so does a program that the child becomes. */
static void forks(const char *self)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		context = open_lo();
		NEED(context);
		pd = ibv_alloc_pd(context);
		NEED(pd);
		registers(3);
		fflush(stdout);
		execl(self, self, "registers", NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "sends";

	setvbuf(stdout, NULL, _IOLBF, 0);
	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	NEED(pd);
	if (!strcmp(what, "registers")) {
		registers(5);
	} else if (!strcmp(what, "sends")) {
		sends(IBV_QPT_RC, 1);
	} else if (!strcmp(what, "unreliable")) {
		sends(IBV_QPT_UC, 1);
	} else if (!strcmp(what, "forks")) {
		registers(3);
		forks(argv[0]);
		registers(2);
	} else if (!strcmp(what, "closes")) {
		/* Closed in the middle of a failure, and opened again. */
		sends(IBV_QPT_RC, 1);
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
		context = open_lo();
		NEED(context);
		pd = ibv_alloc_pd(context);
		NEED(pd);
		sends(IBV_QPT_RC, 1);
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return failures != 0;
}
