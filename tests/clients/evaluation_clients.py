"""Evaluation clients from PyPI against the cluster of `./dev check clients`: lm-eval.

It gets the shipped model's tokenizer from its directory and tasks that stand here, so nothing comes from a
hub of models or data sets. Load clients that need torch (guidellm, sglang's bench_serving) are not here.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

import registries  # noqa: E402
from client_run import KEY, MODEL, run  # noqa: E402

TOKENIZER = ROOT / "models" / "austen"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": KEY}
CHOICES = [("It is a truth universally", [" acknowledged", " refrigerator"], 0),
           ("Mr. Darcy danced only once with Mrs.", [" telescope", " Hurst"], 1),
           ("I am the happiest creature in the", [" world", " of"], 0),
           ("She had been the friend and companion of Miss", [" quickly", " Bingley"], 1)]
# What every task has: its rows are a file.
TASK = {"dataset_path": "json", "test_split": "test"}
TASKS = {
    "baton_choice": {"output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_choice": "{{choices}}",
                     "doc_to_target": "{{answer}}", "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
    "baton_rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{page}}",
                      "metric_list": [{"metric": "word_perplexity"}]},
    "baton_generate": {"output_type": "generate_until", "doc_to_text": "{{text}}", "doc_to_target": "{{text}}",
                       "generation_kwargs": {"until": ["."], "max_gen_toks": 24, "temperature": 0},
                       "metric_list": [{"metric": "exact_match"}]},
}


def lm_eval(tally, cluster, directory):
    """Choices by log-likelihood (echo and logprobs), perplexity of a page, and greedy text until a stop."""
    python = registries.venv(directory / "venv", "lm_eval[api]", "transformers")
    page = (TOKENIZER / "demo_prompt.txt").read_text(encoding="utf-8")[:4000]
    rows = [{"text": text, "choices": choices, "answer": answer, "page": page} for text, choices, answer in CHOICES]
    data = directory / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (directory / "tasks").mkdir()
    for name, task in TASKS.items():
        # JSON is YAML.
        text = json.dumps({"task": name, **TASK, "dataset_kwargs": {"data_files": {"test": str(data)}}, **task})
        (directory / "tasks" / f"{name}.yaml").write_text(text, encoding="utf-8")
    arguments = (f"model={MODEL},base_url={cluster.url}/v1/completions,tokenizer={TOKENIZER},num_concurrent=2,"
                 "max_length=2048,tokenized_requests=True")
    done = run([python, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments,
                "--include_path", directory / "tasks", "--tasks", ",".join(TASKS), "--output_path", directory / "out"],
               timeout=900, cwd=directory, environment={**OFFLINE, "HF_HOME": str(directory / "hf")})
    tally.step("lm-eval: it ends well", done.returncode == 0)
    if done.returncode == 0:
        [report] = (directory / "out").rglob("results_*.json")
        results = json.loads(report.read_text(encoding="utf-8"))["results"]
        tally.step("lm-eval: the model that has read Austen chooses what she wrote",
                   results["baton_choice"]["acc,none"] == 1)
        perplexity = results["baton_rolling"]["word_perplexity,none"]
        tally.step(f"lm-eval: the perplexity of a page ({perplexity:.0f} a word) is that of text",
                   1 < perplexity < 20_000)


CLIENTS = {"lm-eval": lm_eval}
