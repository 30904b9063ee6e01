/* Signals and the threads of the library, and programs that end in a signal handler or in one thread while another is in
 * the middle of a call. */
#include "bench.h"
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds after which a program that was to end hangs. */
#define PATIENCE 20

static struct ibv_context *context;
static struct ibv_pd *pd;

/* Blocked by all threads of the program, a signal is read from the descriptor: the library's threads do not take it. */
static void read_from_a_descriptor(void)
{
	sigset_t set;
	struct signalfd_siginfo info = {0};

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGUSR1);
	CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
	int fd = signalfd(-1, &set, 0);

	CHECK(fd >= 0);
	for (int i = 0; i < 20; i++) {
		CHECK(!kill(getpid(), i % 2 ? SIGTERM : SIGUSR1));
		CHECK(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == (i % 2 ? SIGTERM : SIGUSR1));
	}
	close(fd);
}

static void leave(int signal)
{
	(void)signal;
	exit(0);
}

static void *traffic(void *argument)
{
	struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);

	(void)argument;
	NEED(cq && a && b && !to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	for (;;) {
		CHECK(!receive(b, 1, NULL) && !post(a, 1, IBV_WR_SEND, NULL, 0, 0));
		completion(cq);
		completion(cq);
	}
}

/* Ends a child in the middle of traffic: in a handler that interrupts it, or in another thread. */
static void end_in_the_middle(int number)
{
	pid_t child = fork();
	int status = -1;

	if (child == 0) {
		struct itimerval soon = {.it_value = {.tv_usec = 3000 + number * 137 % 5000}};
		pthread_t thread;

		failures = 0;
		context = open_lo();
		NEED(context);
		pd = ibv_alloc_pd(context);
		alarm(PATIENCE);
		if (number % 2) {
			pthread_create(&thread, NULL, traffic, NULL);
			usleep(soon.it_value.tv_usec);
			exit(0);
		}
		signal(SIGVTALRM, leave);
		setitimer(ITIMER_VIRTUAL, &soon, NULL);
		traffic(NULL);
	}
	CHECK(waitpid(child, &status, 0) == child);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		fprintf(stderr, "end %d hangs\n", number);
	CHECK(status == 0);
}

int main(void)
{
	context = open_lo();
	NEED(context);
	pd = ibv_alloc_pd(context);
	for (int i = 0; i < 60 && failures < 3; i++)
		end_in_the_middle(i);
	read_from_a_descriptor();
	printf("%d failures\n", failures);
	return failures != 0;
}
