/* Raw packets that a host sends to itself through an Ethernet interface: the NIC loops them back to the flows that they
 * are for, in this process and in others, and sends nothing back that is for other hosts. With the argument "faults":
 * what UBIVERBS_FAULTS does to frames, on the loopback interface. */
#include "raw.h"
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const NAME = "ubr0", *const OTHER_END = "ubr1";

static struct ibv_context *open_interface(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *opened = NULL;
	char device[64];

	snprintf(device, sizeof device, "ubi_%s", name);
	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device))
			opened = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	return opened;
}

static void own_address(uint8_t *address)
{
	struct ifreq request = {0};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	strcpy(request.ifr_name, NAME);
	NEED(fd >= 0 && !ioctl(fd, SIOCGIFHWADDR, &request));
	memcpy(address, request.ifr_hwaddr.sa_data, 6);
	close(fd);
}

static struct ibv_flow *port_flow(struct ibv_qp *qp, uint16_t port)
{
	struct rule rule;

	begin(&rule, IBV_FLOW_ATTR_NORMAL, 0);
	add_udp(&rule, port);
	struct ibv_flow *flow = ibv_create_flow(qp, &rule.attr);
	NEED(flow != NULL);
	return flow;
}

/* The frame in a slot is sent, and one queue pair gets it, once. */
static void comes_to(struct ibv_qp *from, struct ibv_qp *to, int index, uint32_t length)
{
	struct ibv_wc wc;

	post_slot(to, 20);
	CHECK(!send_one(from, index, length));
	wc = completion(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.qp_num == to->qp_num && wc.byte_len == length);
	CHECK(!memcmp(memory + (size_t)index * ROOM, memory + 20 * ROOM, length));
	quiet(cq);
}

static void frames_come_back_to_flows_that_they_are_for(void)
{
	struct ibv_qp *from = raw_qp(), *to = raw_qp();
	struct ibv_flow *named = eth_flow(to, 2, 0), *by_port = port_flow(to, 4444), *group;
	struct rule rule;
	uint32_t length;

	/* An address that a flow names. */
	comes_to(from, to, 0, frame(0, 2, 0, 9, 10, 100));
	comes_to(from, to, 0, frame(0, 2, 0x2007, 9, 10, 100)); /* with a tag */
	/* One of another host, though the port is the flow's. */
	CHECK(!send_one(from, 0, frame(0, 3, 0, 9, 4444, 100)));
	quiet(cq);
	/* The interface's own, for any flow; to a port that no flow has. */
	length = frame(0, 3, 0, 9, 4444, 100);
	own_address(memory);
	comes_to(from, to, 0, length);
	comes_to(to, to, 0, length); /* its own, too */
	length = frame(0, 3, 0, 9, 4445, 100);
	own_address(memory);
	CHECK(!send_one(from, 0, length));
	quiet(cq);
	/* A group. */
	begin(&rule, IBV_FLOW_ATTR_MC_DEFAULT, 0);
	group = ibv_create_flow(to, &rule.attr);
	NEED(group != NULL);
	length = frame(0, 9, 0, 9, 10, 100);
	memory[0] |= 1;
	comes_to(from, to, 0, length);
	/* Flows that have gone. */
	CHECK(!ibv_destroy_flow(named) && !ibv_destroy_flow(group));
	post_slot(to, 20);
	CHECK(!send_one(from, 0, frame(0, 2, 0, 9, 10, 100)));
	quiet(cq);
	CHECK(!ibv_destroy_flow(by_port) && !ibv_destroy_qp(to) && !ibv_destroy_qp(from));
}

static void a_queue_pair_may_do_without_what_its_host_sends_to_groups(void)
{
	struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = cq, .pd = pd,
					   .cap = {.max_send_wr = 1, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
					   .qp_type = IBV_QPT_RAW_PACKET, .create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS};
	struct ibv_qp *from = raw_qp(), *to = ready(ibv_create_qp_ex(context, &init));
	struct ibv_flow *flow = port_flow(to, 4444);
	uint32_t length = frame(0, 9, 0, 9, 4444, 100);

	memory[0] |= 1;
	post_slot(to, 21);
	CHECK(!send_one(from, 0, length));
	quiet(cq);
	own_address(memory);
	CHECK(!send_one(from, 0, length));
	CHECK(completion(cq).wr_id == 21);
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(to) && !ibv_destroy_qp(from));
}

/* More addresses than a filter of the kernel's is made for; and the other end of the cable still gets all of it. */
static void many_addresses_and_the_wire(void)
{
	enum { FLOWS = 40 };
	struct ibv_context *other = open_interface(OTHER_END);
	struct ibv_qp *from = raw_qp(), *to = raw_qp(), *far;
	struct ibv_flow *flows[FLOWS], *far_flow;
	struct ibv_pd *far_pd;
	struct ibv_cq *far_cq;
	struct ibv_mr *far_mr;
	uint32_t length;

	NEED(other != NULL);
	far_pd = ibv_alloc_pd(other);
	far_cq = ibv_create_cq(other, 16, NULL, NULL, 0);
	NEED(far_pd && far_cq);
	far_mr = ibv_reg_mr(far_pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = plain_init(far_cq, IBV_QPT_RAW_PACKET);

	far = ready(ibv_create_qp(far_pd, &init));
	far_flow = port_flow(far, 7);
	for (int i = 0; i < FLOWS; i++)
		flows[i] = eth_flow(to, (uint8_t)(100 + i), 0);
	for (int i = 0; i < FLOWS; i += 13)
		comes_to(from, to, 0, frame(0, (uint8_t)(100 + i), 0, 9, 10, 100));
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = {(uintptr_t)memory + (22 + i) * ROOM, ROOM, far_mr->lkey};

		CHECK(!receive(far, 22 + i, &sge));
	}
	length = frame(24, 99, 0, 9, 7, 100);
	CHECK(!send_one(from, 24, length)); /* no flow names it here */
	quiet(cq);
	CHECK(completion(far_cq).wr_id == 22 && !memcmp(memory + 24 * ROOM, memory + 22 * ROOM, length));
	length = frame(0, 100, 0, 9, 7, 100);
	comes_to(from, to, 0, length);
	CHECK(completion(far_cq).wr_id == 23 && !memcmp(memory, memory + 23 * ROOM, length));
	for (int i = 0; i < FLOWS; i++)
		CHECK(!ibv_destroy_flow(flows[i]));
	CHECK(!ibv_destroy_flow(far_flow) && !ibv_destroy_qp(far) && !ibv_destroy_qp(to) && !ibv_destroy_qp(from));
	CHECK(!ibv_dereg_mr(far_mr) && !ibv_destroy_cq(far_cq) && !ibv_dealloc_pd(far_pd) && !ibv_close_device(other));
}

/* The child has a flow; the parent sends what it wants, and what it does not. */
static int between_processes(void)
{
	int ready_pipe[2], status;
	char byte = 1;
	pid_t child;

	NEED(!pipe(ready_pipe));
	child = fork();
	NEED(child >= 0);
	open_all(open_interface(NAME));
	struct ibv_qp *qp = raw_qp();
	uint32_t length = frame(0, 7, 0, 9, 10, 500);

	if (!child) {
		struct ibv_flow *flow = eth_flow(qp, 7, 0);
		struct ibv_wc wc;

		post_slot(qp, 1);
		CHECK(write(ready_pipe[1], &byte, 1) == 1);
		wc = completion(cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1 && wc.byte_len == length);
		CHECK(!memcmp(memory, memory + ROOM, length));
		CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp));
		close_all();
		_exit(failures != 0);
	}
	CHECK(read(ready_pipe[0], &byte, 1) == 1);
	CHECK(!send_one(qp, 2, frame(2, 8, 0, 9, 10, 500)) && !send_one(qp, 0, length));
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(!ibv_destroy_qp(qp));
	close_all();
	return failures;
}

/* Where the type of service is. */
enum { TOS = 15, SUM = 24 };

/* With drop@1, dup@2, corrupt@3, mark@4, mark@5 and reorder@6, held for two seconds. */
static void faults(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *queue = ibv_create_cq(context, 32, NULL, channel, 0), *told;
	struct ibv_qp_init_attr init = plain_init(queue, IBV_QPT_RAW_PACKET);
	struct ibv_qp *from = raw_qp(), *to = ready(ibv_create_qp(pd, &init));
	struct ibv_flow *flow = eth_flow(to, 2, 0);
	struct ibv_wc wc;
	void *user;

	for (int i = 10; i < 20; i++)
		post_slot(to, i);
	CHECK(!send_one(from, 0, frame(0, 2, 0, 9, 10, 101)));
	quiet(queue);
	CHECK(!send_one(from, 0, frame(0, 2, 0, 9, 10, 102)));
	for (int i = 0; i < 2; i++)
		CHECK(completion(queue).byte_len == 42 + 102);
	CHECK(!send_one(from, 0, frame(0, 2, 0, 9, 10, 103)));
	quiet(queue);
	/* A sender that takes marks, and one that does not. */
	frame(0, 2, 0, 9, 10, 104);
	memory[TOS] = 0xba;
	CHECK(!send_flags(from, 0, 42 + 104, IBV_SEND_IP_CSUM));
	wc = completion(queue);
	CHECK(wc.byte_len == 42 + 104 && wc.wc_flags & IBV_WC_IP_CSUM_OK && memory[wc.wr_id * ROOM + TOS] == 0xbb);
	frame(0, 2, 0, 9, 10, 105);
	memory[TOS] = 0xb8;
	CHECK(!send_flags(from, 0, 42 + 105, IBV_SEND_IP_CSUM));
	wc = completion(queue);
	CHECK(wc.byte_len == 42 + 105 && wc.wc_flags & IBV_WC_IP_CSUM_OK && memory[wc.wr_id * ROOM + TOS] == 0xb8);
	/* The sixth comes after the seventh, to a program that sleeps. */
	CHECK(!send_one(from, 0, frame(0, 2, 0, 9, 10, 106)) && !send_one(from, 0, frame(0, 2, 0, 9, 10, 107)));
	CHECK(completion(queue).byte_len == 42 + 107);
	CHECK(!ibv_req_notify_cq(queue, 0));
	CHECK(!ibv_get_cq_event(channel, &told, &user) && told == queue);
	ibv_ack_cq_events(queue, 1);
	CHECK(completion(queue).byte_len == 42 + 106);
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(to) && !ibv_destroy_qp(from));
	CHECK(!ibv_destroy_cq(queue) && !ibv_destroy_comp_channel(channel));
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "faults")) {
		open_all(open_lo());
		faults();
		close_all();
		return failures != 0;
	}
	if (between_processes())
		return 1;
	open_all(open_interface(NAME));
	frames_come_back_to_flows_that_they_are_for();
	a_queue_pair_may_do_without_what_its_host_sends_to_groups();
	many_addresses_and_the_wire();
	close_all();
	return failures != 0;
}
