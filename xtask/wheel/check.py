"""Checks an installed wheel from inside its environment: `python check.py`. `cargo xtask wheel` calls it."""

import ctypes
import os
import subprocess

import ubiverbs

here = ubiverbs.library_directory()

# Programs that are started.
found = ubiverbs.environment({"LD_LIBRARY_PATH": "/x", "LD_PRELOAD": "liba.so /old/libibverbs.so.1"})
assert found["LD_LIBRARY_PATH"] == f"{here}:/x", found
assert found["LD_PRELOAD"] == f"liba.so:{here}/libibverbs.so.1:{here}/librdmacm.so.1", found
text = subprocess.run(["ibv_devices"], env=ubiverbs.environment(), check=True, capture_output=True, text=True).stdout
assert "ubi_lo" in text, text

# The program, and `python -m ubiverbs`.
for command in ([ubiverbs.program()], ["python", "-m", "ubiverbs"]):
    text = subprocess.run(command + ["--version"], check=True, capture_output=True, text=True).stdout
    assert text.split()[-1] == ubiverbs.__version__, text
# What it starts finds the signals as usual: `yes` ends when its reader does, and says nothing.
ended = subprocess.run("ubiverbs run -- yes | head -1", shell=True, check=True, capture_output=True, text=True)
assert ended.stdout == "y\n" and not ended.stderr, ended

# This process. Names without a number lead to the same libraries.
ubiverbs.load()
ubiverbs.load()
verbs = ctypes.CDLL("libibverbs.so.1")
count = ctypes.c_int()
verbs.ibv_get_device_list.restype = ctypes.c_void_p
assert verbs.ibv_get_device_list(ctypes.byref(count)) and count.value > 0, count
plain = ctypes.CDLL(os.path.join(here, "libibverbs.so"))
address = lambda library: ctypes.cast(library.ibv_get_device_list, ctypes.c_void_p).value
assert address(plain) == address(verbs), "libibverbs.so is another library than libibverbs.so.1"
print("the module works: environment, load, program")
