/* What the programs `sockets` and `sockets_processes` have in common. They know nothing of RDMA and are run with
 * librspreload.so: `sockets TEST`. One process serves, its child is the client; both check every byte. `sockets TEST
 * tcp` is for a run without it. That a connection goes over RDMA is seen from the kernel, whose table of TCP sockets
 * does not have it. */
#define _GNU_SOURCE
/* No program uses all of it. */
#pragma GCC diagnostic ignored "-Wunused-function"
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
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (errno %d: %s), process %d\n", __FILE__, __LINE__, #what, errno, strerror(errno), \
		getpid()); \
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

/* Whether the kernel has a TCP socket behind a descriptor. */
static int is_tcp(int fd)
{
	int found = 0;
	struct stat file;
	const char *tables[] = { "/proc/self/net/tcp", "/proc/self/net/tcp6" };
	CHECK(fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode));
	for (int i = 0; i < 2; i++) {
		FILE *table = fopen(tables[i], "r");
		char line[512];
		unsigned long number;
		while (table && fgets(line, sizeof line, table))
			if (sscanf(line, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %lu", &number) == 1)
				found |= number == file.st_ino;
		if (table)
			fclose(table);
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
	CHECK(is_tcp(fd) == by_tcp);
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

struct test {
	const char *name;
	void (*run)(void);
};

static int run_test(const struct test *tests, int count, char **words)
{
	self = words[0];
	by_tcp = count > 2 && !strcmp(words[2], "tcp");
	setvbuf(stderr, NULL, _IOLBF, 0);
	for (; tests->name; tests++)
		if (count > 1 && !strcmp(tests->name, words[1])) {
			tests->run();
			return 0;
		}
	fprintf(stderr, "no such test\n");
	return 2;
}
