/* What releases after 44 declare, by our own hand and under names of our own: the installed headers may have it too. */
#ifndef NEWER_H
#define NEWER_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>

struct newer_dma_handle;
struct newer_buffer;

struct newer_dma_handle_attr {
	uint32_t comp_mask;
	uint32_t cpu_id;
	uint8_t ph;
	uint8_t mem_type;
};
enum { HANDLE_CPU = 1, HANDLE_PH = 2, HANDLE_MEM_TYPE = 4 };

struct newer_mr_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct newer_dma_handle *handle;
	struct newer_buffer *buffer;
};
enum { MR_IOVA = 1, MR_ADDR = 2, MR_FD = 4, MR_FD_OFFSET = 8, MR_HANDLE = 16, MR_BUFFER = 32 };

struct newer_counter {
	struct ibv_context *context;
	uint32_t handle;
};
struct newer_counter_caps {
	uint64_t max_value;
	uint32_t max_counters;
	uint32_t operations;
};
struct newer_counter_attr {
	uint32_t comp_mask;
	uint32_t type;
	uint32_t flags;
};
struct newer_attach_attr {
	uint32_t comp_mask;
	uint32_t operations;
};
enum {
	COUNT_SEND = 1,
	COUNT_RECV = 2,
	COUNT_READ = 4,
	COUNT_REMOTE_READ = 8,
	COUNT_WRITE = 16,
	COUNT_REMOTE_WRITE = 32
};

#define NEWER(type, name, symbol, ...) type name(__VA_ARGS__) __asm__(symbol)

NEWER(struct newer_dma_handle *, alloc_handle, "ibv_alloc_dmah", struct ibv_context *, struct newer_dma_handle_attr *);
NEWER(int, dealloc_handle, "ibv_dealloc_dmah", struct newer_dma_handle *);
NEWER(struct ibv_mr *, reg_by_attr, "ibv_reg_mr_ex", struct ibv_pd *, struct newer_mr_attr *);
NEWER(int, port_speed, "ibv_query_port_speed", struct ibv_context *, uint32_t, uint64_t *);
NEWER(int, export_dm, "ibv_dm_export_dmabuf_fd", struct ibv_dm *);
NEWER(void *, alloc_buffer, "ibv_alloc_buf", struct ibv_pd *, size_t, struct newer_buffer **);
NEWER(void, free_buffer, "ibv_free_buf", struct newer_buffer *);
NEWER(struct ibv_mr *, reg_buffer, "ibv_reg_buf_mr", struct ibv_pd *, struct newer_buffer *, void *, size_t, int);
NEWER(int, export_buffer, "ibv_export_buf_dmabuf_fd", struct newer_buffer *);
NEWER(int, counter_caps, "_ibv_query_comp_cntr_caps", struct ibv_context *, struct newer_counter_caps *, size_t);
NEWER(struct newer_counter *, create_counter, "ibv_create_comp_cntr", struct ibv_context *,
      struct newer_counter_attr *);
NEWER(int, destroy_counter, "ibv_destroy_comp_cntr", struct newer_counter *);
NEWER(int, set_counter, "ibv_set_comp_cntr", struct newer_counter *, uint64_t);
NEWER(int, set_errors, "ibv_set_err_comp_cntr", struct newer_counter *, uint64_t);
NEWER(int, add_counter, "ibv_inc_comp_cntr", struct newer_counter *, uint64_t);
NEWER(int, add_errors, "ibv_inc_err_comp_cntr", struct newer_counter *, uint64_t);
NEWER(int, read_counter, "ibv_read_comp_cntr", struct newer_counter *, uint64_t *);
NEWER(int, read_errors, "ibv_read_err_comp_cntr", struct newer_counter *, uint64_t *);
NEWER(int, attach_counter, "ibv_qp_attach_comp_cntr", struct ibv_qp *, struct newer_counter *,
      struct newer_attach_attr *);

NEWER(int, resolve_name, "rdma_resolve_addrinfo", struct rdma_cm_id *, const char *, const char *,
      const struct rdma_addrinfo *);
NEWER(int, query_name, "rdma_query_addrinfo", struct rdma_cm_id *, struct rdma_addrinfo **);
NEWER(int, write_event, "rdma_write_cm_event", struct rdma_cm_id *, int, int, uint64_t);

NEWER(int, set_create, "repoll_create", int);
NEWER(int, set_change, "repoll_ctl", int, int, int, struct epoll_event *);
NEWER(int, set_wait, "repoll_wait", int, struct epoll_event *, int, int);

#define NAME_RESOLVED ((enum rdma_cm_event_type)16)
#define NAME_ERROR ((enum rdma_cm_event_type)17)
#define USER_EVENT ((enum rdma_cm_event_type)18)
#define RAI_BY_SA 0x10
#define RAI_BY_DNS 0x20

#endif
