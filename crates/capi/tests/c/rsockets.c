// Sockets over RDMA, in one process and between two: every call, what it answers when it is called wrongly, and what
// becomes of a connection whose peer shuts down, closes or is killed.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno));     \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)
#define FAILS(call, code)                                                                                              \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long answered_ = (long)(call);                                                                                 \
        if (answered_ != -1 || errno != (code)) {                                                                      \
            fprintf(stderr, "%s:%d: %s answered %ld with errno %d, not %s\n", __FILE__, __LINE__, #call, answered_,    \
                    errno, #code);                                                                                     \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct sockaddr_storage loopback(int family, int port, socklen_t *length) {
    struct sockaddr_storage storage = {0};
    if (family == AF_INET) {
        struct sockaddr_in *in = (void *)&storage;
        in->sin_family = AF_INET, in->sin_port = htons(port), in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        *length = sizeof *in;
    } else {
        struct sockaddr_in6 *in = (void *)&storage;
        in->sin6_family = AF_INET6, in->sin6_port = htons(port), in->sin6_addr = in6addr_loopback;
        *length = sizeof *in;
    }
    return storage;
}

static int port_of(int s) {
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    CHECK(rgetsockname(s, (void *)&name, &length) == 0);
    return ntohs(name.ss_family == AF_INET ? ((struct sockaddr_in *)&name)->sin_port
                                           : ((struct sockaddr_in6 *)&name)->sin6_port);
}

static int listener(int family) {
    socklen_t length;
    struct sockaddr_storage any = loopback(family, 0, &length);
    int s = rsocket(family, SOCK_STREAM, 0), on = 1;
    CHECK(s >= 0);
    CHECK(rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(rbind(s, (void *)&any, length) == 0);
    CHECK(rlisten(s, 10) == 0);
    return s;
}

static void *connects(void *to) {
    int *pair = to;
    socklen_t length;
    struct sockaddr_storage address = loopback(pair[2], pair[1], &length);
    pair[0] = rsocket(pair[2], SOCK_STREAM, 0);
    CHECK(pair[0] >= 0);
    CHECK(rconnect(pair[0], (void *)&address, length) == 0);
    return NULL;
}

// A connection of this process with itself.
static void connection(int family, int ends[2]) {
    int s = listener(family), call[3] = {-1, port_of(s), family};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, connects, call) == 0);
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    ends[1] = raccept(s, (void *)&peer, &length);
    CHECK(ends[1] >= 0 && peer.ss_family == family);
    CHECK(pthread_join(thread, NULL) == 0);
    ends[0] = call[0];
    CHECK(rclose(s) == 0);
}

static short ready(int s, short events, int millis) {
    struct pollfd one = {.fd = s, .events = events};
    int count = rpoll(&one, 1, millis);
    CHECK(count == (one.revents != 0));
    return one.revents;
}

static void bad_arguments(void) {
    char byte;
    socklen_t length = 0;
    struct sockaddr_storage name;
    FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
    FAILS(rsocket(AF_INET, SOCK_RAW, 0), ENOTSUP);
    FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
    FAILS(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), ENOTSUP);
    int bad[] = {-1, 0, 1 << 20, 1 << 30};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        int s = bad[i];
        FAILS(rbind(s, (void *)&name, sizeof name), EBADF);
        FAILS(rlisten(s, 1), EBADF);
        FAILS(raccept(s, NULL, NULL), EBADF);
        FAILS(rconnect(s, NULL, 0), EBADF);
        FAILS(rshutdown(s, SHUT_RDWR), EBADF);
        FAILS(rclose(s), EBADF);
        FAILS(rsend(s, NULL, 1, 0), EBADF);
        FAILS(rrecv(s, NULL, 1, 0), EBADF);
        FAILS(rsendto(s, &byte, 1, 0, NULL, 0), EBADF);
        FAILS(rrecvfrom(s, &byte, 1, 0, NULL, NULL), EBADF);
        FAILS(rsendmsg(s, NULL, 0), EBADF);
        FAILS(rrecvmsg(s, NULL, 0), EBADF);
        FAILS(rread(s, &byte, 1), EBADF);
        FAILS(rwrite(s, &byte, 1), EBADF);
        FAILS(rreadv(s, NULL, 1), EBADF);
        FAILS(rwritev(s, NULL, 1), EBADF);
        FAILS(rgetpeername(s, (void *)&name, &length), EBADF);
        FAILS(rgetsockname(s, (void *)&name, &length), EBADF);
        FAILS(rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, NULL, 0), EBADF);
        FAILS(rgetsockopt(s, SOL_SOCKET, SO_REUSEADDR, NULL, NULL), EBADF);
        FAILS(rfcntl(s, F_GETFL), EBADF);
        FAILS(riomap(s, &byte, 1, PROT_WRITE, 0, -1), EBADF);
        FAILS(riounmap(s, &byte, 1), EBADF);
        FAILS(riowrite(s, &byte, 1, 0, 0), EBADF);
    }
    int s = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    CHECK(s >= 0);
    FAILS(rbind(s, NULL, 16), EFAULT);
    FAILS(rbind(s, (void *)&name, 1), EINVAL);
    memset(&name, 0, sizeof name);
    name.ss_family = AF_UNIX;
    FAILS(rbind(s, (void *)&name, sizeof name), EAFNOSUPPORT);
    name.ss_family = AF_INET;
    FAILS(rconnect(s, (void *)&name, 4), EINVAL);
    FAILS(rconnect(s, NULL, 16), EFAULT);
    FAILS(raccept(s, NULL, NULL), EINVAL);
    FAILS(rsend(s, &byte, 1, 0), ENOTCONN);
    FAILS(rrecv(s, &byte, 1, 0), ENOTCONN);
    FAILS(rsend(s, NULL, 1, 0), EFAULT);
    FAILS(rsend(s, &byte, 1, MSG_OOB), EOPNOTSUPP);
    FAILS(rrecv(s, &byte, 1, 1 << 24), EOPNOTSUPP);
    FAILS(rshutdown(s, 7), EINVAL);
    FAILS(rshutdown(s, SHUT_WR), ENOTCONN);
    FAILS(rgetpeername(s, (void *)&name, &length), ENOTCONN);
    FAILS(rgetsockname(s, NULL, &length), EFAULT);
    FAILS(rgetsockopt(s, SOL_SOCKET, SO_ERROR, NULL, &length), EFAULT);
    length = 1;
    FAILS(rgetsockopt(s, SOL_SOCKET, SO_ERROR, &byte, &length), EINVAL);
    FAILS(rsetsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &byte, 1), EINVAL);
    FAILS(rsetsockopt(s, SOL_SOCKET, SO_KEEPALIVE, NULL, 4), EFAULT);
    int value = 1;
    FAILS(rsetsockopt(s, SOL_SOCKET, SO_MARK, &value, sizeof value), ENOTSUP);
    FAILS(rsetsockopt(s, 12345, 1, &value, sizeof value), ENOTSUP);
    FAILS(rsetsockopt(s, SOL_RDMA, 99, &value, sizeof value), ENOTSUP);
    value = 0;
    FAILS(rsetsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value), EINVAL);
    FAILS(rfcntl(s, F_GETLK), ENOTSUP);
    FAILS(riomap(s, &byte, 1, PROT_EXEC, 0, -1), EINVAL);
    FAILS(riounmap(s, &byte, 1), EINVAL);
    FAILS(rpoll(NULL, 1, 0), EFAULT);
    FAILS(rselect(-1, NULL, NULL, NULL, NULL), EINVAL);
    CHECK(rclose(s) == 0);
    FAILS(rclose(s), EBADF);
}

static void options(void) {
    int s = rsocket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), value = 0;
    socklen_t length = sizeof value;
    CHECK(s >= 0);
    CHECK(rfcntl(s, F_GETFL) & O_NONBLOCK);
    CHECK(rfcntl(s, F_GETFD) == FD_CLOEXEC);
    CHECK(rfcntl(s, F_SETFL, 0) == 0 && !(rfcntl(s, F_GETFL) & O_NONBLOCK));
    CHECK(rfcntl(s, F_SETFD, 0) == 0 && rfcntl(s, F_GETFD) == 0);
    struct {
        int level, name, set, expected;
    } known[] = {
        {SOL_SOCKET, SO_REUSEADDR, 1, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1, 1},  {SOL_SOCKET, SO_OOBINLINE, 1, 1},
        {SOL_SOCKET, SO_RCVBUF, 1000, 2000}, {SOL_SOCKET, SO_SNDBUF, 10000, 20000}, {SOL_SOCKET, SO_SNDBUF, 1, 4096},
        {IPPROTO_IP, IP_TOS, 32, 32},       {IPPROTO_TCP, TCP_NODELAY, 1, 1},  {IPPROTO_TCP, TCP_KEEPIDLE, 7, 7},
        {IPPROTO_IPV6, IPV6_V6ONLY, 1, 1},  {SOL_RDMA, RDMA_SQSIZE, 100, 100}, {SOL_RDMA, RDMA_RQSIZE, 70000, 0xfffe},
        {SOL_RDMA, RDMA_INLINE, 32, 32},    {SOL_RDMA, RDMA_IOMAPSIZE, 100, 100}, {SOL_RDMA, RDMA_IOMAPSIZE, 1000, 768},
    };
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        CHECK(rsetsockopt(s, known[i].level, known[i].name, &known[i].set, sizeof(int)) == 0);
        CHECK(rgetsockopt(s, known[i].level, known[i].name, &value, &length) == 0);
        CHECK(value == known[i].expected && length == sizeof value);
    }
    struct linger linger = {1, 5}, got;
    length = sizeof got;
    CHECK(rsetsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(rgetsockopt(s, SOL_SOCKET, SO_LINGER, &got, &length) == 0 && got.l_onoff == 1 && got.l_linger == 5);
    length = sizeof value;
    CHECK(rgetsockopt(s, SOL_SOCKET, SO_ERROR, &value, &length) == 0 && value == 0);
    CHECK(rgetsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &value, &length) == 0 && value == 2048);
    struct tcp_info info;
    length = sizeof info;
    CHECK(rgetsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == TCP_CLOSE);
    CHECK(rclose(s) == 0);
}

static unsigned char pattern(size_t at) { return (unsigned char)(at * 131 + (at >> 8)); }

struct job {
    int s;
    size_t length;
};

static void *sends(void *argument) {
    struct job *job = argument;
    unsigned char *bytes = malloc(job->length);
    for (size_t i = 0; i < job->length; i++)
        bytes[i] = pattern(i);
    CHECK(rsend(job->s, bytes, job->length, 0) == (ssize_t)job->length);
    free(bytes);
    return NULL;
}

static void data(int family) {
    int ends[2];
    connection(family, ends);
    char text[64];
    CHECK(rwrite(ends[0], "hello", 5) == 5);
    CHECK(ready(ends[1], POLLIN, 5000) == POLLIN);
    CHECK(rrecv(ends[1], text, 64, MSG_PEEK) == 5 && rrecv(ends[1], text, 64, 0) == 5 && !memcmp(text, "hello", 5));
    FAILS(rrecv(ends[1], text, 64, MSG_DONTWAIT), EAGAIN);
    CHECK(ready(ends[1], POLLIN, 0) == 0 && ready(ends[1], POLLOUT, 0) == POLLOUT);
    // Pieces, and one call that waits for all of them.
    struct iovec out[3] = {{"ab", 2}, {NULL, 0}, {"cdef", 4}}, in[2] = {{text, 3}, {text + 10, 3}};
    CHECK(rwritev(ends[1], out, 3) == 6);
    struct msghdr message = {.msg_iov = in, .msg_iovlen = 2};
    CHECK(rrecvmsg(ends[0], &message, MSG_WAITALL) == 6 && !memcmp(text, "abc", 3) && !memcmp(text + 10, "def", 3));
    message.msg_control = text, message.msg_controllen = 8;
    FAILS(rsendmsg(ends[0], &message, 0), ENOTSUP);
    FAILS(rrecvmsg(ends[0], &message, 0), ENOTSUP);
    FAILS(rsendto(ends[0], text, 1, 0, (void *)text, 16), EAFNOSUPPORT);
    CHECK(rsend(ends[0], text, 0, 0) == 0);
    // More than all buffers, both ways at once.
    struct job there = {ends[0], 5 << 20}, back = {ends[1], 3 << 20};
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, sends, &there) == 0 && pthread_create(&threads[1], NULL, sends, &back) == 0);
    size_t got[2] = {0, 0}, want[2] = {back.length, there.length};
    unsigned char room[10000];
    while (got[0] < want[0] || got[1] < want[1]) {
        struct pollfd both[2] = {{.fd = ends[0], .events = POLLIN}, {.fd = ends[1], .events = POLLIN}};
        CHECK(rpoll(both, 2, 20000) > 0);
        for (int i = 0; i < 2; i++) {
            if (!(both[i].revents & POLLIN))
                continue;
            ssize_t some = rread(ends[i], room, 1 + (got[i] * 7) % sizeof room);
            CHECK(some > 0);
            for (ssize_t at = 0; at < some; at++)
                CHECK(room[at] == pattern(got[i] + at));
            got[i] += some;
        }
    }
    CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
    // A sender that does not wait stops when there is no room, and goes on when there is.
    CHECK(rfcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    size_t sent = 0;
    int rounds = 0;
    // What is under way makes room when it arrives: the sender has stopped when no more room comes.
    do {
        for (ssize_t some; (some = rsend(ends[0], room, sizeof room, 0)) > 0;)
            sent += some;
        CHECK(errno == EAGAIN && sent > 0 && ++rounds < 1000);
    } while (ready(ends[0], POLLOUT, 200) == POLLOUT);
    for (ssize_t some; sent > 0; sent -= some)
        CHECK((some = rrecv(ends[1], room, sizeof room, 0)) > 0);
    CHECK(ready(ends[0], POLLOUT, 5000) == POLLOUT);
    // Half a connection.
    CHECK(rshutdown(ends[0], SHUT_WR) == 0);
    FAILS(rsend(ends[0], "x", 1, 0), EPIPE);
    CHECK(ready(ends[1], POLLIN | POLLRDHUP, 5000) == (POLLIN | POLLRDHUP));
    CHECK(rrecv(ends[1], room, 10, 0) == 0 && rsend(ends[1], "last", 4, 0) == 4);
    CHECK(ready(ends[0], POLLIN, 5000) == POLLIN && rrecv(ends[0], room, 10, 0) == 4);
    CHECK(rclose(ends[1]) == 0);
    CHECK(ready(ends[0], POLLIN, 5000) & (POLLIN | POLLHUP));
    CHECK(rrecv(ends[0], room, 10, 0) == 0);
    CHECK(rclose(ends[0]) == 0);
}

static void connecting(void) {
    socklen_t length;
    int s = listener(AF_INET), port = port_of(s), value = -1;
    struct sockaddr_storage to = loopback(AF_INET, port, &length);
    CHECK(rfcntl(s, F_SETFL, O_NONBLOCK) == 0);
    FAILS(raccept(s, NULL, NULL), EAGAIN);
    int c = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int begun = rconnect(c, (void *)&to, length);
    CHECK(begun == 0 || errno == EINPROGRESS);
    CHECK(ready(c, POLLOUT, 10000) == POLLOUT);
    length = sizeof value;
    CHECK(rgetsockopt(c, SOL_SOCKET, SO_ERROR, &value, &length) == 0 && value == 0);
    length = sizeof(struct sockaddr_in);
    FAILS(rconnect(c, (void *)&to, length), EISCONN);
    // Sockets and other descriptors together.
    int pipes[2];
    CHECK(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
    struct pollfd mixed[3] = {{.fd = s, .events = POLLIN}, {.fd = pipes[0], .events = POLLIN}, {.fd = -1}};
    CHECK(rpoll(mixed, 3, 10000) >= 1 && mixed[1].revents == POLLIN && mixed[2].revents == 0);
    CHECK(ready(s, POLLIN, 10000) == POLLIN);
    fd_set readable, writable;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(s, &readable);
    FD_SET(pipes[0], &readable);
    FD_SET(c, &readable);
    FD_SET(c, &writable);
    struct timeval limit = {10, 0};
    CHECK(rselect(FD_SETSIZE, &readable, &writable, NULL, &limit) == 3);
    CHECK(FD_ISSET(s, &readable) && FD_ISSET(pipes[0], &readable) && !FD_ISSET(c, &readable) && FD_ISSET(c, &writable));
    int a = raccept(s, NULL, NULL);
    CHECK(a >= 0);
    // Linux gives an accepted socket flags of its own.
    CHECK(!(rfcntl(a, F_GETFL) & O_NONBLOCK));
    CHECK(rclose(a) == 0 && rclose(c) == 0 && rclose(s) == 0);
    close(pipes[0]), close(pipes[1]);
    // Nobody listens there now.
    c = rsocket(AF_INET, SOCK_STREAM, 0);
    FAILS(rconnect(c, (void *)&to, length), ECONNREFUSED);
    CHECK(rclose(c) == 0);
    c = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    begun = rconnect(c, (void *)&to, length);
    CHECK(begun == -1);
    if (errno == EINPROGRESS) {
        CHECK(ready(c, POLLOUT, 10000) & POLLERR);
        length = sizeof value;
        CHECK(rgetsockopt(c, SOL_SOCKET, SO_ERROR, &value, &length) == 0 && value == ECONNREFUSED);
    }
    CHECK(rclose(c) == 0);
}

static void mappings(void) {
    socklen_t length;
    int s = listener(AF_INET), count = 2, ends[2];
    struct sockaddr_storage to = loopback(AF_INET, port_of(s), &length);
    CHECK(rsetsockopt(s, SOL_RDMA, RDMA_IOMAPSIZE, &count, sizeof count) == 0);
    ends[0] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(rsetsockopt(ends[0], SOL_RDMA, RDMA_IOMAPSIZE, &count, sizeof count) == 0);
    CHECK(rconnect(ends[0], (void *)&to, length) == 0 || errno == EINPROGRESS);
    ends[1] = raccept(s, NULL, NULL);
    CHECK(ends[1] >= 0 && ready(ends[0], POLLOUT, 10000) == POLLOUT);
    CHECK(rfcntl(ends[0], F_SETFL, 0) == 0);
    static unsigned char lent[3][100000], bytes[100000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = pattern(i);
    CHECK(riomap(ends[0], lent[0], sizeof lent[0], PROT_WRITE, 0, 5000) == 5000);
    CHECK(riomap(ends[0], lent[1], sizeof lent[1], PROT_WRITE, 0, -1) == (off_t)(uintptr_t)lent[1]);
    FAILS(riomap(ends[0], lent[2], sizeof lent[2], PROT_WRITE, 0, 0), ENOMEM);
    CHECK(riomap(ends[0], lent[2], sizeof lent[2], PROT_NONE, 0, 0) == 0);
    // The peer knows of them with what is sent next.
    char go;
    CHECK(rsend(ends[0], "g", 1, 0) == 1 && rrecv(ends[1], &go, 1, 0) == 1);
    CHECK(riowrite(ends[1], bytes, 60000, 5000 + 40000, 0) == 60000);
    CHECK(riowrite(ends[1], bytes, 10, 4999, 0) == 0);
    CHECK(riowrite(ends[1], bytes, sizeof bytes, (off_t)(uintptr_t)lent[1], 0) == sizeof bytes);
    CHECK(rsend(ends[1], "d", 1, 0) == 1 && rrecv(ends[0], &go, 1, 0) == 1);
    CHECK(!memcmp(lent[0] + 40000, bytes, 60000) && !memcmp(lent[1], bytes, sizeof bytes));
    CHECK(riounmap(ends[0], lent[0], sizeof lent[0]) == 0);
    FAILS(riounmap(ends[0], lent[0], sizeof lent[0]), EINVAL);
    CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0 && rclose(s) == 0);
}

static void datagrams(int family) {
    socklen_t length, peer_length = sizeof(struct sockaddr_storage);
    struct sockaddr_storage any = loopback(family, 0, &length), peer;
    int a = rsocket(family, SOCK_DGRAM, 0), b = rsocket(family, SOCK_DGRAM, 0);
    CHECK(a >= 0 && b >= 0);
    char room[3000] = {0};
    FAILS(rsend(a, room, 1, 0), EDESTADDRREQ);
    FAILS(rlisten(a, 1), EOPNOTSUPP);
    CHECK(rbind(b, (void *)&any, length) == 0);
    FAILS(rbind(b, (void *)&any, length), EINVAL);
    struct sockaddr_storage to = loopback(family, port_of(b), &length);
    FAILS(rsendto(a, room, sizeof room, 0, (void *)&to, length), EMSGSIZE);
    FAILS(rrecv(b, room, 10, MSG_DONTWAIT), EAGAIN);
    // The first goes over UDP, later ones from queue pair to queue pair.
    for (int i = 0; i < 50; i++) {
        int size = sprintf(room, "datagram %d", i) + (i % 5) * 300;
        CHECK(rsendto(a, room, size, 0, (void *)&to, length) == size);
        CHECK(ready(b, POLLIN, 10000) == POLLIN);
        memset(room, 0, sizeof room);
        CHECK(rrecvfrom(b, room, sizeof room, MSG_PEEK, NULL, NULL) == size);
        CHECK(rrecvfrom(b, room, sizeof room, 0, (void *)&peer, &peer_length) == size);
        CHECK(atoi(room + 9) == i && peer.ss_family == family && peer_length == length);
        CHECK(rsendto(b, "back", 4, 0, (void *)&peer, peer_length) == 4);
        CHECK(ready(a, POLLIN, 10000) == POLLIN && rrecv(a, room, 2, 0) == 2 && !memcmp(room, "ba", 2));
    }
    CHECK(rconnect(a, (void *)&to, length) == 0 && rsend(a, "hi", 2, 0) == 2);
    struct iovec piece = {room, 1};
    struct msghdr message = {.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &piece, .msg_iovlen = 1};
    CHECK(rrecvmsg(b, &message, 0) == 1 && message.msg_flags == MSG_TRUNC && message.msg_namelen == length);
    CHECK(rclose(a) == 0 && rclose(b) == 0);
    // Its port is free again.
    a = rsocket(family, SOCK_DGRAM, 0);
    CHECK(rbind(a, (void *)&to, length) == 0 && rclose(a) == 0);
}

// A socket of IPv6 hears from IPv4 hosts, whose addresses are mapped. Of two with one port, the one with a peer hears
// from that peer.
static void datagrams_of_both_families(void) {
    int on = 1, a = rsocket(AF_INET, SOCK_DGRAM, 0), b = rsocket(AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6}, peer, own;
    socklen_t length = sizeof any, peer_length = sizeof peer, own_length = sizeof own;
    CHECK(rsetsockopt(b, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(rbind(b, (void *)&any, length) == 0);
    int port = port_of(b);
    socklen_t to_length;
    struct sockaddr_storage to = loopback(AF_INET, port, &to_length);
    char room[100];
    int count = 0;
    // The first goes over UDP, later ones from queue pair to queue pair.
    for (int i = 0; i < 20; i++) {
        CHECK(rsendto(a, "there", 5, 0, (void *)&to, to_length) == 5 && ready(b, POLLIN, 10000) == POLLIN);
        CHECK(rrecvfrom(b, room, sizeof room, 0, (void *)&peer, &peer_length) == 5);
        CHECK(peer.sin6_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&peer.sin6_addr));
        CHECK(rsendto(b, "back", 4, 0, (void *)&peer, peer_length) == 4 && ready(a, POLLIN, 10000) == POLLIN);
        CHECK(rrecv(a, room, sizeof room, 0) == 4);
    }
    CHECK(rconnect(b, (void *)&peer, peer_length) == 0);
    CHECK(rgetpeername(b, (void *)&own, &own_length) == 0 && own.sin6_port == peer.sin6_port);
    CHECK(rgetsockname(b, (void *)&own, &own_length) == 0 && IN6_IS_ADDR_V4MAPPED(&own.sin6_addr));
    any.sin6_port = htons(port);
    int c = rsocket(AF_INET6, SOCK_DGRAM, 0);
    FAILS(rbind(c, (void *)&any, length), EADDRINUSE);
    CHECK(rsetsockopt(c, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && rbind(c, (void *)&any, length) == 0);
    int d = rsocket(AF_INET, SOCK_DGRAM, 0);
    for (int i = 0; i < 5; i++, count++) {
        CHECK(rsendto(a, "old", 3, 0, (void *)&to, to_length) == 3 && ready(b, POLLIN, 10000) == POLLIN);
        CHECK(rrecv(b, room, sizeof room, 0) == 3 && !memcmp(room, "old", 3));
        CHECK(rsendto(d, "new", 3, 0, (void *)&to, to_length) == 3 && ready(c, POLLIN, 10000) == POLLIN);
        CHECK(rrecv(c, room, sizeof room, 0) == 3 && !memcmp(room, "new", 3));
    }
    CHECK(count == 5 && rclose(a) == 0 && rclose(b) == 0 && rclose(c) == 0 && rclose(d) == 0);
}

// Memory is the program's again when a send returns, whether or not the bytes are on their way.
static void memory_is_used_again(void) {
    static unsigned char sent[100000], got[100000];
    for (int round = 0; round < 10; round++) {
        int ends[2];
        connection(AF_INET, ends);
        ssize_t size = 0, some;
        for (int turn = 0; turn < 8; turn++) {
            for (unsigned i = 0; i < sizeof sent; i++) {
                sent[i] = ((unsigned)size + i) * 2654435761u >> 24;
            }
            some = rsend(ends[0], sent, sizeof sent, MSG_DONTWAIT);
            memset(sent, 0xEE, sizeof sent);
            CHECK(some > 0 || (some < 0 && errno == EAGAIN));
            size += some > 0 ? some : 0;
        }
        CHECK(size > 0 && rshutdown(ends[0], SHUT_WR) == 0);
        for (ssize_t at = 0; at < size; at += some) {
            some = rrecv(ends[1], got, 1 + (at * 7) % sizeof got, 0);
            CHECK(some > 0);
            for (ssize_t i = 0; i < some; i++) {
                CHECK(got[i] == (unsigned char)((unsigned)(at + i) * 2654435761u >> 24));
            }
        }
        CHECK(rrecv(ends[1], got, sizeof got, 0) == 0 && rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
    }
}

static void lingering(void) {
    // What was sent before the end arrives, though nobody reads at first.
    int ends[2];
    connection(AF_INET, ends);
    char room[100];
    CHECK(rsend(ends[0], "bye", 3, 0) == 3 && rclose(ends[0]) == 0);
    CHECK(rrecv(ends[1], room, sizeof room, MSG_WAITALL) == 3 && rrecv(ends[1], room, sizeof room, 0) == 0);
    FAILS(rsend(ends[1], "x", 1, 0), ECONNRESET);
    CHECK(rclose(ends[1]) == 0);
    // An end without delay.
    connection(AF_INET, ends);
    struct linger none = {1, 0};
    CHECK(rsetsockopt(ends[0], SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0 && rclose(ends[0]) == 0);
    CHECK(ready(ends[1], POLLIN, 10000) != 0 && rrecv(ends[1], room, sizeof room, 0) <= 0);
    CHECK(rclose(ends[1]) == 0);
    // Messages that keep a connection are none of the program's.
    connection(AF_INET, ends);
    int second = 1;
    CHECK(rsetsockopt(ends[0], IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof second) == 0);
    CHECK(rsetsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, &second, sizeof second) == 0);
    CHECK(ready(ends[1], POLLIN, 2500) == 0 && ready(ends[0], POLLOUT, 0) == POLLOUT);
    CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
}

// A peer that is killed, and a child that inherits.
static void processes(void) {
    int link[2];
    CHECK(pipe(link) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int s = listener(AF_INET), port = port_of(s);
        CHECK(write(link[1], &port, sizeof port) == sizeof port);
        int a = raccept(s, NULL, NULL);
        CHECK(a >= 0 && rsend(a, "here", 4, 0) == 4);
        pause();
        _exit(1);
    }
    int port;
    CHECK(read(link[0], &port, sizeof port) == sizeof port);
    socklen_t length;
    struct sockaddr_storage to = loopback(AF_INET, port, &length);
    int c = rsocket(AF_INET, SOCK_STREAM, 0);
    char room[100];
    CHECK(rconnect(c, (void *)&to, length) == 0 && rrecv(c, room, 4, MSG_WAITALL) == 4);
    pid_t heir = fork();
    CHECK(heir >= 0);
    if (heir == 0) {
        FAILS(rsend(c, "x", 1, 0), EIO);
        FAILS(rclose(c), EIO);
        int own = rsocket(AF_INET, SOCK_STREAM, 0);
        CHECK(own >= 0 && rclose(own) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(heir, &status, 0) == heir && status == 0);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    CHECK(ready(c, POLLIN, 20000) != 0 && rrecv(c, room, sizeof room, 0) <= 0);
    ssize_t sent = 0;
    for (int i = 0; i < 1000 && sent >= 0; i++)
        sent = rsend(c, room, sizeof room, MSG_DONTWAIT);
    CHECK(sent == -1 && errno != EAGAIN);
    CHECK(rclose(c) == 0);
}

static volatile sig_atomic_t rang;
static void ring(int signal) { (void)signal, rang = 1; }

static void signals(void) {
    int ends[2];
    connection(AF_INET, ends);
    struct sigaction action = {.sa_handler = ring};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    char room[8];
    alarm(1);
    FAILS(rrecv(ends[0], room, sizeof room, 0), EINTR);
    CHECK(rang);
    alarm(1);
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    FAILS(rpoll(&one, 1, -1), EINTR);
    CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
}

int main(void) {
    // Before this process has a NIC: a child makes its own.
    processes();
    bad_arguments();
    options();
    data(AF_INET);
    data(AF_INET6);
    connecting();
    mappings();
    datagrams(AF_INET);
    datagrams(AF_INET6);
    datagrams_of_both_families();
    memory_is_used_again();
    lingering();
    signals();
    return 0;
}
