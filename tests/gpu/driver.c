/* A stand-in for the driver of a GPU, for tests on machines without one: `libcuda.so.1` with the handful of entry points that
 * the NIC uses. Its memory cannot be touched by the processor at its device address, as that of a GPU; a copy happens when its
 * stream is waited for and not before; calls can be made to fail. */
#define _GNU_SOURCE
#include "driver.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONTEXTS 16
#define ALLOCATIONS 1024
#define FAULTS 32
#define PAGE 4096ul

struct context {
	unsigned long long id; /* 0: there is none, or it was destroyed. */
	unsigned long long primary;
	int held; /* A kernel runs in it, and all copies in it wait for that. */
};

struct allocation {
	CUdeviceptr address; /* What the program has: the processor cannot touch it. */
	size_t size, span;
	char *bytes; /* The same bytes for the stand-in itself. */
	int file;
	unsigned long long id;
	struct context *context;
	int imported; /* How often another process's was opened. */
	int mapped; /* By `cuMemMap`: it has no handle for other processes but a descriptor. */
	int closed; /* Nobody may touch it yet. */
	pid_t from; /* The process that it was opened of, and its number there. */
	unsigned long long number_there;
};

/* Memory that `cuMemCreate` made, or that came by a descriptor. */
struct handle {
	unsigned long long number; /* 0: there is none. */
	int file, references, exports;
	size_t size;
};

struct copy {
	struct copy *next;
	void *host;
	CUdeviceptr target, source;
	size_t size;
	int kind; /* 1: out of the GPU, 2: into it, 3: inside it. */
};

struct stream {
	struct context *context;
	unsigned long long id;
	struct copy *first, **last;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context contexts[CONTEXTS];
static struct allocation allocations[ALLOCATIONS];
static struct handle handles[ALLOCATIONS];
static struct {
	const char *call;
	int after;
	CUresult error;
	int held;
	unsigned long calls;
} faults[FAULTS];
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static struct {
	char *first;
	size_t size;
} host[64];
static unsigned long long next_id = 1;
static pid_t owner;
static __thread struct context *current[32];
static __thread int depth;

void stand_in_fail(const char *call, int after, CUresult error)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < FAULTS; i++) {
		if (faults[i].call && strcmp(faults[i].call, call))
			continue;
		if (!faults[i].call)
			faults[i].call = strdup(call);
		faults[i].after = after;
		faults[i].error = error;
		break;
	}
	pthread_mutex_unlock(&lock);
}

void stand_in_hold(const char *call, int held)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < FAULTS; i++) {
		if (faults[i].call && strcmp(faults[i].call, call))
			continue;
		if (!faults[i].call)
			faults[i].call = strdup(call);
		faults[i].held = held;
		break;
	}
	pthread_cond_broadcast(&let_go);
	pthread_mutex_unlock(&lock);
}

void stand_in_hold_context(CUcontext context, int held)
{
	pthread_mutex_lock(&lock);
	context->held = held;
	pthread_cond_broadcast(&let_go);
	pthread_mutex_unlock(&lock);
}

unsigned long stand_in_calls(const char *call)
{
	unsigned long calls = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < FAULTS && faults[i].call; i++)
		if (!strcmp(faults[i].call, call))
			calls = faults[i].calls;
	pthread_mutex_unlock(&lock);
	return calls;
}

/* Takes the lock and counts a call. Answers why it fails, if it does. */
static CUresult enter(const char *call)
{
	CUresult error = CUDA_SUCCESS;

	/* A forked child has no GPU. */
	if (owner != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < FAULTS; i++) {
		if (faults[i].call && strcmp(faults[i].call, call))
			continue;
		if (!faults[i].call)
			faults[i].call = call;
		faults[i].calls++;
		while (faults[i].held)
			pthread_cond_wait(&let_go, &lock);
		if (faults[i].error && faults[i].after-- <= 0)
			error = faults[i].error;
		break;
	}
	if (error)
		pthread_mutex_unlock(&lock);
	return error;
}

#define ENTER                                        \
	do {                                         \
		CUresult failed = enter(__func__);   \
		if (failed)                          \
			return failed;               \
	} while (0)

static CUresult leave(CUresult result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

static struct context *here(void)
{
	return depth > 0 && current[depth - 1]->id ? current[depth - 1] : NULL;
}

static struct allocation *find(CUdeviceptr address, size_t size)
{
	for (int i = 0; i < ALLOCATIONS; i++) {
		struct allocation *one = &allocations[i];

		if (one->id && !one->closed && address >= one->address && address - one->address < one->size)
			return size <= one->size - (address - one->address) && one->context->id ? one : NULL;
	}
	return NULL;
}

static char *bytes_of(CUdeviceptr address, size_t size)
{
	struct allocation *one = find(address, size);

	return one ? one->bytes + (address - one->address) : NULL;
}

CUresult cuInit(unsigned int flags)
{
	if (!owner)
		owner = getpid();
	return flags || owner != getpid() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult make_context(CUcontext *context, unsigned long long primary)
{
	for (int i = 0; i < CONTEXTS; i++) {
		if (primary && contexts[i].primary && contexts[i].id) {
			*context = &contexts[i];
			return CUDA_SUCCESS;
		}
	}
	for (int i = 0; i < CONTEXTS; i++) {
		if (contexts[i].id)
			continue;
		contexts[i] = (struct context){next_id++, primary, 0};
		*context = &contexts[i];
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	ENTER;
	return leave(device ? CUDA_ERROR_INVALID_DEVICE : make_context(context, 1));
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	ENTER;
	CUresult made = flags || device ? CUDA_ERROR_INVALID_VALUE : make_context(context, 0);

	if (!made)
		current[depth++] = *context;
	return leave(made);
}

static void drop(struct allocation *one)
{
	/* Its addresses stay taken, as a GPU's do: nothing of the process comes to lie there. */
	munmap(one->bytes, one->span);
	close(one->file);
	*one = (struct allocation){0};
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	ENTER;
	if (!context->id)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	for (int i = 0; i < ALLOCATIONS; i++)
		if (allocations[i].id && allocations[i].context == context)
			drop(&allocations[i]);
	context->id = 0;
	return leave(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER;
	if (!context || !context->id || depth == 32)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	current[depth++] = context;
	return leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER;
	if (!depth)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	*context = current[--depth];
	return leave(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void)
{
	ENTER;
	return leave(here() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	ENTER;
	if (!here() || flags > 1)
		return leave(here() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
	*stream = calloc(1, sizeof **stream);
	(*stream)->context = here();
	(*stream)->id = here()->id;
	(*stream)->last = &(*stream)->first;
	return leave(CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUresult result = CUDA_SUCCESS;

	ENTER;
	if (!here() || stream->context != here() || stream->id != here()->id)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	while (stream->context->held)
		pthread_cond_wait(&let_go, &lock);
	for (struct copy *copy = stream->first; copy;) {
		struct copy *next = copy->next;
		char *target = copy->kind == 1 ? copy->host : bytes_of(copy->target, copy->size);
		char *source = copy->kind == 2 ? copy->host : bytes_of(copy->source, copy->size);

		if (!target || !source)
			result = CUDA_ERROR_ILLEGAL_ADDRESS;
		else if (!result)
			memmove(target, source, copy->size);
		free(copy);
		copy = next;
	}
	stream->first = NULL;
	stream->last = &stream->first;
	return leave(result);
}

static CUresult begin(CUstream stream, struct copy copy)
{
	if (!here())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!stream || stream->context != here() || stream->id != here()->id)
		return CUDA_ERROR_INVALID_HANDLE;
	if ((copy.target && !find(copy.target, copy.size)) || (copy.source && !find(copy.source, copy.size)))
		return CUDA_ERROR_INVALID_VALUE;
	struct copy *made = malloc(sizeof *made);

	*made = copy;
	*stream->last = made;
	stream->last = &made->next;
	return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t size, CUstream stream)
{
	ENTER;
	return leave(begin(stream, (struct copy){.host = target, .source = source, .size = size, .kind = 1}));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t size, CUstream stream)
{
	ENTER;
	return leave(begin(stream, (struct copy){.host = (void *)source, .target = target, .size = size, .kind = 2}));
}

/* Two rows into the GPU, one right after the other. For those that count and disturb calls it is the call above. */
CUresult cuMemcpy2DAsync_v2(const struct rows *rows, CUstream stream)
{
	if (rows->source_type != 1 || rows->target_type != 2 || rows->source_place[0] || rows->source_place[1] ||
	    rows->target_place[0] || rows->target_place[1] || rows->height != 2 || rows->source_pitch != rows->width ||
	    rows->target_pitch != rows->width)
		return CUDA_ERROR_INVALID_VALUE;
	return cuMemcpyHtoDAsync_v2(rows->target, rows->source_host, 2 * rows->width, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream)
{
	ENTER;
	return leave(begin(stream, (struct copy){.target = target, .source = source, .size = size, .kind = 3}));
}

CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t size)
{
	ENTER;
	char *bytes = bytes_of(source, size);

	if (bytes)
		memcpy(target, bytes, size);
	return leave(bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t size)
{
	ENTER;
	char *bytes = bytes_of(target, size);

	if (bytes)
		memcpy(bytes, source, size);
	return leave(bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* Makes an allocation of a file. */
static CUresult place(CUdeviceptr *address, int file, size_t size, unsigned long long id, int imported)
{
	struct allocation *one = NULL;

	for (int i = 0; i < ALLOCATIONS && !one; i++)
		if (!allocations[i].id)
			one = &allocations[i];
	if (!one)
		return CUDA_ERROR_OUT_OF_MEMORY;
	size_t span = (size + PAGE - 1) / PAGE * PAGE;
	void *untouchable = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void *bytes = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (untouchable == MAP_FAILED || bytes == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*one = (struct allocation){
		.address = (CUdeviceptr)untouchable, .size = size, .span = span, .bytes = bytes, .file = file, .id = id,
		.context = here(), .imported = imported};
	*address = one->address;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	ENTER;
	if (!here() || !size)
		return leave(here() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
	int file = memfd_create("gpu", MFD_CLOEXEC);

	if (file < 0 || ftruncate(file, (off_t)((size + PAGE - 1) / PAGE * PAGE)))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	return leave(place(address, file, size, next_id++, 0));
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	ENTER;
	struct allocation *one = find(address, 1);

	if (!one || one->address != address || one->imported || one->mapped)
		return leave(CUDA_ERROR_INVALID_VALUE);
	drop(one);
	return leave(CUDA_SUCCESS);
}

CUresult cuPointerGetAttributes(unsigned int count, const unsigned int *attributes, void **data, CUdeviceptr address)
{
	ENTER;
	struct allocation *one = find(address, 1);

	for (unsigned int i = 0; i < count; i++) {
		switch (attributes[i]) {
		case 1:
			*(void **)data[i] = one ? one->context : NULL;
			break;
		case 2:
			*(unsigned int *)data[i] = one ? 2 : 0;
			break;
		case 7:
			*(unsigned long long *)data[i] = one ? one->id : 0;
			break;
		case 8:
			*(char *)data[i] = 0;
			break;
		case 9:
			*(int *)data[i] = one ? 0 : -2;
			break;
		case 10:
			*(char *)data[i] = one && !one->imported && !one->mapped;
			break;
		case 11:
			*(CUdeviceptr *)data[i] = one ? one->address : 0;
			break;
		case 12:
			*(size_t *)data[i] = one ? one->size : 0;
			break;
		default:
			return leave(CUDA_ERROR_INVALID_VALUE);
		}
	}
	return leave(CUDA_SUCCESS);
}

CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned int flags)
{
	ENTER;
	char *first = address;

	if (!size || flags > 1)
		return leave(CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < 64; i++)
		if (host[i].size && first < host[i].first + host[i].size && host[i].first < first + size)
			return leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	for (int i = 0; i < 64; i++) {
		if (!host[i].size) {
			host[i].first = first;
			host[i].size = size;
			return leave(CUDA_SUCCESS);
		}
	}
	return leave(CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemHostUnregister(void *address)
{
	ENTER;
	for (int i = 0; i < 64; i++) {
		if (host[i].size && host[i].first == address) {
			host[i].size = 0;
			return leave(CUDA_SUCCESS);
		}
	}
	return leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* What a handle says: a descriptor of a process. */
struct named {
	pid_t process;
	int file;
	size_t size;
	unsigned long long id, mark;
};

/* What a handle has that the stand-in made, and one that was made up has not: another process may have such a descriptor. */
static unsigned long long mark_of(const struct named *named)
{
	return 0x9e3779b97f4a7c15ull ^ (unsigned long long)named->process << 40 ^ (unsigned long long)named->file << 20 ^
	       named->size ^ named->id << 8;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	ENTER;
	struct allocation *one = find(address, 1);

	if (!here())
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (!one || one->imported || one->mapped)
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct named named = {getpid(), one->file, one->size, one->id, 0};

	named.mark = mark_of(&named);
	memset(handle, 0, sizeof *handle);
	memcpy(handle, &named, sizeof named);
	return leave(CUDA_SUCCESS);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	ENTER;
	struct named named;
	char path[64];

	memcpy(&named, &handle, sizeof named);
	/* As the driver: not in the process that it is from. */
	if (!here() || flags != 1 || named.process == getpid() || named.mark != mark_of(&named))
		return leave(here() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
	/* As the driver: in one context, where it is counted how often. */
	for (int i = 0; i < ALLOCATIONS; i++) {
		struct allocation *one = &allocations[i];

		if (!one->id || !one->imported || one->from != named.process || one->number_there != named.id)
			continue;
		if (one->context != here())
			return leave(CUDA_ERROR_INVALID_CONTEXT);
		one->imported++;
		*address = one->address;
		return leave(CUDA_SUCCESS);
	}
	snprintf(path, sizeof path, "/proc/%d/fd/%d", named.process, named.file);
	int file = open(path, O_RDWR | O_CLOEXEC);

	if (file < 0)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if ((size_t)lseek(file, 0, SEEK_END) < named.size) {
		close(file);
		return leave(CUDA_ERROR_INVALID_VALUE);
	}
	CUresult placed = place(address, file, named.size, next_id++, 1);
	struct allocation *one = placed ? NULL : find(*address, 1);

	if (one) {
		one->from = named.process;
		one->number_there = named.id;
	}
	return leave(placed);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	ENTER;
	struct allocation *one = find(address, 1);

	if (!one || one->address != address || !one->imported)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!--one->imported)
		drop(one);
	return leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER;
	*device = 0;
	return leave(here() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

static struct handle *handle_of(unsigned long long number)
{
	for (int i = 0; i < ALLOCATIONS; i++)
		if (number && handles[i].number == number)
			return &handles[i];
	return NULL;
}

static CUresult keep(unsigned long long *number, int file, size_t size, int exports)
{
	for (int i = 0; i < ALLOCATIONS; i++) {
		if (handles[i].number)
			continue;
		handles[i] = (struct handle){next_id++, file, 1, exports, size};
		*number = handles[i].number;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemCreate(unsigned long long *handle, size_t size, const struct allocation_properties *properties, unsigned long long flags)
{
	ENTER;
	int file = memfd_create("gpu", MFD_CLOEXEC);

	if (flags || !size || size % PAGE || properties->type != 1 || properties->location_type != 1)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (file < 0 || ftruncate(file, (off_t)size))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	return leave(keep(handle, file, size, properties->handle_types & 1));
}

static void unkeep(struct handle *one)
{
	if (--one->references)
		return;
	close(one->file);
	one->number = 0;
}

CUresult cuMemRelease(unsigned long long number)
{
	ENTER;
	struct handle *one = handle_of(number);

	if (one)
		unkeep(one);
	return leave(one ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr at, unsigned long long flags)
{
	ENTER;
	void *untouchable = MAP_FAILED;

	if (size && size % PAGE == 0 && !alignment && !at && !flags)
		untouchable = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	*address = (CUdeviceptr)untouchable;
	return leave(untouchable == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	ENTER;
	/* Its addresses stay taken, as above. */
	return leave(address && size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, unsigned long long number, unsigned long long flags)
{
	ENTER;
	struct handle *from = handle_of(number);
	struct allocation *one = NULL;

	for (int i = 0; i < ALLOCATIONS && !one; i++)
		if (!allocations[i].id)
			one = &allocations[i];
	if (!from || !one || offset || flags || size > from->size || !here())
		return leave(CUDA_ERROR_INVALID_VALUE);
	void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, from->file, 0);

	if (bytes == MAP_FAILED)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	from->references++;
	*one = (struct allocation){
		.address = address, .size = size, .span = size, .bytes = bytes, .file = dup(from->file), .id = number, .context = here(),
		.mapped = 1, .closed = 1};
	return leave(CUDA_SUCCESS);
}

static struct allocation *mapped_at(CUdeviceptr address, size_t size)
{
	for (int i = 0; i < ALLOCATIONS; i++)
		if (allocations[i].id && allocations[i].mapped && allocations[i].address == address && allocations[i].size == size)
			return &allocations[i];
	return NULL;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const struct access_description *access, size_t count)
{
	ENTER;
	struct allocation *one = mapped_at(address, size);

	if (!one || count != 1 || access->location_type != 1 || access->device != 0 || access->flags != 3)
		return leave(CUDA_ERROR_INVALID_VALUE);
	one->closed = 0;
	return leave(CUDA_SUCCESS);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	ENTER;
	struct allocation *one = mapped_at(address, size);

	if (!one)
		return leave(CUDA_ERROR_INVALID_VALUE);
	unkeep(handle_of(one->id));
	drop(one);
	return leave(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(unsigned long long *handle, void *address)
{
	ENTER;
	struct allocation *one = find((CUdeviceptr)address, 1);
	struct handle *from = one && one->mapped ? handle_of(one->id) : NULL;

	if (!from)
		return leave(CUDA_ERROR_INVALID_VALUE);
	from->references++;
	*handle = from->number;
	return leave(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *descriptor, unsigned long long number, int type, unsigned long long flags)
{
	ENTER;
	struct handle *from = handle_of(number);

	if (!from || !from->exports || type != 1 || flags)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*(int *)descriptor = fcntl(from->file, F_DUPFD_CLOEXEC, 3);
	return leave(*(int *)descriptor < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}

CUresult cuMemImportFromShareableHandle(unsigned long long *handle, void *descriptor, int type)
{
	ENTER;
	int file = fcntl((int)(intptr_t)descriptor, F_DUPFD_CLOEXEC, 3);
	off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);

	if (type != 1 || size <= 0)
		return leave(CUDA_ERROR_INVALID_VALUE);
	return leave(keep(handle, file, (size_t)size, 0));
}

/* A descriptor that stands for the range and cannot be mapped for writing, as a dma-buf of a GPU cannot be mapped at all. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size, int type, unsigned long long flags)
{
	ENTER;
	if (type != 1 || flags || !find(address, size) || address % PAGE || size % PAGE)
		return leave(CUDA_ERROR_INVALID_VALUE);
	int file = memfd_create("gpu-dmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (file < 0 || ftruncate(file, (off_t)size) ||
	    fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	*(int *)handle = file;
	return leave(CUDA_SUCCESS);
}
