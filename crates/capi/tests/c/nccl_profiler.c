// Calls the profiler plugin as NCCL does, from two threads, and as NCCL never would. The program is on a device of the
// library before, as NCCL is.

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "line %d: %s is not so\n", __LINE__, #condition);                                         \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

enum { GROUP = 1, COLLECTIVE = 2, POINT_TO_POINT = 4, OPERATION = 8, STEP = 16, KERNEL = 64, NETWORK = 128 };

enum { STEP_SEND_WAIT = 9, NETWORK_UPDATE = 21 };

struct work {
    uint8_t type;
    int device;
    uint64_t wr_id;
    int opcode;
    int qpn;
    size_t length;
};

struct event {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            uint64_t sequence;
            const char *func;
            const void *from;
            void *to;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algorithm, *protocol;
        } collective;
        struct {
            const char *func;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
        } point_to_point;
        struct {
            pid_t pid;
            uint8_t channel;
            int peer, steps, chunk, sends;
        } operation;
        struct {
            int step;
        } step;
        struct {
            int64_t id;
            void *data;
        } network;
    };
};

union state {
    size_t bytes;
    void *data;
};

struct profiler {
    const char *name;
    int (*init)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank, void *log);
    int (*start)(void *context, void **handle, struct event *event);
    int (*stop)(void *handle);
    int (*state)(void *handle, int state, union state *arguments);
    int (*finalize)(void *context);
};

static const struct profiler *profiler;
static void *context;

static void *start(struct event event)
{
    void *handle = (void *)-1;
    CHECK(profiler->start(context, &handle, &event) == 0);
    return handle;
}

// What the proxy thread does for a collective that the other thread has handed to it.
static void *proxy(void *collective)
{
    void *operation = start((struct event){.type = OPERATION, .parent = collective,
                                           .operation = {.pid = getpid(), .channel = 3, .peer = 1, .steps = 2, .sends = 1}});
    for (int number = 0; number < 2; number++) {
        void *step = start((struct event){.type = STEP, .parent = operation, .step = {100 + number}});
        union state state = {.bytes = 4096};
        CHECK(profiler->state(step, STEP_SEND_WAIT, &state) == 0);
        struct work work = {1, 0, 770 + (uint64_t)number, 1, 4711, 4096};
        void *request =
            start((struct event){.type = NETWORK, .parent = step, .network = {1 << 16 | 1, &work}});
        CHECK(profiler->state(request, NETWORK_UPDATE, &state) == 0);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        CHECK(profiler->stop(request) == 0);
        CHECK(profiler->stop(step) == 0);
    }
    CHECK(profiler->stop(operation) == 0);
    // The proxy of another process: its handles say nothing here.
    void *foreign = start((struct event){.type = OPERATION, .parent = collective, .operation = {.pid = 1, .channel = 9}});
    CHECK(profiler->stop(foreign) == 0);
    return NULL;
}

static void hostile(void)
{
    int mask = -1;
    void *handle = NULL, *other = NULL;
    struct event nameless = {.type = COLLECTIVE};
    CHECK(profiler->init(NULL, NULL, NULL, 0, -1, -1, -1, NULL) == 0);
    CHECK(profiler->init(&other, &mask, NULL, 7, 1, 1, 0, NULL) == 0 && other != NULL);
    CHECK(profiler->start(NULL, NULL, NULL) == 0);
    CHECK(profiler->start(context, NULL, &nameless) == 0);
    CHECK(profiler->start(context, &handle, NULL) == 0 && handle == NULL);
    CHECK(profiler->start((void *)0x1234567, &handle, &nameless) == 0 && handle == NULL);
    for (int type = 0; type < 256; type++) {
        struct event unknown = {.type = (uint8_t)type, .parent = (void *)-1};
        CHECK(profiler->start(other, &handle, &unknown) == 0);
        for (int state = -1; state < 40; state++)
            CHECK(profiler->state(handle, state, NULL) == 0);
        CHECK(profiler->stop(handle) == 0 && profiler->stop(handle) == 0);
    }
    struct event strange = {.type = NETWORK, .network = {-1, (void *)1}};
    CHECK(profiler->start(other, &handle, &strange) == 0 && profiler->stop(handle) == 0);
    CHECK(profiler->stop(NULL) == 0 && profiler->stop((void *)-1) == 0);
    CHECK(profiler->state(NULL, STEP_SEND_WAIT, NULL) == 0);
    CHECK(profiler->finalize(NULL) == 0 && profiler->finalize(other) == 0 && profiler->finalize(other) == 0);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

int main(int argc, char **argv)
{
    const int finalizes = argc < 2 || strcmp(argv[1], "exits") != 0;
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count);
    CHECK(devices != NULL && count > 0);
    struct ibv_context *device = ibv_open_device(devices[0]);
    CHECK(device != NULL);

    void *library = dlopen("libnccl-profiler-ubiverbs.so", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    profiler = dlsym(library, "ncclProfiler_v4");
    CHECK(profiler != NULL && strcmp(profiler->name, "ubiverbs") == 0);
    int (*span)(uint64_t, uint64_t, const char *const *) = dlsym(library, "ubiverbs_record_span");
    CHECK(span != NULL);

    int mask = -1;
    CHECK(profiler->init(&context, &mask, "training", 0xabcd, 2, 16, 5, NULL) == 0);
    printf("mask %d\n", mask);
    uint64_t begin = now();
    const char *const own[] = {"trainer", "epoch", "number", "12", NULL}, *const odd[] = {"trainer", "epoch", "number", NULL};
    const char *const nothing[] = {NULL};
    printf("span %d\n", span(begin, begin + 1000, own));
    if (mask == 0) {
        CHECK(context == NULL && start((struct event){.type = GROUP}) == NULL);
        return 0;
    }
    printf("wrong %d %d %d %d\n", span(begin, begin - 1, own), span(begin, begin, NULL), span(0, 0, odd),
           span(0, 0, nothing));

    void *group = start((struct event){.type = GROUP});
    void *collective = start((struct event){.type = COLLECTIVE, .parent = group, .collective = {.sequence = 17, .func = "AllReduce",
                             .count = 1024, .datatype = "ncclFloat32", .channels = 4, .algorithm = "RING", .protocol = "SIMPLE"}});
    CHECK(group != NULL && collective != NULL);
    CHECK(start((struct event){.type = KERNEL, .parent = collective}) == NULL);
    CHECK(profiler->stop(collective) == 0 && profiler->stop(group) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, proxy, collective) == 0);
    void *send = start((struct event){.type = POINT_TO_POINT, .point_to_point = {.func = "Send", .count = 8, .peer = 2}});
    CHECK(profiler->stop(send) == 0);
    hostile();
    CHECK(pthread_join(thread, NULL) == 0);
    if (finalizes) {
        CHECK(profiler->finalize(context) == 0 && profiler->finalize(context) == 0);
        CHECK(start((struct event){.type = GROUP}) == NULL);
        ibv_close_device(device);
    }
    return 0;
}
