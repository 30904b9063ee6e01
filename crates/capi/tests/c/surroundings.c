/* A program in surroundings that are short of something: of standard input and output, of descriptors, of shared memory,
 * of a plan of faults that can be read. The argument says of what. */
#include "bench.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* One message, and an event channel; calls `between` now and then. */
static void work(void (*between)(void))
{
	struct ibv_context *context = open_lo();

	NEED(context);
	between();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *id;

	NEED(pd && channel && cq && a && b && events && !rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	CHECK(!to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	CHECK(!receive(b, 1, NULL) && !post(a, 1, IBV_WR_SEND, NULL, 0, 0));
	CHECK(completion(cq).status == IBV_WC_SUCCESS && completion(cq).status == IBV_WC_SUCCESS);
	between();
	CHECK(context->cmd_fd > 2 && context->async_fd > 2 && channel->fd > 2 && events->fd > 2);
	/* The descriptor still says which context it is of. */
	struct ibv_context *other = ibv_import_device(dup(context->cmd_fd));

	CHECK(other && !ibv_close_device(other));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(events);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	between();
}

static void nothing(void)
{
}

static int report;

/* A thread of the library may have one for a moment: the kernel gives the lowest number, and it is moved then. */
static int stays_taken(int fd)
{
	for (int i = 0; i < 1000 && fcntl(fd, F_GETFD) >= 0; i++)
		usleep(1000);
	return fcntl(fd, F_GETFD) >= 0;
}

static void none_of_the_first_three(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (stays_taken(fd)) {
			failures++;
			dprintf(report, "descriptor %d was taken\n", fd);
		}
}

/* Started without standard input, output and error. */
static void without_standard_descriptors(void)
{
	report = fcntl(2, F_DUPFD, 100);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	work(none_of_the_first_three);
	dup2(report, 2);
}

/* Whatever is refused for want of descriptors says so. */
static void short_of_descriptors(void)
{
	int refused = 0;

	for (rlim_t limit = 4; limit < 64; limit++) {
		pid_t child = fork();
		int status = -1;

		if (child == 0) {
			struct rlimit files = {limit, limit};
			int count = -1;

			CHECK(!setrlimit(RLIMIT_NOFILE, &files));
			/* The message is for the person who started the program; here there are sixty. */
			int quiet = open("/dev/null", O_WRONLY), loud = fcntl(2, F_DUPFD, 3);

			if (quiet >= 0 && loud >= 0)
				dup2(quiet, 2);
			close(quiet);
			errno = 0;
			struct rdma_event_channel *events = rdma_create_event_channel();
			int channel_error = errno;

			errno = 0;
			struct ibv_device **list = events ? NULL : ibv_get_device_list(&count);
			int list_error = errno;

			if (loud >= 0)
				dup2(loud, 2);
			CHECK(events || channel_error == EMFILE || (fprintf(stderr, "limit %d: errno %d\n", (int)limit, channel_error), 0));
			CHECK(events || list || list_error == EMFILE);
			_exit(failures ? 1 : events ? 0 : 2);
		}
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 1);
		refused += WEXITSTATUS(status) == 2;
	}
	CHECK(refused > 0 && refused < 60);
}

/* The plan in UBIVERBS_FAULTS cannot be read. */
static void with_a_bad_plan(void)
{
	errno = 0;
	CHECK(!ibv_get_device_list(NULL) && errno == EINVAL);
	errno = 0;
	CHECK(!rdma_create_event_channel() && errno == EINVAL);
}

/* A sandbox that refuses a system call. */
static void refuse(unsigned call, int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof *code, code};

	NEED(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void without_memfd(int error)
{
	refuse(SYS_memfd_create, error);
	work(nothing);
}

/* Sandboxes that are older than the call refuse it with EPERM: the engine must sleep in another way. */
static void without_epoll_pwait2(int error)
{
	struct timespec used, quarter = {0, 250000000};

	refuse(SYS_epoll_pwait2, error);
	work(nothing);
	struct ibv_context *context = open_lo();

	NEED(context && !clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used));
	long before = used.tv_sec * 1000000000 + used.tv_nsec;

	nanosleep(&quarter, NULL);
	NEED(!clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used));
	CHECK(used.tv_sec * 1000000000 + used.tv_nsec - before < 20000000);
	CHECK(!ibv_close_device(context));
}

/* Messages of many packets. */
static void long_messages(void)
{
	enum { LENGTH = 1 << 18, COUNT = 8 };
	static char from[LENGTH], to[LENGTH];
	struct ibv_context *context = open_lo();

	NEED(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *source = ibv_reg_mr(pd, from, LENGTH, 0), *target = ibv_reg_mr(pd, to, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);

	NEED(pd && cq && source && target && a && b);
	CHECK(!to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	for (int i = 0; i < COUNT; i++) {
		struct ibv_sge out = {(uintptr_t)from, LENGTH, source->lkey}, in = {(uintptr_t)to, LENGTH, target->lkey};

		memset(from, 'a' + i, LENGTH);
		CHECK(!receive(b, 1, &in) && !post(a, 1, IBV_WR_SEND, &out, 0, 0));
		CHECK(completion(cq).status == IBV_WC_SUCCESS && completion(cq).status == IBV_WC_SUCCESS);
		CHECK(!memcmp(from, to, LENGTH));
	}
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(source) && !ibv_dereg_mr(target));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

static struct ibv_pd *domain;

/* Runs when the thread has already lost what was its own. */
__attribute__((destructor)) static void afterwards(void)
{
	if (domain && ibv_dealloc_pd(domain) != EBUSY)
		_exit(3);
}

static void with_destructors(void)
{
	struct ibv_context *context = open_lo();

	NEED(context);
	domain = ibv_alloc_pd(context);
	NEED(domain);
	static char memory[64];

	CHECK(ibv_reg_mr(domain, memory, sizeof memory, 0));
	CHECK(ibv_dealloc_pd(domain) == EBUSY);
}

/* A queue pair with much to do ends. */
static void with_flushes(void)
{
	struct ibv_context *context = open_lo();

	NEED(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
	struct ibv_qp_init_attr init = plain_init(cq, IBV_QPT_RC);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	init.cap.max_recv_wr = 500;
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);

	NEED(pd && cq && a && b);
	CHECK(!to_init(a) && !to_init(b) && !connect_to(a, b->qp_num) && !connect_to(b, a->qp_num));
	for (int i = 0; i < 500; i++)
		CHECK(!receive(a, i, NULL));
	/* The peer has no receive for them. */
	for (int i = 0; i < 3; i++)
		CHECK(!post(a, i, IBV_WR_SEND, NULL, 0, 0));
	CHECK(!ibv_modify_qp(a, &attr, IBV_QP_STATE));
	for (int i = 0; i < 503; i++)
		CHECK(completion(cq).status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
}

int main(int count, char **arguments)
{
	const char *what = count > 1 ? arguments[1] : "";

	if (!strcmp(what, "standard"))
		without_standard_descriptors();
	else if (!strcmp(what, "descriptors"))
		short_of_descriptors();
	else if (!strcmp(what, "destructors"))
		with_destructors();
	else if (!strcmp(what, "flushes"))
		with_flushes();
	else if (!strcmp(what, "plan"))
		with_a_bad_plan();
	else if (!strcmp(what, "memfd"))
		without_memfd(EPERM);
	else if (!strcmp(what, "no-memfd"))
		without_memfd(ENOSYS);
	else if (!strcmp(what, "epoll"))
		without_epoll_pwait2(EPERM);
	else if (!strcmp(what, "many"))
		refuse(SYS_recvmmsg, EPERM), refuse(SYS_sendmmsg, EPERM), long_messages();
	else if (!strcmp(what, "no-many"))
		refuse(SYS_recvmmsg, ENOSYS), refuse(SYS_sendmmsg, ENOSYS), long_messages();
	else if (!strcmp(what, "no-epoll"))
		without_epoll_pwait2(ENOSYS);
	else
		work(nothing);
	return failures != 0;
}
