/* Random work against the C library, every byte of it verified. See README.md beside this file. */
#include "soak.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Without a step for so long a lane is stuck; the time during which the process itself was stopped does not count. */
#define STUCK_MS 60000
#define TICK_MS 250

struct options options = {.seconds = 10, .threads = 1, .limits = {.mtu = 1024, .most_qps = 4}};
struct ibv_context *device;
union ibv_gid own_gid;
int own_gid_index;
static struct lane *lanes;
static pthread_mutex_t speaking = PTHREAD_MUTEX_INITIALIZER;

uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void step(struct lane *lane, const char *doing)
{
	lane->steps++;
	if (doing)
		lane->doing = doing;
}

static const char *side_name(void)
{
	return options.side == SERVER ? "server" : "client";
}

void fail(const struct lane *lane, int qp, uint64_t wr_id, const char *format, ...)
{
	va_list arguments;

	/* Only the first is the cause, so it ends the process before others speak. */
	pthread_mutex_lock(&speaking);
	fflush(stdout);
	fprintf(stderr, "soak-c: FAIL: %s seed %lu lane %d round %d epoch %d qp %d wr_id 0x%lx: ", side_name(), options.seed,
		lane ? lane->number : -1, lane ? lane->round_number : -1, lane ? lane->epoch_number : -1, qp, wr_id);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
	/* A debugger can look at it then. */
	if (getenv("SOAK_ABORT"))
		abort();
	_exit(1);
}

void trouble(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "soak-c: cannot run as %s: ", side_name());
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
	_exit(2);
}

void lost(struct lane *lane, const char *how)
{
	if (!options.peer_may_die)
		fail(lane, -1, 0, "the peer is gone: %s (%s)", how, lane->doing);
	lane->gone = true;
}

/* Says how it went, and ends; threads may still wait for things that no longer come. */
_Noreturn static void report(uint64_t rounds, uint64_t operations, uint64_t bytes, bool gone)
{
	printf("{\"program\":\"soak-c\",\"role\":\"%s\",\"seed\":%lu,\"rounds\":%lu,\"operations\":%lu,\"bytes\":%lu,\"verdict\":\"%s\"}\n",
	       side_name(), options.seed, rounds, operations, bytes, gone ? "peer died" : "ok");
	fflush(stdout);
	_exit(0);
}

void never_came(const char *what)
{
	if (options.peer_may_die)
		report(0, 0, 0, true);
	trouble("%s", what);
}

static void describe(struct lane *lane)
{
	fprintf(stderr, "soak-c: seed %lu lane %d round %d: %s\n", options.seed, lane->number, lane->round_number, lane->doing);
	for (int i = 0; i < lane->qps; i++) {
		struct queue_pair *qp = &lane->qp[i];
		struct receive_queue *queue = qp->queue;

		for (int half = 0; half < qp->halves; half++)
			if (qp->mine[half])
				fprintf(stderr, "soak-c:   qp %d (%s, number %x) list %d: %d requests, %d posted, next to complete %d\n", i,
					kind_names[qp->kind], qp->sends ? qp->sends->qp_num : 0, half, qp->mine[half]->ops,
					qp->progress[half].posted, qp->progress[half].next);
		if (queue && qp->theirs[0])
			fprintf(stderr, "soak-c:   qp %d: %d of %d messages came, %d of %d receives posted, %d done\n", i, qp->arrivals,
				qp->theirs[0]->consumers, queue->posted, queue->total, queue->done);
	}
}

static void *watch(void *unused)
{
	uint64_t before[MAX_LANES] = {0}, idle[MAX_LANES] = {0}, last = now_ms();

	(void)unused;
	for (;;) {
		uint64_t now, passed;

		usleep(TICK_MS * 1000);
		now = now_ms();
		passed = now - last > 4 * TICK_MS ? TICK_MS : now - last;
		last = now;
		for (int i = 0; i < options.threads; i++) {
			if (lanes[i].steps != before[i] || lanes[i].finished) {
				before[i] = lanes[i].steps;
				idle[i] = 0;
			} else if ((idle[i] += passed) > STUCK_MS) {
				for (int n = 0; n < options.threads; n++)
					if (!lanes[n].finished)
						describe(&lanes[n]);
				fail(&lanes[i], -1, 0, "stuck for a minute: %s", lanes[i].doing);
			}
		}
	}
	return NULL;
}

/* A thread has to acknowledge what happens to queue pairs, or they cannot be destroyed. */
static void *hear(void *unused)
{
	struct ibv_async_event event;

	(void)unused;
	while (!ibv_get_async_event(device, &event)) {
		enum ibv_event_type type = event.event_type;

		ibv_ack_async_event(&event);
		if (type == IBV_EVENT_CQ_ERR || type == IBV_EVENT_DEVICE_FATAL || type == IBV_EVENT_SRQ_ERR)
			fail(NULL, -1, 0, "%s", ibv_event_type_str(type));
	}
	return NULL;
}

static void read_options(int count, char **words)
{
	enum { SEED, SECONDS, ROLE, ADDRESS, PORT, OWN_ADDRESS, THREADS, QPS, MTU, CONNECT, LOSSLESS, MAY_DIE, MAY_STOP };
	static const struct option known[] = {
		{"seed", 1, NULL, SEED}, {"seconds", 1, NULL, SECONDS}, {"role", 1, NULL, ROLE}, {"address", 1, NULL, ADDRESS},
		{"port", 1, NULL, PORT}, {"own-address", 1, NULL, OWN_ADDRESS}, {"threads", 1, NULL, THREADS}, {"qps", 1, NULL, QPS},
		{"mtu", 1, NULL, MTU}, {"connect", 1, NULL, CONNECT}, {"lossless", 0, NULL, LOSSLESS}, {"peer-may-die", 0, NULL, MAY_DIE},
		{"peer-may-stop", 0, NULL, MAY_STOP}, {0}};
	int which;
	bool role = false;

	while ((which = getopt_long(count, words, "", known, NULL)) >= 0)
		switch (which) {
		case SEED:
			options.seed = strtoull(optarg, NULL, 0);
			break;
		case SECONDS:
			options.seconds = atoi(optarg);
			break;
		case ROLE:
			role = !strcmp(optarg, "server") || !strcmp(optarg, "client");
			options.side = !strcmp(optarg, "client") ? CLIENT : SERVER;
			break;
		case ADDRESS:
			options.address = optarg;
			break;
		case PORT:
			options.port = atoi(optarg);
			break;
		case OWN_ADDRESS:
			options.own_address = optarg;
			break;
		case THREADS:
			options.threads = atoi(optarg);
			break;
		case QPS:
			options.limits.most_qps = (uint32_t)atoi(optarg);
			break;
		case MTU:
			options.limits.mtu = (uint32_t)atoi(optarg);
			break;
		case CONNECT:
			options.limits.cm = !strcmp(optarg, "cm");
			break;
		case LOSSLESS:
			options.limits.lossless = true;
			break;
		case MAY_DIE:
			options.peer_may_die = true;
			break;
		case MAY_STOP:
			options.peer_may_stop = true;
			break;
		default:
			trouble("no such option");
		}
	if (!role || !options.address || !options.port)
		trouble("--role, --address and --port are needed");
	if (options.threads < 1 || options.threads > MAX_LANES || options.limits.most_qps < 1 || options.limits.most_qps > MAX_QPS)
		trouble("1 to %d threads and 1 to %d queue pairs", MAX_LANES, MAX_QPS);
	if (options.limits.mtu < 256 || options.limits.mtu > 4096 || (options.limits.mtu & (options.limits.mtu - 1)))
		trouble("%u is no MTU", options.limits.mtu);
}

/* Both sides must draw the same plan. Datagrams for a process that is stopped may get lost on any link, so there is no link without loss where
 * either side may be stopped, whichever of them was told so. The packets are as long as both sides' interfaces carry. */
static void agree(void)
{
	struct {
		uint64_t seed;
		uint32_t threads, qps, mtu, cm, lossless, may_stop;
	} mine = {options.seed, (uint32_t)options.threads, options.limits.most_qps, options.limits.mtu, options.limits.cm,
		  options.limits.lossless, options.peer_may_stop}, theirs;

	if (!exchange(&lanes[0], &mine, &theirs, sizeof mine))
		return;
	if (theirs.may_stop || mine.may_stop)
		options.limits.lossless = false;
	theirs.may_stop = mine.may_stop;
	if (options.limits.mtu > theirs.mtu)
		options.limits.mtu = theirs.mtu;
	theirs.mtu = mine.mtu;
	if (memcmp(&mine, &theirs, sizeof mine))
		trouble("the other side was started with other options");
}

void *lane_run(void *argument);

int main(int count, char **words)
{
	pthread_t thread[MAX_LANES], watcher, listener;
	uint64_t rounds = 0, operations = 0, bytes = 0;
	bool gone = false;

	read_options(count, words);
	lanes = calloc((size_t)options.threads, sizeof *lanes);
	find_device();
	if (options.side == SERVER) {
		int fd;

		/* First, so that a client that can connect by TCP can connect by the connection manager as well. */
		cm_listen();
		fd = control_listen();
		for (int i = 0; i < options.threads; i++) {
			int number, control = control_accept(fd, &number);

			lanes[number].control = control;
		}
		close(fd);
	}
	for (int i = 0; i < options.threads; i++) {
		lanes[i].number = i;
		lanes[i].doing = "starting";
		if (options.side == CLIENT)
			lanes[i].control = control_open(i);
	}
	agree();
	if (pthread_create(&listener, NULL, hear, NULL) || pthread_create(&watcher, NULL, watch, NULL))
		trouble("no thread");
	for (int i = 0; i < options.threads; i++)
		if (pthread_create(&thread[i], NULL, lane_run, &lanes[i]))
			trouble("no thread");
	for (int i = 0; i < options.threads; i++) {
		pthread_join(thread[i], NULL);
		rounds += (uint64_t)lanes[i].round_number;
		operations += lanes[i].operations;
		bytes += lanes[i].bytes;
		gone |= lanes[i].gone;
	}
	report(rounds, operations, bytes, gone);
}
