/* Runs a program under a filter that refuses system calls, as sandboxes and containers do:
 * deny ERRNO CALL,CALL PROGRAM ...
 * The call "ipv6" is every socket of that family. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
	const char *name;
	unsigned number;
} calls[] = {
	{"ipv6", SYS_socket},
	{"epoll_pwait2", SYS_epoll_pwait2},
	{"eventfd2", SYS_eventfd2},
	{"membarrier", SYS_membarrier},
	{"memfd_create", SYS_memfd_create},
	{"mincore", SYS_mincore},
	{"pidfd_open", SYS_pidfd_open},
	{"process_vm_readv", SYS_process_vm_readv},
	{"process_vm_writev", SYS_process_vm_writev},
	{"recvmmsg", SYS_recvmmsg},
	{"sendmmsg", SYS_sendmmsg},
};

int main(int count, char **arguments)
{
	const size_t known = sizeof calls / sizeof *calls;
	struct sock_filter code[2 * (sizeof calls / sizeof *calls) + 5] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	unsigned short length = 1;

	if (count < 4)
		return 2;
	for (char *name = strtok(arguments[2], ","); name; name = strtok(NULL, ",")) {
		size_t i = 0;

		while (i < known && strcmp(calls[i].name, name))
			i++;
		if (i == known || length + 6 > (int)(sizeof code / sizeof *code)) {
			fprintf(stderr, "deny: %s is not in the table\n", name);
			return 2;
		}
		int family = calls[i].number == SYS_socket;

		/* What is looked at then is the first argument: the answer follows at once. */
		code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, family ? 4 : 1);
		if (family) {
			unsigned first = offsetof(struct seccomp_data, args[0]);

			code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, first);
			code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 1, 0);
			code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
		}
		code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)atoi(arguments[1]));
	}
	code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {length, code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("deny: no filter");
		return 2;
	}
	execvp(arguments[3], arguments + 3);
	perror(arguments[3]);
	return 127;
}
