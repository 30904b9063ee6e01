// Work requests built call by call (`ibv_wr_*`), from C++: objects that clean up after themselves, a completion channel, atomics, and a memory window that
// is opened and shut.
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace {

template <typename T, int (*destroy)(T *)> struct Destroy {
	void operator()(T *object) const
	{
		if (int error = destroy(object))
			std::cerr << "an object cannot be destroyed: " << std::strerror(error) << '\n';
	}
};

using Context = std::unique_ptr<ibv_context, Destroy<ibv_context, ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Destroy<ibv_pd, ibv_dealloc_pd>>;
using Region = std::unique_ptr<ibv_mr, Destroy<ibv_mr, ibv_dereg_mr>>;
using Channel = std::unique_ptr<ibv_comp_channel, Destroy<ibv_comp_channel, ibv_destroy_comp_channel>>;
using Queue = std::unique_ptr<ibv_cq, Destroy<ibv_cq, ibv_destroy_cq>>;
using Pair = std::unique_ptr<ibv_qp, Destroy<ibv_qp, ibv_destroy_qp>>;
using Window = std::unique_ptr<ibv_mw, Destroy<ibv_mw, ibv_dealloc_mw>>;

template <typename P> P made(typename P::pointer object, const char *what)
{
	if (!object)
		throw std::system_error(errno, std::generic_category(), what);
	return P(object);
}

void succeed(int error, const char *what)
{
	if (error)
		throw std::system_error(error, std::generic_category(), what);
}

void need(bool condition, const char *what)
{
	if (!condition)
		throw std::runtime_error(what);
}

Context open(const std::string &name)
{
	int count = 0;
	ibv_device **list = ibv_get_device_list(&count);
	Context context;
	for (int i = 0; i < count; i++)
		if (name == ibv_get_device_name(list[i]))
			context.reset(ibv_open_device(list[i]));
	ibv_free_device_list(list);
	need(context != nullptr, "no such device");
	return context;
}

Pair create(ibv_context *context, ibv_pd *pd, ibv_cq *cq)
{
	ibv_qp_init_attr_ex attr{};
	attr.send_cq = attr.recv_cq = cq;
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 128;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 2;
	attr.cap.max_inline_data = 64;
	attr.qp_type = IBV_QPT_RC;
	attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.pd = pd;
	attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			      IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_IMM;
	return made<Pair>(ibv_create_qp_ex(context, &attr), "ibv_create_qp_ex");
}

void connect(ibv_qp *qp, std::uint32_t peer, const ibv_gid &gid)
{
	ibv_qp_attr attr{};
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	succeed(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr = {};
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 8;
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 64;
	succeed(ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
		"RTR");
	attr = {};
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.max_rd_atomic = 8;
	succeed(ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				      IBV_QP_MAX_QP_RD_ATOMIC),
		"RTS");
}

// Sleeps until there is a completion.
ibv_wc next(ibv_comp_channel *channel, ibv_cq *cq)
{
	for (;;) {
		ibv_wc wc{};
		if (int count = ibv_poll_cq(cq, 1, &wc)) {
			need(count == 1, "ibv_poll_cq");
			return wc;
		}
		succeed(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
		// What came before the queue was armed rings no bell.
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			return wc;
		ibv_cq *of = nullptr;
		void *cookie = nullptr;
		need(ibv_get_cq_event(channel, &of, &cookie) == 0 && of == cq, "ibv_get_cq_event");
		ibv_ack_cq_events(of, 1);
	}
}

} // namespace

int main(int argc, char **argv)
try {
	need(argc == 2, "usage: work_requests DEVICE");
	Context context = open(argv[1]);
	ibv_gid gid{};
	succeed(ibv_query_gid(context.get(), 1, 0, &gid), "ibv_query_gid");
	Domain pd = made<Domain>(ibv_alloc_pd(context.get()), "ibv_alloc_pd");
	Channel channel = made<Channel>(ibv_create_comp_channel(context.get()), "ibv_create_comp_channel");
	Queue cq = made<Queue>(ibv_create_cq(context.get(), 256, nullptr, channel.get(), 0), "ibv_create_cq");
	std::vector<unsigned char> source(10000), target(10000);
	alignas(8) std::uint64_t counter[2] = {};
	auto region = [&](void *address, std::size_t length, int access) {
		return made<Region>(ibv_reg_mr(pd.get(), address, length, access), "ibv_reg_mr");
	};
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	Region from = region(source.data(), source.size(), all);
	Region to = region(target.data(), target.size(), all | IBV_ACCESS_MW_BIND);
	Region count = region(counter, sizeof counter, all);
	Pair one = create(context.get(), pd.get(), cq.get()), other = create(context.get(), pd.get(), cq.get());
	connect(one.get(), other->qp_num, gid);
	connect(other.get(), one->qp_num, gid);
	ibv_qp_ex *work = ibv_qp_to_qp_ex(one.get());
	need(work != nullptr, "ibv_qp_to_qp_ex");
	auto address = [](const void *pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
	auto complete = [&](std::uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS) {
		ibv_wc wc = next(channel.get(), cq.get());
		if (wc.wr_id != wr_id || wc.status != status)
			throw std::runtime_error("work request " + std::to_string(wc.wr_id) + ": " + ibv_wc_status_str(wc.status));
	};

	// A WRITE from two pieces, and a READ of it, in one go.
	std::iota(source.begin(), source.end(), static_cast<unsigned char>(1));
	const std::vector<unsigned char> sent = source;
	ibv_sge pieces[] = { { address(source.data()), 3333, from->lkey }, { address(source.data()) + 3333, 6667, from->lkey } };
	ibv_wr_start(work);
	work->wr_id = 1;
	work->wr_flags = 0;
	ibv_wr_rdma_write(work, to->rkey, address(target.data()));
	ibv_wr_set_sge_list(work, 2, pieces);
	work->wr_id = 2;
	work->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	ibv_wr_rdma_read(work, to->rkey, address(target.data()));
	ibv_wr_set_sge(work, from->lkey, address(source.data()), 10000);
	succeed(ibv_wr_complete(work), "ibv_wr_complete");
	complete(2);
	need(target == sent && source == sent, "the bytes are not those that were written");
	std::cout << "read back what was written\n";

	// A hundred additions, of which the last is told.
	ibv_wr_start(work);
	for (int i = 0; i < 100; i++) {
		work->wr_id = 100 + i;
		work->wr_flags = i == 99 ? IBV_SEND_SIGNALED : 0;
		ibv_wr_atomic_fetch_add(work, count->rkey, address(&counter[0]), 1);
		ibv_wr_set_sge(work, count->lkey, address(&counter[1]), 8);
	}
	succeed(ibv_wr_complete(work), "ibv_wr_complete");
	complete(199);
	need(counter[0] == 100 && counter[1] == 99, "the additions do not add up");
	std::cout << "counted to 100\n";

	// A window of one queue pair, through which the other writes; then not any more.
	Window window = made<Window>(ibv_alloc_mw(pd.get(), IBV_MW_TYPE_2), "ibv_alloc_mw");
	ibv_qp_ex *owner = ibv_qp_to_qp_ex(other.get());
	ibv_mw_bind_info info{};
	info.mr = to.get();
	info.addr = address(target.data());
	info.length = 16;
	info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	const std::uint32_t key = ibv_inc_rkey(window->rkey);
	ibv_wr_start(owner);
	owner->wr_id = 3;
	owner->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(owner, window.get(), key, &info);
	succeed(ibv_wr_complete(owner), "ibv_wr_complete");
	complete(3);
	auto write = [&](std::uint64_t wr_id) {
		ibv_wr_start(work);
		work->wr_id = wr_id;
		work->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(work, key, address(target.data()));
		char text[] = "through a window";
		ibv_wr_set_inline_data(work, text, 16);
		succeed(ibv_wr_complete(work), "ibv_wr_complete");
	};
	write(4);
	complete(4);
	need(std::memcmp(target.data(), "through a window", 16) == 0, "nothing came through the window");
	ibv_wr_start(owner);
	owner->wr_id = 5;
	owner->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_local_inv(owner, key);
	succeed(ibv_wr_complete(owner), "ibv_wr_complete");
	complete(5);
	write(6);
	complete(6, IBV_WC_REM_ACCESS_ERR);
	std::cout << "the window is shut\n";
	return 0;
} catch (const std::exception &error) {
	std::cerr << error.what() << '\n';
	return 1;
}
