/* Management datagrams: what the manual pages say of every call, misuse included, and datagrams between agents of this
 * process and with the port itself. */
#include "bench.h"
#include <endian.h>
#include <infiniband/umad.h>
#include <infiniband/umad_types.h>
#include <pthread.h>
#include <poll.h>
#include <unistd.h>

#define PING_CLASS 0x32
#define MAD 256

static const uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
static uint8_t openib[3] = {0x00, 0x14, 0x05};

struct packet {
	struct ib_user_mad header;
	uint8_t mad[4 * MAD];
};

static void prepare(struct packet *packet, uint8_t class, uint8_t method, uint32_t transaction)
{
	struct ib_mad_addr address = {.hop_limit = 64};
	struct umad_hdr *header = umad_get_mad(packet);

	memset(packet, 0, sizeof *packet);
	header->base_version = 1;
	header->mgmt_class = class;
	header->class_version = 1;
	header->method = method;
	header->tid = htobe64(transaction);
	if (class >= 0x30)
		memcpy(packet->mad + 37, openib, 3);
	memcpy(address.gid, loopback, 16);
	CHECK(umad_set_addr(packet, 0, 1, 0, UMAD_QKEY) == 0);
	CHECK(umad_set_grh(packet, &address) == 0);
	CHECK(umad_set_pkey(packet, 0) == 0);
}

static void devices_and_ports(void)
{
	char names[UMAD_MAX_DEVICES][UMAD_CA_NAME_LEN];
	struct umad_device_node *list, *node;
	__be64 guids[4];
	umad_ca_t ca;
	umad_port_t port;
	char path[64];
	int count, found = 0;

	CHECK(umad_init() == 0 && umad_done() == 0);
	count = umad_get_cas_names(names, UMAD_MAX_DEVICES);
	NEED(count >= 1);
	for (int i = 0; i < count; i++)
		found += !strcmp(names[i], "ubi_lo");
	CHECK(found == 1);
	CHECK(umad_get_cas_names(names, 0) == 0);
	CHECK(umad_get_cas_names(names, -1) == 0);
	CHECK(umad_get_cas_names(NULL, 1) == -1);

	NEED(umad_get_ca("ubi_lo", &ca) == 0);
	CHECK(!strcmp(ca.ca_name, "ubi_lo") && ca.node_type == 1 && ca.numports == 1 && ca.node_guid);
	CHECK(ca.node_guid == ca.system_guid && !ca.ports[0] && ca.ports[1] && !ca.ports[2]);
	CHECK(ca.ports[1]->state == 4 && ca.ports[1]->phys_state == 5 && ca.ports[1]->rate == 100);
	CHECK(ca.ports[1]->pkeys_size == 1 && ca.ports[1]->pkeys[0] == 0xffff);
	CHECK(!strcmp(ca.ports[1]->link_layer, "Ethernet") && ca.ports[1]->base_lid == 0 && ca.ports[1]->sm_lid == 0);
	CHECK(be32toh(ca.ports[1]->capmask) == 0x04010000);
	CHECK(umad_release_ca(&ca) == 0 && !ca.ports[1]);
	CHECK(umad_release_ca(&ca) == 0);
	CHECK(umad_release_ca(NULL) == -ENODEV);
	CHECK(umad_get_ca("no_such", &ca) == -ENOENT);
	CHECK(umad_get_ca("ubi_lo", NULL) == -EINVAL);
	CHECK(umad_get_ca(NULL, &ca) == 0);
	CHECK(umad_release_ca(&ca) == 0);

	CHECK(umad_get_port("ubi_lo", 1, &port) == 0 && port.portnum == 1 && port.pkeys[0] == 0xffff);
	CHECK(umad_release_port(&port) == 0 && !port.pkeys && !port.pkeys_size);
	CHECK(umad_get_port("ubi_lo", 0, &port) == 0 && port.portnum == 1);
	CHECK(umad_release_port(&port) == 0);
	CHECK(umad_get_port("ubi_lo", 2, &port) == -EIO);
	CHECK(umad_get_port("ubi_lo", -1, &port) == -EIO);
	CHECK(umad_get_port("no_such", 1, &port) == -EIO);
	CHECK(umad_get_port("no_such", 0, &port) == -ENODEV);
	CHECK(umad_get_port("ubi_lo", 1, NULL) == -EINVAL);
	CHECK(umad_release_port(NULL) == -ENODEV);

	CHECK(umad_get_ca_portguids("ubi_lo", guids, 4) == 2 && guids[0] == 0 && guids[1] != 0);
	CHECK(umad_get_ca_portguids("ubi_lo", guids, 1) == -ENOMEM);
	CHECK(umad_get_ca_portguids("ubi_lo", NULL, 0) == 0);
	CHECK(umad_get_ca_portguids("no_such", guids, 4) < 0);

	CHECK(umad_get_issm_path("ubi_lo", 1, path, sizeof path) == 0 && !strncmp(path, "/dev/infiniband/issm", 20));
	CHECK(umad_get_issm_path("ubi_lo", 1, path, 4) == 0 && !strcmp(path, "/de"));
	CHECK(umad_get_issm_path("ubi_lo", 7, path, sizeof path) == -EINVAL);
	CHECK(umad_get_issm_path("no_such", 0, path, sizeof path) == -ENODEV);
	CHECK(umad_get_issm_path("ubi_lo", 1, NULL, 9) == -EINVAL);

	errno = 5;
	list = umad_get_ca_device_list();
	CHECK(list && errno == 0);
	CHECK(umad_sort_ca_device_list(&list, 0) == 0);
	for (node = list, found = 0; node; node = node->next, found++)
		CHECK(!node->next || strcmp(node->ca_name, node->next->ca_name) < 0);
	CHECK(found == count);
	CHECK(umad_sort_ca_device_list(&list, count) == 0);
	CHECK(umad_sort_ca_device_list(&list, count + 1) == EINVAL);
	CHECK(umad_sort_ca_device_list(NULL, 0) == EINVAL);
	umad_free_ca_device_list(list);
	umad_free_ca_device_list(NULL);
}

static void buffers(void)
{
	struct packet packet;
	struct ib_mad_addr address = {.flow_label = 0x12345, .hop_limit = 3, .traffic_class = 9};

	memset(&packet, 0, sizeof packet);
	CHECK(umad_size() == sizeof(struct ib_user_mad));
	CHECK(umad_get_mad(&packet) == packet.mad && umad_get_mad_addr(&packet) == &packet.header.addr);
	CHECK(umad_get_mad(NULL) == NULL && umad_get_mad_addr(NULL) == NULL);
	CHECK(umad_set_addr(&packet, 5, 1, 2, 0x80010000) == 0);
	CHECK(packet.header.addr.lid == htobe16(5) && packet.header.addr.qpn == htobe32(1));
	CHECK(packet.header.addr.sl == 2 && packet.header.addr.qkey == htobe32(0x80010000));
	CHECK(umad_set_addr_net(&packet, htobe16(6), htobe32(7), 1, htobe32(8)) == 0);
	CHECK(packet.header.addr.lid == htobe16(6) && packet.header.addr.qkey == htobe32(8));
	memcpy(address.gid, loopback, 16);
	CHECK(umad_set_grh(&packet, &address) == 0 && packet.header.addr.grh_present == 1);
	CHECK(packet.header.addr.flow_label == htobe32(0x12345) && packet.header.addr.hop_limit == 3);
	CHECK(!memcmp(packet.header.addr.gid, loopback, 16) && packet.header.addr.traffic_class == 9);
	CHECK(umad_set_grh(&packet, NULL) == 0 && packet.header.addr.grh_present == 0);
	CHECK(umad_set_pkey(&packet, 3) == 0 && umad_get_pkey(&packet) == 3);
	packet.header.status = 110;
	CHECK(umad_status(&packet) == 110);
	CHECK(umad_set_addr(NULL, 0, 0, 0, 0) < 0 && umad_set_grh(NULL, &address) < 0 && umad_set_pkey(NULL, 0) < 0);
	CHECK(umad_get_pkey(NULL) < 0 && umad_status(NULL) < 0);
	CHECK(umad_debug(-1) == 0 && umad_debug(2) == 2 && umad_debug(-1) == 2 && umad_debug(0) == 0);
	umad_dump(NULL);
	umad_addr_dump(NULL);
}

static void registrations(int fd)
{
	long all[16 / sizeof(long)];
	struct umad_reg_attr attributes = {.mgmt_class = 4, .mgmt_class_version = 1};
	uint32_t id = 77;
	int other = umad_open_port("ubi_lo", 1), agents[40], count = 0;

	NEED(other >= 0 && other != fd);
	memset(all, 0xff, sizeof all);
	/* No RoCE port has queue pair 0. */
	errno = 0;
	CHECK(umad_register(fd, 1, 1, 0, NULL) == -EPERM && errno == EPROTONOSUPPORT);
	CHECK(umad_register(fd, 0x81, 1, 0, NULL) == -EPERM);
	attributes.mgmt_class = 1;
	CHECK(umad_register2(fd, &attributes, &id) == EPROTONOSUPPORT && id == 77);
	errno = 0;
	CHECK(umad_register(fd, 4, 9, 0, NULL) == -EPERM && errno == EINVAL);
	CHECK(umad_register(fd, 4, 1, 1, NULL) == -EPERM);
	CHECK(umad_register(fd, 3, 2, 2, NULL) == -EPERM);
	CHECK(umad_register(fd, 0x50, 1, 0, NULL) == -EPERM);
	CHECK(umad_register(-1, 4, 1, 0, NULL) == -EINVAL);
	CHECK(umad_register(0, 4, 1, 0, NULL) == -EINVAL);
	CHECK(umad_register_oui(fd, 0x2f, 0, openib, NULL) == -EINVAL);
	CHECK(umad_register_oui(fd, PING_CLASS, 0, NULL, NULL) == -EINVAL);
	CHECK(umad_register_oui(-1, PING_CLASS, 0, openib, NULL) == -EINVAL);
	CHECK(umad_register2(fd, NULL, &id) == EINVAL && umad_register2(fd, &attributes, NULL) == EINVAL);
	attributes.mgmt_class = 4;
	attributes.flags = 6;
	CHECK(umad_register2(fd, &attributes, &id) == EINVAL && attributes.flags == UMAD_USER_RMPP);
	attributes.flags = 0;
	attributes.mgmt_class = PING_CLASS;
	CHECK(umad_register2(fd, &attributes, &id) == EINVAL);
	attributes.oui = 0x01001405;
	CHECK(umad_register2(fd, &attributes, &id) == EINVAL);
	attributes.oui = 0x001405;
	memset(attributes.method_mask, 0xff, sizeof attributes.method_mask);
	CHECK(umad_register2(-1, &attributes, &id) == EINVAL);
	CHECK(umad_register2(fd, &attributes, &id) == 0 && id < 32);
	/* Of the same methods there is one agent. */
	CHECK(umad_register_oui(other, PING_CLASS, 0, openib, all) == -EPERM);
	CHECK(umad_register_oui(other, PING_CLASS, 0, openib, NULL) == 0);
	CHECK(umad_unregister(fd, id) == 0);
	CHECK(umad_unregister(fd, id) == -EINVAL);
	CHECK(umad_unregister(fd, -1) == -EINVAL && umad_unregister(fd, 999) == -EINVAL && umad_unregister(-1, 0) < 0);
	CHECK(umad_register_oui(other, PING_CLASS, 0, openib, all) == 1);
	/* Connection management is ours. */
	CHECK(umad_register(fd, 7, 2, 0, all) == -EPERM);
	while (count < 40 && (agents[count] = umad_register(fd, 0, 0, 0, NULL)) >= 0)
		count++;
	CHECK(count == UMAD_CA_MAX_AGENTS && errno == ENOMEM);
	for (int i = 0; i < count; i++)
		CHECK(umad_unregister(fd, agents[i]) == 0);
	CHECK(umad_close_port(other) == 0 && umad_close_port(other) == -EINVAL);
	CHECK(umad_register_oui(fd, PING_CLASS, 0, openib, all) == 0 && umad_unregister(fd, 0) == 0);
}

static void *serve(void *port)
{
	int fd = *(int *)port, length = MAD;
	struct packet packet;
	int agent = umad_recv(fd, &packet, &length, 10000);

	CHECK(agent == 0 && length == MAD && umad_status(&packet) == 0);
	CHECK(packet.header.length == umad_size() + MAD && packet.header.addr.grh_present == 1);
	CHECK(!memcmp(packet.header.addr.gid, loopback, 16) && packet.header.addr.qpn == htobe32(1));
	packet.mad[3] |= 0x80;
	memcpy(packet.mad + 40, "pong", 5);
	CHECK(umad_send(fd, agent, &packet, MAD, 0, 0) == 0);
	return NULL;
}

static void a_ping(int fd)
{
	long all[16 / sizeof(long)];
	int server = umad_open_port("ubi_lo", 1), length = MAD, agent, id;
	struct packet packet;
	struct pollfd asked;
	pthread_t thread;

	memset(all, 0xff, sizeof all);
	NEED(server >= 0 && umad_get_fd(server) == server);
	CHECK(umad_get_fd(-1) == -EINVAL && umad_get_fd(0) == -EINVAL);
	CHECK(umad_register_oui(server, PING_CLASS, 0, openib, all) == 0);
	NEED((agent = umad_register(fd, PING_CLASS, 1, 0, NULL)) >= 0);
	CHECK(umad_poll(fd, 0) == -ETIMEDOUT && umad_poll(fd, 20) == -ETIMEDOUT && umad_poll(-1, 0) == -EINVAL);
	CHECK(umad_recv(fd, &packet, &length, 0) == -EWOULDBLOCK && errno == EWOULDBLOCK);
	CHECK(umad_recv(fd, &packet, &length, 20) == -ETIMEDOUT && errno == ETIMEDOUT);
	CHECK(umad_recv(-1, &packet, &length, 0) == -EINVAL);
	CHECK(umad_recv(fd, NULL, &length, 0) == -EINVAL && umad_recv(fd, &packet, NULL, 0) == -EINVAL);

	NEED(pthread_create(&thread, NULL, serve, &server) == 0);
	prepare(&packet, PING_CLASS, 1, 0x1234);
	CHECK(umad_send(fd, agent, &packet, MAD, 5000, 0) == 0);
	/* The same again, while the first is under way, is refused, as long as it is. */
	asked = (struct pollfd){.fd = umad_get_fd(fd), .events = POLLIN};
	CHECK(poll(&asked, 1, 10000) == 1 && asked.revents == POLLIN);
	CHECK(umad_poll(fd, 1000) == 0);
	length = 100;
	CHECK(umad_recv(fd, &packet, &length, 0) == -EINVAL && length == MAD);
	id = umad_recv(fd, &packet, &length, 1000);
	CHECK(id == agent && length == MAD && umad_status(&packet) == 0);
	CHECK(packet.mad[3] == 0x81 && !strcmp((char *)packet.mad + 40, "pong") && packet.mad[15] == 0x34);
	CHECK(!memcmp(packet.header.addr.gid, loopback, 16));
	pthread_join(thread, NULL);

	/* Nobody answers: repeated, then told. */
	prepare(&packet, PING_CLASS, 1, 0x1235);
	CHECK(umad_send(fd, agent, &packet, MAD, 30, 2) == 0);
	errno = 0;
	CHECK(umad_send(fd, agent, &packet, MAD, 30, 2) == -EIO && errno == EINVAL);
	id = umad_recv(fd, &packet, &length, 5000);
	CHECK(id == agent && umad_status(&packet) == ETIMEDOUT && length == 24 && packet.mad[15] == 0x35);
	length = MAD;
	for (int i = 0; i < 3; i++)
		CHECK(umad_recv(server, &packet, &length, 1000) == 0);
	CHECK(umad_recv(server, &packet, &length, 0) == -EWOULDBLOCK);

	/* What cannot be sent. */
	prepare(&packet, PING_CLASS, 1, 0x1236);
	CHECK(umad_send(-1, agent, &packet, MAD, 1, 0) == -EINVAL);
	CHECK(umad_send(fd, 31, &packet, MAD, 1, 0) == -EINVAL && umad_send(fd, -1, &packet, MAD, 1, 0) == -EINVAL);
	CHECK(umad_send(fd, agent, NULL, MAD, 1, 0) == -EINVAL);
	errno = 0;
	CHECK(umad_send(fd, agent, &packet, 35, 1, 0) == -EIO && errno == EINVAL);
	CHECK(umad_send(fd, agent, &packet, -1, 1, 0) == -EIO);
	CHECK(umad_send(fd, agent, &packet, MAD + 1, 1, 0) == -EIO);
	umad_set_pkey(&packet, 1);
	CHECK(umad_send(fd, agent, &packet, MAD, 1, 0) == -EIO);
	umad_set_pkey(&packet, 0);
	packet.header.addr.gid_index = 63;
	CHECK(umad_send(fd, agent, &packet, MAD, 1, 0) == -EIO);
	packet.header.addr.gid_index = 0;
	memset(packet.header.addr.gid, 0, 16);
	CHECK(umad_send(fd, agent, &packet, MAD, 1, 0) == -EIO);
	/* A RoCE port has no LIDs. */
	umad_set_grh(&packet, NULL);
	umad_set_addr(&packet, 1, 1, 0, UMAD_QKEY);
	errno = 0;
	CHECK(umad_send(fd, agent, &packet, MAD, 1, 0) == -EIO && errno == EINVAL);
	CHECK(umad_close_port(server) == 0);
	CHECK(umad_unregister(fd, agent) == 0);
}

static uint64_t counter(const struct packet *packet, int at)
{
	uint64_t value;

	memcpy(&value, packet->mad + at, 8);
	return be64toh(value);
}

/* Performance management is answered by the port, and counts what was sent before. */
static void counters(int fd)
{
	struct packet packet;
	int agent = umad_register(fd, 4, 1, 0, NULL), length;
	uint64_t sent[2];

	NEED(agent >= 0);
	for (int round = 0; round < 2; round++) {
		prepare(&packet, 4, 1, 0x100 + round);
		packet.mad[17] = 0x1d;
		packet.mad[65] = 1;
		length = MAD;
		NEED(umad_send(fd, agent, &packet, MAD, 5000, 3) == 0);
		NEED(umad_recv(fd, &packet, &length, 20000) == agent);
		CHECK(umad_status(&packet) == 0 && packet.mad[3] == 0x81 && packet.mad[4] == 0 && packet.mad[5] == 0);
		sent[round] = counter(&packet, 88);
		CHECK(counter(&packet, 72) * 4 > sent[round] * 256);
	}
	CHECK(sent[1] > sent[0]);
	/* Those that come while another is answered are answered, too: none is repeated. */
	for (int number = 0; number < 8; number++) {
		prepare(&packet, 4, 1, 0x180 + number);
		packet.mad[17] = 0x1d;
		packet.mad[65] = 1;
		NEED(umad_send(fd, agent, &packet, MAD, 20000, 0) == 0);
	}
	for (int number = 0; number < 8; number++) {
		length = MAD;
		NEED(umad_recv(fd, &packet, &length, 30000) == agent);
		CHECK(umad_status(&packet) == 0 && packet.mad[3] == 0x81);
	}
	prepare(&packet, 4, 1, 0x110);
	packet.mad[17] = 1;
	CHECK(umad_send(fd, agent, &packet, MAD, 5000, 3) == 0 && umad_recv(fd, &packet, &length, 20000) == agent);
	CHECK(packet.mad[5] == 0 && packet.mad[64] == 1 && packet.mad[66] == 3);
	/* Counters are not reset, and other ports and attributes are not there. */
	for (int wrong = 0; wrong < 3; wrong++) {
		prepare(&packet, 4, wrong == 0 ? 2 : 1, 0x120 + wrong);
		packet.mad[17] = wrong == 2 ? 0x33 : 0x12;
		packet.mad[65] = wrong == 1 ? 2 : 1;
		CHECK(umad_send(fd, agent, &packet, MAD, 5000, 3) == 0);
		CHECK(umad_recv(fd, &packet, &length, 20000) == agent && packet.mad[3] == 0x81);
		CHECK(packet.mad[5] == (wrong == 1 ? 0x1c : 0x0c));
	}
	CHECK(umad_unregister(fd, agent) == 0);
}

/* A message of several segments: what is too long for the buffer waits for a longer one. */
static void segments(int fd)
{
	long all[16 / sizeof(long)];
	int server = umad_open_port("ubi_lo", 1), length, agent;
	struct packet packet;

	memset(all, 0xff, sizeof all);
	NEED(server >= 0 && umad_register_oui(server, 0x33, 1, openib, all) == 0);
	NEED((agent = umad_register(fd, 0x33, 1, 1, NULL)) >= 0);
	prepare(&packet, 0x33, 2, 0x200);
	packet.mad[24] = 1;
	packet.mad[26] = 1;
	for (int i = 40; i < 900; i++)
		packet.mad[i] = i;
	CHECK(umad_send(fd, agent, &packet, 900, 5000, 3) == 0);
	length = MAD;
	CHECK(umad_recv(server, &packet, &length, 5000) == -ENOSPC && errno == ENOSPC && length == 900);
	length = sizeof packet.mad;
	CHECK(umad_recv(server, &packet, &length, 5000) == 0 && length == 900);
	for (int i = 40; i < 900; i++)
		CHECK(packet.mad[i] == (uint8_t)i);
	CHECK(umad_close_port(server) == 0 && umad_unregister(fd, agent) == 0);
}

int main(void)
{
	int fd;

	devices_and_ports();
	buffers();
	CHECK(umad_open_port("no_such", 1) == -EINVAL);
	CHECK(umad_open_port("no_such", 0) == -ENODEV);
	CHECK(umad_open_port("ubi_lo", 2) == -EINVAL && umad_open_port("ubi_lo", -3) == -EINVAL);
	CHECK(umad_open_port(NULL, 1) == -EINVAL);
	CHECK(umad_close_port(-1) == -EINVAL && umad_close_port(0) == -EINVAL);
	NEED((fd = umad_open_port("ubi_lo", 1)) >= 0);
	registrations(fd);
	a_ping(fd);
	counters(fd);
	segments(fd);
	CHECK(umad_close_port(fd) == 0);
	CHECK((fd = umad_open_port(NULL, 0)) >= 0 && umad_close_port(fd) == 0);
	if (!failures)
		printf("ok\n");
	return failures != 0;
}
