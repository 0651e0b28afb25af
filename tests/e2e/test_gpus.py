"""GPUs dealt out to processes and planned for, where there are none: a driver's library is played, CUDA is not."""

import os
import subprocess

import pytest

import cluster as clusters

TORCH = ["--executor", "torch", "--device", "cuda"]
# The part of NVML that Baton asks. MIB_FREE has the free memory of each GPU.
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct memory { unsigned long long total, free, used; };

static int find(unsigned index, unsigned long long *free) {
  const char *text = getenv("MIB_FREE");
  for (; index > 0 && text; --index) text = (text = strchr(text, ',')) ? text + 1 : NULL;
  return text && *text && sscanf(text, "%llu", free) == 1;
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
  unsigned long long free;
  for (*count = 0; find(*count, &free); ++*count) {}
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(size_t)(index + 1);
  return 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned bytes) {
  snprintf(uuid, bytes, "GPU-%zu", (size_t)device - 1);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
  memset(memory, 0, sizeof(*memory));
  if (!find((unsigned)(size_t)device - 1, &memory->free)) return 1;
  memory->free <<= 20;
  return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    (folder / "nvml.c").write_text(DRIVER, encoding="ascii")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"], check=True)
    return folder


def run(driver, mib_free, *arguments, visible=None):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "MIB_FREE": ",".join(map(str, mib_free))}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    return subprocess.run([clusters.BATON, *map(str, arguments)], env=environment, capture_output=True, text=True,
                          check=False, timeout=120)


def gpu_lines(text):
    return [line.split() for line in text.splitlines() if line.startswith("cuda:")]


def test_validate_deals_gpus_out_and_plans_their_memory(tiny_model, driver):
    result = run(driver, [10000, 20000, 30000, 40000], "validate", "--model-path", tiny_model, *TORCH, "--pp-size", 2,
                 "--base-gpu-id", 1)
    assert result.returncode == 0, result.stdout
    lines = gpu_lines(result.stdout)
    assert [line[0] for line in lines] == ["cuda:1", "cuda:2", "cuda:3"], result.stdout
    assert [line[7] for line in lines] == ["20000.0", "30000.0", "40000.0"], result.stdout


def test_the_visible_ones_are_numbered_anew(tiny_model, driver):
    result = run(driver, [10000, 20000, 30000, 40000], "validate", "--model-path", tiny_model, *TORCH,
                 visible="3,GPU-1")
    assert [line[7] for line in gpu_lines(result.stdout)] == ["40000.0", "20000.0"], result.stdout


@pytest.mark.parametrize("command", [["validate"], ["up", "--port", 0, "--grpc-port", 0, "--cluster-port", 0]],
                         ids=["validate", "up"])
def test_too_few_are_refused_with_the_numbers(tiny_model, driver, command):
    result = run(driver, [1000, 1000, 1000], *command, "--model-path", tiny_model, *TORCH, "--pp-size", 3,
                 visible="0,2")
    assert result.returncode != 0
    assert "which gives 4 workers GPUs 0 to 3; CUDA_VISIBLE_DEVICES=0,2 has 2 GPUs" in result.stdout + result.stderr


def test_the_fraction_is_of_the_gpus_memory(tiny_model, driver):
    flags = ["--model-path", tiny_model, *TORCH, "--mem-fraction-static", 0.5]
    here = run(driver, [10000, 20000], "validate", *flags)
    said = run(driver, [], "validate", *flags, "--device-memory", 1000, "--memory-check", "warn")
    assert here.returncode == 0, here.stdout
    for line in gpu_lines(here.stdout):
        assert float(line[2]) + float(line[3]) <= 5000, here.stdout
    assert "this machine has no GPUs" in said.stdout, said.stdout


def test_gpus_that_are_not_here_are_planned_by_what_is_said(tiny_model, tmp_path):
    flags = ["validate", "--model-path", tiny_model, *TORCH, "--mem-fraction-static", 0.5]
    said = run(tmp_path, [], *flags, "--device-memory", 20000)  # No driver's library there.
    assert said.returncode == 0, said.stdout
    assert [line[7] for line in gpu_lines(said.stdout)] == ["20000.0", "20000.0"], said.stdout
    unsaid = run(tmp_path, [], *flags)
    assert unsaid.returncode != 0 and "--device-memory says it" in unsaid.stdout, unsaid.stdout


def test_every_process_of_up_is_told_its_own(tiny_model, driver):
    """A libtorch without CUDA names the device that it was to open."""
    result = run(driver, [40000, 40000, 40000], "up", "--model-path", tiny_model, *TORCH, "--port", 0, "--grpc-port", 0,
                 "--cluster-port", 0, "--base-gpu-id", 1)
    assert result.returncode != 0
    assert "asked for device cuda:1" in result.stdout + result.stderr \
        or "asked for device cuda:2" in result.stdout + result.stderr, result.stdout + result.stderr
