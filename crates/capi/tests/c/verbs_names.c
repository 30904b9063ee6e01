/* Every name that the libraries have for statuses, events, states, kinds of node and opcodes, a line each: what the
 * originals print as well. A function that a release lacks is absent. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	const char *functions[] = {"ibv_wc_status_str", "ibv_event_type_str", "ibv_port_state_str", "ibv_node_type_str",
				   "ibv_wr_opcode_str", "rdma_event_str"};
	void *libraries[] = {dlopen("libibverbs.so.1", RTLD_NOW), dlopen("librdmacm.so.1", RTLD_NOW)};

	if (!libraries[0] || !libraries[1]) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		const char *(*name)(int) = NULL;

		for (int library = 0; library < 2 && !name; library++)
			*(void **)&name = dlsym(libraries[library], functions[i]);
		for (int number = -2; number <= 300; number++) {
			const char *text = name ? name(number) : "absent";

			printf("%s %d: %s\n", functions[i], number, text ? text : "null");
		}
	}
	return 0;
}
