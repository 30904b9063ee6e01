/* A program of sockets that knows nothing of RDMA, run with librspreload.so: `sockets TEST`. One process serves, its
 * child is the client; both check every byte. `sockets TEST tcp` is for a run without it. That a connection went over RDMA is seen from the kernel, which knows of
 * no TCP socket with its port. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (errno %d: %s), process %d\n", __FILE__, __LINE__, #what, errno, strerror(errno), getpid()); \
	_exit(1); } } while (0)

extern char **environ;
static uint16_t port;
static const char *self;
/* The kernel's own sockets are tested: what is tested of ours must hold for them. */
static int by_tcp;

/* Byte `at` of a stream. */
static unsigned char byte(size_t at)
{
	return (unsigned char)(at * 31 + (at >> 8) * 7 + (at >> 16));
}

static void fill(unsigned char *buffer, size_t from, size_t length)
{
	for (size_t i = 0; i < length; i++)
		buffer[i] = byte(from + i);
}

static void compare(const unsigned char *buffer, size_t from, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (buffer[i] != byte(from + i)) {
			fprintf(stderr, "byte %zu is %d and not %d\n", from + i, buffer[i], byte(from + i));
			abort();
		}
}

static void send_bytes(int fd, size_t from, size_t length)
{
	unsigned char buffer[50000];
	while (length > 0) {
		size_t part = length < sizeof buffer ? length : 1 + from % sizeof buffer;
		if (part > length)
			part = length;
		fill(buffer, from, part);
		ssize_t sent = write(fd, buffer, part);
		CHECK(sent > 0);
		from += sent;
		length -= sent;
	}
}

static void receive_bytes(int fd, size_t from, size_t length)
{
	unsigned char buffer[50000];
	while (length > 0) {
		ssize_t got = read(fd, buffer, length < sizeof buffer ? length : sizeof buffer);
		CHECK(got > 0);
		compare(buffer, from, got);
		from += got;
		length -= got;
	}
}

/* Sends back what comes, until nothing does. */
static size_t echo(int fd)
{
	unsigned char buffer[30000];
	size_t total = 0;
	for (;;) {
		ssize_t got = read(fd, buffer, sizeof buffer);
		CHECK(got >= 0);
		if (got == 0)
			return total;
		for (ssize_t done = 0; done < got;) {
			ssize_t sent = write(fd, buffer + done, got - done);
			CHECK(sent > 0);
			done += sent;
		}
		total += got;
	}
}

static void ended(int fd)
{
	char more;
	CHECK(read(fd, &more, 1) == 0);
}

static int is_tcp(void)
{
	int found = 0;
	const char *tables[] = { "/proc/self/net/tcp", "/proc/self/net/tcp6" };
	for (int i = 0; i < 2; i++) {
		FILE *file = fopen(tables[i], "r");
		char line[512];
		unsigned local, remote;
		while (file && fgets(line, sizeof line, file))
			if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%x", &local, &remote) == 2)
				found |= local == port || remote == port;
		if (file)
			fclose(file);
	}
	return found;
}

static struct sockaddr_in address(void)
{
	struct sockaddr_in it = { .sin_family = AF_INET, .sin_port = htons(port) };
	it.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return it;
}

static int listener(int flags)
{
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	struct sockaddr_in it = address();
	CHECK(fd >= 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	it.sin_port = 0;
	CHECK(bind(fd, (struct sockaddr *)&it, sizeof it) == 0);
	CHECK(listen(fd, 16) == 0);
	socklen_t length = sizeof it;
	CHECK(getsockname(fd, (struct sockaddr *)&it, &length) == 0);
	port = ntohs(it.sin_port);
	CHECK(port != 0);
	return fd;
}

static int accepted(int listening)
{
	int fd = accept(listening, NULL, NULL);
	CHECK(fd >= 0);
	return fd;
}

static int connected(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in it = address();
	CHECK(fd >= 0);
	CHECK(connect(fd, (struct sockaddr *)&it, sizeof it) == 0);
	CHECK(is_tcp() == by_tcp);
	return fd;
}

/* The client is a process of its own, forked before there is any socket. It learns the port from a pipe. */
static int pipe_of_port[2];
static pid_t client_process;

static int is_client(void)
{
	CHECK(pipe(pipe_of_port) == 0);
	client_process = fork();
	CHECK(client_process >= 0);
	if (client_process > 0)
		return 0;
	CHECK(read(pipe_of_port[0], &port, sizeof port) == sizeof port);
	return 1;
}

static int serving(int flags)
{
	int fd = listener(flags);
	CHECK(write(pipe_of_port[1], &port, sizeof port) == sizeof port);
	return fd;
}

static void joined(pid_t process)
{
	int status;
	CHECK(waitpid(process, &status, 0) == process);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void client_ended(void)
{
	joined(client_process);
}

#define MANY (3 << 20)

/* What a client of an echo does. */
static void ask_echo(int fd, size_t length)
{
	for (size_t at = 0; at < length;) {
		size_t part = length - at < 60000 ? length - at : 60000;
		send_bytes(fd, at, part);
		receive_bytes(fd, at, part);
		at += part;
	}
	CHECK(shutdown(fd, SHUT_WR) == 0);
	ended(fd);
	CHECK(close(fd) == 0);
}

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
	int listening = serving(0);
	pid_t parent = fork();
	CHECK(parent >= 0);
	if (parent == 0) {
		int fd = accepted(listening);
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
	int listening = serving(0);
	pid_t server = fork();
	CHECK(server >= 0);
	if (server == 0) {
		send_bytes(accepted(listening), 0, MANY);
		exit(0);
	}
	joined(server);
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
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
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
		CHECK(is_tcp());
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
	CHECK(is_tcp());
	close(listening);
}

static void many_closed(void)
{
	if (is_client()) {
		int first = connected(), second = connected();
		ask_echo(first, 1000);
		ended(second);
		exit(0);
	}
	int listening = serving(0), fd = accepted(listening), other = accepted(listening);
	/* What the rsockets need of their own stays. */
	CHECK(close_range(other, ~0u, 0) == 0);
	CHECK(echo(fd) == 1000);
	CHECK(close(fd) == 0);
	CHECK(write(other, "x", 1) == -1 && errno == EBADF);
	client_ended();
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "plain", plain }, { "calls", calls }, { "names", names }, { "fork_server", fork_server },
	{ "fork_client", fork_client }, { "orphan", orphan }, { "last_words", last_words }, { "prefork", prefork },
	{ "epoll_level", epoll_level }, { "epoll_edge", epoll_edge }, { "nonblocking", nonblocking }, { "full", full },
	{ "copies", copies }, { "files", files }, { "programs", programs }, { "passed", passed }, { "mixed", mixed },
	{ "stdio", streams_of_stdio }, { "gone", gone }, { "threads", threads }, { "refused", refused },
	{ "executed", executed }, { "nothing", nothing }, { "tcp", tcp }, { "settings", settings },
	{ "many_closed", many_closed },
};

int main(int count, char **words)
{
	self = words[0];
	by_tcp = count > 2 && !strcmp(words[2], "tcp");
	setvbuf(stderr, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (count > 1 && !strcmp(tests[i].name, words[1])) {
			tests[i].run();
			return 0;
		}
	fprintf(stderr, "no such test\n");
	return 2;
}
