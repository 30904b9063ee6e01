/*
 * Accesses of the NIC that nothing orders: three processes, each with a queue pair to each of the others. B's memory is
 * what A and C use.
 */
#include "common.h"

#include <sched.h>

enum { A, B, C, PROCESSES };

/* What processes tell each other without the NIC, before the first message. */
struct meeting {
	uint32_t qpn[PROCESSES][PROCESSES];
	uint32_t rkey[PROCESSES];
	uint64_t address[PROCESSES];
	int ready, connected, done;
};

/* One process. */
struct party {
	struct meeting *meeting;
	struct bench b;
	struct ibv_qp *qp[PROCESSES];
	struct ibv_cq *sends[PROCESSES], *receives[PROCESSES];
	int self;
};

/* What a process does, once all are connected. */
typedef void role(struct party *);

static void meet(int *counter)
{
	double end = seconds_now() + DEADLINE_SECONDS;

	__atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(counter, __ATOMIC_SEQ_CST) < PROCESSES && seconds_now() < end)
		sched_yield();
	NEED(__atomic_load_n(counter, __ATOMIC_SEQ_CST) == PROCESSES);
}

static void take_part(struct meeting *meeting, int self, role *act)
{
	struct party p = {.meeting = meeting, .b = open_bench(), .self = self};

	for (int peer = 0; peer < PROCESSES; peer++) {
		struct ibv_qp_init_attr init;

		if (peer == self)
			continue;
		p.sends[peer] = ibv_create_cq(p.b.context, 16, NULL, NULL, 0);
		p.receives[peer] = ibv_create_cq(p.b.context, 16, NULL, NULL, 0);
		NEED(p.sends[peer] && p.receives[peer]);
		init = usual_qp(p.sends[peer], IBV_QPT_RC);
		init.recv_cq = p.receives[peer];
		p.qp[peer] = ibv_create_qp(p.b.pd, &init);
		NEED(p.qp[peer]);
		meeting->qpn[self][peer] = p.qp[peer]->qp_num;
	}
	meeting->rkey[self] = p.b.mr->rkey;
	meeting->address[self] = (uintptr_t)p.b.buffer;
	meet(&meeting->ready);
	for (int peer = 0; peer < PROCESSES; peer++) {
		struct ibv_sge sge = piece(&p.b, 2048 + 64 * (size_t)peer, 64);

		if (peer == self)
			continue;
		connect_to(p.qp[peer], meeting->qpn[peer][self], usual_path());
		post_recv(p.qp[peer], 100 + (uint64_t)peer, &sge);
	}
	meet(&meeting->connected);
	act(&p);
	meet(&meeting->done);
	for (int peer = 0; peer < PROCESSES; peer++)
		if (p.qp[peer]) {
			NEED(!ibv_destroy_qp(p.qp[peer]));
			NEED(!ibv_destroy_cq(p.sends[peer]));
			NEED(!ibv_destroy_cq(p.receives[peer]));
		}
	close_bench(&p.b);
}

/* Runs the three. */
static void play(role *a, role *b, role *c)
{
	role *roles[PROCESSES] = {a, b, c};
	struct meeting *meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t children[PROCESSES];

	NEED(meeting != MAP_FAILED);
	for (int self = 0; self < PROCESSES; self++) {
		children[self] = fork();
		NEED(children[self] >= 0);
		if (!children[self]) {
			take_part(meeting, self, roles[self]);
			exit(0);
		}
	}
	for (int self = 0; self < PROCESSES; self++) {
		int status;

		NEED(waitpid(children[self], &status, 0) == children[self]);
		NEED(WIFEXITED(status) && !WEXITSTATUS(status));
	}
}

static void nothing(struct party *p)
{
	(void)p;
}

/* An operation on the first bytes of B's memory; it is not waited for. */
static void use(struct party *p, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = piece(&p->b, 1024, 8);

	post_rdma(p->qp[B], 1, opcode, &sge, (void *)(uintptr_t)p->meeting->address[B], p->meeting->rkey[B]);
}

static void sent(struct party *p, int peer)
{
	poll_success(p->sends[peer], 1);
}

static void tell(struct party *p, int peer)
{
	struct ibv_sge sge = piece(&p->b, 3072, 8);

	post_send(p->qp[peer], 2, &sge);
	sent(p, peer);
}

static void hear(struct party *p, int peer)
{
	poll_success(p->receives[peer], 1);
}

static void write_alone(struct party *p)
{
	use(p, IBV_WR_RDMA_WRITE);
	sent(p, B);
}

static void write_and_tell(struct party *p)
{
	write_alone(p);
	tell(p, p->self == A ? C : A);
}

static void hear_and_write(struct party *p)
{
	hear(p, A);
	write_alone(p);
}

static void read_alone(struct party *p)
{
	use(p, IBV_WR_RDMA_READ);
	sent(p, B);
}

static void hear_and_read(struct party *p)
{
	hear(p, A);
	read_alone(p);
}

static void add_alone(struct party *p)
{
	use(p, IBV_WR_ATOMIC_FETCH_AND_ADD);
	sent(p, B);
}

static void write_and_tell_owner(struct party *p)
{
	use(p, IBV_WR_RDMA_WRITE);
	tell(p, B);
	/* The WRITE completes first. */
	sent(p, B);
}

static void send_first_bytes(struct party *p)
{
	struct ibv_sge sge = piece(&p->b, 0, 8);

	post_send(p->qp[C], 2, &sge);
	sent(p, C);
}

static void hear_and_send_first_bytes(struct party *p)
{
	hear(p, A);
	send_first_bytes(p);
}

static void read_and_pass_on(struct party *p)
{
	struct ibv_sge sge = piece(&p->b, 1024, 8);

	use(p, IBV_WR_RDMA_READ);
	post_send(p->qp[C], 2, &sge);
	sent(p, B);
	sent(p, C);
}

static void read_wait_and_pass_on(struct party *p)
{
	struct ibv_sge sge = piece(&p->b, 1024, 8);

	read_alone(p);
	post_send(p->qp[C], 2, &sge);
	sent(p, C);
}

static void hear_alone(struct party *p)
{
	hear(p, p->self == C ? A : C);
}

static void hear_owner(struct party *p)
{
	hear(p, B);
}

static void two_writes(void)
{
	play(write_alone, nothing, write_alone);
}

static void two_writes_with_a_message(void)
{
	play(write_and_tell, nothing, hear_and_write);
}

static void write_and_read(void)
{
	play(write_alone, nothing, read_alone);
}

static void write_and_read_with_a_message(void)
{
	play(write_and_tell, nothing, hear_and_read);
}

static void add_and_write(void)
{
	play(add_alone, nothing, write_alone);
}

static void two_adds(void)
{
	play(add_alone, nothing, add_alone);
}

static void write_what_is_sent(void)
{
	play(write_alone, send_first_bytes, hear_owner);
}

static void write_what_is_sent_later(void)
{
	play(write_and_tell_owner, hear_and_send_first_bytes, hear_owner);
}

static void pass_on_too_early(void)
{
	play(read_and_pass_on, nothing, hear_alone);
}

static void pass_on_when_read(void)
{
	play(read_wait_and_pass_on, nothing, hear_alone);
}

CASES({"UV-1001", two_writes, two_writes_with_a_message},
      {"UV-1002", write_and_read, write_and_read_with_a_message},
      {"UV-1003", add_and_write, two_adds},
      {"UV-1004", write_what_is_sent, write_what_is_sent_later},
      {"UV-1005", pass_on_too_early, pass_on_when_read})
