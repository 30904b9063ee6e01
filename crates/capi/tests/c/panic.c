/* A panic inside the library is an errno and an event, and the program goes on. The environment names the call that panics. */
#include "bench.h"
#include <poll.h>

int main(void)
{
	struct ibv_context *context = open_lo();

	NEED(context);
	errno = 0;
	CHECK(!ibv_alloc_pd(context) && errno == EIO);
	struct pollfd async = {.fd = context->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	CHECK(poll(&async, 1, 5000) == 1);
	CHECK(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&event);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);

	CHECK(cq && !ibv_destroy_cq(cq));
	CHECK(!ibv_close_device(context));
	return failures != 0;
}
