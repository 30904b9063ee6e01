/* Drives a round: posts, polls and waits, by one thread or by several that share the queue pairs of the lane. */
#include "soak.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How long flushed work may take to be told. */
#define FLUSH_MS 10000
/* An aborted round is stopped then, however far it got: its peer may have been stopped before, and answer nothing. */
#define ABORT_MS 200
/* On networks that lose, what has not come after so long a silence does not come. */
#define QUIET_MS 40

static struct receive_queue *queue_of(struct lane *lane, int index)
{
	return index < lane->qps ? lane->own_queue[index] : index == lane->qps ? lane->shared_queue : lane->xrc_queue;
}

static bool receives_due(struct lane *lane)
{
	return !lane->round.late[options.side] || now_ms() >= lane->started + 1 + lane->round.key % 20;
}

static bool post_receives(struct lane *lane)
{
	bool some = false;

	for (int i = 0; i < lane->qps + 2; i++)
		if (queue_of(lane, i))
			some |= receive_some(lane, queue_of(lane, i));
	return some;
}

static bool receives_posted(struct lane *lane)
{
	for (int i = 0; i < lane->qps + 2; i++)
		if (queue_of(lane, i) && queue_of(lane, i)->posted < queue_of(lane, i)->total)
			return false;
	return true;
}

static bool post_sends(struct lane *lane, int half)
{
	bool some = false;

	for (int i = 0; i < lane->qps; i++)
		if (half < lane->qp[i].halves)
			some |= post_some(lane, i, half);
	return some;
}

static bool sends_posted(struct lane *lane, int half)
{
	for (int i = 0; i < lane->qps; i++)
		if (half < lane->qp[i].halves && lane->qp[i].progress[half].posted < lane->qp[i].mine[half]->ops)
			return false;
	return true;
}

/* A thread that only posts; what it is to post is in `parts`. */
struct helper {
	struct lane *lane;
	unsigned int parts;
	pthread_t thread;
};

enum { PART_FIRST = 1, PART_SECOND = 2, PART_RECEIVES = 4 };

/* Posts what there is room for; whether there is nothing left to post. */
static bool post_parts(struct lane *lane, unsigned int parts, bool *some)
{
	bool finished = true;

	for (int half = 0; half < 2; half++)
		if (parts & (half ? PART_SECOND : PART_FIRST)) {
			*some |= post_sends(lane, half);
			finished &= sends_posted(lane, half);
		}
	if (parts & PART_RECEIVES) {
		if (receives_due(lane))
			*some |= post_receives(lane);
		finished &= receives_posted(lane);
	}
	return finished;
}

static void *help(void *argument)
{
	struct helper *helper = argument;
	bool some;

	for (;;) {
		/* Read first: a thread that finds that all was stopped posts once more, and that must be flushed as well. */
		bool last = helper->lane->stopped || helper->lane->over;

		some = false;
		if (post_parts(helper->lane, helper->parts, &some) || last)
			return NULL;
		if (!some)
			usleep(20);
	}
}

void stop(struct lane *lane)
{
	if (lane->stopped)
		return;
	lane->stopped = true;
	if (lane->connected)
		to_state(lane, IBV_QPS_ERR);
}

static int poll_all(struct lane *lane)
{
	struct completion completion[16];
	int total = 0;

	for (int i = 0; i < lane->completion_queues; i++) {
		int count = poll_queue(lane, &lane->completion_queue[i], completion, 1 + (int)((lane->round.key >> i) & 15));

		for (int n = 0; n < count; n++)
			verify(lane, &completion[n]);
		total += count;
	}
	return total;
}

static bool done(struct lane *lane)
{
	return all_sent(lane) && all_received(lane);
}

/* A peer that is gone leaves a closed control channel, which is told long before retries run out. */
static void look_at_control(struct lane *lane)
{
	char byte;
	ssize_t got = recv(lane->control, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
		lost(lane, "the control channel was closed");
}

/* With nothing to poll: waits for an event, which has to come when there is a completion. */
static void wait_armed(struct lane *lane, bool may_block)
{
	arm(lane);
	if (poll_all(lane) || lane->gone || done(lane))
		return;
	if (wait_for_events(lane, may_block ? 2000 : 1) || !may_block)
		return;
	look_at_control(lane);
	if (!lane->gone && !lane->round.solicited && poll_all(lane) && !wait_for_events(lane, 2000))
		fail(lane, -1, 0, "a completion was there without an event, two seconds long");
}

static void poll_until_done(struct lane *lane, unsigned int parts)
{
	unsigned int idle = 0;

	while (!done(lane)) {
		bool some = false, posted = post_parts(lane, parts, &some);

		some |= poll_all(lane) > 0;
		if (lane->gone)
			break;
		if (lane->round.aborted && (lane->completions >= lane->round.abort_after[options.side] || now_ms() > lane->started + ABORT_MS))
			break;
		if (some) {
			idle = 0;
			continue;
		}
		if (lane->channel)
			wait_armed(lane, (posted || !(parts & PART_RECEIVES) || receives_due(lane)) && !lane->round.aborted);
		else if (++idle > 100)
			usleep(20);
		else
			sched_yield();
		if (idle % 1000 == 999)
			look_at_control(lane);
	}
}

/* Receives that must be there before the peer begins. */
void work_prepare(struct lane *lane)
{
	lane->stopped = lane->over = lane->reset = false;
	lane->completions = 0;
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];

		memset(qp->arrived, 0, sizeof qp->arrived);
		qp->arrivals = qp->next_message = qp->begun = 0;
		memset(qp->progress, 0, sizeof qp->progress);
	}
	for (int i = 0; i < lane->qps + 2; i++) {
		struct receive_queue *queue = queue_of(lane, i);

		if (queue && (queue->all_ahead || !lane->round.late[options.side]))
			while (receive_some(lane, queue))
				;
	}
}

void work_run(struct lane *lane)
{
	static const unsigned int shares[3][3] = {{0}, {PART_FIRST | PART_SECOND | PART_RECEIVES}, {PART_FIRST, PART_SECOND, PART_RECEIVES}};
	int mode = lane->epoch.threads[options.side];
	struct helper helper[3];
	int helpers = 0;

	step(lane, "working");
	lane->started = now_ms();
	for (int i = 0; i < 3; i++)
		if (shares[mode][i]) {
			helper[helpers] = (struct helper){.lane = lane, .parts = shares[mode][i]};
			if (pthread_create(&helper[helpers].thread, NULL, help, &helper[helpers]))
				trouble("no thread");
			helpers++;
		}
	poll_until_done(lane, mode ? 0 : PART_FIRST | PART_SECOND | PART_RECEIVES);
	if (lane->round.aborted && lane->round.abort_by_reset[options.side])
		/* Nothing can be posted after a reset, so threads that post are waited for. */
		lane->stopped = true;
	else if (lane->round.aborted || lane->gone)
		stop(lane);
	lane->over = true;
	if (!mode && lane->stopped && !lane->round.abort_by_reset[options.side]) {
		bool some;

		post_parts(lane, PART_FIRST | PART_SECOND | PART_RECEIVES, &some);
	}
	for (int i = 0; i < helpers; i++)
		pthread_join(helper[i].thread, NULL);
	if (lane->round.aborted && lane->round.abort_by_reset[options.side]) {
		to_state(lane, IBV_QPS_RESET);
		lane->reset = true;
	}
}

static bool accounted(struct lane *lane)
{
	for (int i = 0; i < lane->qps; i++) {
		if (lane->own_queue[i] && lane->own_queue[i]->done != lane->own_queue[i]->posted)
			return false;
		for (int half = 0; half < lane->qp[i].halves; half++)
			if (lane->qp[i].progress[half].next != lane->qp[i].progress[half].posted)
				return false;
	}
	return true;
}

/* Takes the completions of queue pairs in the error state. Where some requests may say nothing, silence ends it. */
void work_drain(struct lane *lane)
{
	uint64_t end = now_ms() + FLUSH_MS, quiet = now_ms() + 300;

	step(lane, "waiting for flushed work");
	if (lane->reset) {
		struct completion left;

		/* An XRC target has no queue of its own to be cleared; what came by it is still told, as with hardware. */
		for (int i = 0; i < lane->completion_queues; i++)
			while (poll_queue(lane, &lane->completion_queue[i], &left, 1)) {
				if ((left.wr_id >> 20 & 0xfff) != MAX_QPS + 1)
					fail(lane, (int)(left.wr_id >> 20 & 0xfff), left.wr_id,
					     "a completion (%s, qp_num %x) of a queue pair that was reset", status_name(left.status), left.qp);
				verify(lane, &left);
			}
		return;
	}
	while (!accounted(lane) && now_ms() < end) {
		if (poll_all(lane)) {
			quiet = now_ms() + 300;
			continue;
		}
		if (now_ms() > quiet) {
			bool silent = true;

			for (int i = 0; i < lane->qps; i++) {
				if (lane->own_queue[i] && lane->own_queue[i]->done != lane->own_queue[i]->posted)
					silent = false;
				for (int half = 0; half < lane->qp[i].halves; half++) {
					struct progress *progress = &lane->qp[i].progress[half];

					for (int n = progress->next; n < progress->posted; n++)
						silent &= !progress->failed && !lane->qp[i].mine[half]->op[n].signaled;
				}
			}
			if (silent)
				break;
		}
		usleep(100);
	}
	/* And nothing more than that. */
	poll_all(lane);
	verify_flushed(lane);
}

void work_quiet(struct lane *lane)
{
	uint64_t end = now_ms() + QUIET_MS;

	step(lane, "waiting for late datagrams");
	while (now_ms() < end) {
		if (poll_all(lane))
			end = now_ms() + QUIET_MS;
		else
			usleep(200);
	}
}
