/* Sockets of several processes: forks, other programs, descriptors that are passed on, and threads. */
#include "sockets.h"

static void fork_server(void)
{
	if (is_client()) {
		for (int i = 0; i < 3; i++)
			ask_echo(connected(), 500000 + i);
		exit(0);
	}
	int listening = serving(0);
	for (int i = 0; i < 3; i++) {
		int fd = accepted(listening);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			close(listening);
			CHECK(echo(fd) == (size_t)500000 + i);
			exit(0);
		}
		CHECK(close(fd) == 0);
		joined(child);
	}
	client_ended();
}

static void fork_client(void)
{
	if (is_client()) {
		int fd = connected();
		send_bytes(fd, 0, 100000);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			send_bytes(fd, 100000, 200000);
			_exit(0);
		}
		receive_bytes(fd, 0, 250000);
		joined(child);
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			receive_bytes(fd, 250000, 50000);
			exit(0);
		}
		joined(child);
		CHECK(shutdown(fd, SHUT_WR) == 0);
		ended(fd);
		exit(0);
	}
	int fd = accepted(serving(0));
	CHECK(echo(fd) == 300000);
	CHECK(close(fd) == 0);
	client_ended();
}

/* The parent ends at once; its child has the stream, and every byte arrives. */
static void orphan(void)
{
	if (is_client()) {
		int fd = connected();
		receive_bytes(fd, 0, MANY);
		ended(fd);
		exit(0);
	}
	pid_t parent = fork();
	CHECK(parent >= 0);
	if (parent == 0) {
		int fd = accepted(serving(0));
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			usleep(100000);
			send_bytes(fd, 0, MANY);
			_exit(0);
		}
		exit(0);
	}
	joined(parent);
	client_ended();
}

/* The program ends right after its last write. */
static void last_words(void)
{
	if (is_client()) {
		int fd = connected();
		receive_bytes(fd, 0, MANY);
		ended(fd);
		exit(0);
	}
	pid_t server = fork();
	CHECK(server >= 0);
	if (server == 0) {
		send_bytes(accepted(serving(0)), 0, MANY);
		exit(0);
	}
	joined(server);
	client_ended();
}

#define UNREAD 12

/* A peer that does not read keeps no program: neither `close` nor the end waits for it. */
static void unread(void)
{
	if (is_client()) {
		int fds[UNREAD];
		for (int i = 0; i < UNREAD; i++)
			fds[i] = connected();
		/* Until the server has ended, which it is told not to wait for. */
		char more;
		CHECK(read(pipe_of_port[0], &more, 1) == 1);
		for (int i = 0; i < UNREAD; i++)
			CHECK(close(fds[i]) == 0);
		exit(0);
	}
	pid_t server = fork();
	CHECK(server >= 0);
	if (server == 0) {
		int listening = serving(0), epoll = epoll_create1(0), fds[UNREAD];
		struct epoll_event event = { .events = EPOLLOUT };
		static char zeros[100000];
		for (int i = 0; i < UNREAD; i++) {
			fds[i] = accepted(listening);
			/* Half of them are moved by threads. */
			if (i % 2)
				CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event) == 0);
			CHECK(fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK) == 0);
			for (int full = 0; full < 3; usleep(10000), full++)
				while (write(fds[i], zeros, sizeof zeros) > 0)
					;
		}
		struct timespec begin, end;
		clock_gettime(CLOCK_MONOTONIC, &begin);
		for (int i = 0; i < UNREAD; i++) {
			CHECK(shutdown(fds[i], SHUT_WR) == 0);
			CHECK(close(fds[i]) == 0);
		}
		clock_gettime(CLOCK_MONOTONIC, &end);
		CHECK(end.tv_sec - begin.tv_sec < 5);
		exit(0);
	}
	struct timespec begin, end;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	joined(server);
	clock_gettime(CLOCK_MONOTONIC, &end);
	CHECK(end.tv_sec - begin.tv_sec < 20);
	CHECK(write(pipe_of_port[1], "e", 1) == 1);
	client_ended();
}

static void prefork(void)
{
	if (is_client()) {
		for (int i = 0; i < 6; i++)
			ask_echo(connected(), 30000);
		exit(0);
	}
	int listening = serving(0);
	pid_t children[3];
	for (int i = 0; i < 3; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (children[i] == 0) {
			for (int j = 0; j < 2; j++) {
				struct sockaddr_in peer;
				socklen_t length = sizeof peer;
				int fd = accept(listening, (struct sockaddr *)&peer, &length);
				CHECK(fd >= 0 && peer.sin_family == AF_INET);
				CHECK(echo(fd) == 30000);
				close(fd);
			}
			_exit(0);
		}
	}
	for (int i = 0; i < 3; i++)
		joined(children[i]);
	client_ended();
}

/* Children that are other programs: by fork, vfork, posix_spawn. */
static void programs(void)
{
	if (is_client()) {
		for (int i = 0; i < 3; i++)
			ask_echo(connected(), 150000);
		exit(0);
	}
	int listening = serving(SOCK_CLOEXEC);
	char *arguments[] = { "cat", NULL };
	for (int i = 0; i < 3; i++) {
		int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
		CHECK(fd >= 0);
		pid_t child;
		if (i == 2) {
			posix_spawn_file_actions_t actions;
			posix_spawn_file_actions_init(&actions);
			posix_spawn_file_actions_adddup2(&actions, fd, 0);
			posix_spawn_file_actions_adddup2(&actions, fd, 1);
			CHECK(posix_spawnp(&child, "cat", &actions, NULL, arguments, environ) == 0);
		} else {
			child = i == 0 ? fork() : vfork();
			CHECK(child >= 0);
			if (child == 0) {
				dup2(fd, 0);
				dup2(fd, 1);
				execlp("cat", "cat", NULL);
				_exit(1);
			}
		}
		CHECK(close(fd) == 0);
		joined(child);
	}
	client_ended();
}

static void passed(void)
{
	if (is_client()) {
		ask_echo(connected(), 400000);
		exit(0);
	}
	int listening = serving(0), pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	char control[CMSG_SPACE(sizeof(int))] = { 0 }, one = 'x';
	struct iovec part = { &one, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	message.msg_control = control, message.msg_controllen = sizeof control;
	pid_t other = fork();
	CHECK(other >= 0);
	if (other == 0) {
		int fd;
		close(pair[0]), close(listening);
		CHECK(recvmsg(pair[1], &message, 0) == 1);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
		CHECK(echo(fd) == 400000);
		exit(0);
	}
	int fd = accepted(listening);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	CHECK(sendmsg(pair[0], &message, 0) == 1);
	CHECK(close(fd) == 0);
	joined(other);
	client_ended();
}

static void *echo_thread(void *fd)
{
	return (void *)echo(*(int *)fd);
}

/* A thread reads while others fork, again and again. */
static void threads(void)
{
	if (is_client()) {
		ask_echo(connected(), MANY);
		exit(0);
	}
	int fd = accepted(serving(0));
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, echo_thread, &fd) == 0);
	for (int i = 0; i < 5; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			execlp("true", "true", NULL);
			_exit(1);
		}
		joined(child);
	}
	void *total;
	CHECK(pthread_join(thread, &total) == 0 && total == (void *)MANY);
	CHECK(close(fd) == 0);
	client_ended();
}

/* What would lose bytes is refused. */
static void refused(void)
{
	if (is_client()) {
		ask_echo(connected(), 1000);
		exit(0);
	}
	int fd = accepted(serving(0));
	CHECK(execlp("true", "true", NULL) == -1 && errno == EBUSY);
	CHECK(syscall(SYS_io_uring_setup, 1, NULL) == -1 && errno == ENOSYS);
	CHECK(echo(fd) == 1000);
	CHECK(close(fd) == 0);
	client_ended();
}

/* A program that is executed in place of this one, when nothing of it would stay. */
static void executed(void)
{
	if (is_client()) {
		int fd = connected();
		receive_bytes(fd, 0, 100000);
		ended(fd);
		exit(0);
	}
	int listening = serving(SOCK_CLOEXEC);
	int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
	send_bytes(fd, 0, 100000);
	execlp(self, self, "nothing", NULL);
	CHECK(!"exec");
}

static void nothing(void)
{
	int status;
	CHECK(wait(&status) > 0 && status == 0);
}

/* The process that moves the bytes is killed: its child does not take that for the end of the stream. */
static void killed(void)
{
	if (is_client()) {
		int fd = connected();
		char one;
		send_bytes(fd, 0, 1000);
		while (read(fd, &one, 1) > 0)
			;
		exit(0);
	}
	int pipes[2];
	char one;
	CHECK(pipe(pipes) == 0);
	pid_t server = fork();
	CHECK(server >= 0);
	if (server == 0) {
		int fd = accepted(serving(0));
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			receive_bytes(fd, 0, 1000);
			CHECK(kill(getppid(), SIGKILL) == 0);
			CHECK(read(fd, &one, 1) == -1 && errno == ECONNRESET);
			CHECK(write(pipes[1], "x", 1) == 1);
			_exit(0);
		}
		pause();
	}
	CHECK(close(pipes[1]) == 0 && waitpid(server, NULL, 0) == server);
	CHECK(read(pipes[0], &one, 1) == 1);
	client_ended();
}

static const struct test tests[] = {
	{ "fork_server", fork_server },
	{ "fork_client", fork_client },
	{ "orphan", orphan },
	{ "last_words", last_words },
	{ "unread", unread },
	{ "prefork", prefork },
	{ "programs", programs },
	{ "passed", passed },
	{ "threads", threads },
	{ "refused", refused },
	{ "killed", killed },
	{ "executed", executed },
	{ "nothing", nothing },
	{ NULL, NULL },
};

int main(int count, char **words)
{
	return run_test(tests, count, words);
}
