/* What a run does, drawn from its seed alone: both sides draw the same plan, so that each knows every byte the other will send. */
#ifndef PLAN_H
#define PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_QPS 16
#define MAX_OPS 48
#define MAX_SGE 16
/* Widest guard zone between two buffers. */
#define MAX_GAP 64
/* Memory of one lane on one side: everything it sends, receives and lets be accessed lies in it. */
#define POOL_SIZE (32u << 20)
/* What a region needs beside its bytes, at worst: a gap before every piece of every message. */
#define REGION_SLACK (MAX_OPS * (MAX_SGE + 1) * (MAX_GAP + 1) + 4096)
/* The words at the start of a target that are for atomics only. */
#define ATOMIC_BYTES 64
#define GRH_BYTES 40

enum side { SERVER, CLIENT };

/* Random numbers that are the same everywhere: a counter, stirred. */
struct dice {
	uint64_t state;
};

static inline uint64_t stir(uint64_t z)
{
	z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93ull;
	z = (z ^ (z >> 29)) * 0xa3b195354a39b70dull;
	return z ^ (z >> 32);
}

static inline uint64_t draw(struct dice *dice)
{
	dice->state += 0x9e3779b97f4a7c15ull;
	return stir(dice->state);
}

static inline uint32_t below(struct dice *dice, uint32_t limit)
{
	return limit ? (uint32_t)((draw(dice) >> 16) % limit) : 0;
}

static inline bool chance(struct dice *dice, uint32_t percent)
{
	return below(dice, 100) < percent;
}

static inline uint64_t key_of(uint64_t key, uint64_t part)
{
	return stir(key ^ stir(part + 0x632be59bd9b4e019ull));
}

/* Fills memory with the bytes that belong to a key, from an offset on. */
void fill(uint8_t *to, uint64_t key, uint64_t offset, size_t length);

enum kind { KIND_RC, KIND_UC, KIND_UD, KIND_XRC };
extern const char *const kind_names[];

enum code { OP_SEND, OP_SEND_IMM, OP_SEND_INV, OP_WRITE, OP_WRITE_IMM, OP_READ, OP_ADD, OP_SWAP, OP_SHARED_ADD };
extern const char *const code_names[];

struct piece {
	uint32_t at, length;
};

struct op {
	enum code code;
	uint8_t pieces_used, chain;
	bool signaled, inlined, fenced, solicited, window, second_key;
	/* Nothing later in the list writes where this one wrote; its source is where an earlier READ puts what it fetched. */
	bool stable, forwarded;
	uint32_t length, imm;
	/* Offset in the target. */
	uint32_t remote;
	uint64_t compare, operand;
	struct piece piece[MAX_SGE];
	/* What goes to the peer, or what is to come back. */
	uint8_t *data;
};

/* The work of one poster on one queue pair, in one direction. */
struct stream {
	struct op op[MAX_OPS];
	int ops;
	/* The operations that consume a receive, in order. */
	int consumer[MAX_OPS];
	int consumers;
	int shared_adds;
	uint32_t out_used, target_used;
	/* What the target holds in the end, and what it holds before. */
	uint8_t *target;
	uint64_t target_key;
	uint32_t longest;
};

struct receive {
	uint8_t pieces_used;
	uint32_t capacity;
	struct piece piece[MAX_SGE];
};

/* Objects that live for some rounds. Arrays by side say what each does on its own. */
struct epoch_plan {
	uint64_t key;
	int qps;
	enum kind kind[MAX_QPS];
	/* Two threads post to it, each its own list. */
	bool split[MAX_QPS];
	uint32_t depth, inline_size, sges;
	int queues_mode[2];
	bool events[2], extended[2], shared_receives[2], calls[2], signal_all[2];
	int threads[2];
};

enum ending { END_CONTINUE, END_RESET, END_ERROR_RESET, END_DESTROY };
enum registering { REGISTER_KEEP, REGISTER_ANEW, REGISTER_CHANGE };

struct round_plan {
	uint64_t key;
	enum ending ending;
	/* Queue pairs go to the error state in the middle of their work. */
	bool aborted;
	int abort_after[2];
	/* They are reset instead, after which nothing is told at all; or destroyed at the end as they are. */
	bool abort_by_reset[2], destroyed_at_once[2];
	bool late[2], solicited, own_target[2];
	int receive_window[2], extra[2], change_flags[2];
	enum registering registering[2];
	/* Kind of memory window in front of a target, by who owns the target: 0, 1 or 2. */
	int window[2][MAX_QPS];
	bool invalidated[2][MAX_QPS];
};

struct limits {
	uint32_t mtu, most_qps;
	bool lossless, cm;
};

void plan_epoch(struct epoch_plan *plan, uint64_t key, const struct limits *limits);
void plan_round(struct round_plan *plan, uint64_t key, const struct epoch_plan *epoch, const struct limits *limits);
/* The list of one poster; `side` is who posts. */
void plan_stream(struct stream *stream, const struct round_plan *round, const struct epoch_plan *epoch, const struct limits *limits,
		 int qp, int half, enum side side);
void free_stream(struct stream *stream);
/* Cuts a length into pieces with gaps before each, from `used` on; answers where the last ends. */
uint32_t cut(struct dice *dice, uint32_t length, uint32_t most, uint32_t used, struct piece *piece, uint8_t *count);

static inline bool consumes(enum code code)
{
	return code == OP_SEND || code == OP_SEND_IMM || code == OP_SEND_INV || code == OP_WRITE_IMM;
}

static inline bool is_write(enum code code)
{
	return code == OP_WRITE || code == OP_WRITE_IMM;
}

static inline bool fetches(enum code code)
{
	return code >= OP_READ;
}

static inline bool is_reliable(enum kind kind)
{
	return kind == KIND_RC || kind == KIND_XRC;
}

/* Whether receives must fit any message, because nobody knows which one they get. */
static inline bool any_message(const struct epoch_plan *epoch, int qp, enum side receiver)
{
	return !is_reliable(epoch->kind[qp]) || epoch->kind[qp] == KIND_XRC || epoch->shared_receives[receiver];
}

#endif
