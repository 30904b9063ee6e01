/* The state of a run: one lane for each thread, with a control channel, memory, completion queues and queue pairs of its own. */
#ifndef SOAK_H
#define SOAK_H

/* For accept4 and ppoll. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "plan.h"

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>

#define MAX_LANES 64
#define MAX_RECEIVES (MAX_QPS * (MAX_OPS + 4))

struct options {
	uint64_t seed;
	int seconds, port, threads;
	enum side side;
	const char *address, *own_address;
	struct limits limits;
	bool peer_may_die, peer_may_stop;
};

extern struct options options;
extern struct ibv_context *device;
extern union ibv_gid own_gid;
extern int own_gid_index;

/* Memory with what it should hold, and which bytes of it the work of a round may change at all. */
struct pool {
	uint8_t *at, *shadow, *mask;
	uint32_t used;
	/* The first has every right, the second local ones only. */
	struct ibv_mr *whole, *local;
};

/* A queue of receives: of a queue pair, or shared by several. */
struct receive_queue {
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	bool shared, all_ahead;
	struct receive receive[MAX_RECEIVES];
	bool taken[MAX_RECEIVES];
	/* All there are, with those that nobody is to use. */
	int total, expected;
	uint32_t base;
	atomic_int posted, done;
};

/* How far a list has got. */
struct progress {
	atomic_int posted, retired;
	/* The next that may complete; only who polls looks at it. */
	int next;
	bool failed;
};

struct remote {
	uint64_t target[2], window_at[2];
	uint32_t key[2], window_key[2];
	uint32_t send_qp, receive_qp, srq;
};

struct queue_pair {
	enum kind kind;
	/* Different ones for XRC, the same otherwise. */
	struct ibv_qp *sends, *receives;
	struct rdma_cm_id *id;
	struct ibv_ah *ah;
	int send_queue, receive_queue_index;
	struct receive_queue *queue;
	int halves;
	struct stream *mine[2], *theirs[2];
	struct progress progress[2];
	uint32_t out_base[2], target_base[2];
	struct ibv_mr *target_mr[2];
	struct ibv_mw *window[2];
	/* What the peer may use, and what of the peer's we may. */
	struct remote offer, remote;
	uint32_t remote_qp, qkey;
	/* Which of the peer's messages comes next, and which datagrams have come. */
	atomic_int next_message;
	bool arrived[MAX_OPS];
	int arrivals;
	/* Shared receives that it had begun to fill when it was stopped: one at most. */
	int begun;
};

struct completion_queue {
	struct ibv_cq *cq;
	struct ibv_cq_ex *extended;
	bool receives_only;
	unsigned int events;
};

/* A completion, however it was read. */
struct completion {
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t length, imm, invalidated, qp, source;
	unsigned int flags;
};

struct lane {
	int number, control;
	struct ibv_pd *pd, *other_pd;
	struct pool pool;
	struct epoch_plan epoch;
	struct round_plan round;
	int round_number, epoch_number;
	int qps;
	struct queue_pair qp[MAX_QPS];
	struct receive_queue *own_queue[MAX_QPS], *shared_queue, *xrc_queue;
	struct ibv_xrcd *xrcd;
	int completion_queues;
	struct completion_queue completion_queue[2 * MAX_QPS];
	struct ibv_comp_channel *channel;
	struct rdma_event_channel *cm_channel;
	union ibv_gid peer_gid;
	bool connected;
	uint64_t remote_shared;
	uint32_t remote_shared_key;
	/* Nobody posts any more; queue pairs are in the error state. */
	atomic_bool stopped, gone, finished;
	/* Everything of this round has completed; helpers need not wait for room. */
	atomic_bool over;
	/* The queue pairs were reset in this round: nothing of them may be told any more. */
	bool reset;
	uint64_t started;
	atomic_ulong steps, operations, bytes;
	/* What the watchdog says of where it is stuck. */
	const char *_Atomic doing;
	atomic_int completions;
};

/* main.c */
_Noreturn void fail(const struct lane *lane, int qp, uint64_t wr_id, const char *format, ...) __attribute__((format(printf, 4, 5)));
_Noreturn void trouble(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The peer did not even begin. */
_Noreturn void never_came(const char *what);
uint64_t now_ms(void);
void step(struct lane *lane, const char *doing);
/* The peer is dead, if it may be; fails otherwise. */
void lost(struct lane *lane, const char *how);

/* control.c: all but the first answer false when the peer is gone. */
int control_open(int lane);
int control_listen(void);
int control_accept(int listener, int *lane);
bool exchange(struct lane *lane, const void *mine, void *theirs, uint32_t length);
bool meet(struct lane *lane, const char *where);

/* memory.c */
void memory_open(struct lane *lane);
void memory_close(struct lane *lane);
void memory_register(struct lane *lane);
void memory_lay_out(struct lane *lane);
void memory_verify(struct lane *lane);
void memory_release(struct lane *lane);
uint64_t *shared_word(struct lane *lane);

/* objects.c */
void find_device(void);
void epoch_open(struct lane *lane);
void epoch_close(struct lane *lane);
void create_pair(struct lane *lane, int number, struct rdma_cm_id *id);
void to_state(struct lane *lane, enum ibv_qp_state state);
/* How to reach a queue pair of the peer. */
struct way {
	uint32_t qp, own_psn, peer_psn, qkey;
	union ibv_gid gid;
	uint8_t fetches, rnr_retry;
};
int bring_up(struct ibv_qp *qp, const struct way *way);
/* The exponent of how long an acknowledgement may take. */
uint8_t patience(void);
bool epoch_connect(struct lane *lane);

/* cm.c */
void cm_listen(void);
bool cm_connect(struct lane *lane, int qp);
bool cm_disconnect(struct lane *lane);
void cm_open(struct lane *lane);

/* post.c */
bool post_some(struct lane *lane, int qp, int half);
bool receive_some(struct lane *lane, struct receive_queue *queue);
uint64_t work_id(const struct lane *lane, int qp, int half, bool receive, int index);

/* windows.c */
bool windows_open(struct lane *lane);
void windows_close(struct lane *lane);

/* poll.c */
int poll_queue(struct lane *lane, struct completion_queue *queue, struct completion *completion, int most);
bool wait_for_events(struct lane *lane, int milliseconds);
void arm(struct lane *lane);

/* verify.c */
void verify(struct lane *lane, const struct completion *completion);
bool all_sent(struct lane *lane);
bool all_received(struct lane *lane);
void verify_flushed(struct lane *lane);
const char *status_name(enum ibv_wc_status status);

/* work.c */
/* Moves every queue pair to the error state, in the middle of whatever it does. */
void stop(struct lane *lane);
void work_prepare(struct lane *lane);
void work_run(struct lane *lane);
void work_drain(struct lane *lane);
void work_quiet(struct lane *lane);

/* errors.c */
bool error_round(struct lane *lane, uint64_t key);

#endif
