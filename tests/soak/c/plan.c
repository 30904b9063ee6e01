/* Draws plans. Nothing here may look at anything but the seed and what the command line says to both sides alike. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

const char *const kind_names[] = {"RC", "UC", "UD", "XRC"};
const char *const code_names[] = {"SEND", "SEND with immediate", "SEND with invalidate", "WRITE", "WRITE with immediate",
				  "READ", "FETCH_ADD", "CMP_SWP", "FETCH_ADD of the shared word"};

void fill(uint8_t *to, uint64_t key, uint64_t offset, size_t length)
{
	size_t done = 0;

	while (done < length) {
		uint64_t word = stir(key + ((offset + done) >> 3) * 0x9e3779b97f4a7c15ull);
		size_t within = (offset + done) & 7, some = 8 - within;

		if (some > length - done)
			some = length - done;
		memcpy(to + done, (uint8_t *)&word + within, some);
		done += some;
	}
}

uint32_t cut(struct dice *dice, uint32_t length, uint32_t most, uint32_t used, struct piece *piece, uint8_t *count)
{
	uint32_t pieces = 0;

	/* A piece of no length would mean two gigabytes to some devices, so nothing is no piece at all. */
	while (length) {
		uint32_t some = length;

		if (pieces + 1 < most && length > 1 && chance(dice, 60))
			some = 1 + below(dice, chance(dice, 50) ? length : length < 40 ? length : 40);
		if (some > length)
			some = length;
		used += 1 + below(dice, MAX_GAP);
		piece[pieces].at = used;
		piece[pieces].length = some;
		pieces++;
		used += some;
		length -= some;
	}
	*count = (uint8_t)pieces;
	return used;
}

void plan_epoch(struct epoch_plan *plan, uint64_t key, const struct limits *limits)
{
	struct dice dice = {key_of(key, 1)};
	int mixture = below(&dice, 10);

	memset(plan, 0, sizeof *plan);
	plan->key = key;
	plan->qps = 1 + below(&dice, limits->most_qps);
	for (int i = 0; i < plan->qps; i++) {
		static const enum kind kinds[] = {KIND_RC, KIND_UC, KIND_UD, KIND_XRC};

		plan->kind[i] = mixture < 4 ? KIND_RC : mixture < 7 ? kinds[mixture - 3] : kinds[below(&dice, 4)];
		plan->split[i] = is_reliable(plan->kind[i]) && chance(&dice, 20);
	}
	plan->depth = 4 + below(&dice, 29);
	plan->inline_size = chance(&dice, 70) ? below(&dice, 257) : 0;
	plan->sges = 1 + below(&dice, MAX_SGE);
	for (int side = 0; side < 2; side++) {
		plan->queues_mode[side] = below(&dice, 3);
		plan->events[side] = chance(&dice, 35);
		plan->extended[side] = chance(&dice, 30);
		plan->shared_receives[side] = chance(&dice, 35);
		plan->calls[side] = chance(&dice, 30);
		plan->signal_all[side] = chance(&dice, 30);
		plan->threads[side] = below(&dice, 3);
	}
}

void plan_round(struct round_plan *plan, uint64_t key, const struct epoch_plan *epoch, const struct limits *limits)
{
	struct dice dice = {key_of(key, 2)};
	bool reliable = true, reset = true;

	memset(plan, 0, sizeof *plan);
	plan->key = key;
	for (int i = 0; i < epoch->qps; i++) {
		reliable &= is_reliable(epoch->kind[i]);
		/* Queue pairs of the connection manager are not connected again by hand. */
		if (limits->cm && (epoch->kind[i] == KIND_RC || epoch->kind[i] == KIND_UD))
			reset = false;
	}
	plan->ending = below(&dice, 4);
	if (!reset && plan->ending != END_CONTINUE)
		plan->ending = END_DESTROY;
	plan->aborted = chance(&dice, 12);
	/* What is lost leaves receives behind, and what is late must find nobody. */
	if (plan->aborted || (!reliable && !limits->lossless))
		plan->ending = END_DESTROY;
	plan->solicited = chance(&dice, 25);
	for (int side = 0; side < 2; side++) {
		plan->abort_after[side] = below(&dice, 40);
		plan->abort_by_reset[side] = reset && chance(&dice, 30);
		plan->destroyed_at_once[side] = (reliable || limits->lossless) && chance(&dice, 40);
		plan->late[side] = chance(&dice, 15);
		plan->own_target[side] = chance(&dice, 50);
		plan->receive_window[side] = 1 + below(&dice, MAX_OPS);
		plan->extra[side] = plan->ending == END_CONTINUE ? 0 : below(&dice, 4);
		plan->registering[side] = below(&dice, 3);
		plan->change_flags[side] = 1 + below(&dice, 7);
		for (int i = 0; i < epoch->qps; i++) {
			bool can = epoch->kind[i] == KIND_RC && chance(&dice, 30);

			plan->window[side][i] = can ? 1 + below(&dice, 2) : 0;
			plan->invalidated[side][i] = plan->window[side][i] == 2 && !epoch->split[i] && chance(&dice, 50);
		}
	}
}

static uint32_t draw_length(struct dice *dice, uint32_t mtu)
{
	uint32_t choice = below(dice, 100);

	if (choice < 8)
		return 0;
	if (choice < 35)
		return 1 + below(dice, 64);
	if (choice < 60) {
		uint32_t packets = chance(dice, 80) ? 1 + below(dice, 4) : 1 + below(dice, 70);

		return packets * mtu + below(dice, 3) - 1;
	}
	if (choice < 80)
		return below(dice, 4096);
	if (choice < 96)
		return below(dice, 65536);
	return below(dice, (2u << 20) + 1);
}

static enum code draw_code(struct dice *dice, enum kind kind, bool split)
{
	static const enum code reliable[] = {OP_SEND, OP_SEND, OP_SEND, OP_SEND, OP_SEND_IMM, OP_SEND_IMM, OP_WRITE, OP_WRITE, OP_WRITE,
					     OP_WRITE_IMM, OP_WRITE_IMM, OP_READ, OP_READ, OP_READ, OP_ADD, OP_SWAP, OP_SHARED_ADD};
	static const enum code alone[] = {OP_WRITE, OP_WRITE, OP_WRITE, OP_READ, OP_READ, OP_ADD, OP_SWAP, OP_SHARED_ADD};
	static const enum code unreliable[] = {OP_SEND, OP_SEND, OP_SEND_IMM, OP_WRITE, OP_WRITE, OP_WRITE_IMM};

	if (split)
		return alone[below(dice, sizeof alone / sizeof *alone)];
	if (is_reliable(kind))
		return reliable[below(dice, sizeof reliable / sizeof *reliable)];
	return unreliable[below(dice, kind == KIND_UD ? 3 : sizeof unreliable / sizeof *unreliable)];
}

static void grow_target(struct stream *stream, uint32_t to)
{
	fill(stream->target + stream->target_used, stream->target_key, stream->target_used, to - stream->target_used);
	stream->target_used = to;
}

/* What a write changes for the earlier operations of the list. A READ whose answer got lost is done again, so whatever changes its source
 * has to wait for it. */
static void note_overlap(struct stream *stream, struct op *op, uint32_t length)
{
	for (struct op *earlier = stream->op; earlier < op; earlier++) {
		if (earlier->remote >= op->remote + length || op->remote >= earlier->remote + earlier->length)
			continue;
		if (earlier->code == OP_READ)
			op->fenced = true;
		if (is_write(earlier->code))
			earlier->stable = false;
	}
}

static void plan_write(struct dice *dice, struct stream *stream, struct op *op, bool ordered, uint32_t limit)
{
	uint32_t used = stream->target_used, gap = 1 + below(dice, MAX_GAP);

	if (ordered && chance(dice, 30) && used - ATOMIC_BYTES >= op->length)
		op->remote = ATOMIC_BYTES + below(dice, used - ATOMIC_BYTES - op->length + 1);
	else {
		if (used + gap + op->length + MAX_GAP > limit)
			op->length = 0;
		op->remote = used + gap;
		grow_target(stream, used + gap + op->length);
	}
	op->data = malloc(op->length + 1);
	if (op->length)
		note_overlap(stream, op, op->length);
}

static void plan_atomic(struct dice *dice, struct stream *stream, struct op *op)
{
	uint64_t before;

	op->length = 8;
	op->data = malloc(8);
	op->operand = draw(dice);
	if (op->code == OP_SHARED_ADD) {
		op->operand = 1;
		stream->shared_adds++;
		return;
	}
	op->remote = 8 * below(dice, ATOMIC_BYTES / 8);
	memcpy(&before, stream->target + op->remote, 8);
	memcpy(op->data, &before, 8);
	if (op->code == OP_ADD) {
		before += op->operand;
	} else {
		op->compare = chance(dice, 70) ? before : draw(dice);
		if (op->compare == before)
			before = op->operand;
	}
	memcpy(stream->target + op->remote, &before, 8);
}

/* A message made of what an earlier READ fetched: right only when the fence is kept. */
static bool plan_forward(struct dice *dice, struct stream *stream, struct op *op, uint32_t longest)
{
	for (int i = stream->ops - 1; i >= 0; i--) {
		struct op *read = &stream->op[i];

		if (read->code != OP_READ || read->length > longest || !chance(dice, 50))
			continue;
		op->length = read->length;
		op->data = malloc(op->length + 1);
		memcpy(op->data, read->data, op->length);
		memcpy(op->piece, read->piece, sizeof op->piece);
		op->pieces_used = read->pieces_used;
		op->fenced = op->forwarded = true;
		return true;
	}
	return false;
}

static void plan_op(struct dice *dice, struct stream *stream, const struct epoch_plan *epoch, enum kind kind, bool split, uint32_t mtu,
		    uint32_t longest, uint32_t limit, uint32_t *left, uint64_t key)
{
	struct op *op = &stream->op[stream->ops];
	bool placed = false;

	memset(op, 0, sizeof *op);
	op->code = draw_code(dice, kind, split);
	op->imm = (uint32_t)draw(dice);
	op->stable = true;
	op->second_key = chance(dice, 40);
	op->fenced = is_reliable(kind) && chance(dice, 8);
	op->length = draw_length(dice, mtu);
	if (op->length > longest)
		op->length = chance(dice, 30) ? longest : below(dice, longest + 1);
	if (op->length > *left)
		op->length = below(dice, *left < 64 ? *left + 1 : 64);
	if (is_write(op->code)) {
		plan_write(dice, stream, op, is_reliable(kind), limit);
		fill(op->data, key, 0, op->length);
		if (op->length)
			memcpy(stream->target + op->remote, op->data, op->length);
	} else if (op->code == OP_READ) {
		uint32_t most = stream->target_used - ATOMIC_BYTES;

		if (op->length > most)
			op->length = below(dice, most + 1);
		op->remote = ATOMIC_BYTES + below(dice, most - op->length + 1);
		op->data = malloc(op->length + 1);
		memcpy(op->data, stream->target + op->remote, op->length);
	} else if (op->code > OP_READ) {
		plan_atomic(dice, stream, op);
	} else {
		placed = is_reliable(kind) && chance(dice, 10) && plan_forward(dice, stream, op, longest < *left ? longest : *left);
		if (!placed) {
			op->data = malloc(op->length + 1);
			fill(op->data, key, 0, op->length);
		}
	}
	if (!placed) {
		op->inlined = !fetches(op->code) && op->length <= epoch->inline_size && chance(dice, 60);
		stream->out_used = cut(dice, op->length, op->code > OP_READ ? 1 : epoch->sges, stream->out_used, op->piece, &op->pieces_used);
	}
	*left -= op->length < *left ? op->length : *left;
	stream->ops++;
}

void plan_stream(struct stream *stream, const struct round_plan *round, const struct epoch_plan *epoch, const struct limits *limits,
		 int qp, int half, enum side side)
{
	struct dice dice = {key_of(key_of(round->key, 100 + qp * 4 + half), side)};
	uint64_t key = draw(&dice);
	enum kind kind = epoch->kind[qp];
	bool split = epoch->split[qp];
	uint32_t region = POOL_SIZE / (3 * epoch->qps + 1), limit = split ? region / 2 : region;
	uint32_t left = (limit - REGION_SLACK) / 4 * 3, longest = 2u << 20, unsignaled = 0;
	int count = 1 + below(&dice, chance(&dice, 70) ? MAX_OPS / 3 : MAX_OPS - 1), chained = 0;
	enum side owner = side == SERVER ? CLIENT : SERVER;

	if (any_message(epoch, qp, owner))
		longest = region / (MAX_OPS + 4) - MAX_SGE * (MAX_GAP + 1) - GRH_BYTES - 200;
	if (kind == KIND_UD)
		longest = limits->mtu;
	memset(stream, 0, sizeof *stream);
	stream->target = malloc(limit);
	stream->target_key = draw(&dice);
	grow_target(stream, ATOMIC_BYTES + below(&dice, chance(&dice, 80) ? 8192 : limit / 8));
	while (stream->ops < count)
		plan_op(&dice, stream, epoch, kind, split, limits->mtu, longest, limit, &left, key_of(key, stream->ops));
	if (round->invalidated[owner][qp]) {
		struct op *last = &stream->op[stream->ops - 1];

		/* A READ that is done again after the window is gone would fail. */
		if (last->code == OP_SEND) {
			last->code = OP_SEND_INV;
			last->fenced = true;
		}
	}
	for (int i = 0; i < stream->ops; i++) {
		struct op *op = &stream->op[i];

		op->signaled = epoch->signal_all[side] || i == stream->ops - 1 || ++unsignaled >= epoch->depth / 2 || chance(&dice, 50);
		if (op->signaled)
			unsignaled = 0;
		if (!chained)
			chained = chance(&dice, 50) ? 1 : 1 + below(&dice, epoch->depth / 2);
		op->chain = (uint8_t)--chained;
		op->solicited = consumes(op->code) && (round->solicited || chance(&dice, 20));
		op->window = round->window[owner][qp] && (is_write(op->code) || op->code == OP_READ || op->code == OP_ADD) && chance(&dice, 50);
		if (consumes(op->code))
			stream->consumer[stream->consumers++] = i;
		if (op->length > stream->longest)
			stream->longest = op->length;
	}
	stream->out_used += MAX_GAP;
}

void free_stream(struct stream *stream)
{
	for (int i = 0; i < stream->ops; i++)
		free(stream->op[i].data);
	free(stream->target);
	memset(stream, 0, sizeof *stream);
}
