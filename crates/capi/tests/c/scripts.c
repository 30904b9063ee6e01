/* An ordinary program, for failure scripts to break: it says what every call, completion and event told it. */
#include "bench.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGES 8
/* How long what must come may take, in seconds; what nobody expects, in milliseconds; and what a script makes late takes longer. */
#define PATIENCE 60
#define MOMENT 100
#define LATE 1.5

static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[4096];

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Says which events came: so many, and those that come in a moment more. */
static void say_events(int wanted)
{
	struct pollfd poll_fd = {.fd = context->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	while (poll(&poll_fd, 1, wanted > 0 ? PATIENCE * 1000 : MOMENT) == 1 && !ibv_get_async_event(context, &event)) {
		printf("event %d\n", event.event_type);
		ibv_ack_async_event(&event);
		wanted--;
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
		printf("ibv_reg_mr %d: %s%s\n", i, mr ? "fine" : strerror(errno), seconds() - start > LATE ? ", late" : "");
		if (mr)
			CHECK(!ibv_dereg_mr(mr));
	}
}

static int connect_unreliable(struct ibv_qp *qp, uint32_t peer)
{
	union ibv_gid gid;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.ah_attr = {.grh = {.sgid_index = (uint8_t)gid_index(qp->context, &gid), .hop_limit = 64}, .is_global = 1, .port_num = 1},
	};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS};

	attr.ah_attr.grh.dgid = gid;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) ||
	       ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

/* Says what has completed. Returns how much that was. */
static int say_completions(const char *name, struct ibv_cq *cq, double begun)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(cq, 1, &wc) != 1)
		return 0;
	printf("%s %d: status %d vendor %u%s\n", name, (int)wc.wr_id, wc.status, wc.vendor_err,
	       seconds() - begun > LATE ? ", late" : "");
	return 1;
}

/* Sends messages from one queue pair to another, and says how each ended: so many, and those that come in a moment more. */
static void sends(enum ibv_qp_type type, int wanted_sends, int wanted_receives, int events)
{
	struct ibv_cq *send_cq = ibv_create_cq(context, 64, NULL, NULL, 0), *receive_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge piece = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
	struct ibv_qp_init_attr init = plain_init(send_cq, type);
	double begun = seconds(), end;
	struct ibv_qp *a, *b;

	init.recv_cq = receive_cq;
	a = ibv_create_qp(pd, &init);
	b = ibv_create_qp(pd, &init);
	NEED(a && b);
	CHECK(!to_init(a) && !to_init(b));
	if (type == IBV_QPT_RC)
		CHECK(!connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	else
		CHECK(!connect_unreliable(a, b->qp_num) && !connect_unreliable(b, a->qp_num));
	for (int i = 1; i <= MESSAGES; i++)
		CHECK(!receive(b, i, &piece));
	for (int i = 1; i <= MESSAGES; i++) {
		int error = post(a, i, IBV_WR_SEND, &piece, 0, 0);

		if (error)
			printf("ibv_post_send %d: %s\n", i, strerror(error));
	}
	end = seconds() + PATIENCE;
	while ((wanted_sends > 0 || wanted_receives > 0) && seconds() < end) {
		wanted_sends -= say_completions("send", send_cq, begun);
		wanted_receives -= say_completions("receive", receive_cq, begun);
	}
	CHECK(wanted_sends <= 0 && wanted_receives <= 0);
	end = seconds() + MOMENT / 1000.0;
	while (seconds() < end) {
		say_completions("send", send_cq, begun);
		say_completions("receive", receive_cq, begun);
	}
	say_events(events);
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
	const char *what = argc > 1 ? argv[1] : "registers";
	int numbers[3] = {MESSAGES, MESSAGES, 0};

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 2; i < argc && i < 5; i++)
		numbers[i - 2] = atoi(argv[i]);
	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	NEED(pd);
	if (!strcmp(what, "registers")) {
		registers(argc > 2 ? numbers[0] : 5);
	} else if (!strcmp(what, "sends")) {
		sends(IBV_QPT_RC, numbers[0], numbers[1], numbers[2]);
	} else if (!strcmp(what, "unreliable")) {
		sends(IBV_QPT_UC, numbers[0], numbers[1], numbers[2]);
	} else if (!strcmp(what, "forks")) {
		registers(3);
		forks(argv[0]);
		registers(2);
	} else if (!strcmp(what, "closes")) {
		/* Closed in the middle of a failure, and opened again. */
		sends(IBV_QPT_RC, numbers[0], numbers[1], numbers[2]);
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
		context = open_lo();
		NEED(context);
		pd = ibv_alloc_pd(context);
		NEED(pd);
		sends(IBV_QPT_RC, MESSAGES, MESSAGES, 0);
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return failures != 0;
}
