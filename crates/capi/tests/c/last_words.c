/* A receiver that ends the moment it has what it waited for: its sender must hear that the message arrived. Once it polls, once it waits for
 * an event, once it looks at memory only; it never destroys anything. */
#include "bench.h"
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct card {
	uint32_t qpn, rkey;
	uint64_t address;
};

struct end {
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	volatile char *memory;
};

static struct end make(int socket, struct card *peer)
{
	struct ibv_context *context = open_lo();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct end end = {.channel = ibv_create_comp_channel(context), .memory = calloc(1, 4096)};

	end.cq = ibv_create_cq(context, 64, NULL, end.channel, 0);
	end.mr = ibv_reg_mr(pd, (void *)end.memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = plain_init(end.cq, IBV_QPT_RC);

	end.qp = ibv_create_qp(pd, &init);
	NEED(end.qp && end.mr);
	struct card mine = {end.qp->qp_num, end.mr->rkey, (uintptr_t)end.memory};

	NEED(write(socket, &mine, sizeof mine) == sizeof mine && read(socket, peer, sizeof *peer) == sizeof *peer);
	NEED(!to_init(end.qp) && !connect_to(end.qp, peer->qpn));
	return end;
}

static void wait_for_peer(int socket)
{
	char byte = 'x';

	NEED(write(socket, &byte, 1) == 1 && read(socket, &byte, 1) == 1);
}

/* The child; ends without a word. */
static void receiver(int socket, int way)
{
	struct card peer;
	struct end end = make(socket, &peer);
	struct ibv_sge sge = {(uintptr_t)end.memory, 4096, end.mr->lkey};

	CHECK(!receive(end.qp, 1, &sge));
	if (way == 1)
		CHECK(!ibv_req_notify_cq(end.cq, 0));
	wait_for_peer(socket);
	if (way == 1) {
		struct ibv_cq *cq;
		void *cq_context;

		CHECK(!ibv_get_cq_event(end.channel, &cq, &cq_context));
	}
	if (way == 2)
		while (end.memory[63] != 'm')
			;
	else
		CHECK(completion(end.cq).status == IBV_WC_SUCCESS);
	exit(failures != 0);
}

static void sender(int socket, int way)
{
	struct card peer;
	struct end end = make(socket, &peer);
	struct ibv_sge sge = {(uintptr_t)end.memory, 64, end.mr->lkey};

	memset((void *)end.memory, 'm', 64);
	wait_for_peer(socket);
	/* Long enough for a receiver that polls to be trusted to go on. */
	usleep(20000);
	CHECK(!post(end.qp, 2, way == 2 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, &sge, peer.address, peer.rkey));
	struct ibv_wc wc = completion(end.cq);

	NEED(wc.wr_id == 2);
	_exit(wc.status);
}

int main(void)
{
	int unheard[3] = {0};

	for (int round = 0; round < 30; round++) {
		int sockets[2], status = -1, way = round % 3;

		NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
		pid_t child = fork();

		if (child == 0)
			receiver(sockets[1], way);
		pid_t other = fork();

		if (other == 0)
			sender(sockets[0], way);
		CHECK(waitpid(other, &status, 0) == other);
		if (status) {
			fprintf(stderr, "round %d, way %d: the sender was told %d\n", round, way, WEXITSTATUS(status));
			unheard[way]++;
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		close(sockets[0]);
		close(sockets[1]);
	}
	/* An acknowledgement may get lost on its way, since processes come and go here, and nobody is left to repeat it; but not as a rule. */
	CHECK(unheard[0] <= 2 && unheard[1] <= 2 && unheard[2] <= 2);
	printf("%d failures\n", failures);
	return failures != 0;
}
