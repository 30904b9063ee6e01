/* Opens the library as programs do that look symbols up by version. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>

static int missing(void *handle, const char *name, const char *version)
{
	if (dlvsym(handle, name, version))
		return 0;
	fprintf(stderr, "%s@%s is not found: %s\n", name, version, dlerror());
	return 1;
}

int main(int argc, char **argv)
{
	void *handle = dlopen(argc > 1 ? argv[1] : "libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	int wrong = 0;

	if (!handle) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	wrong += missing(handle, "ibv_open_device", "IBVERBS_1.1");
	wrong += missing(handle, "ibv_open_device", "IBVERBS_1.0");
	wrong += missing(handle, "ibv_create_comp_channel", "IBVERBS_1.0");
	wrong += missing(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	wrong += missing(handle, "ibv_query_ece", "IBVERBS_1.10");
	wrong += missing(handle, "ibv_reg_dmabuf_mr", "IBVERBS_1.12");
	wrong += missing(handle, "ibv_query_gid_type", "IBVERBS_PRIVATE_34");
	wrong += missing(handle, "verbs_register_driver_59", "IBVERBS_PRIVATE_59");
	wrong += dlvsym(handle, "ibv_reg_mr_iova2", "IBVERBS_1.1") != NULL;

	struct ibv_device **(*list)(int *) = dlvsym(handle, "ibv_get_device_list", "IBVERBS_1.1");
	int count = -1;
	struct ibv_device **devices = list ? list(&count) : NULL;

	if (!devices || count < 1)
		wrong++;
	/* The library stays: its threads run on. */
	dlclose(handle);
	return wrong;
}
