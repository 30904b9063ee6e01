/* Ends the program, with the reason, when something that must work does not. */
#ifndef NEED_H
#define NEED_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(what)                                                                                                      \
	do {                                                                                                            \
		if (!(what)) {                                                                                          \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));                \
			exit(1);                                                                                        \
		}                                                                                                       \
	} while (0)

#endif
