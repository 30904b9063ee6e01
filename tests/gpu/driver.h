/* The part of the GPU driver's interface that tests use, and what only the stand-in has. Names and numbers are those of the
 * driver: the same test runs on either. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned int CUresult;
typedef int CUdevice;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef unsigned long long CUdeviceptr;
typedef struct {
	char reserved[64];
} CUipcMemHandle;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
};

CUresult cuInit(unsigned int flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxSynchronize(void);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t size);
CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t size);
CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t size, CUstream stream);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t size, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream);
CUresult cuPointerGetAttributes(unsigned int count, const unsigned int *attributes, void **data, CUdeviceptr address);
CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned int flags);
CUresult cuMemHostUnregister(void *address);
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr address);
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size, int type, unsigned long long flags);

/* What `cuMemcpy2DAsync` is told. */
struct rows {
	size_t source_place[2];
	int source_type;
	const void *source_host;
	CUdeviceptr source;
	void *source_array;
	size_t source_pitch, target_place[2];
	int target_type;
	void *target_host;
	CUdeviceptr target;
	void *target_array;
	size_t target_pitch, width, height;
};

CUresult cuMemcpy2DAsync_v2(const struct rows *rows, CUstream stream);

/* What `cuMemCreate` and `cuMemSetAccess` are told. */
struct allocation_properties {
	int type, handle_types, location_type, device;
	void *windows;
	unsigned char flags[8];
};
struct access_description {
	int location_type, device, flags;
};

CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuMemCreate(unsigned long long *handle, size_t size, const struct allocation_properties *properties,
		     unsigned long long flags);
CUresult cuMemRelease(unsigned long long handle);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr at, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, size_t size);
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, unsigned long long handle, unsigned long long flags);
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const struct access_description *access, size_t count);
CUresult cuMemUnmap(CUdeviceptr address, size_t size);
CUresult cuMemRetainAllocationHandle(unsigned long long *handle, void *address);
CUresult cuMemExportToShareableHandle(void *descriptor, unsigned long long handle, int type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(unsigned long long *handle, void *descriptor, int type);

/* Only the stand-in: the call of that name fails with `error`, after so many that do not, until it is told 0. */
void stand_in_fail(const char *call, int after, CUresult error);
/* Only the stand-in: the call of that name does not return until it is told 0, as while the program waits in the driver. */
void stand_in_hold(const char *call, int held);
/* Only the stand-in: all copies in a context wait, as behind a kernel, until they are let go. */
void stand_in_hold_context(CUcontext context, int held);
/* Only the stand-in: how often a call was made. */
unsigned long stand_in_calls(const char *call);

#endif
