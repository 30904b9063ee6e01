"""Runs rdma-core's test suite: the program that it comes with, and its arguments.

Python from 3.14 on starts processes by other means than fork, unless it is told to; the suite relies on fork.
"""

import multiprocessing
import runpy
import sys

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    del sys.argv[0]
    sys.path.insert(0, sys.argv[0].rpartition("/")[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
