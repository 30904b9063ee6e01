/* Sockets of one process: calls, options, waiting, copies of descriptors, files. */
#include "sockets.h"

static void plain(void)
{
	if (is_client()) {
		ask_echo(connected(), MANY);
		exit(0);
	}
	int listening = serving(0), fd = accepted(listening);
	CHECK(echo(fd) == MANY);
	CHECK(close(fd) == 0 && close(listening) == 0);
	client_ended();
}

/* Every call that reads and writes. */
static void calls(void)
{
	unsigned char a[3000], b[5000];
	struct iovec parts[2] = { { a, sizeof a }, { b, sizeof b } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	if (is_client()) {
		int fd = connected();
		fill(a, 0, sizeof a), fill(b, sizeof a, sizeof b);
		CHECK(writev(fd, parts, 2) == 8000);
		CHECK(sendmsg(fd, &message, 0) == 8000);
		CHECK(send(fd, a, sizeof a, MSG_NOSIGNAL) == sizeof a);
		CHECK(sendto(fd, b, sizeof b, 0, NULL, 0) == sizeof b);
		ended(fd);
		exit(0);
	}
	int fd = accepted(serving(0)), waiting = 0;
	CHECK(recv(fd, a, sizeof a, MSG_PEEK) > 0);
	compare(a, 0, 1);
	struct pollfd wanted = { fd, POLLIN, 0 };
	CHECK(poll(&wanted, 1, 10000) == 1 && wanted.revents == POLLIN);
	CHECK(ioctl(fd, FIONREAD, &waiting) == 0 && waiting > 0);
	CHECK(recv(fd, a, sizeof a, MSG_WAITALL) == sizeof a);
	compare(a, 0, sizeof a);
	CHECK(recvfrom(fd, b, sizeof b, MSG_WAITALL, NULL, NULL) == sizeof b);
	compare(b, sizeof a, sizeof b);
	for (int i = 0; i < 2; i++) {
		size_t at = 0;
		while (at < 8000) {
			struct iovec rest = { b, 8000 - at < sizeof b ? 8000 - at : sizeof b };
			struct msghdr one = { .msg_iov = &rest, .msg_iovlen = 1 };
			ssize_t got = i == 0 ? recvmsg(fd, &one, 0) : readv(fd, &rest, 1);
			CHECK(got > 0);
			compare(b, at, got);
			at += got;
		}
	}
	CHECK(recv(fd, a, sizeof a, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(close(fd) == 0);
	client_ended();
}

static void names(void)
{
	if (is_client()) {
		int fd = connected();
		ask_echo(fd, 100);
		exit(0);
	}
	int listening = serving(SOCK_CLOEXEC);
	struct sockaddr_in peer;
	socklen_t length = sizeof peer;
	int fd = accept4(listening, (struct sockaddr *)&peer, &length, SOCK_CLOEXEC);
	CHECK(fd >= 0 && length == sizeof peer && peer.sin_family == AF_INET && peer.sin_port != 0);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	for (int round = 0; round < 2; round++) {
		struct sockaddr_in again, local;
		int value = 0;
		CHECK(getpeername(fd, (struct sockaddr *)&again, &length) == 0 && !memcmp(&peer, &again, sizeof peer));
		length = sizeof local;
		CHECK(getsockname(fd, (struct sockaddr *)&local, &length) == 0 && ntohs(local.sin_port) == port);
		length = sizeof value;
		CHECK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length) == 0 && value == SOCK_STREAM);
		CHECK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &length) == 0 && value == AF_INET);
		value = 1;
		CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) == 0);
		CHECK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &value, sizeof value) == 0);
		CHECK(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &value, sizeof value) == -1);
		length = sizeof peer;
		/* The second time the kernel has it. */
		CHECK(system("true") == 0);
	}
	CHECK(echo(fd) == 100);
	CHECK(close(fd) == 0);
	client_ended();
}

#define CLIENTS 8

#define EACH 300000

static void epoll_server(uint32_t mode)
{
	if (is_client()) {
		for (int i = 0; i < CLIENTS; i++) {
			pid_t child = fork();
			CHECK(child >= 0);
			if (child == 0) {
				ask_echo(connected(), EACH);
				exit(0);
			}
		}
		for (int i = 0; i < CLIENTS; i++)
			CHECK(wait(NULL) > 0);
		exit(0);
	}
	int listening = serving(SOCK_NONBLOCK), epoll = epoll_create1(0), open = 0, seen = 0;
	struct epoll_event event = { .events = EPOLLIN | mode, .data.fd = listening };
	size_t total = 0;
	static unsigned char waiting[4096][1 << 16];
	static size_t have[4096];
	CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, listening, &event) == 0);
	while (seen < CLIENTS || open > 0) {
		struct epoll_event events[4];
		int ready = epoll_wait(epoll, events, 4, 30000);
		CHECK(ready > 0);
		for (int i = 0; i < ready; i++) {
			int fd = events[i].data.fd;
			if (fd == listening) {
				while ((fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
					event.events = EPOLLIN | EPOLLOUT | mode;
					if (!(mode & EPOLLET))
						event.events = EPOLLIN;
					event.data.fd = fd;
					CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
					have[fd] = 0;
					seen++, open++;
				}
				CHECK(errno == EAGAIN);
				continue;
			}
			for (int more = 1; more;) {
				more = 0;
				ssize_t got = 0;
				if (have[fd] < sizeof waiting[fd])
					got = read(fd, waiting[fd] + have[fd], sizeof waiting[fd] - have[fd]);
				CHECK(got >= 0 || errno == EAGAIN);
				if (got == 0 && have[fd] == 0) {
					CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL) == 0);
					CHECK(close(fd) == 0);
					open--;
					break;
				}
				if (got > 0)
					have[fd] += got, total += got, more = 1;
				while (have[fd] > 0) {
					ssize_t sent = write(fd, waiting[fd], have[fd]);
					if (sent < 0) {
						CHECK(errno == EAGAIN);
						break;
					}
					memmove(waiting[fd], waiting[fd] + sent, have[fd] - sent);
					have[fd] -= sent;
				}
			}
		}
	}
	CHECK(total == (size_t)CLIENTS * EACH);
	client_ended();
}

static void epoll_level(void)
{
	epoll_server(0);
}

static void epoll_edge(void)
{
	epoll_server(EPOLLET);
}

/* A connection that does not wait, and is waited for with poll or epoll. */
static void nonblocking(void)
{
	if (is_client()) {
		for (int with_epoll = 0; with_epoll < 2; with_epoll++) {
			for (int refused = 0; refused < 2; refused++) {
				int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), code = -1;
				struct sockaddr_in it = address();
				/* The port of a discard server, which nobody has here. */
				if (refused)
					it.sin_port = htons(9);
				int result = connect(fd, (struct sockaddr *)&it, sizeof it);
				CHECK(result == 0 || errno == EINPROGRESS);
				if (with_epoll) {
					int epoll = epoll_create1(0);
					struct epoll_event event = { .events = EPOLLOUT };
					CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
					CHECK(epoll_wait(epoll, &event, 1, 20000) == 1);
					if (refused)
						CHECK(event.events & (EPOLLERR | EPOLLHUP));
					else
						CHECK(event.events == EPOLLOUT);
					close(epoll);
				} else {
					struct pollfd wanted = { fd, POLLOUT, 0 };
					CHECK(poll(&wanted, 1, 20000) == 1);
				}
				socklen_t length = sizeof code;
				CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length) == 0);
				CHECK(code == (refused ? ECONNREFUSED : 0));
				if (!refused) {
					int off = 0;
					char one;
					CHECK(read(fd, &one, 1) == -1 && errno == EAGAIN);
					CHECK(ioctl(fd, FIONBIO, &off) == 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
					ask_echo(fd, 100000);
				} else
					close(fd);
			}
		}
		exit(0);
	}
	int listening = serving(0);
	for (int i = 0; i < 2; i++) {
		int fd = accepted(listening);
		CHECK(echo(fd) == 100000);
		close(fd);
	}
	client_ended();
}

/* A writer that does not wait stops when there is no more room, and every byte it wrote arrives. */
static void full(void)
{
	if (is_client()) {
		int fd = connected();
		char go;
		CHECK(read(pipe_of_port[0], &go, 1) == 1);
		size_t total = 0;
		unsigned char buffer[10000];
		ssize_t got;
		while ((got = read(fd, buffer, sizeof buffer)) > 0) {
			compare(buffer, total, got);
			total += got;
		}
		CHECK(got == 0 && total > 10000000);
		exit(0);
	}
	int fd = accepted(serving(0));
	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
	unsigned char buffer[10000];
	size_t total = 0;
	int stopped = 0;
	while (total < 12000000) {
		fill(buffer, total, sizeof buffer);
		ssize_t sent = send(fd, buffer, sizeof buffer, 0);
		if (sent < 0) {
			CHECK(errno == EAGAIN);
			if (!stopped++)
				CHECK(write(pipe_of_port[1], "g", 1) == 1);
			struct pollfd wanted = { fd, POLLOUT, 0 };
			CHECK(poll(&wanted, 1, 30000) == 1 && wanted.revents == POLLOUT);
		} else
			total += sent;
	}
	CHECK(stopped > 0);
	CHECK(close(fd) == 0);
	client_ended();
}

static void copies(void)
{
	if (is_client()) {
		ask_echo(connected(), 200000);
		exit(0);
	}
	int listening = serving(0), first = accepted(listening), file = open("/dev/null", O_RDWR);
	int second = dup(first);
	CHECK(second > first && close(first) == 0);
	int third = fcntl(second, F_DUPFD_CLOEXEC, 100);
	CHECK(third >= 100 && fcntl(third, F_GETFD) == FD_CLOEXEC);
	/* Onto a descriptor that is open, and onto one of the same socket. */
	CHECK(dup2(third, file) == file && dup3(third, second, 0) == second);
	CHECK(close(third) == 0 && close(second) == 0);
	CHECK(echo(file) == 200000);
	/* Another file takes its place: that ends the stream. */
	CHECK(dup2(STDERR_FILENO, file) == file);
	client_ended();
}

static void files(void)
{
	if (is_client()) {
		int fd = connected();
		receive_bytes(fd, 0, 2000000);
		receive_bytes(fd, 1000, 500000);
		receive_bytes(fd, 0, 65536);
		ended(fd);
		exit(0);
	}
	int fd = accepted(serving(0)), pipes[2];
	FILE *file = tmpfile();
	CHECK(file);
	int in = fileno(file);
	unsigned char *bytes = malloc(2000000);
	fill(bytes, 0, 2000000);
	CHECK(write(in, bytes, 2000000) == 2000000 && lseek(in, 0, SEEK_SET) == 0);
	for (size_t left = 2000000; left > 0;) {
		ssize_t sent = sendfile(fd, in, NULL, left);
		CHECK(sent > 0);
		left -= sent;
	}
	CHECK(lseek(in, 0, SEEK_CUR) == 2000000);
	off_t offset = 1000;
	while (offset < 501000)
		CHECK(sendfile(fd, in, &offset, 501000 - offset) > 0);
	CHECK(lseek(in, 0, SEEK_CUR) == 2000000);
	CHECK(pipe(pipes) == 0 && write(pipes[1], bytes, 65536) == 65536);
	for (size_t left = 65536; left > 0;) {
		ssize_t moved = splice(pipes[0], NULL, fd, NULL, left, 0);
		CHECK(moved > 0);
		left -= moved;
	}
	CHECK(close(fd) == 0);
	client_ended();
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Waiting for an rsocket and a pipe at once, with poll and with select. */
static void mixed(void)
{
	int pipes[2];
	CHECK(pipe(pipes) == 0);
	if (is_client()) {
		int fd = connected();
		char one;
		for (int i = 0; i < 3; i++) {
			CHECK(read(fd, &one, 1) == 1);
			CHECK(write(i == 1 ? pipes[1] : fd, "y", 1) == 1);
		}
		ended(fd);
		exit(0);
	}
	int fd = accepted(serving(0));
	char one;
	struct pollfd wanted[3] = { { pipes[0], POLLIN, 0 }, { fd, POLLIN, 0 }, { -1, POLLIN, 7 } };
	double before = now();
	CHECK(poll(wanted, 3, 300) == 0 && now() - before > 0.29);
	CHECK(write(fd, "x", 1) == 1);
	CHECK(poll(wanted, 3, 20000) == 1 && wanted[1].revents == POLLIN && !wanted[0].revents && !wanted[2].revents);
	CHECK(read(fd, &one, 1) == 1);
	CHECK(write(fd, "x", 1) == 1);
	CHECK(poll(wanted, 3, 20000) == 1 && wanted[0].revents == POLLIN && !wanted[1].revents);
	CHECK(read(pipes[0], &one, 1) == 1);
	fd_set readable, writable;
	int most = (fd > pipes[0] ? fd : pipes[0]) + 1;
	FD_ZERO(&readable);
	FD_ZERO(&writable);
	FD_SET(fd, &readable), FD_SET(pipes[0], &readable), FD_SET(fd, &writable);
	CHECK(select(most, &readable, &writable, NULL, NULL) == 1);
	CHECK(FD_ISSET(fd, &writable) && !FD_ISSET(fd, &readable) && !FD_ISSET(pipes[0], &readable));
	CHECK(write(fd, "x", 1) == 1);
	FD_SET(fd, &readable), FD_SET(pipes[0], &readable);
	struct timeval limit = { 20, 0 };
	CHECK(select(most, &readable, NULL, NULL, &limit) == 1 && FD_ISSET(fd, &readable) && limit.tv_sec < 20);
	FD_ZERO(&readable);
	FD_SET(pipes[0], &readable);
	limit.tv_sec = 0, limit.tv_usec = 50000;
	CHECK(read(fd, &one, 1) == 1);
	FD_SET(fd, &readable);
	before = now();
	CHECK(select(most, &readable, NULL, NULL, &limit) == 0 && now() - before > 0.04);
	/* A time limit of calls that read. */
	limit.tv_sec = 0, limit.tv_usec = 200000;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	before = now();
	CHECK(read(fd, &one, 1) == -1 && errno == EAGAIN && now() - before > 0.19);
	/* With other signals let through. */
	sigset_t none;
	sigemptyset(&none);
	struct timespec short_time = { 0, 50000000 };
	CHECK(ppoll(wanted, 3, &short_time, &none) == 0);
	CHECK(close(fd) == 0);
	client_ended();
}

static void streams_of_stdio(void)
{
	if (is_client()) {
		FILE *stream = fdopen(connected(), "r+");
		char line[100];
		CHECK(stream && fprintf(stream, "%s %d %.3f\n", "line", 1, 2.5) > 0 && fflush(stream) == 0);
		CHECK(fgets(line, sizeof line, stream) && !strcmp(line, "line 1 2.500\n"));
		fclose(stream);
		exit(0);
	}
	int fd = accepted(serving(0));
	char line[100] = { 0 };
	size_t at = 0;
	while (!strchr(line, '\n')) {
		ssize_t got = read(fd, line + at, sizeof line - 1 - at);
		CHECK(got > 0);
		at += got;
	}
	CHECK(dprintf(fd, "%.4s %d %.3f\n", line, 1, 2.5) == 13);
	ended(fd);
	client_ended();
}

static volatile sig_atomic_t told;

static void tell(int signal)
{
	(void)signal;
	told = 1;
}

static void gone(void)
{
	if (is_client()) {
		int fd = connected();
		CHECK(write(fd, "x", 1) == 1);
		CHECK(close(fd) == 0);
		exit(0);
	}
	signal(SIGPIPE, tell);
	int fd = accepted(serving(0));
	char one;
	CHECK(read(fd, &one, 1) == 1);
	client_ended();
	ended(fd);
	ssize_t result = 0;
	for (int i = 0; i < 100 && result >= 0; i++) {
		result = write(fd, "y", 1);
		usleep(10000);
	}
	CHECK(result == -1 && (errno == EPIPE || errno == ECONNRESET));
	CHECK(send(fd, "y", 1, MSG_NOSIGNAL) == -1);
	if (errno == EPIPE) {
		told = 0;
		CHECK(write(fd, "y", 1) == -1 && told);
	}
	CHECK(close(fd) == 0 && close(fd) == -1 && errno == EBADF);
}

/* A server without rsockets: the kernel's own, which is asked for behind the C library's back. */
static void tcp(void)
{
	int raw = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in it = { .sin_family = AF_INET };
	socklen_t length = sizeof it;
	it.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(raw >= 0 && bind(raw, (struct sockaddr *)&it, sizeof it) == 0 && listen(raw, 4) == 0);
	CHECK(getsockname(raw, (struct sockaddr *)&it, &length) == 0);
	port = ntohs(it.sin_port);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
		close(raw);
		CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
		CHECK(connect(fd, (struct sockaddr *)&it, sizeof it) == 0);
		CHECK(is_tcp(fd));
		on = 0, length = sizeof on;
		CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &length) == 0 && on);
		ask_echo(fd, 100000);
		exit(0);
	}
	int fd = accept(raw, NULL, NULL);
	CHECK(fd >= 0 && echo(fd) == 100000);
	CHECK(close(fd) == 0);
	joined(child);
}

/* The settings name other sockets only. */
static void settings(void)
{
	int listening = listener(0);
	CHECK(is_tcp(listening));
	close(listening);
}

static void many_closed(void)
{
	if (is_client()) {
		int first = connected(), second = connected();
		for (int i = 0; i < 50; i++) {
			send_bytes(second, i, 1);
			receive_bytes(second, i, 1);
		}
		ask_echo(first, 1000);
		ended(second);
		exit(0);
	}
	int listening = serving(0), fd = accepted(listening), other = accepted(listening);
	/* Everything is open that both need, */
	for (int i = 0; i < 50; i++) {
		receive_bytes(other, i, 1);
		send_bytes(other, i, 1);
	}
	/* and stays open. */
	CHECK(close_range(other, ~0u, 0) == 0);
	CHECK(echo(fd) == 1000);
	CHECK(close(fd) == 0);
	client_ended();
}

static void *stop(void *listening)
{
	usleep(50000);
	CHECK(shutdown(*(int *)listening, SHUT_RDWR) == 0);
	return NULL;
}

/* A thread that accepts is ended by another. */
static void stopped(void)
{
	int listening = listener(0);
	for (int watched = 0; watched < 2; watched++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, stop, &listening) == 0);
		if (watched) {
			struct pollfd wanted = { listening, POLLIN, 0 };
			CHECK(poll(&wanted, 1, 30000) == 1 && wanted.revents & POLLHUP);
		}
		CHECK(accept(listening, NULL, NULL) < 0 && errno == EINVAL);
		CHECK(pthread_join(thread, NULL) == 0);
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		struct sockaddr_in it = address();
		CHECK(connect(fd, (struct sockaddr *)&it, sizeof it) < 0 && errno == ECONNREFUSED);
		CHECK(close(fd) == 0);
		/* It may listen again. The kernel may have given its port away, as the program did not choose it. */
		CHECK(listen(listening, 16) == 0);
		socklen_t length = sizeof it;
		CHECK(getsockname(listening, (struct sockaddr *)&it, &length) == 0);
		port = ntohs(it.sin_port);
		fd = connected();
		CHECK(close(accepted(listening)) == 0);
		CHECK(close(fd) == 0);
	}
	CHECK(close(listening) == 0);
}

static int descriptors(void)
{
	int count = 0;
	for (int fd = 0; fd < 1024; fd++)
		count += syscall(SYS_fcntl, fd, F_GETFD) >= 0;
	return count;
}

#define CONNECTIONS 60
/* What two processes need together, however many connections they have: rings, each with the descriptors of direct
 * access, and threads that move streams. */
#define TOGETHER 60

/* A connection takes two descriptors at most, and gives them back. */
static void few_descriptors(void)
{
	if (is_client()) {
		int fds[1 + CONNECTIONS];
		for (int i = 0; i <= CONNECTIONS; i++) {
			fds[i] = connected();
			send_bytes(fds[i], 0, 1);
			receive_bytes(fds[i], 0, 1);
		}
		for (int i = 0; i <= CONNECTIONS; i++)
			ended(fds[i]);
		exit(0);
	}
	int listening = serving(0), fds[CONNECTIONS], epoll = epoll_create1(0);
	/* What the process needs once is there with the first. */
	int first = accepted(listening);
	struct epoll_event event = { .events = EPOLLIN };
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, first, &event) == 0);
	receive_bytes(first, 0, 1);
	send_bytes(first, 0, 1);
	int before = descriptors();
	for (int i = 0; i < CONNECTIONS; i++) {
		fds[i] = accepted(listening);
		receive_bytes(fds[i], 0, 1);
		send_bytes(fds[i], 0, 1);
	}
	CHECK(descriptors() - before <= 2 * CONNECTIONS + TOGETHER);
	/* Their bytes are moved by threads from now on, of which there are few. */
	for (int i = 0; i < CONNECTIONS; i++)
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event) == 0);
	CHECK(descriptors() - before <= 2 * CONNECTIONS + TOGETHER);
	for (int i = 0; i < CONNECTIONS; i++)
		CHECK(close(fds[i]) == 0);
	CHECK(close(first) == 0);
	client_ended();
	for (int i = 0; i < 3000 && descriptors() > before + TOGETHER; i++)
		usleep(10000);
	CHECK(descriptors() <= before + TOGETHER);
}

static const struct test tests[] = {
	{ "plain", plain },
	{ "calls", calls },
	{ "names", names },
	{ "epoll_level", epoll_level },
	{ "epoll_edge", epoll_edge },
	{ "nonblocking", nonblocking },
	{ "full", full },
	{ "copies", copies },
	{ "files", files },
	{ "mixed", mixed },
	{ "stdio", streams_of_stdio },
	{ "gone", gone },
	{ "tcp", tcp },
	{ "settings", settings },
	{ "many_closed", many_closed },
	{ "stopped", stopped },
	{ "few_descriptors", few_descriptors },
	{ NULL, NULL },
};

int main(int count, char **words)
{
	return run_test(tests, count, words);
}
