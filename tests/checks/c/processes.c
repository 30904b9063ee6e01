/* Rules of processes, threads and lives of objects: UV-06xx. */
#include "common.h"
#include <arpa/inet.h>

/* Enough rounds of what belongs out of the data path. */
#define ROUNDS 65

/* A WRITE of 8 bytes from the first queue pair, from this memory. */
static void write_from(struct bench *b, char *from, uint32_t lkey)
{
	struct ibv_sge out = {.addr = (uintptr_t)from, .length = 8, .lkey = lkey};

	post_rdma(b->qp[0], 1, IBV_WR_RDMA_WRITE, &out, b->buffer + 2048, b->mr->rkey);
	poll_success(b->cq, 1);
}

static void write_once(struct bench *b)
{
	write_from(b, b->buffer, b->mr->lkey);
}

/* A WRITE with a wrong key: it fails, and an asynchronous event tells the second queue pair. */
static void write_with_wrong_key(struct bench *b)
{
	struct ibv_sge out = piece(b, 0, 8);

	post_rdma(b->qp[0], 7, IBV_WR_RDMA_WRITE, &out, b->buffer + 2048, b->mr->rkey ^ 0x5500);
	poll_status(b->cq, IBV_WC_REM_ACCESS_ERR);
}

/* UV-0601 */
static void fork_beside(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	int status;
	pid_t child = fork();

	NEED(child >= 0);
	if (child == 0)
		_exit(0);
	NEED(waitpid(child, &status, 0) == child && status == 0);
	write_once(&b);
	close_bench(&b);
}

static void fork_unprepared(void)
{
	fork_beside();
}

static void fork_prepared(void)
{
	NEED(!ibv_fork_init());
	fork_beside();
}

/* UV-0602: the child has a bench of its own, or takes its parent's. */
static void work_in_child(bool on_parents_objects)
{
	struct bench b = open_pair(IBV_QPT_RC);
	int status;
	pid_t child = fork();

	NEED(child >= 0);
	if (child == 0) {
		if (on_parents_objects) {
			struct ibv_sge out = piece(&b, 0, 8);
			struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

			NEED(post(b.qp[0], &wr) == EIO);
		} else {
			struct bench own = open_pair(IBV_QPT_RC);

			write_once(&own);
			close_bench(&own);
		}
		exit(0);
	}
	NEED(waitpid(child, &status, 0) == child && status == 0);
	close_bench(&b);
}

static void use_parents_objects(void)
{
	work_in_child(true);
}

static void use_own_objects(void)
{
	work_in_child(false);
}

static void *poll_in_thread(void *cq)
{
	poll_success(cq, 1);
	return NULL;
}

/* UV-0603 */
static void poll_by_threads(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_sge out = piece(&b, 0, 8);

	for (int i = 0; i < 70; i++) {
		pthread_t thread;

		post_rdma(b.qp[0], 1, IBV_WR_RDMA_WRITE, &out, b.buffer + 2048, b.mr->rkey);
		if (i % 2) {
			NEED(!pthread_create(&thread, NULL, poll_in_thread, b.cq));
			NEED(!pthread_join(thread, NULL));
		} else {
			poll_success(b.cq, 1);
		}
	}
	close_bench(&b);
}

static void poll_by_one_thread(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	for (int i = 0; i < 70; i++)
		write_once(&b);
	close_bench(&b);
}

/* UV-0604: many buffers, each registered for its message, or all at once. */
static void send_from_buffers(bool register_each)
{
	struct bench b = open_pair(IBV_QPT_RC);
	size_t size = 8192;
	char *buffers = aligned_alloc(4096, ROUNDS * size);
	struct ibv_mr *all;

	NEED(buffers);
	memset(buffers, 0, ROUNDS * size);
	write_once(&b);
	all = register_each ? NULL : ibv_reg_mr(b.pd, buffers, ROUNDS * size, 0);
	for (size_t i = 0; i < ROUNDS; i++) {
		struct ibv_mr *mr = register_each ? ibv_reg_mr(b.pd, buffers + i * size, size, 0) : all;

		NEED(mr);
		write_from(&b, buffers + i * size, mr->lkey);
		if (register_each)
			NEED(!ibv_dereg_mr(mr));
	}
	if (all)
		NEED(!ibv_dereg_mr(all));
	free(buffers);
	close_bench(&b);
}

static void register_each_buffer(void)
{
	send_from_buffers(true);
}

static void register_all_at_once(void)
{
	send_from_buffers(false);
}

/* UV-0605 */
static void register_one_buffer(int times)
{
	struct bench b = open_pair(IBV_QPT_RC);
	char *buffer = aligned_alloc(4096, 8192);
	struct ibv_mr *mr = NULL;

	NEED(buffer);
	memset(buffer, 0, 8192);
	for (int i = 0; i < 20; i++) {
		if (i < times)
			mr = ibv_reg_mr(b.pd, buffer, 8192, 0);
		NEED(mr);
		write_from(&b, buffer, mr->lkey);
		if (i + 1 < times)
			NEED(!ibv_dereg_mr(mr));
	}
	NEED(!ibv_dereg_mr(mr));
	free(buffer);
	close_bench(&b);
}

static void register_again_and_again(void)
{
	register_one_buffer(20);
}

static void register_once(void)
{
	register_one_buffer(1);
}

/* UV-0606 */
static void pair_for_each_message(void)
{
	struct bench b = open_bench();

	for (int i = 0; i < ROUNDS; i++) {
		make_pair(&b, IBV_QPT_RC);
		connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
		write_once(&b);
		for (int k = 0; k < 2; k++) {
			NEED(!ibv_destroy_qp(b.qp[k]));
			b.qp[k] = NULL;
		}
	}
	close_bench(&b);
}

static void one_pair_for_all(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	for (int i = 0; i < ROUNDS; i++)
		write_once(&b);
	close_bench(&b);
}

/* UV-0607 */
static void send_datagrams(bool handle_for_each)
{
	struct bench b = open_pair(IBV_QPT_UD);
	struct ibv_ah *ah = NULL;

	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_sge out = piece(&b, 0, 8);
		struct ibv_send_wr wr = send_wr(1, IBV_WR_SEND, &out);

		if (!ah)
			ah = address_handle(b.pd);
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = b.qp[1]->qp_num;
		wr.wr.ud.remote_qkey = 0x11111111;
		NEED(!post(b.qp[0], &wr));
		poll_success(b.cq, 1);
		if (handle_for_each || i == ROUNDS - 1) {
			NEED(!ibv_destroy_ah(ah));
			ah = NULL;
		}
	}
	close_bench(&b);
}

static void handle_for_each_message(void)
{
	send_datagrams(true);
}

static void handle_for_all(void)
{
	send_datagrams(false);
}

/* UV-0608 */
static void register_small(size_t count, size_t size)
{
	struct bench b = open_bench();
	char *block = aligned_alloc(4096, count * size);
	struct ibv_mr **mr = calloc(count, sizeof *mr);

	NEED(block && mr);
	for (size_t i = 0; i < count; i++) {
		mr[i] = ibv_reg_mr(b.pd, block + i * size, size, IBV_ACCESS_LOCAL_WRITE);
		NEED(mr[i]);
	}
	for (size_t i = 0; i < count; i++)
		NEED(!ibv_dereg_mr(mr[i]));
	free(mr);
	free(block);
	close_bench(&b);
}

static void many_small(void)
{
	register_small(256, 64);
}

static void one_large(void)
{
	register_small(1, 256 * 64);
}

/* UV-0609 */
static void share_between(int domains)
{
	struct bench b = open_bench();
	struct ibv_pd *pd[4];
	struct ibv_mr *mr[4];

	for (int i = 0; i < domains; i++) {
		pd[i] = ibv_alloc_pd(b.context);
		NEED(pd[i]);
		mr[i] = ibv_reg_mr(pd[i], b.buffer, BUFFER_SIZE, IBV_ACCESS_LOCAL_WRITE);
		NEED(mr[i]);
	}
	for (int i = 0; i < domains; i++) {
		NEED(!ibv_dereg_mr(mr[i]));
		NEED(!ibv_dealloc_pd(pd[i]));
	}
	close_bench(&b);
}

static void in_many_domains(void)
{
	share_between(4);
}

static void in_one_domain(void)
{
	share_between(0);
}

/* UV-0610 */
static void open_times(int times)
{
	struct ibv_context *context[16];

	for (int i = 0; i < times; i++)
		context[i] = open_device();
	for (int i = 0; i < times; i++)
		NEED(!ibv_close_device(context[i]));
}

static void open_many_times(void)
{
	open_times(16);
}

static void open_once(void)
{
	open_times(1);
}

/* UV-0611, 0612, 0613, 0616, 0618 */
static void leave_a_bench(void)
{
	open_pair(IBV_QPT_RC);
}

static void leave_nothing(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	close_bench(&b);
}

/* UV-0614, 0615, 0617, 0619 */
static void make_others(bool leave)
{
	struct bench b = open_bench();
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_comp_channel *channel = ibv_create_comp_channel(b.context);
	struct ibv_srq *srq = ibv_create_srq(b.pd, &init);
	struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
	struct ibv_ah *ah = address_handle(b.pd);

	NEED(channel && srq && mw);
	if (leave)
		return;
	NEED(!ibv_destroy_ah(ah));
	NEED(!ibv_dealloc_mw(mw));
	NEED(!ibv_destroy_srq(srq));
	NEED(!ibv_destroy_comp_channel(channel));
	close_bench(&b);
}

static void leave_others(void)
{
	make_others(true);
}

static void give_others_back(void)
{
	make_others(false);
}

/* A connection of the connection manager inside this process. */
struct connection {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *client, *server;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
};

static struct rdma_cm_id *next_event(struct connection *c, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	NEED(!rdma_get_cm_event(c->channel, &event));
	if (event->event != expected)
		fprintf(stderr, "%s, not %s\n", rdma_event_str(event->event), rdma_event_str(expected));
	NEED(event->event == expected);
	id = event->id;
	NEED(!rdma_ack_cm_event(event));
	return id;
}

static struct connection open_connection(void)
{
	struct connection c = {.channel = rdma_create_event_channel()};
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	struct ibv_qp_init_attr init;

	NEED(c.channel);
	NEED(!rdma_create_id(c.channel, &c.listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(c.listener, (struct sockaddr *)&address));
	NEED(!rdma_listen(c.listener, 4));
	address.sin_port = rdma_get_src_port(c.listener);
	NEED(!rdma_create_id(c.channel, &c.client, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(c.client, NULL, (struct sockaddr *)&address, 2000));
	next_event(&c, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(c.client, 2000));
	next_event(&c, RDMA_CM_EVENT_ROUTE_RESOLVED);
	c.pd = ibv_alloc_pd(c.client->verbs);
	c.cq = ibv_create_cq(c.client->verbs, 64, NULL, NULL, 0);
	NEED(c.pd && c.cq);
	init = usual_qp(c.cq, IBV_QPT_RC);
	NEED(!rdma_create_qp(c.client, c.pd, &init));
	NEED(!rdma_connect(c.client, &param));
	c.server = next_event(&c, RDMA_CM_EVENT_CONNECT_REQUEST);
	init = usual_qp(c.cq, IBV_QPT_RC);
	NEED(!rdma_create_qp(c.server, c.pd, &init));
	NEED(!rdma_accept(c.server, &param));
	next_event(&c, RDMA_CM_EVENT_ESTABLISHED);
	next_event(&c, RDMA_CM_EVENT_ESTABLISHED);
	return c;
}

static void close_connection(struct connection *c)
{
	NEED(!rdma_disconnect(c->client));
	next_event(c, RDMA_CM_EVENT_DISCONNECTED);
	NEED(!rdma_disconnect(c->server));
	next_event(c, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(c->client);
	rdma_destroy_qp(c->server);
	NEED(!ibv_destroy_cq(c->cq));
	NEED(!ibv_dealloc_pd(c->pd));
	NEED(!rdma_destroy_id(c->client));
	NEED(!rdma_destroy_id(c->server));
	NEED(!rdma_destroy_id(c->listener));
	rdma_destroy_event_channel(c->channel);
}

/* UV-0621, UV-0628 */
static void leave_a_connection(void)
{
	open_connection();
}

static void disconnect(void)
{
	struct connection c = open_connection();

	close_connection(&c);
}

/* UV-0622 */
static void free_a_domain_in_use(void)
{
	struct bench b = open_bench();

	NEED(ibv_dealloc_pd(b.pd) == EBUSY);
	NEED(!ibv_dereg_mr(b.mr));
}

/* UV-0623 */
static void close_too_early(void)
{
	struct bench b = open_bench();

	NEED(!ibv_close_device(b.context));
}

/* UV-0624 */
static void read_no_events(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	write_with_wrong_key(&b);
	close_bench(&b);
}

/* Reads events until one is about the second queue pair. */
static struct ibv_async_event read_event(struct bench *b)
{
	struct ibv_async_event event;

	NEED(!ibv_get_async_event(b->context, &event));
	while (event.event_type != IBV_EVENT_QP_ACCESS_ERR) {
		ibv_ack_async_event(&event);
		NEED(!ibv_get_async_event(b->context, &event));
	}
	return event;
}

static void read_events(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_async_event event;

	write_with_wrong_key(&b);
	event = read_event(&b);
	ibv_ack_async_event(&event);
	close_bench(&b);
}

static void *acknowledge_late(void *argument)
{
	sleep_millis(300);
	ibv_ack_async_event(argument);
	return NULL;
}

/* UV-0625: only this thread knows of the event; another one helps it out, or it would wait for ever. */
static void destroy_unacknowledged(void)
{
	struct bench b = open_pair(IBV_QPT_RC);
	struct ibv_async_event event;
	pthread_t thread;

	write_with_wrong_key(&b);
	event = read_event(&b);
	NEED(!pthread_create(&thread, NULL, acknowledge_late, &event));
	close_bench(&b);
	NEED(!pthread_join(thread, NULL));
}

/* A SEND to a peer that has posted no receive. */
static struct bench send_to_nobody(void)
{
	struct bench b = open_bench();
	struct path patient = usual_path();
	struct ibv_sge out;

	patient.rnr_retry = 7;
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], patient, b.qp[1], patient);
	out = piece(&b, 0, 8);
	post_send(b.qp[0], 5, &out);
	return b;
}

/* UV-0626 */
static void end_under_way(void)
{
	send_to_nobody();
}

/* UV-0627 */
static void destroy_under_way(void)
{
	struct bench b = send_to_nobody();

	close_bench(&b);
}

static void wait_for_the_last(void)
{
	struct bench b = send_to_nobody();
	struct ibv_sge in = piece(&b, 1024, 64);

	post_recv(b.qp[1], 6, &in);
	poll_success(b.cq, 2);
	close_bench(&b);
}

static void *wait_at_channel(void *channel)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

/* UV-0629 */
static void destroy_under_a_thread(void)
{
	struct ibv_context *context = open_device();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	pthread_t thread;

	NEED(channel);
	NEED(!pthread_create(&thread, NULL, wait_at_channel, channel));
	/* Nothing tells when it sleeps. */
	sleep_millis(500);
	NEED(!ibv_destroy_comp_channel(channel));
	/* Whether the thread wakes, and what it reads then, is a matter of luck. */
	sleep_millis(100);
}

static void end_the_thread_first(void)
{
	struct ibv_context *context = open_device();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	pthread_t thread;

	NEED(channel);
	NEED(!pthread_create(&thread, NULL, wait_at_channel, channel));
	sleep_millis(100);
	NEED(!pthread_cancel(thread));
	NEED(!pthread_join(thread, NULL));
	NEED(!ibv_destroy_comp_channel(channel));
	NEED(!ibv_close_device(context));
}

CASES({"UV-0601", fork_unprepared, fork_prepared}, {"UV-0602", use_parents_objects, use_own_objects},
      {"UV-0603", poll_by_threads, poll_by_one_thread}, {"UV-0604", register_each_buffer, register_all_at_once},
      {"UV-0605", register_again_and_again, register_once}, {"UV-0606", pair_for_each_message, one_pair_for_all},
      {"UV-0607", handle_for_each_message, handle_for_all}, {"UV-0608", many_small, one_large},
      {"UV-0609", in_many_domains, in_one_domain}, {"UV-0610", open_many_times, open_once},
      {"UV-0611", leave_a_bench, leave_nothing}, {"UV-0612", leave_a_bench, leave_nothing},
      {"UV-0613", leave_a_bench, leave_nothing}, {"UV-0614", leave_others, give_others_back},
      {"UV-0615", leave_others, give_others_back}, {"UV-0616", leave_a_bench, leave_nothing},
      {"UV-0617", leave_others, give_others_back}, {"UV-0618", leave_a_bench, leave_nothing},
      {"UV-0619", leave_others, give_others_back}, {"UV-0621", leave_a_connection, disconnect}, {"UV-0622", free_a_domain_in_use, leave_nothing},
      {"UV-0623", close_too_early, leave_nothing}, {"UV-0624", read_no_events, read_events},
      {"UV-0625", destroy_unacknowledged, read_events}, {"UV-0626", end_under_way, wait_for_the_last},
      {"UV-0627", destroy_under_way, wait_for_the_last}, {"UV-0628", leave_a_connection, disconnect},
      {"UV-0629", destroy_under_a_thread, end_the_thread_first})
