// Brings libraries of its own, under other names, as Python's wheels do; prints the devices that each way of calling them shows.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>

typedef struct ibv_device **list_function(int *);
typedef const char *name_function(struct ibv_device *);

static void show(const char *way, struct ibv_device *device, name_function *name) {
    printf("%s: %s\n", way, device ? name(device) : "nothing");
}

static void show_list(const char *way, list_function *list, name_function *name) {
    struct ibv_device **devices = list ? list(NULL) : NULL;
    show(way, devices ? devices[0] : NULL, name);
}

// A module that is loaded later: its libraries are its own business, not the program's.
#ifdef MODULE
void show_module(void) { show_list("module", ibv_get_device_list, ibv_get_device_name); }
#else
int main(int argc, char **argv) {
    show_list("linked", ibv_get_device_list, ibv_get_device_name);
    struct ibv_context **contexts = rdma_get_devices(NULL);
    show("connection manager", contexts && contexts[0] ? contexts[0]->device : NULL, ibv_get_device_name);
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library)
        show_list("opened", (list_function *)dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1"),
                  (name_function *)dlsym(library, "ibv_get_device_name"));
    void *module = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void (*show_module)(void) = module ? (void (*)(void))dlsym(module, "show_module") : NULL;
    if (!show_module)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    show_module();
    return 0;
}
#endif
