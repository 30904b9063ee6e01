/* Events: descriptors that poll, channels that do not block, acknowledgements that destruction waits for, and what happens beside completions. */
#include "bench.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Milliseconds after which something does not happen any more. */
#define SOON 60000

static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[4096];

static void nonblocking(int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int readable(int fd, int milliseconds)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, milliseconds) == 1;
}

static void pair_of(struct ibv_qp **a, struct ibv_qp **b, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);

	*a = ibv_create_qp(pd, &init);
	init.srq = srq;
	*b = ibv_create_qp(pd, &init);
	NEED(*a && *b);
	CHECK(!to_init(*a) && !to_init(*b) && !connect_to(*a, (*b)->qp_num) && !connect_to(*b, (*a)->qp_num));
}

static volatile int acknowledged;

static void *acknowledge_later(void *cq)
{
	usleep(200000);
	acknowledged = 1;
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void completion_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, &failures, channel, 0), *found = NULL;
	void *found_context = NULL;
	struct ibv_qp *a, *b;
	pthread_t thread;

	NEED(channel && cq);
	acknowledged = 0;
	pair_of(&a, &b, cq, NULL);
	nonblocking(channel->fd);
	errno = 0;
	CHECK(ibv_get_cq_event(channel, &found, &found_context) == -1 && errno == EAGAIN);
	/* Nothing is told of what was not asked for. */
	CHECK(!receive(b, 1, NULL) && !post(a, 2, IBV_WR_SEND, NULL, 0, 0));
	completion(cq), completion(cq);
	CHECK(!readable(channel->fd, 50));
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!receive(b, 3, NULL) && !post(a, 4, IBV_WR_SEND, NULL, 0, 0));
	CHECK(readable(channel->fd, SOON));
	CHECK(!ibv_get_cq_event(channel, &found, &found_context) && found == cq && found_context == &failures);
	completion(cq), completion(cq);
	/* One event for one question. */
	CHECK(ibv_get_cq_event(channel, &found, &found_context) == -1 && errno == EAGAIN);

	/* A solicited event is for those who ask for it, and for errors. */
	CHECK(!ibv_req_notify_cq(cq, 1));
	CHECK(!receive(b, 5, NULL) && !post(a, 6, IBV_WR_SEND, NULL, 0, 0));
	completion(cq), completion(cq);
	CHECK(!readable(channel->fd, 50));
	struct ibv_send_wr wr = {.wr_id = 7, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED}, *bad;

	CHECK(!receive(b, 8, NULL) && !ibv_post_send(a, &wr, &bad));
	CHECK(readable(channel->fd, SOON));
	completion(cq), completion(cq);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	/* The event that was not read goes with the queue; the one that was read is waited for. */
	pthread_create(&thread, NULL, acknowledge_later, cq);
	CHECK(!ibv_destroy_cq(cq));
	CHECK(acknowledged);
	pthread_join(thread, NULL);
	CHECK(!readable(channel->fd, 0));
	CHECK(!ibv_destroy_comp_channel(channel));
}

static int next_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *found;
	void *found_context;

	if (ibv_get_cq_event(channel, &found, &found_context))
		return 0;
	ibv_ack_cq_events(found, 1);
	return 1;
}

/* Has so many messages received, and does not poll for that. A send completes when the receiver's side has acknowledged it, a moment before the
 * receive completes. */
static void let_arrive(struct ibv_qp *a, struct ibv_qp *b, int messages, unsigned flags)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = flags | IBV_SEND_SIGNALED}, *bad;

	for (int i = 0; i < messages; i++) {
		CHECK(!receive(b, 100 + i, NULL) && !ibv_post_send(a, &wr, &bad));
		CHECK(completion(a->send_cq).status == IBV_WC_SUCCESS);
	}
	usleep(50000);
}

/* A program that arms a queue and goes to sleep is woken, also by what came before, unless it was told of that. */
static void unpolled_completions(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0), *other = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_wc wc;
	struct ibv_qp *a, *b;

	NEED(channel && cq && other);
	/* Only receives complete where we look. */
	init.send_cq = other;
	a = ibv_create_qp(pd, &init), b = ibv_create_qp(pd, &init);
	NEED(a && b);
	CHECK(!to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	nonblocking(channel->fd);

	/* It arms and sleeps. */
	let_arrive(a, b, 2, 0);
	CHECK(!readable(channel->fd, 0));
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(readable(channel->fd, 0));
	/* Twice asked is once answered, while the answer was not heard. */
	CHECK(!ibv_req_notify_cq(cq, 0) && next_event(channel) && !next_event(channel));
	/* It takes less than there is, arms, and sleeps. */
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && !ibv_req_notify_cq(cq, 0));
	CHECK(next_event(channel) && !next_event(channel));
	/* It takes everything, arms, looks again, and sleeps until something comes. */
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && !ibv_req_notify_cq(cq, 0) && !ibv_poll_cq(cq, 1, &wc));
	CHECK(!readable(channel->fd, 50));
	let_arrive(a, b, 1, 0);
	CHECK(readable(channel->fd, SOON) && next_event(channel) && !next_event(channel));
	/* As the manual page has it: the event, arm, poll. There is no event for nothing: perftest takes each for a completion. */
	CHECK(!ibv_req_notify_cq(cq, 0) && ibv_poll_cq(cq, 1, &wc) == 1);
	CHECK(!readable(channel->fd, 50) && !next_event(channel));
	/* But one for what comes between the event and the arming. */
	let_arrive(a, b, 2, 0);
	CHECK(readable(channel->fd, SOON) && next_event(channel) && !next_event(channel) && !ibv_req_notify_cq(cq, 0));
	CHECK(next_event(channel) && !next_event(channel));
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && ibv_poll_cq(cq, 1, &wc) == 1);

	/* Who asks for what is solicited is not woken by other things. */
	let_arrive(a, b, 1, 0);
	CHECK(!ibv_req_notify_cq(cq, 1) && !readable(channel->fd, 50));
	CHECK(!ibv_req_notify_cq(cq, 0) && next_event(channel));
	let_arrive(a, b, 1, IBV_SEND_SOLICITED);
	let_arrive(a, b, 1, 0);
	CHECK(!ibv_req_notify_cq(cq, 1) && next_event(channel) && !next_event(channel));
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && ibv_poll_cq(cq, 1, &wc) == 1 && !ibv_req_notify_cq(cq, 1) && !next_event(channel));
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1);
	/* An error counts as solicited. */
	CHECK(!receive(b, 1, NULL) && !ibv_modify_qp(b, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE));
	CHECK(next_event(channel) && ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(other));
	CHECK(!ibv_destroy_comp_channel(channel));
}

/* What a descriptor of ours says to a program that waits for whatever comes. */
static short says(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN | POLLOUT | POLLPRI};

	poll(&poll_fd, 1, 0);
	return poll_fd.revents;
}

/* Descriptors are readable while there are events, and that is all that they are; those of a program that duplicates or closes them too. */
static void descriptors(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct rdma_event_channel *cm = rdma_create_event_channel();
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
	struct ibv_qp *a, *b;
	struct ibv_wc wc;
	int epoll = epoll_create1(0), copy;

	NEED(channel && cm && cq && epoll >= 0);
	CHECK(says(channel->fd) == 0 && says(cm->fd) == 0 && says(context->async_fd) == 0);
	pair_of(&a, &b, cq, NULL);
	copy = dup(channel->fd);
	nonblocking(copy);
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &event) && !epoll_wait(epoll, &event, 1, 0));
	for (int i = 0; i < 3; i++) {
		CHECK(!ibv_req_notify_cq(cq, 0));
		CHECK(!receive(b, 1, NULL) && !post(a, 2, IBV_WR_SEND, NULL, 0, 0));
		CHECK(epoll_wait(epoll, &event, 1, SOON) == 1 && event.events == EPOLLIN);
		CHECK(says(channel->fd) == POLLIN && says(copy) == POLLIN);
		completion(cq), completion(cq);
		CHECK(!epoll_wait(epoll, &event, 1, 0));
		if (i > 0)
			CHECK(next_event(channel));
	}
	CHECK(next_event(channel) && !next_event(channel) && errno == EAGAIN && says(copy) == 0);
	/* Such a program has only itself to blame; but it goes on, and completions too. */
	CHECK(!ibv_req_notify_cq(cq, 0));
	close(copy), close(channel->fd), close(epoll);
	CHECK(!receive(b, 1, NULL) && !post(a, 2, IBV_WR_SEND, NULL, 0, 0));
	completion(cq), completion(cq);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(open("/dev/null", O_RDONLY) == channel->fd);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	rdma_destroy_event_channel(cm);
}

static struct ibv_async_event expect_event(enum ibv_event_type type)
{
	struct ibv_async_event event = {.event_type = -1};

	/* Connections tell that they were established; that is not what is looked for here. */
	do {
		CHECK(readable(context->async_fd, SOON));
		if (ibv_get_async_event(context, &event))
			break;
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST && type != IBV_EVENT_COMM_EST);
	CHECK(event.event_type == type);
	return event;
}

static int64_t microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000ll + now.tv_nsec / 1000;
}

static void take_event(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_cq *found = NULL;
	void *found_context;

	CHECK(readable(channel->fd, 5000) && !ibv_get_cq_event(channel, &found, &found_context) && found == cq);
	ibv_ack_cq_events(cq, 1);
}

/* One event for some completions, or for those that came within a time. */
static void moderated_events(void)
{
	struct ibv_modify_cq_attr attr = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {.cq_count = 4}};
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_device_attr_ex device;
	struct ibv_qp *a, *b;

	NEED(channel && cq);
	pair_of(&a, &b, cq, NULL);
	CHECK(!ibv_query_device_ex(context, NULL, &device));
	CHECK(device.cq_mod_caps.max_cq_count >= 4 && device.cq_mod_caps.max_cq_period >= 60000);
	CHECK(!ibv_modify_cq(cq, &attr) && !ibv_req_notify_cq(cq, 0));
	/* A message is two completions. */
	CHECK(!receive(b, 1, NULL) && !post(a, 2, IBV_WR_SEND, NULL, 0, 0));
	completion(cq), completion(cq);
	CHECK(!readable(channel->fd, 100));
	CHECK(!receive(b, 3, NULL) && !post(a, 4, IBV_WR_SEND, NULL, 0, 0));
	take_event(channel, cq);
	completion(cq), completion(cq);

	/* The next event counts from when it was asked for. */
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!receive(b, 5, NULL) && !post(a, 6, IBV_WR_SEND, NULL, 0, 0));
	completion(cq), completion(cq);
	CHECK(!readable(channel->fd, 100));
	/* A program that changes its mind gets what has come. */
	attr.moderate.cq_count = 100, attr.moderate.cq_period = 60000;
	CHECK(!ibv_modify_cq(cq, &attr));
	take_event(channel, cq);

	/* So many do not come; then it is a matter of time. */
	int64_t start = microseconds();

	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!receive(b, 7, NULL) && !post(a, 8, IBV_WR_SEND, NULL, 0, 0));
	take_event(channel, cq);
	CHECK(microseconds() - start >= 60000);
	completion(cq), completion(cq);
	/* And not the queue pair's: its end is not the end of what is owed. */
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!receive(b, 9, NULL) && !post(a, 10, IBV_WR_SEND, NULL, 0, 0));
	completion(cq), completion(cq);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	take_event(channel, cq);

	/* An error is told of at once. */
	attr.moderate.cq_period = 0;
	pair_of(&a, &b, cq, NULL);
	CHECK(!ibv_modify_cq(cq, &attr) && !ibv_req_notify_cq(cq, 0));
	CHECK(!receive(b, 11, NULL) && !ibv_modify_qp(b, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE));
	take_event(channel, cq);
	CHECK(completion(cq).status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

static void asynchronous_events(void)
{
	struct ibv_async_event event;
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_srq_attr attr = {.srq_limit = 2};
	struct ibv_recv_wr receive_wr = {.wr_id = 1}, *bad;
	struct ibv_qp *a, *b;

	NEED(cq && srq);
	nonblocking(context->async_fd);
	while (!ibv_get_async_event(context, &event))
		ibv_ack_async_event(&event);
	CHECK(errno == EAGAIN);
	pair_of(&a, &b, cq, srq);
	/* Two receives, a limit of two: the first to be taken tells. */
	CHECK(!ibv_post_srq_recv(srq, &receive_wr, &bad) && !ibv_post_srq_recv(srq, &receive_wr, &bad));
	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 2 && attr.max_wr >= 8);
	CHECK(!post(a, 2, IBV_WR_SEND, NULL, 0, 0));
	completion(cq), completion(cq);
	event = expect_event(IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == srq);
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0);
	/* A queue pair in error will take no more receives from it. */
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};

	CHECK(!ibv_modify_qp(b, &error, IBV_QP_STATE));
	event = expect_event(IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(event.element.qp == b);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_srq(srq));
	CHECK(!ibv_destroy_cq(cq));

	/* A completion queue that overflows is lost, and says so. */
	cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	NEED(cq);
	pair_of(&a, &b, cq, NULL);
	for (int i = 0; i < cq->cqe + 2 && i < 16; i++)
		CHECK(!receive(b, i, NULL) && !post(a, i, IBV_WR_SEND, NULL, 0, 0));
	event = expect_event(IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == cq);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq));
}

static volatile int signals_seen, interrupted;

static void on_signal(int signal)
{
	(void)signal;
	signals_seen++;
}

static pthread_t waiting;

/* Again and again: nobody can see when the other has begun to wait. */
static void *interrupt(void *unused)
{
	while (!interrupted) {
		usleep(20000);
		pthread_kill(waiting, SIGUSR1);
	}
	return unused;
}

static void *interrupt_and_post(void *qp)
{
	for (int i = 0; i < 10; i++) {
		int seen = signals_seen;

		usleep(20000);
		pthread_kill(waiting, SIGUSR1);
		for (int waited = 0; signals_seen == seen && waited < SOON; waited++)
			usleep(1000);
	}
	CHECK(!post(qp, 2, IBV_WR_SEND, NULL, 0, 0));
	return NULL;
}

/* A signal ends a call that waits, unless its handler asks for the call to go on. */
static void interruptions(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0), *found;
	struct sigaction action = {.sa_handler = on_signal};
	pthread_t thread;
	void *found_context;

	NEED(channel && cq);
	waiting = pthread_self();
	sigaction(SIGUSR1, &action, NULL);
	pthread_create(&thread, NULL, interrupt, NULL);
	errno = 0;
	CHECK(ibv_get_cq_event(channel, &found, &found_context) == -1 && errno == EINTR && signals_seen > 0);
	interrupted = 1;
	pthread_join(thread, NULL);
	action.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &action, NULL);
	/* No signal ends this one; a completion does. */
	struct ibv_qp *a, *b;
	int before = signals_seen;

	pair_of(&a, &b, cq, NULL);
	CHECK(!ibv_req_notify_cq(cq, 0) && !receive(b, 1, NULL));
	pthread_create(&thread, NULL, interrupt_and_post, a);
	CHECK(!ibv_get_cq_event(channel, &found, &found_context) && found == cq && signals_seen == before + 10);
	ibv_ack_cq_events(cq, 1);
	pthread_join(thread, NULL);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

static long nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

static volatile int timers_seen;
static volatile long first_timer;

static void on_timer(int signal)
{
	(void)signal;
	if (timers_seen++ == 0)
		first_timer = nanoseconds();
}

/* A timer that fires while the call is awake, before it sleeps, ends it as well. Should it not, the next one does. A
 * timer that fires before the call begins ends nothing, and does not count. */
static void signals_while_awake(void)
{
	enum { TIMES = 500 };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0), *found;
	struct sigaction action = {.sa_handler = on_timer};
	struct itimerval never = {0};
	int late = 0;
	void *found_context;

	NEED(channel && cq);
	sigaction(SIGALRM, &action, NULL);
	for (int i = 0; i < TIMES; i++) {
		struct itimerval soon = {.it_value = {.tv_usec = 4 + i % 12}, .it_interval = {.tv_usec = 30000}};

		timers_seen = 0;
		setitimer(ITIMER_REAL, &soon, NULL);
		long begun = nanoseconds();

		CHECK(ibv_get_cq_event(channel, &found, &found_context) == -1 && errno == EINTR);
		setitimer(ITIMER_REAL, &never, NULL);
		late += timers_seen > 1 && first_timer > begun;
	}
	if (late > TIMES / 5)
		fprintf(stderr, "%d of %d timers did not end the call\n", late, TIMES);
	CHECK(late <= TIMES / 5);
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

/* A child makes a NIC of its own, and its parent's goes on. */
static void forks(void)
{
	pid_t child = fork();

	if (child == 0) {
		failures = 0;
		context = open_lo();
		NEED(context);
		pd = ibv_alloc_pd(context);
		NEED(pd);
		completion_events();
	moderated_events();
		_exit(failures != 0);
	}
	int status = -1;

	CHECK(waitpid(child, &status, 0) == child && status == 0);
	completion_events();
}

int main(void)
{
	CHECK(!ibv_fork_init());
	CHECK(ibv_is_fork_initialized() != IBV_FORK_DISABLED);
	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	NEED(pd && ibv_reg_mr(pd, memory, sizeof memory, 0));
	completion_events();
	unpolled_completions();
	descriptors();
	asynchronous_events();
	interruptions();
	signals_while_awake();
	forks();
	printf("%d failures\n", failures);
	return failures != 0;
}
