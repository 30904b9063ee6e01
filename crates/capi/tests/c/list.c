/* Lists devices. No device, or no RDMA in the kernel, is fine. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	for (int i = 0; list && i < count; i++)
		printf("%s\n", ibv_get_device_name(list[i]));
	if (list)
		ibv_free_device_list(list);
	return 0;
}
