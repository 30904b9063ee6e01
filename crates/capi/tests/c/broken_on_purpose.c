/* What a program sees that knows nothing of failure scripts, while one breaks its connections, ports and devices. Two NICs, of
 * which the second is struck. Each failure is made to happen by a call of ibv_query_device, or by the connection manager's own
 * events. */
#include "connection.h"

static const char script[] =
	"about = 'Everything that a program can be told of ports, devices and connections'\n"
	"[[failure]]\ndo = 'cm-event'\nevent = 'ADDR_ERROR'\nstatus = -19\n"
	"[[failure]]\ndo = 'cm-event'\nevent = 'ROUTE_ERROR'\nstatus = -22\n"
	"[[failure]]\ndo = 'cm-event'\nevent = 'UNREACHABLE'\nstatus = -110\n"
	"[[failure]]\nafter = { messages = 2 }\ndo = 'reject'\nreason = 'NO_RESOURCES'\n"
	"[[failure]]\nafter = { messages = 2 }\ndo = 'lose-message'\nmessage = 'RTU'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nfor = '300ms'\ndevice = 'ubi_1'\ndo = 'port-down'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nnth = 2\nfor = '100ms'\ndevice = '#1'\ndo = 'gid-remove'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nnth = 3\nfor = '100ms'\ndevice = '#1'\ndo = 'link-speed'\nspeed = '25G'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nnth = 4\ndevice = '#1'\ndo = 'sm-change'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nnth = 5\ndevice = '#1'\ndo = 'client-reregister'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nnth = 6\ndevice = 'ubi_1'\ndo = 'cm-event'\nevent = 'ADDR_CHANGE'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nnth = 7\nfor = '300ms'\ndevice = 'ubi_1'\ndo = 'device-remove'\n";

static struct sockaddr_in second(uint16_t port)
{
	struct sockaddr_in address = loopback(port);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
	return address;
}

/* The next asynchronous event of a device, which must be that. */
static void hears(struct ibv_context *context, enum ibv_event_type kind)
{
	struct ibv_async_event event = {.event_type = -1};

	NEED(readable(context->async_fd, SOON));
	CHECK(!ibv_get_async_event(context, &event));
	if (event.event_type != kind)
		fprintf(stderr, "event %d where %d was expected\n", event.event_type, kind);
	CHECK(event.event_type == kind);
	if (kind != IBV_EVENT_DEVICE_FATAL && event.event_type < IBV_EVENT_WQ_FATAL)
		CHECK(event.element.port_num == 1);
	ibv_ack_async_event(&event);
}

static void next_failure(struct ibv_context *context)
{
	struct ibv_device_attr attr;

	CHECK(!ibv_query_device(context, &attr));
}

static void ask(struct rdma_event_channel *channel, struct rdma_cm_id *id, uint16_t port, int status)
{
	struct sockaddr_in source = second(0), destination = second(port);

	NEED(!rdma_resolve_addr(id, (struct sockaddr *)&source, (struct sockaddr *)&destination, 2000));
	expect(channel, status ? RDMA_CM_EVENT_ADDR_ERROR : RDMA_CM_EVENT_ADDR_RESOLVED, status);
}

static void find_route(struct rdma_event_channel *channel, struct rdma_cm_id *id, int status)
{
	NEED(!rdma_resolve_route(id, 2000));
	expect(channel, status ? RDMA_CM_EVENT_ROUTE_ERROR : RDMA_CM_EVENT_ROUTE_RESOLVED, status);
}

static struct rdma_cm_id *accepted(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);

	NEED(event);
	struct rdma_cm_id *id = event->id;

	CHECK(!rdma_ack_cm_event(event));
	give_queue_pair(id);
	NEED(!rdma_accept(id, NULL));
	return id;
}

/* Every event of an attempt to connect fails once; then a request is rejected; then the message is lost that ends the handshake,
 * and repeated. */
static void connections(struct rdma_cm_id *ids[2], struct rdma_event_channel *channels[2], struct rdma_cm_id **listening)
{
	struct sockaddr_in address = second(0);
	struct rdma_cm_id *id = NULL;

	for (int i = 0; i < 2; i++)
		NEED(channels[i] = rdma_create_event_channel());
	NEED(!rdma_create_id(channels[1], listening, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(*listening, (struct sockaddr *)&address) && !rdma_listen(*listening, 8));
	uint16_t port = rdma_get_src_port(*listening);

	NEED(!rdma_create_id(channels[0], &id, NULL, RDMA_PS_TCP));
	ask(channels[0], id, port, -19);
	ask(channels[0], id, port, 0);
	find_route(channels[0], id, -22);
	find_route(channels[0], id, 0);
	give_queue_pair(id);
	NEED(!rdma_connect(id, NULL));
	struct rdma_cm_id *peer = accepted(channels[1]);

	expect(channels[0], RDMA_CM_EVENT_UNREACHABLE, -110);
	/* The peer hears that it was given up. */
	expect(channels[1], RDMA_CM_EVENT_REJECTED, 28);
	destroy(id);
	destroy(peer);

	NEED(!rdma_create_id(channels[0], &id, NULL, RDMA_PS_TCP));
	ask(channels[0], id, port, 0);
	find_route(channels[0], id, 0);
	give_queue_pair(id);
	NEED(!rdma_connect(id, NULL));
	expect(channels[0], RDMA_CM_EVENT_REJECTED, 3);
	destroy(id);

	NEED(!rdma_create_id(channels[0], &ids[0], NULL, RDMA_PS_TCP));
	ask(channels[0], ids[0], port, 0);
	find_route(channels[0], ids[0], 0);
	give_queue_pair(ids[0]);
	NEED(!rdma_connect(ids[0], NULL));
	ids[1] = accepted(channels[1]);
	expect(channels[0], RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(channels[1], RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void ports(struct ibv_context *contexts[2], struct rdma_cm_id *ids[2])
{
	static char text[2][32] = {"through a port that flaps"};
	struct ibv_port_attr port;
	struct ibv_wc wc = {0};
	struct ibv_mr *mr[2];
	union ibv_gid gid;

	for (int i = 0; i < 2; i++)
		NEED(mr[i] = rdma_reg_msgs(ids[i], text[i], sizeof text[i]));
	NEED(!rdma_post_recv(ids[1], NULL, text[1], sizeof text[1], mr[1]));
	next_failure(contexts[0]);
	hears(contexts[1], IBV_EVENT_PORT_ERR);
	CHECK(!ibv_query_port(contexts[1], 1, &port) && port.state == IBV_PORT_DOWN && port.phys_state == 3);
	CHECK(!ibv_query_port(contexts[0], 1, &port) && port.state == IBV_PORT_ACTIVE);
	/* What is sent now is lost, and sent again when the port is back. */
	CHECK(!rdma_post_send(ids[0], NULL, text[0], sizeof text[0], mr[0], IBV_SEND_SIGNALED));
	CHECK(ibv_poll_cq(ids[0]->send_cq, 1, &wc) == 0);
	hears(contexts[1], IBV_EVENT_PORT_ACTIVE);
	CHECK(!ibv_query_port(contexts[1], 1, &port) && port.state == IBV_PORT_ACTIVE && port.phys_state == 5);
	CHECK(rdma_get_send_comp(ids[0], &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(ids[1], &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(text[0], text[1]));

	next_failure(contexts[0]);
	hears(contexts[1], IBV_EVENT_GID_CHANGE);
	CHECK(!ibv_query_gid(contexts[1], 1, 0, &gid) && !gid.global.subnet_prefix && !gid.global.interface_id);
	hears(contexts[1], IBV_EVENT_GID_CHANGE);
	CHECK(!ibv_query_gid(contexts[1], 1, 0, &gid) && gid.raw[15] == 2);

	next_failure(contexts[0]);
	/* IBV_EVENT_DEVICE_SPEED_CHANGE, which older headers do not have. */
	hears(contexts[1], 20);
	CHECK(!ibv_query_port(contexts[1], 1, &port) && port.active_width == 1 && port.active_speed == 32);
	hears(contexts[1], 20);
	CHECK(!ibv_query_port(contexts[1], 1, &port) && port.active_width == 2 && port.active_speed == 32);

	next_failure(contexts[0]);
	hears(contexts[1], IBV_EVENT_SM_CHANGE);
	next_failure(contexts[0]);
	hears(contexts[1], IBV_EVENT_CLIENT_REREGISTER);
	for (int i = 0; i < 2; i++)
		CHECK(!rdma_dereg_mr(mr[i]));
}

static int count_of_devices(void)
{
	int count = -1;

	ibv_free_device_list(ibv_get_device_list(&count));
	return count;
}

static void removal(struct ibv_context *contexts[2], struct rdma_event_channel *channels[2])
{
	struct ibv_port_attr port;
	struct ibv_pd *pd = ibv_alloc_pd(contexts[1]);
	time_t end = time(NULL) + 60;

	NEED(pd);
	next_failure(contexts[0]);
	/* Of the first channel's id, and of the second's two: the listener, and the connection. */
	expect(channels[0], RDMA_CM_EVENT_ADDR_CHANGE, 0);
	expect(channels[1], RDMA_CM_EVENT_ADDR_CHANGE, 0);
	expect(channels[1], RDMA_CM_EVENT_ADDR_CHANGE, 0);
	next_failure(contexts[0]);
	hears(contexts[1], IBV_EVENT_DEVICE_FATAL);
	expect(channels[0], RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	expect(channels[1], RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	expect(channels[1], RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	CHECK(count_of_devices() == 1);
	CHECK(ibv_query_port(contexts[1], 1, &port) == EIO);
	CHECK(!ibv_alloc_pd(contexts[1]) && errno == EIO);
	CHECK(!ibv_create_cq(contexts[1], 4, NULL, NULL, 0) && errno == EIO);
	CHECK(!ibv_query_port(contexts[0], 1, &port) && port.state == IBV_PORT_ACTIVE);
	while (count_of_devices() < 2 && time(NULL) < end)
		;
	struct ibv_device **devices = ibv_get_device_list(NULL);

	NEED(devices && devices[1]);
	struct ibv_context *again = ibv_open_device(devices[1]);

	NEED(again);
	CHECK(!strcmp(ibv_get_device_name(again->device), "ubi_1") && again->device != contexts[1]->device);
	CHECK(!ibv_query_port(again, 1, &port) && port.state == IBV_PORT_ACTIVE);
	CHECK(ibv_query_port(contexts[1], 1, &port) == EIO);
	ibv_free_device_list(devices);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(again));
}

int main(void)
{
	char path[] = "/tmp/ubiverbs-script-XXXXXX";
	int file = mkstemp(path);
	struct ibv_context *contexts[2];
	struct rdma_event_channel *channels[2];
	struct rdma_cm_id *ids[2] = {NULL}, *listening = NULL;

	NEED(file >= 0 && write(file, script, strlen(script)) == (ssize_t)strlen(script) && !close(file));
	NEED(!setenv("UBIVERBS_NICS", "2", 1) && !setenv("UBIVERBS_SCRIPT", path, 1));
	struct ibv_device **devices = ibv_get_device_list(NULL);

	NEED(devices && devices[0] && devices[1]);
	for (int i = 0; i < 2; i++)
		NEED(contexts[i] = ibv_open_device(devices[i]));
	ibv_free_device_list(devices);
	unlink(path);
	connections(ids, channels, &listening);
	ports(contexts, ids);
	removal(contexts, channels);
	/* The first device heard of nothing. */
	CHECK(!readable(contexts[0]->async_fd, 0));
	for (int i = 0; i < 2; i++)
		destroy(ids[i]);
	destroy(listening);
	for (int i = 0; i < 2; i++) {
		rdma_destroy_event_channel(channels[i]);
		CHECK(!ibv_close_device(contexts[i]));
	}
	return failures != 0;
}
