"""The command line keeps memory that was freed."""

import platform
import subprocess
import sys

import pytest

KEPT = """
import resource, numpy
from vitrail.cli import keep_freed_memory
if {asked}: keep_freed_memory()
numpy.ones(2**24)  # 128 MB
with open("/proc/self/statm") as file:
    print(int(file.read().split()[1]) * resource.getpagesize() / 2**20)
"""


def resident(asked: bool) -> float:
    """The process's memory in MB once an array of 128 MB was freed."""
    code = KEPT.format(asked=asked)
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's")
def test_freed_memory_is_kept() -> None:
    assert resident(asked=True) - resident(asked=False) > 100
