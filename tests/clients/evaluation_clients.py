"""Evaluation clients from PyPI against the cluster of `./dev check clients`: lm-eval.

It gets the shipped model's tokenizer from its directory and tasks that stand here, so nothing comes from a
hub of models or data sets. Load clients that need torch (guidellm, sglang's bench_serving) are not here.
"""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

import registries  # noqa: E402

TOKENIZER = ROOT / "models" / "austen"
KEY, MODEL = "a-key", "tiny"  # As clients.py serves it.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "NO_PROXY": "127.0.0.1",
           "OPENAI_API_KEY": KEY}


def run(command, directory, **environment):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900, cwd=directory,
                          env={**os.environ, **OFFLINE, "HF_HOME": str(directory / "hf"), **environment})
    if done.returncode != 0:
        print("\n".join((done.stdout + done.stderr).splitlines()[-25:]))
    return done


CHOICES = [("It is a truth universally", [" acknowledged", " refrigerator"], 0),
           ("Mr. Darcy danced only once with Mrs.", [" telescope", " Hurst"], 1),
           ("I am the happiest creature in the", [" world", " of"], 0),
           ("She had been the friend and companion of Miss", [" quickly", " Bingley"], 1)]
CHOICE_TASK = """task: baton_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
ROLLING_TASK = """task: baton_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{page}}}}"
metric_list: [{{metric: word_perplexity}}]
"""
GENERATE_TASK = """task: baton_generate
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{text}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 24, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


def lm_eval(tally, cluster, directory):
    """Choices by log-likelihood (echo and logprobs), perplexity of a page, and greedy text until a stop."""
    python = registries.venv(directory / "venv", "lm_eval[api]", "transformers")
    page = (TOKENIZER / "demo_prompt.txt").read_text(encoding="utf-8")[:4000]
    rows = [{"text": text, "choices": choices, "answer": answer, "page": page} for text, choices, answer in CHOICES]
    data = directory / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tasks = {"baton_choice": CHOICE_TASK, "baton_rolling": ROLLING_TASK, "baton_generate": GENERATE_TASK}
    (directory / "tasks").mkdir()
    for name, text in tasks.items():
        (directory / "tasks" / f"{name}.yaml").write_text(text.format(data=data), encoding="utf-8")
    arguments = (f"model={MODEL},base_url={cluster.url}/v1/completions,tokenizer={TOKENIZER},num_concurrent=2,"
                 "max_length=2048,tokenized_requests=True")
    done = run([python, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments,
                "--include_path", directory / "tasks", "--tasks", ",".join(tasks), "--output_path", directory / "out"],
               directory)
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
