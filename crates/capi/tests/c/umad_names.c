/* Every name that the library has for classes, methods, attributes and statuses, and what it prints of addresses: the
 * same on the distribution's library. */
#include <arpa/inet.h>
#include <infiniband/umad.h>
#include <infiniband/umad_str.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	struct ib_user_mad mad;

	for (int class = 0; class < 256; class++) {
		printf("%02x %s\n", class, umad_class_str(class));
		for (int number = 0; number < 256; number++)
			printf("%s\n", umad_method_str(class, number));
		for (int number = 0; number < 0x200; number++)
			printf("%s\n", umad_attribute_str(class, htons(number)));
	}
	for (int status = 0; status < 0x10000; status++)
		printf("%s %s\n", umad_common_mad_status_str(htons(status)), umad_sa_mad_status_str(htons(status)));
	for (size_t i = 0; i < sizeof mad; i++)
		((unsigned char *)&mad)[i] = i * 37;
	umad_dump(&mad);
	umad_addr_dump(umad_get_mad_addr(&mad));
	return 0;
}
