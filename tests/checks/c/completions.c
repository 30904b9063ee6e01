/* Rules of completions: UV-04xx. */
#include "common.h"

/* Longer than a thread may sleep beside completions without being told of. */
#define LONG_SLEEP_MILLIS 2500

/* A bench whose second queue pair has completion queues of its own, which report to a channel. */
struct woken {
	struct bench b;
	struct ibv_comp_channel *channel;
	/* Where the second queue pair receives, and where its sends complete. */
	struct ibv_cq *received, *sent;
	/* For a thread that waits. */
	unsigned int events;
};

static struct woken open_woken(void)
{
	struct woken w = {.b = open_bench()};
	struct ibv_qp_init_attr init = usual_qp(w.b.cq, IBV_QPT_RC);

	w.channel = ibv_create_comp_channel(w.b.context);
	NEED(w.channel);
	w.received = ibv_create_cq(w.b.context, 64, NULL, w.channel, 0);
	w.sent = ibv_create_cq(w.b.context, 64, NULL, w.channel, 0);
	NEED(w.received && w.sent);
	w.b.qp[0] = ibv_create_qp(w.b.pd, &init);
	init.recv_cq = w.received;
	init.send_cq = w.sent;
	w.b.qp[1] = ibv_create_qp(w.b.pd, &init);
	NEED(w.b.qp[0] && w.b.qp[1]);
	connect_both(w.b.qp[0], usual_path(), w.b.qp[1], usual_path());
	return w;
}

static void close_woken(struct woken *w)
{
	for (int i = 0; i < 2; i++) {
		NEED(!ibv_destroy_qp(w->b.qp[i]));
		w->b.qp[i] = NULL;
	}
	NEED(!ibv_destroy_cq(w->received));
	NEED(!ibv_destroy_cq(w->sent));
	NEED(!ibv_destroy_comp_channel(w->channel));
	close_bench(&w->b);
}

/* Sends messages from the first to the second queue pair, one after the other. After this all but the last wait in
 * `received` for certain. */
static void messages(struct woken *w, int count, unsigned int flags)
{
	struct ibv_sge out = piece(&w->b, 0, 8), in = piece(&w->b, 1024, 64);

	for (int i = 0; i < count; i++) {
		struct ibv_send_wr wr = send_wr(100 + i, IBV_WR_SEND, &out);

		wr.send_flags |= flags;
		post_recv(w->b.qp[1], i, &in);
		NEED(!post(w->b.qp[0], &wr));
		poll_success(w->b.cq, 1);
	}
}

/* Waits for an event, which must be of that queue. */
static void get_event(struct woken *w, struct ibv_cq *expected)
{
	struct ibv_cq *cq;
	void *context;

	NEED(!ibv_get_cq_event(w->channel, &cq, &context));
	NEED(cq == expected);
	w->events++;
}

static void arm(struct ibv_cq *cq)
{
	NEED(!ibv_req_notify_cq(cq, 0));
}

static void poll_nothing(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	NEED(ibv_poll_cq(cq, 1, &wc) == 0);
}

/* Polls so many completions, many at a time. */
static void poll_many(struct ibv_cq *cq, int count)
{
	double end = seconds_now() + DEADLINE_SECONDS;
	struct ibv_wc wc[16];

	while (count > 0 && seconds_now() < end) {
		int got = ibv_poll_cq(cq, 16, wc);

		NEED(got >= 0);
		count -= got;
	}
	NEED(count == 0);
}

/* WRITEs of 8 bytes from the first queue pair into the buffer. */
static void writes(struct bench *b, int count)
{
	struct ibv_sge out = piece(b, 0, 8);

	for (int i = 0; i < count; i++)
		post_rdma(b->qp[0], i, IBV_WR_RDMA_WRITE, &out, b->buffer + 2048, b->mr->rkey);
}

/* A WRITE that fails, because the key is wrong. */
static void write_with_wrong_key(struct bench *b)
{
	struct ibv_sge out = piece(b, 0, 8);

	post_rdma(b->qp[0], 7, IBV_WR_RDMA_WRITE, &out, b->buffer + 2048, b->mr->rkey ^ 0x5500);
}

/* UV-0401: eight completions for a queue that holds few. */
static void overflow(struct bench *b, int entries)
{
	struct ibv_qp_init_attr init;

	*b = open_bench();
	NEED(!ibv_destroy_cq(b->cq));
	b->cq = ibv_create_cq(b->context, entries, NULL, NULL, 0);
	NEED(b->cq);
	init = usual_qp(b->cq, IBV_QPT_RC);
	make_pair_as(b, init);
	connect_both(b->qp[0], usual_path(), b->qp[1], usual_path());
	writes(b, 8);
}

static void let_overflow(void)
{
	struct ibv_async_event event;
	struct bench b;

	overflow(&b, 1);
	do {
		NEED(!ibv_get_async_event(b.context, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_CQ_ERR);
	close_bench(&b);
}

static void have_room(void)
{
	struct bench b;

	overflow(&b, 16);
	poll_success(b.cq, 8);
	close_bench(&b);
}

/* UV-0402: receives that all could complete before the program polls. */
static void receive_into(int entries)
{
	struct bench b = open_bench();

	NEED(!ibv_destroy_cq(b.cq));
	b.cq = ibv_create_cq(b.context, entries, NULL, NULL, 0);
	NEED(b.cq);
	make_pair(&b, IBV_QPT_RC);
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	for (int i = 0; i < 8; i++) {
		struct ibv_sge in = piece(&b, (size_t)i * 64, 64);

		post_recv(b.qp[0], i, &in);
	}
	close_bench(&b);
}

static void too_small(void)
{
	receive_into(2);
}

static void large_enough(void)
{
	receive_into(16);
}

/* UV-0420: asked for too few, and granted enough. */
static void counts_on_rounding(void)
{
	receive_into(5);
}

static void asks_for_all(void)
{
	receive_into(8);
}

/* UV-0403: sends complete on one queue, and the other is polled. */
static void poll_of_two(bool the_wrong_one)
{
	struct bench b = open_bench();
	struct ibv_qp_init_attr init = usual_qp(b.cq, IBV_QPT_RC);
	volatile char *landed = b.buffer + 2048;
	double end = seconds_now() + DEADLINE_SECONDS;

	init.recv_cq = ibv_create_cq(b.context, 16, NULL, NULL, 0);
	NEED(init.recv_cq);
	make_pair_as(&b, init);
	connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	b.buffer[0] = 'x';
	writes(&b, 1);
	if (the_wrong_one) {
		while (*landed != 'x' && seconds_now() < end)
			poll_nothing(init.recv_cq);
		for (int i = 0; i < 200; i++) {
			poll_nothing(init.recv_cq);
			sleep_millis(1);
		}
	} else {
		poll_success(b.cq, 1);
		poll_nothing(init.recv_cq);
	}
	for (int i = 0; i < 2; i++) {
		NEED(!ibv_destroy_qp(b.qp[i]));
		b.qp[i] = NULL;
	}
	NEED(!ibv_destroy_cq(init.recv_cq));
	close_bench(&b);
}

static void poll_the_wrong_queue(void)
{
	poll_of_two(true);
}

static void poll_the_right_queue(void)
{
	poll_of_two(false);
}

/* UV-0404 */
static void arm_after_the_last_poll(void)
{
	struct woken w = open_woken();

	poll_nothing(w.received);
	messages(&w, 2, 0);
	arm(w.received);
	get_event(&w, w.received);
	ibv_ack_cq_events(w.received, 1);
	poll_success(w.received, 2);
	close_woken(&w);
}

static void poll_after_arming(void)
{
	struct woken w = open_woken();

	poll_nothing(w.received);
	messages(&w, 2, 0);
	arm(w.received);
	poll_success(w.received, 2);
	poll_nothing(w.received);
	messages(&w, 1, 0);
	get_event(&w, w.received);
	ibv_ack_cq_events(w.received, 1);
	poll_success(w.received, 1);
	close_woken(&w);
}

static void *wait_for_event(void *argument)
{
	struct woken *w = argument;

	get_event(w, w->received);
	return NULL;
}

/* A thread waits for an event, and a message comes that should wake it; if it does not, arming does in the end. */
static void wait_in_thread(struct woken *w, unsigned int flags, bool is_stuck)
{
	pthread_t thread;

	NEED(!pthread_create(&thread, NULL, wait_for_event, w));
	sleep_millis(50);
	messages(w, 2, flags);
	if (is_stuck) {
		sleep_millis(LONG_SLEEP_MILLIS);
		arm(w->received);
	}
	NEED(!pthread_join(thread, NULL));
	ibv_ack_cq_events(w->received, w->events);
	poll_success(w->received, 2);
}

/* UV-0405 */
static void wait_without_arming(void)
{
	struct woken w = open_woken();

	wait_in_thread(&w, 0, true);
	close_woken(&w);
}

static void wait_armed(void)
{
	struct woken w = open_woken();

	arm(w.received);
	wait_in_thread(&w, 0, false);
	close_woken(&w);
}

/* UV-0406 */
static void arm_again_and_again(void)
{
	struct woken w = open_woken();

	for (int i = 0; i < 80; i++)
		arm(w.received);
	messages(&w, 1, 0);
	get_event(&w, w.received);
	ibv_ack_cq_events(w.received, 1);
	poll_success(w.received, 1);
	close_woken(&w);
}

static void arm_once_for_each_event(void)
{
	struct woken w = open_woken();

	for (int i = 0; i < 80; i++) {
		arm(w.received);
		messages(&w, 1, 0);
		get_event(&w, w.received);
		poll_success(w.received, 1);
	}
	ibv_ack_cq_events(w.received, w.events);
	close_woken(&w);
}

static void *acknowledge_late(void *argument)
{
	struct woken *w = argument;

	sleep_millis(300);
	ibv_ack_cq_events(w->received, w->events);
	return NULL;
}

/* UV-0407: only this thread knows of the event; another one helps it out, or it would wait for ever. */
static void destroy_unacknowledged(void)
{
	struct woken w = open_woken();
	pthread_t thread;

	arm(w.received);
	messages(&w, 1, 0);
	get_event(&w, w.received);
	poll_success(w.received, 1);
	NEED(!pthread_create(&thread, NULL, acknowledge_late, &w));
	close_woken(&w);
	NEED(!pthread_join(thread, NULL));
}

static void destroy_acknowledged(void)
{
	struct woken w = open_woken();

	arm(w.received);
	messages(&w, 1, 0);
	get_event(&w, w.received);
	poll_success(w.received, 1);
	ibv_ack_cq_events(w.received, w.events);
	close_woken(&w);
}

/* UV-0408 */
static void acknowledge_twice(void)
{
	struct woken w = open_woken();

	arm(w.received);
	messages(&w, 1, 0);
	get_event(&w, w.received);
	poll_success(w.received, 1);
	ibv_ack_cq_events(w.received, 2);
	close_woken(&w);
}

/* UV-0409 */
static void acknowledge_in(int batch)
{
	struct woken w = open_woken();

	for (int i = 0; i < 256; i++) {
		arm(w.received);
		messages(&w, 1, 0);
		get_event(&w, w.received);
		poll_success(w.received, 1);
		if (i % batch == batch - 1)
			ibv_ack_cq_events(w.received, (unsigned int)batch);
	}
	close_woken(&w);
}

static void acknowledge_one_by_one(void)
{
	acknowledge_in(1);
}

static void acknowledge_in_batches(void)
{
	acknowledge_in(64);
}

/* UV-0410 */
static void leave_completions(void)
{
	struct woken w = open_woken();

	messages(&w, 2, 0);
	close_woken(&w);
}

static void leave_none(void)
{
	struct woken w = open_woken();

	messages(&w, 2, 0);
	poll_success(w.received, 2);
	close_woken(&w);
}

/* Waits until a queue pair has stopped, without polling. */
static void wait_for_error(struct ibv_qp *qp)
{
	double end = seconds_now() + DEADLINE_SECONDS;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
	struct ibv_qp_init_attr init;

	while (attr.qp_state != IBV_QPS_ERR && seconds_now() < end) {
		NEED(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
		sleep_millis(1);
	}
	NEED(attr.qp_state == IBV_QPS_ERR);
}

/* UV-0411 */
static void never_poll_a_failure(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	write_with_wrong_key(&b);
	wait_for_error(b.qp[0]);
	close_bench(&b);
}

static void poll_a_failure(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	write_with_wrong_key(&b);
	poll_status(b.cq, IBV_WC_REM_ACCESS_ERR);
	close_bench(&b);
}

/* UV-0412 */
static void go_on_after_a_failure(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	write_with_wrong_key(&b);
	poll_one(b.cq);
	for (int i = 0; i < 8; i++) {
		writes(&b, 1);
		poll_one(b.cq);
	}
	close_bench(&b);
}

static void stop_after_a_failure(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	write_with_wrong_key(&b);
	if (poll_one(b.cq).status != IBV_WC_SUCCESS) {
		for (int i = 0; i < 2; i++) {
			struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

			NEED(!ibv_modify_qp(b.qp[i], &reset, IBV_QP_STATE));
		}
		connect_both(b.qp[0], usual_path(), b.qp[1], usual_path());
	}
	for (int i = 0; i < 8; i++) {
		writes(&b, 1);
		poll_success(b.cq, 1);
	}
	close_bench(&b);
}

/* UV-0413 */
static void arm_without_channel(void)
{
	struct bench b = open_pair(IBV_QPT_RC);

	arm(b.cq);
	writes(&b, 1);
	poll_success(b.cq, 1);
	close_bench(&b);
}

/* UV-0414 */
static void never_read_events(void)
{
	struct woken w = open_woken();

	for (int i = 0; i < 4; i++) {
		arm(w.received);
		messages(&w, 1, 0);
		poll_success(w.received, 1);
	}
	close_woken(&w);
}

/* UV-0415 */
static void wait_for_solicited(unsigned int flags, bool is_stuck)
{
	struct woken w = open_woken();

	NEED(!ibv_req_notify_cq(w.received, 1));
	wait_in_thread(&w, flags, is_stuck);
	close_woken(&w);
}

static void nothing_solicited(void)
{
	wait_for_solicited(0, true);
}

static void something_solicited(void)
{
	wait_for_solicited(IBV_SEND_SOLICITED, false);
}

/* UV-0416: two queues report to one channel. */
static void answer_by_polling(bool the_other)
{
	struct woken w = open_woken();
	struct ibv_sge out = piece(&w.b, 0, 8);

	arm(w.received);
	arm(w.sent);
	messages(&w, 2, 0);
	get_event(&w, w.received);
	if (!the_other)
		poll_success(w.received, 2);
	poll_nothing(w.sent);
	post_rdma(w.b.qp[1], 5, IBV_WR_RDMA_WRITE, &out, w.b.buffer + 2048, w.b.mr->rkey);
	get_event(&w, w.sent);
	poll_success(w.sent, 1);
	if (the_other)
		poll_success(w.received, 2);
	ibv_ack_cq_events(w.received, 1);
	ibv_ack_cq_events(w.sent, 1);
	close_woken(&w);
}

static void poll_the_other_queue(void)
{
	answer_by_polling(true);
}

static void poll_the_queue_of_the_event(void)
{
	answer_by_polling(false);
}

/* UV-0417: lists of WRITEs. */
static void post_lists(bool all_signaled)
{
	struct bench b = open_pair(IBV_QPT_RC);

	for (int i = 0; i < 80; i++) {
		struct ibv_sge out = piece(&b, 0, 8);
		struct ibv_send_wr wr[4];

		for (int k = 0; k < 4; k++) {
			wr[k] = send_wr(k, IBV_WR_RDMA_WRITE, &out);
			wr[k].wr.rdma.remote_addr = (uintptr_t)b.buffer + 2048;
			wr[k].wr.rdma.rkey = b.mr->rkey;
			wr[k].next = k < 3 ? &wr[k + 1] : NULL;
			if (!all_signaled && k < 3)
				wr[k].send_flags = 0;
		}
		NEED(!post(b.qp[0], wr));
		poll_many(b.cq, all_signaled ? 4 : 1);
	}
	close_bench(&b);
}

static void signal_all(void)
{
	post_lists(true);
}

static void signal_the_last(void)
{
	post_lists(false);
}

/* UV-0418: bursts of messages. */
static void poll_bursts(bool one_by_one)
{
	struct woken w = open_woken();

	for (int i = 0; i < 40; i++) {
		struct ibv_sge out = piece(&w.b, 0, 8), in = piece(&w.b, 1024, 64);

		for (int k = 0; k < 16; k++)
			post_recv(w.b.qp[1], k, &in);
		for (int k = 0; k < 16; k++)
			post_send(w.b.qp[0], k, &out);
		/* All but the last have arrived when all are acknowledged. */
		poll_many(w.b.cq, 16);
		if (one_by_one)
			poll_success(w.received, 16);
		else
			poll_many(w.received, 16);
	}
	close_woken(&w);
}

static void poll_one_by_one(void)
{
	poll_bursts(true);
}

static void poll_many_at_once(void)
{
	poll_bursts(false);
}

/* UV-0419 */
static void poll_for(int room)
{
	struct woken w = open_woken();
	struct ibv_wc wc[4];

	messages(&w, 2, 0);
	NEED(ibv_poll_cq(w.received, room, wc) <= room);
	close_woken(&w);
}

static void poll_without_room(void)
{
	poll_for(0);
}

static void poll_with_room(void)
{
	poll_for(4);
}

/* An extended queue with completions of two WRITEs. */
static struct ibv_cq_ex *open_extended(struct bench *b)
{
	struct ibv_cq_init_attr_ex attributes = {.cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_cq_ex *cq;

	*b = open_bench();
	cq = ibv_create_cq_ex(b->context, &attributes);
	NEED(cq);
	NEED(!ibv_destroy_cq(b->cq));
	b->cq = ibv_cq_ex_to_cq(cq);
	make_pair(b, IBV_QPT_RC);
	connect_both(b->qp[0], usual_path(), b->qp[1], usual_path());
	writes(b, 2);
	return cq;
}

/* Begins a poll when there is something. */
static void start_poll(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attributes = {0};
	double end = seconds_now() + DEADLINE_SECONDS;
	int answer;

	while ((answer = ibv_start_poll(cq, &attributes)) == ENOENT && seconds_now() < end)
		;
	NEED(answer == 0 && cq->status == IBV_WC_SUCCESS);
}

/* UV-0421 to UV-0423 */
static void poll_extended(bool reads_unasked, bool ends, bool ends_nothing)
{
	struct bench b;
	struct ibv_cq_ex *cq = open_extended(&b);
	struct ibv_poll_cq_attr attributes = {0};

	for (int i = 0; i < 2; i++) {
		start_poll(cq);
		ibv_wc_read_opcode(cq);
		ibv_wc_read_byte_len(cq);
		if (reads_unasked)
			NEED(ibv_wc_read_qp_num(cq) == b.qp[0]->qp_num);
		if (ends || i == 1)
			ibv_end_poll(cq);
	}
	NEED(ibv_start_poll(cq, &attributes) == ENOENT);
	if (ends_nothing)
		ibv_end_poll(cq);
	close_bench(&b);
}

static void read_unasked(void)
{
	poll_extended(true, true, false);
}

static void read_asked(void)
{
	poll_extended(false, true, false);
}

static void leave_poll_open(void)
{
	poll_extended(false, false, false);
}

static void end_polls(void)
{
	poll_extended(false, true, false);
}

static void end_what_did_not_begin(void)
{
	poll_extended(false, true, true);
}

/* UV-0424: three completions wait, and one or all are polled before the program waits for an event. */
static void poll_before_waiting(int room)
{
	struct woken w = open_woken();
	struct ibv_wc wc[4];

	messages(&w, 3, 0);
	/* The last is there as well. */
	sleep_millis(100);
	arm(w.received);
	NEED(ibv_poll_cq(w.received, room, wc) >= 1);
	get_event(&w, w.received);
	ibv_ack_cq_events(w.received, 1);
	poll_many(w.received, room == 1 ? 2 : 0);
	close_woken(&w);
}

static void leave_some_and_wait(void)
{
	poll_before_waiting(1);
}

static void leave_none_and_wait(void)
{
	poll_before_waiting(4);
}

CASES({"UV-0401", let_overflow, have_room}, {"UV-0402", too_small, large_enough},
      {"UV-0403", poll_the_wrong_queue, poll_the_right_queue}, {"UV-0404", arm_after_the_last_poll, poll_after_arming},
      {"UV-0405", wait_without_arming, wait_armed}, {"UV-0406", arm_again_and_again, arm_once_for_each_event},
      {"UV-0407", destroy_unacknowledged, destroy_acknowledged}, {"UV-0408", acknowledge_twice, destroy_acknowledged},
      {"UV-0409", acknowledge_one_by_one, acknowledge_in_batches}, {"UV-0410", leave_completions, leave_none},
      {"UV-0411", never_poll_a_failure, poll_a_failure}, {"UV-0412", go_on_after_a_failure, stop_after_a_failure},
      {"UV-0413", arm_without_channel, destroy_acknowledged}, {"UV-0414", never_read_events, destroy_acknowledged},
      {"UV-0415", nothing_solicited, something_solicited}, {"UV-0416", poll_the_other_queue, poll_the_queue_of_the_event},
      {"UV-0417", signal_all, signal_the_last}, {"UV-0418", poll_one_by_one, poll_many_at_once},
      {"UV-0419", poll_without_room, poll_with_room}, {"UV-0420", counts_on_rounding, asks_for_all},
      {"UV-0421", read_unasked, read_asked}, {"UV-0422", leave_poll_open, end_polls},
      {"UV-0423", end_what_did_not_begin, end_polls}, {"UV-0424", leave_some_and_wait, leave_none_and_wait})
