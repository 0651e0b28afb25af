"""Agents' frameworks from PyPI against the cluster of `./dev check clients` (agent_loops.py)."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

import registries  # noqa: E402
from client_run import KEY, run  # noqa: E402

PACKAGES = ("openai", "langchain-openai", "litellm", "pydantic-ai-slim[openai]", "openai-agents")
FRAMEWORKS = ("openai_client", "langchain", "lite_llm", "pydantic_ai", "openai_agents")


def agents(tally, cluster, directory):
    """Tools offered, calls and results told, streams, and what frameworks add of their own."""
    python = registries.venv(directory / "venv", *PACKAGES)
    done = run([python, ROOT / "tests/clients/agent_loops.py", cluster.url + "/v1", KEY],
               environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
    for name in FRAMEWORKS:
        tally.step(f"agents: {name}", f"{name} agrees" in done.stdout)


CLIENTS = {"agents": agents}
