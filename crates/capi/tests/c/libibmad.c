/* The distribution's libibmad on our libibumad: performance management by GID, which is all that a RoCE port has. */
#include "bench.h"
#include <infiniband/mad.h>
#include <infiniband/umad.h>

static const uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

int main(void)
{
	int performance[] = {IB_PERFORMANCE_CLASS}, subnet[] = {IB_SMI_CLASS, IB_SA_CLASS};
	char device[] = "ubi_lo";
	struct ibmad_port *port;
	ib_portid_t target = {.grh_present = 1};
	uint8_t data[IB_MAD_SIZE];
	uint32_t before, after;

	/* No RoCE port has queue pair 0. */
	CHECK(!mad_rpc_open_port(device, 1, subnet, 2));
	NEED((port = mad_rpc_open_port(device, 1, performance, 1)));
	memcpy(target.gid, loopback, 16);
	memset(data, 0, sizeof data);
	CHECK(pma_query_via(data, &target, 1, 5000, CLASS_PORT_INFO, port));
	CHECK(data[0] == 1 && data[1] == 1 && data[2] == 3);
	memset(data, 0, sizeof data);
	NEED(pma_query_via(data, &target, 1, 5000, IB_GSI_PORT_COUNTERS, port));
	mad_decode_field(data, IB_PC_XMT_PKTS_F, &before);
	memset(data, 0, sizeof data);
	NEED(pma_query_via(data, &target, 1, 5000, IB_GSI_PORT_COUNTERS, port));
	mad_decode_field(data, IB_PC_XMT_PKTS_F, &after);
	CHECK(after > before && before > 0);
	/* Another port, and a reset: the answer is an error. */
	memset(data, 0, sizeof data);
	CHECK(!pma_query_via(data, &target, 2, 5000, IB_GSI_PORT_COUNTERS, port));
	CHECK(!performance_reset_via(data, &target, 1, 0xffff, 5000, IB_GSI_PORT_COUNTERS, port));
	/* A server: any class that a program names. */
	CHECK(mad_register_server_via(IB_VENDOR_OPENIB_PING_CLASS, 0, NULL, IB_OPENIB_OUI, port) >= 0);
	mad_rpc_close_port(port);
	return failures != 0;
}
