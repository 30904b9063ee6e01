/* Which memory can be registered: any the process can reach. A message goes out of each kind and comes into each kind that
 * can be written; none of them is aligned to a page.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>
#include "ends.h"

enum { LENGTH = 100 };

static char global[LENGTH + 1];
static char inbox[LENGTH];

static void try(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_qp *qps[2], const char *kind, void *at, int writable)
{
	static struct ibv_mr *inbox_mr;
	struct ibv_mr *mr = ibv_reg_mr(pd, at, LENGTH, writable ? IBV_ACCESS_LOCAL_WRITE : 0);

	NEED(mr);
	if (!inbox_mr)
		NEED(inbox_mr = ibv_reg_mr(pd, inbox, LENGTH, IBV_ACCESS_LOCAL_WRITE));
	NEED(mr->lkey != inbox_mr->lkey && mr->length == LENGTH);
	if (writable)
		memset(at, kind[0], LENGTH);

	/* Out of it... */
	NEED(post_receive(qps[1], 1, inbox, LENGTH, inbox_mr->lkey) == 0);
	NEED(post_send(qps[0], 2, at, LENGTH, mr->lkey) == 0);
	NEED(next_completion(cq).status == IBV_WC_SUCCESS && next_completion(cq).status == IBV_WC_SUCCESS);
	NEED(memcmp(inbox, at, LENGTH) == 0);
	/* ...and into it. */
	if (writable) {
		memset(inbox, 'x', LENGTH);
		NEED(post_receive(qps[1], 1, at, LENGTH, mr->lkey) == 0);
		NEED(post_send(qps[0], 2, inbox, LENGTH, inbox_mr->lkey) == 0);
		NEED(next_completion(cq).status == IBV_WC_SUCCESS && next_completion(cq).status == IBV_WC_SUCCESS);
		NEED(((char *)at)[LENGTH - 1] == 'x');
	}
	printf("%-32s lkey %#010x, rkey %#010x: sent from%s\n", kind, mr->lkey, mr->rkey, writable ? ", received into" : "");
	NEED(ibv_dereg_mr(mr) == 0);
}

int main(void)
{
	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	char local[LENGTH + 1];

	NEED(pd && cq);
	struct ibv_qp *qps[2] = {create_qp(pd, cq, IBV_QPT_RC), create_qp(pd, cq, IBV_QPT_RC)};

	join(qps[0], qps[1]);
	char *heap = malloc(LENGTH + 1), *mapped, *shared;
	mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = memfd_create("shared", 0);
	NEED(heap && mapped != MAP_FAILED && fd >= 0 && ftruncate(fd, 4096) == 0);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(shared != MAP_FAILED);

	try(pd, cq, qps, "local variable, on the stack", local + 1, 1);
	try(pd, cq, qps, "global variable", global + 1, 1);
	try(pd, cq, qps, "malloc", heap + 1, 1);
	try(pd, cq, qps, "mmap", mapped + 1, 1);
	try(pd, cq, qps, "shared memory", shared + 1, 1);
	/* Code can be read: registered without IBV_ACCESS_LOCAL_WRITE. */
	try(pd, cq, qps, "text segment: the code of main", (void *)(uintptr_t)main, 0);
	NEED(!ibv_reg_mr(pd, (void *)(uintptr_t)main, LENGTH, IBV_ACCESS_LOCAL_WRITE));
	printf("text segment, to be written: refused\n");
	return 0;
}
