"""GPUs dealt out to processes and planned for, where there are none: a driver's library is played, CUDA is not."""

import http.client
import os
import re
import subprocess
import time
import urllib.request

import pytest

import cluster as clusters

TORCH = ["--executor", "torch", "--device", "cuda"]
# The part of NVML that Baton asks. MIB_FREE has the free memory of each GPU; all have 80,000 MiB.
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
  memory->total = 80000ull << 20;
  memory->used = memory->total - memory->free;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *percent) {
  percent[0] = 25;
  percent[1] = 50;
  return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    (folder / "nvml.c").write_text(DRIVER, encoding="ascii")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"], check=True)
    return folder


def environment_of(driver, mib_free, visible=None):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "MIB_FREE": ",".join(map(str, mib_free))}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    return environment


def run(driver, mib_free, *arguments, visible=None):
    return subprocess.run([clusters.BATON, *map(str, arguments)], env=environment_of(driver, mib_free, visible),
                          capture_output=True, text=True, check=False, timeout=120)


def scrape_while_it_starts(driver, mib_free, model, device, visible=None):
    """The last metrics of a worker before it finds that its libtorch has no CUDA, which it loads for most of a second.

    {name: value} of those with a device, and how many scrapes there were."""
    port = clusters.free_ports(1)[0]
    arguments = ["worker", "--model-path", model, "--disaggregation-mode", "decode", "--router-address", "127.0.0.1:1",
                 "--metrics-port", port, "--executor", "torch", "--device", device]
    found, scrapes = {}, 0
    with subprocess.Popen([clusters.BATON, *map(str, arguments)], env=environment_of(driver, mib_free, visible),
                          stderr=subprocess.DEVNULL) as worker:
        while worker.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except (OSError, http.client.HTTPException):
                time.sleep(0.002)
                continue
            scrapes += 1
            found = dict(re.findall(rf'^baton_device_(\w+){{.*device="{device}".*}} (\S+)$', text, re.M)) or found
    return {name: float(value) for name, value in found.items()}, scrapes


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


def test_a_workers_metrics_have_what_its_gpus_driver_says(tiny_model, driver):
    for _ in range(5):  # On a busy machine it may end before it is asked.
        found, _ = scrape_while_it_starts(driver, [10000, 20000, 30000], tiny_model, "cuda:1", visible="0,2")
        if found:
            break
    assert found == {"memory_used_bytes": 50000 << 20, "memory_total_bytes": 80000 << 20, "utilization_ratio": 0.25}


def test_without_a_driver_there_are_no_such_metrics(tiny_model, tmp_path):
    found, scrapes = scrape_while_it_starts(tmp_path, [], tiny_model, "cuda:0")
    assert found == {} and scrapes > 0


def test_every_process_of_up_is_told_its_own(tiny_model, driver):
    """A libtorch without CUDA names the device that it was to open."""
    result = run(driver, [40000, 40000, 40000], "up", "--model-path", tiny_model, *TORCH, "--port", 0, "--grpc-port", 0,
                 "--cluster-port", 0, "--base-gpu-id", 1)
    assert result.returncode != 0
    assert "asked for device cuda:1" in result.stdout + result.stderr \
        or "asked for device cuda:2" in result.stdout + result.stderr, result.stdout + result.stderr
