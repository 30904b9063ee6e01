/* A correct program, to be built with sanitizers: threads that hand memory to each other by messages alone, connections,
 * children. With an argument it does wrong what the sanitizer of that name finds. */
#include "connection.h"
#include <pthread.h>
#include <sys/wait.h>

#define MESSAGES 200

/* What the threads share. Only messages say whose it is. */
static long shared;

struct end {
	struct ibv_cq *sent, *received;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	int begins;
};

static void open_end(struct end *end, struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_qp_init_attr init;

	end->sent = ibv_create_cq(context, 16, NULL, NULL, 0);
	end->received = ibv_create_cq(context, 16, NULL, NULL, 0);
	NEED(end->sent && end->received);
	init = plain_init(end->sent, IBV_QPT_RC);
	init.recv_cq = end->received;
	end->qp = ibv_create_qp(pd, &init);
	end->memory = malloc(4096);
	if (end->memory && end->begins >= 0)
		memset(end->memory, 0, 4096);
	end->mr = ibv_reg_mr(pd, end->memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	NEED(end->qp && end->memory && end->mr && !to_init(end->qp));
}

static void close_end(struct end *end)
{
	CHECK(!ibv_destroy_qp(end->qp) && !ibv_destroy_cq(end->sent) && !ibv_destroy_cq(end->received));
	CHECK(!ibv_dereg_mr(end->mr));
	free(end->memory);
}

/* Sends, and takes what comes, alternately with the other end. */
static void *play(void *argument)
{
	struct end *end = argument;
	struct ibv_sge in = {(uintptr_t)end->memory, 64, end->mr->lkey}, out = {(uintptr_t)end->memory + 2048, 64, end->mr->lkey};

	for (long turn = 0; turn < MESSAGES; turn++) {
		int sends = (turn % 2 == 0) == end->begins;
		struct ibv_wc wc;

		if (sends) {
			shared++;
			snprintf(end->memory + 2048, 64, "turn %ld", turn);
			NEED(!post(end->qp, turn, IBV_WR_SEND, &out, 0, 0));
		}
		wc = completion(sends ? end->sent : end->received);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == (sends ? IBV_WC_SEND : IBV_WC_RECV));
		if (!sends) {
			CHECK(atol(end->memory + 5) == turn && shared == turn + 1);
			NEED(!receive(end->qp, turn, &in));
		}
	}
	return NULL;
}

static void messages(void)
{
	struct ibv_context *context = open_lo();
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct end ends[2] = {{.begins = 1}, {.begins = 0}};
	struct ibv_port_attr port;
	pthread_t threads[2];

	NEED(pd && !ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
	shared = 0;
	for (int i = 0; i < 2; i++)
		open_end(&ends[i], context, pd);
	for (int i = 0; i < 2; i++) {
		struct ibv_sge in = {(uintptr_t)ends[i].memory, 64, ends[i].mr->lkey};

		NEED(!connect_to(ends[i].qp, ends[1 - i].qp->qp_num) && !receive(ends[i].qp, 0, &in));
	}
	for (int i = 0; i < 2; i++)
		NEED(!pthread_create(&threads[i], NULL, play, &ends[i]));
	for (int i = 0; i < 2; i++)
		NEED(!pthread_join(threads[i], NULL));
	CHECK(shared == MESSAGES);
	for (int i = 0; i < 2; i++)
		close_end(&ends[i]);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

static void *serve(void *argument)
{
	struct rdma_event_channel *channel = argument;
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_conn_param parameters = {0};
	struct rdma_cm_id *id;

	NEED(event && !strcmp(event->param.conn.private_data, "hello"));
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	give_queue_pair(id);
	CHECK(!rdma_accept(id, &parameters));
	expect(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(!rdma_disconnect(id));
	destroy(id);
	return NULL;
}

static void connection(void)
{
	struct rdma_event_channel *server = rdma_create_event_channel(), *client = rdma_create_event_channel();
	struct rdma_conn_param parameters = {.private_data = "hello", .private_data_len = 6};
	struct rdma_cm_id *id, *listens;
	pthread_t thread;
	uint16_t port;

	listens = listener(server, RDMA_PS_TCP, &port);
	NEED(!pthread_create(&thread, NULL, serve, server));
	id = caller(client, RDMA_PS_TCP, port);
	give_queue_pair(id);
	NEED(!rdma_connect(id, &parameters));
	expect(client, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(!rdma_disconnect(id));
	expect(client, RDMA_CM_EVENT_DISCONNECTED, 0);
	NEED(!pthread_join(thread, NULL));
	destroy(id);
	CHECK(!rdma_destroy_id(listens));
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

/* Children of a process that has a NIC: one that ends, and one that has a NIC of its own. */
static void children(void)
{
	struct ibv_context *context = open_lo();

	NEED(context);
	for (int uses = 0; uses < 2; uses++) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			if (uses)
				messages();
			exit(failures != 0);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	}
	CHECK(!ibv_close_device(context));
}

static void *touch(void *unused)
{
	(void)unused;
	shared++;
	return NULL;
}

static char *of_a_function_that_returned(void)
{
	char local[64];
	char *volatile gone = local;

	memset(local, 7, sizeof(local));
	return gone;
}

/* Work on memory that the program does not have any more, which only the NIC touches. */
static void wrong_work(const char *kind)
{
	struct ibv_context *context = open_lo();
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct end ends[2] = {{.begins = -1}, {.begins = -1}};
	struct ibv_sge in, out;
	struct ibv_mr *mr = NULL;

	NEED(pd);
	for (int i = 0; i < 2; i++)
		open_end(&ends[i], context, pd);
	for (int i = 0; i < 2; i++)
		NEED(!connect_to(ends[i].qp, ends[1 - i].qp->qp_num));
	in = (struct ibv_sge){(uintptr_t)ends[1].memory, 64, ends[1].mr->lkey};
	out = (struct ibv_sge){(uintptr_t)ends[0].memory, 64, ends[0].mr->lkey};
	if (strcmp(kind, "uninitialised-send"))
		memset(ends[0].memory, 1, 4096);
	if (strcmp(kind, "freed-receive"))
		NEED(!receive(ends[1].qp, 1, &in));
	if (!strcmp(kind, "late-receive") || !strcmp(kind, "freed-receive"))
		free(ends[1].memory);
	if (!strcmp(kind, "freed-send"))
		free(ends[0].memory);
	if (!strcmp(kind, "stack")) {
		mr = ibv_reg_mr(pd, of_a_function_that_returned(), 64, IBV_ACCESS_LOCAL_WRITE);
		NEED(mr);
		out = (struct ibv_sge){(uintptr_t)mr->addr, 64, mr->lkey};
	}
	if (!strcmp(kind, "freed-receive"))
		NEED(!receive(ends[1].qp, 1, &in));
	NEED(!post(ends[0].qp, 1, IBV_WR_SEND, &out, IBV_SEND_SIGNALED, 0));
	if (!strcmp(kind, "changed-send"))
		ends[0].memory[5] = 2;
	completion(ends[0].sent);
	/* The message is there, and the receive has not completed. */
	if (!strcmp(kind, "early-read") && ends[1].memory[5] == 3)
		puts("three");
	completion(ends[1].received);
	exit(0);
}

/* Private data that is read after its event was acknowledged. */
static void private_data(void)
{
	struct rdma_event_channel *server = rdma_create_event_channel(), *client = rdma_create_event_channel();
	struct rdma_conn_param parameters = {.private_data = "hello", .private_data_len = 6};
	struct rdma_cm_id *id, *listens;
	struct rdma_cm_event *event;
	const char *data;
	uint16_t port;

	listens = listener(server, RDMA_PS_TCP, &port);
	id = caller(client, RDMA_PS_TCP, port);
	give_queue_pair(id);
	NEED(listens && !rdma_connect(id, &parameters));
	event = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(event);
	data = event->param.conn.private_data;
	NEED(!rdma_ack_cm_event(event));
	if (*(volatile const char *)data == 'h')
		puts("hello");
	exit(0);
}

/* The wrongs, after the NIC was used. */
static void wrong(const char *kind)
{
	char *memory = malloc(64), *volatile gone = memory;
	pthread_t thread;

	if (!strcmp(kind, "private-data")) {
		private_data();
	} else if (strchr(kind, '-') || !strcmp(kind, "stack")) {
		wrong_work(kind);
	} else if (!strcmp(kind, "address")) {
		free(memory);
		printf("%d\n", *gone);
	} else if (!strcmp(kind, "thread")) {
		NEED(!pthread_create(&thread, NULL, touch, NULL));
		shared++;
		NEED(!pthread_join(thread, NULL));
	} else if (!strcmp(kind, "memory")) {
		if (*(volatile char *)memory)
			puts("uninitialised");
	} else {
		volatile int most = 0x7fffffff;

		most = most + 1;
	}
	if (strcmp(kind, "address"))
		free(memory);
}

/* A runtime that is known by its name and has nothing of what the library needs. */
#ifdef OTHER_VERSION
void __tsan_init(void);
void __tsan_init(void)
{
}
#endif

int main(int count, char **arguments)
{
	messages();
	if (count > 1) {
		wrong(arguments[1]);
		return 0;
	}
	connection();
	children();
	printf("%d failures\n", failures);
	return failures != 0;
}
