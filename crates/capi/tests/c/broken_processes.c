/* Processes that do not stand still while a failure script breaks what they have: one forks, and parent and child use devices; one
 * closes its device and opens it again; one becomes another program. Nobody hangs, and all ports are up at the end. */
#include "connection.h"
#include <sys/wait.h>

static const char script[] =
	"[[failure]]\ncall = 'ibv_query_device'\nfor = '200ms'\ndo = 'port-down'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nnth = 2\nfor = '200ms'\ndo = 'device-remove'\n"
	"[[failure]]\ncall = 'ibv_query_device'\nfor = '200ms'\ndo = 'loss'\nchance = 1.0\n";

static struct ibv_context *opened(void)
{
	time_t end = time(NULL) + 60;

	/* A device that was removed is not listed before it is back. */
	for (;;) {
		struct ibv_device **list = ibv_get_device_list(NULL);
		struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;

		ibv_free_device_list(list);
		if (context)
			return context;
		NEED(time(NULL) < end);
		usleep(1000);
	}
}

static void wait_until_up(struct ibv_context *context)
{
	struct ibv_port_attr port = {.state = IBV_PORT_NOP};
	time_t end = time(NULL) + 60;

	while (port.state != IBV_PORT_ACTIVE) {
		NEED(!ibv_query_port(context, 1, &port) && time(NULL) < end);
		usleep(1000);
	}
}

static void break_port(struct ibv_context *context)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;

	CHECK(!ibv_query_device(context, &attr));
	CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_DOWN);
}

/* What a child has of its parent's device answers EIO; it has a NIC of its own, and so has its script. */
static void forks(struct ibv_context *parents)
{
	struct ibv_port_attr port;
	int status = 1;
	pid_t child = fork();

	NEED(child >= 0);
	if (!child) {
		CHECK(ibv_query_port(parents, 1, &port) == EIO);
		struct ibv_context *context = opened();

		CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
		break_port(context);
		wait_until_up(context);
		_exit(failures != 0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **arguments)
{
	char path[] = "/tmp/ubiverbs-script-XXXXXX";
	struct ibv_device_attr attr;
	struct ibv_context *context;

	if (count > 1) {
		/* What was another program before: its script begins anew. */
		context = opened();
		wait_until_up(context);
		break_port(context);
		/* Ends in the middle of it. */
		unlink(getenv("UBIVERBS_SCRIPT"));
		return failures != 0;
	}
	int file = mkstemp(path);

	NEED(file >= 0 && write(file, script, strlen(script)) == (ssize_t)strlen(script) && !close(file));
	/* Twice the same script: each breaks the port, and it is up when both have ended. */
	char both[2 * sizeof path + 1];

	snprintf(both, sizeof both, "%s:%s", path, path);
	NEED(!setenv("UBIVERBS_NICS", "1", 1) && !setenv("UBIVERBS_SCRIPT", both, 1));
	context = opened();
	break_port(context);
	forks(context);
	/* In the middle of a failure. */
	CHECK(!ibv_close_device(context));
	context = opened();
	wait_until_up(context);
	/* The device goes as the call begins. */
	CHECK(ibv_query_device(context, &attr) == EIO);
	CHECK(!ibv_close_device(context));
	context = opened();
	wait_until_up(context);
	CHECK(!ibv_close_device(context));
	NEED(!failures && !setenv("UBIVERBS_SCRIPT", path, 1));
	execl("/proc/self/exe", arguments[0], "again", NULL);
	NEED(0);
}
