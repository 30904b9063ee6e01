/* What makes no sense: null pointers, families, sizes, states; options, ports and names. */
#include "connection.h"
#include <netdb.h>
#include <rdma/rsocket.h>
#include <sys/select.h>

#define FAILS(call, error)                                                       \
	do {                                                                     \
		errno = 0;                                                       \
		CHECK((call) == -1);                                             \
		if (errno != (error))                                            \
			fprintf(stderr, "not %s but: ", strerror(error));        \
		CHECK(errno == (error));                                         \
	} while (0)

static struct rdma_event_channel *channel;

static struct rdma_cm_id *fresh(enum rdma_port_space space)
{
	struct rdma_cm_id *id = NULL;

	NEED(!rdma_create_id(channel, &id, NULL, space) && id);
	CHECK(!id->verbs && !id->qp && !id->event && id->channel == channel && id->ps == space);
	return id;
}

static void nothing(void)
{
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP), *other = NULL;
	struct sockaddr_storage strange = {.ss_family = AF_UNIX};
	struct rdma_cm_event *event = NULL;
	struct ibv_qp_init_attr init = {0};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	struct ibv_ece ece = {.options = 1};
	int mask;

	FAILS(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	FAILS(rdma_create_id(channel, &other, NULL, 0x1234), EINVAL);
	FAILS(rdma_destroy_id(NULL), EINVAL);
	FAILS(rdma_migrate_id(NULL, channel), EINVAL);
	FAILS(rdma_bind_addr(NULL, (struct sockaddr *)&strange), EINVAL);
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&strange), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, NULL, 100), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&strange, 100), EINVAL);
	FAILS(rdma_resolve_route(id, 100), EINVAL);
	FAILS(rdma_resolve_route(NULL, 100), EINVAL);
	FAILS(rdma_listen(NULL, 1), EINVAL);
	FAILS(rdma_connect(NULL, NULL), EINVAL);
	FAILS(rdma_connect(id, NULL), EINVAL);
	FAILS(rdma_accept(id, NULL), EINVAL);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_reject(NULL, NULL, 0), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_SQ_DRAINED), EINVAL);
	FAILS(rdma_get_cm_event(NULL, &event), EINVAL);
	FAILS(rdma_get_cm_event(channel, NULL), EINVAL);
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
	FAILS(rdma_get_request(id, &other), EINVAL);
	FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
	FAILS(rdma_create_qp(id, NULL, NULL), EINVAL);
	FAILS(rdma_create_qp_ex(id, NULL), EINVAL);
	FAILS(rdma_create_srq(id, NULL, NULL), EINVAL);
	FAILS(rdma_create_srq_ex(id, NULL), EINVAL);
	FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	FAILS(rdma_join_multicast(id, (struct sockaddr *)&strange, NULL), EINVAL);
	FAILS(rdma_leave_multicast(id, NULL), EINVAL);
	FAILS(rdma_set_local_ece(id, NULL), EINVAL);
	FAILS(rdma_set_local_ece(id, &ece), EINVAL);
	FAILS(rdma_get_remote_ece(id, NULL), EINVAL);
	rdma_destroy_qp(id);
	rdma_destroy_qp(NULL);
	rdma_destroy_srq(NULL);
	rdma_destroy_ep(NULL);
	rdma_destroy_event_channel(NULL);
	rdma_free_devices(NULL);
	rdma_freeaddrinfo(NULL);
	CHECK(rdma_get_src_port(NULL) == 0 && rdma_get_dst_port(id) == 0);
	CHECK(!rdma_destroy_id(id));
}

static void ports(void)
{
	struct sockaddr_in address = loopback(0), foreign = loopback(0);
	struct sockaddr_in6 any = {.sin6_family = AF_INET6};
	struct rdma_cm_id *one = fresh(RDMA_PS_TCP), *other = fresh(RDMA_PS_TCP), *datagrams = fresh(RDMA_PS_UDP);

	CHECK(!rdma_bind_addr(one, (struct sockaddr *)&address));
	/* A loopback address is of no device, like the wildcard. */
	CHECK(!one->verbs && !one->port_num && !one->pd && rdma_get_src_port(one));
	address.sin_port = rdma_get_src_port(one);
	FAILS(rdma_bind_addr(other, (struct sockaddr *)&address), EADDRNOTAVAIL);
	FAILS(rdma_bind_addr(one, (struct sockaddr *)&address), EINVAL);
	/* Another service has ports of its own. */
	CHECK(!rdma_bind_addr(datagrams, (struct sockaddr *)&address));
	foreign.sin_addr.s_addr = htonl(0xc0000201);
	FAILS(rdma_bind_addr(other, (struct sockaddr *)&foreign), EADDRNOTAVAIL);
	CHECK(!rdma_bind_addr(other, (struct sockaddr *)&any) && !other->verbs && rdma_get_src_port(other));
	CHECK(!rdma_listen(other, 0) && !rdma_listen(one, 0));
	FAILS(rdma_listen(one, 0), EINVAL);
	CHECK(!rdma_destroy_id(one) && !rdma_destroy_id(other) && !rdma_destroy_id(datagrams));
	/* The port is free again. */
	one = fresh(RDMA_PS_TCP);
	CHECK(!rdma_bind_addr(one, (struct sockaddr *)&address));
	CHECK(!rdma_destroy_id(one));
	/* Listening without an address takes a port. */
	one = fresh(RDMA_PS_TCP);
	CHECK(!rdma_listen(one, 0) && rdma_get_src_port(one));
	CHECK(!rdma_destroy_id(one));
}

static void options(void)
{
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);
	struct sockaddr_in address = loopback(0);
	struct ibv_path_data path = {0};
	uint8_t byte = 16;
	int yes = 1;

	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, sizeof byte));
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes));
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes));
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, sizeof byte));
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &yes, sizeof yes), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, sizeof byte), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, sizeof byte), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, 77, &yes, sizeof yes), ENOSYS);
	FAILS(rdma_set_option(id, 9, RDMA_OPTION_ID_TOS, &byte, sizeof byte), ENOSYS);
	FAILS(rdma_set_option(NULL, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, sizeof byte), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, 3), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path), EINVAL);
	/* A path of the program's is as good as one that was resolved. */
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	path.flags = IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_BIDIRECTIONAL;
	CHECK(!rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path));
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(id->route.num_paths == 1 && id->route.path_rec && id->route.path_rec->traffic_class == 16);
	CHECK(!rdma_destroy_id(id));
}

static void names(void)
{
	struct rdma_addrinfo hints = {0}, *found = NULL;
	struct sockaddr_in address = loopback(htons(5));

	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &found), EINVAL);
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7471", NULL, &found));
	CHECK(found->ai_qp_type == IBV_QPT_RC && found->ai_port_space == RDMA_PS_TCP && found->ai_family == AF_INET);
	CHECK(((struct sockaddr_in *)found->ai_dst_addr)->sin_port == htons(7471));
	rdma_freeaddrinfo(found);
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(rdma_getaddrinfo("no.such.name", "1", &hints, &found) == EAI_NONAME);
	hints.ai_flags = RAI_FAMILY;
	hints.ai_family = AF_INET6;
	CHECK(!rdma_getaddrinfo("::1", "1", &hints, &found) && found->ai_family == AF_INET6);
	rdma_freeaddrinfo(found);
	hints = (struct rdma_addrinfo){.ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_UD};
	CHECK(rdma_getaddrinfo("127.0.0.1", "1", &hints, &found) != 0);
	hints = (struct rdma_addrinfo){.ai_port_space = RDMA_PS_UDP, .ai_src_addr = (struct sockaddr *)&address,
				       .ai_src_len = sizeof address};
	CHECK(!rdma_getaddrinfo("127.0.0.1", "1", &hints, &found));
	CHECK(found->ai_qp_type == IBV_QPT_UD && found->ai_src_len == sizeof address && found->ai_dst_len == sizeof address);
	CHECK(!memcmp(found->ai_src_addr, &address, sizeof address) && found->ai_src_addr != (struct sockaddr *)&address);
	rdma_freeaddrinfo(found);
	/* Nothing but addresses of the program's own. */
	hints = (struct rdma_addrinfo){.ai_family = AF_INET, .ai_dst_addr = (struct sockaddr *)&address, .ai_dst_len = sizeof address};
	CHECK(!rdma_getaddrinfo(NULL, NULL, &hints, &found) && found->ai_dst_len == sizeof address && !found->ai_src_len);
	rdma_freeaddrinfo(found);
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_ADDR_RESOLVED), "RDMA_CM_EVENT_ADDR_RESOLVED"));
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT"));
	CHECK(!strcmp(rdma_event_str(99), "UNKNOWN EVENT"));
}

static void devices(void)
{
	struct sockaddr_in address = loopback(0);
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);
	int count = 0, same = 0;
	struct ibv_context **list = rdma_get_devices(&count), **again = rdma_get_devices(NULL);

	NEED(list && again && count > 0 && !list[count]);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address) && !id->verbs);
	address.sin_port = htons(9);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(id->verbs && id->port_num == 1 && id->pd);
	for (int i = 0; i < count; i++) {
		CHECK(list[i] == again[i]);
		same += list[i] == id->verbs;
	}
	CHECK(same == 1);
	rdma_free_devices(list);
	rdma_free_devices(again);
	CHECK(!strcmp(ibv_get_device_name(id->verbs->device), "ubi_lo"));
	CHECK(!rdma_destroy_id(id));
}

/* Addresses that lead nowhere: told at once or by an event, never silence. */
static void nowhere(void)
{
	struct sockaddr_in6 none = {.sin6_family = AF_INET6, .sin6_port = htons(1)};
	struct sockaddr_in source = loopback(0);
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);
	struct rdma_cm_event *event;

	/* Documentation's own network: only a host with a default route has a way there. */
	inet_pton(AF_INET6, "2001:db8::1", &none.sin6_addr);
	FAILS(rdma_resolve_addr(id, (struct sockaddr *)&source, (struct sockaddr *)&none, 100), EINVAL);
	CHECK(!rdma_destroy_id(id));
	id = fresh(RDMA_PS_TCP);
	if (!rdma_resolve_addr(id, NULL, (struct sockaddr *)&none, 100)) {
		CHECK(readable(channel->fd, SOON));
		NEED(!rdma_get_cm_event(channel, &event));
		CHECK(event->event == RDMA_CM_EVENT_ADDR_ERROR ? event->status < 0 : event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
		rdma_ack_cm_event(event);
	} else {
		CHECK(errno == ENETUNREACH || errno == EHOSTUNREACH || errno == EADDRNOTAVAIL || errno == ENODEV);
	}
	CHECK(!rdma_destroy_id(id));
}

static void sockets(void)
{
	struct pollfd waiting = {.fd = channel->fd, .events = POLLIN};
	struct timeval now = {0, 0};
	fd_set set;

	CHECK(rpoll(&waiting, 1, 0) == 0);
	FD_ZERO(&set);
	FD_SET(channel->fd, &set);
	CHECK(rselect(channel->fd + 1, &set, NULL, NULL, &now) == 0);
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
	FAILS(rsend(0, "x", 1, 0), EBADF);
	FAILS(riomap(0, NULL, 0, 0, 0, 0), EBADF);
	FAILS(rclose(99), EBADF);
}

static void groups(void)
{
	struct sockaddr_in address = loopback(0), group = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xef4d0001)};
	struct rdma_cm_join_mc_attr_ex join = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
					       .join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
					       .addr = (struct sockaddr *)&group};
	struct rdma_cm_id *id = fresh(RDMA_PS_UDP);
	struct rdma_cm_event *event;
	int context;

	FAILS(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), EINVAL);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address));
	FAILS(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), EINVAL);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&group, 1000));
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	FAILS(rdma_join_multicast(id, (struct sockaddr *)&address, NULL), EINVAL);
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	join.comp_mask |= RDMA_CM_JOIN_MC_ATTR_RESERVED;
	FAILS(rdma_join_multicast_ex(id, &join, NULL), ENOTSUP);
	join.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	FAILS(rdma_join_multicast_ex(id, &join, NULL), EINVAL);
	join.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	join.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	FAILS(rdma_join_multicast_ex(id, &join, NULL), EINVAL);
	join.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	FAILS(rdma_join_multicast_ex(id, NULL, NULL), EINVAL);
	CHECK(!rdma_join_multicast_ex(id, &join, &context));
	event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	NEED(event);
	CHECK(event->param.ud.private_data == &context && event->param.ud.qp_num == 0xffffff);
	CHECK(event->param.ud.ah_attr.is_global && event->param.ud.ah_attr.grh.dgid.raw[12] == 0xef);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_leave_multicast(id, (struct sockaddr *)&group));
	/* Joined twice, and left as often before anybody looked. */
	CHECK(!rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	CHECK(!rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	CHECK(!rdma_leave_multicast(id, (struct sockaddr *)&group));
	CHECK(!rdma_leave_multicast(id, (struct sockaddr *)&group));
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	CHECK(!rdma_destroy_id(id) && !readable(channel->fd, 0));
}

int main(void)
{
	channel = rdma_create_event_channel();
	NEED(channel && channel->fd >= 0);
	nothing();
	ports();
	options();
	names();
	devices();
	nowhere();
	groups();
	sockets();
	rdma_destroy_event_channel(channel);
	return failures != 0;
}
