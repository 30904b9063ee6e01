/* The control channel: a TCP connection for each lane, over which both sides tell each other numbers and keys and wait for each other. */
#include "soak.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How long the other side may take to come at all. */
#define COMING_MS 30000

static struct addrinfo *resolve(void)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
	char port[16];

	snprintf(port, sizeof port, "%d", options.port);
	if (getaddrinfo(options.address, port, &hints, &found))
		trouble("%s is no address", options.address);
	return found;
}

static void prompt(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int control_listen(void)
{
	struct addrinfo *to = resolve();
	int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (fd < 0 || bind(fd, to->ai_addr, to->ai_addrlen) || listen(fd, MAX_LANES))
		trouble("cannot listen on %s port %d: %s", options.address, options.port, strerror(errno));
	freeaddrinfo(to);
	return fd;
}

int control_accept(int listener, int *lane)
{
	struct pollfd poll_fd = {.fd = listener, .events = POLLIN};
	uint32_t number = 0;
	int fd;

	/* A client that dies first would be waited for without end. */
	if (poll(&poll_fd, 1, COMING_MS) != 1)
		never_came("no client came");
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0 || recv(fd, &number, sizeof number, MSG_WAITALL) != sizeof number)
		never_came("the client left at once");
	if (number >= (uint32_t)options.threads)
		trouble("the client has a lane %u, so it has more threads", number);
	prompt(fd);
	*lane = (int)number;
	return fd;
}

/* A socket that connects to a port nobody has yet may be given that very port, and then talks to itself. */
static bool to_itself(int fd)
{
	struct sockaddr_storage here, there;
	socklen_t one = sizeof here, other = sizeof there;

	memset(&here, 0, sizeof here);
	memset(&there, 0, sizeof there);
	return !getsockname(fd, (struct sockaddr *)&here, &one) && !getpeername(fd, (struct sockaddr *)&there, &other) && one == other &&
	       !memcmp(&here, &there, one);
}

/* The server may not have got so far yet, so a refusal is believed only after a while. */
int control_open(int lane)
{
	struct addrinfo *to = resolve();
	uint64_t end = now_ms() + COMING_MS;
	uint32_t number = (uint32_t)lane;

	for (;;) {
		int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd >= 0 && !connect(fd, to->ai_addr, to->ai_addrlen) && !to_itself(fd)) {
			prompt(fd);
			freeaddrinfo(to);
			if (send(fd, &number, sizeof number, MSG_NOSIGNAL) != sizeof number)
				never_came("the server left at once");
			return fd;
		}
		close(fd);
		if (now_ms() > end)
			never_came("the server cannot be reached");
		usleep(20000);
	}
}

static bool put(struct lane *lane, const void *what, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t some = send(lane->control, (const char *)what + done, length - done, MSG_NOSIGNAL);

		if (some <= 0 && errno != EINTR) {
			lost(lane, "the control channel broke");
			return false;
		}
		if (some > 0)
			done += (size_t)some;
	}
	return true;
}

static bool take(struct lane *lane, void *what, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t some = recv(lane->control, (char *)what + done, length - done, 0);

		if (some <= 0 && (some == 0 || errno != EINTR)) {
			lost(lane, "the control channel broke");
			return false;
		}
		if (some > 0)
			done += (size_t)some;
	}
	return true;
}

/* Both lengths are told and compared, so that sides whose plans differ notice it here and not in a queue pair. */
bool exchange(struct lane *lane, const void *mine, void *theirs, uint32_t length)
{
	uint32_t other;

	if (lane->gone)
		return false;
	if (!put(lane, &length, sizeof length) || !put(lane, mine, length) || !take(lane, &other, sizeof other))
		return false;
	if (other != length)
		fail(lane, -1, 0, "the sides are out of step: %u bytes said, %u heard (%s)", length, other, lane->doing);
	return take(lane, theirs, length);
}

bool meet(struct lane *lane, const char *where)
{
	char mine[40] = "", theirs[40];

	snprintf(mine, sizeof mine, "%s %d", where, lane->round_number);
	step(lane, where);
	if (!exchange(lane, mine, theirs, sizeof mine))
		return false;
	if (strcmp(mine, theirs))
		fail(lane, -1, 0, "the sides are out of step: here \"%s\", there \"%.39s\"", mine, theirs);
	step(lane, "after meeting");
	return true;
}
