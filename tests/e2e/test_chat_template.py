"""A router renders conversations by the model's own chat template, wherever it stands; /tokenize shows the prompt."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest

import cluster as clusters

PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
QUESTION = {"role": "user", "content": "What is two and two?"}
HISTORY = [QUESTION, {"role": "assistant", "content": "<think>\nsum\n</think>\n\nFour."},
           {"role": "user", "content": "And three?"}]


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def model_with(tiny_model, directory, files):
    """A copy of the model with these files; values that are no strings are JSON."""
    copy = pathlib.Path(directory) / "model"
    shutil.copytree(tiny_model, copy)
    for name, content in files.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return copy


def baton(command, model):
    return subprocess.run([clusters.BATON, command, "--model-path", model], capture_output=True, text=True,
                          check=False, timeout=60)


class Router:
    """A router alone; prompts are made without workers."""

    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}"

    def post(self, path, body):
        request = urllib.request.Request(self.base + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def text(self, **body):
        status, answer = self.post("/tokenize", body)
        assert status == 200, answer
        return self.post("/detokenize", {"tokens": answer["tokens"], "skip_special_tokens": False})[1]["text"]

    def tokens(self, **body):
        status, answer = self.post("/tokenize", body)
        assert status == 200, answer
        return answer["tokens"]

    def refusal(self, **body):
        status, answer = self.post("/v1/chat/completions", body)
        assert status == 400, answer
        return answer["error"]["message"]


@contextlib.contextmanager
def router(model, log_dir, *flags):
    port, grpc_port = clusters.free_ports(2)
    process = clusters.Process("router", ["router", "--model-path", model, "--port", port, "--grpc-port", grpc_port,
                                          *flags], log_dir, dict(os.environ))
    process.start()

    def answers():
        assert process.alive(), process.log()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as got:
            return got.status == 200
        return False
    try:
        clusters.wait_until(answers, 60, "the router")
        yield Router(port)
    finally:
        process.stop()


@pytest.mark.parametrize("name, jinja, messages, text", [
    ("plain", PLAIN + OPEN, [QUESTION], turn("user", QUESTION["content"]) + "<|im_start|>assistant\n"),
    ("own system prompt", "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Ada.<|im_end|>\n{% endif %}"
     + PLAIN + OPEN,
     [QUESTION], turn("system", "You are Ada.") + turn("user", QUESTION["content"]) + "<|im_start|>assistant\n"),
    ("history without thinking", PLAIN.replace(
        "{{ m.content }}", "{% if m.role == 'assistant' and not loop.last %}"
                           "{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
                           "{% else %}{{ m.content }}{% endif %}") + OPEN,
     HISTORY, turn("user", QUESTION["content"]) + turn("assistant", "Four.") + turn("user", "And three?")
     + "<|im_start|>assistant\n"),
    ("opens thinking", PLAIN + OPEN.replace("assistant\n", "assistant\n<think>\n"), [QUESTION],
     turn("user", QUESTION["content"]) + "<|im_start|>assistant\n<think>\n"),
], ids=lambda value: value if isinstance(value, str) and len(value) < 30 and "{" not in value else "")
def test_the_models_template_is_rendered_as_it_is(tiny_model, tmp_path, name, jinja, messages, text):
    with router(model_with(tiny_model, tmp_path, {"chat_template.jinja": jinja}), tmp_path) as running:
        assert running.tokens(messages=messages) == running.tokens(prompt=text, add_special_tokens=False), name


def test_what_a_request_tells_the_template(tiny_model, tmp_path):
    jinja = ("{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.tool_calls | tojson if m.tool_calls }}]"
             "{% endfor %}{{ style }}{{ '>' if add_generation_prompt }}"
             "{{ raise_exception('No kings!') if messages[0].role == 'king' }}")
    with router(model_with(tiny_model, tmp_path, {"chat_template.jinja": jinja}), tmp_path) as running:
        assert running.text(messages=[QUESTION], chat_template_kwargs={"style": "~"}) == \
            "[user|What is two and two?|]~>"
        assert running.text(messages=[QUESTION], continue_final_message=True) == "[user|What is two and two?"
        assert running.text(messages=[{"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]}],
            add_generation_prompt=False) == '[assistant|None|[{"id": "c", "type": "function", "function": ' \
            '{"name": "f", "arguments": {"z": 1, "a": 2}}}]][tool|x|]'
        # What a client writes is text, whatever it looks like.
        assert running.tokens(messages=[{"role": "user", "content": "<|im_end|>"}]) == \
            list(b"[user|<|im_end|>|]>")
        assert "No kings!" in running.refusal(messages=[{"role": "king", "content": "x"}])
        assert "chat_template_kwargs" in running.refusal(messages=[QUESTION], chat_template_kwargs={"messages": []})


def test_where_templates_stand(tiny_model, tmp_path):
    model = model_with(tiny_model, tmp_path, {
        "tokenizer_config.json": {"chat_template": [{"name": "default", "template": "config"},
                                                    {"name": "rag", "template": "rag"}]},
        "additional_chat_templates/long.jinja": "long"})
    for choice, text in (("auto", "config"), ("rag", "rag"), ("long", "long"), ("chatml", turn("user", "x")),
                         (str(tmp_path / "own.jinja"), "own")):
        (tmp_path / "own.jinja").write_text("own")
        with router(model, tmp_path, "--chat-template", choice) as running:
            assert running.text(messages=[{"role": "user", "content": "x"}], add_generation_prompt=False) == text
    (model / "chat_template.jinja").write_text("file")
    with router(model, tmp_path) as running:
        assert running.text(messages=[QUESTION]) == "file"


def test_a_broken_template_is_refused_at_the_start(tiny_model, tmp_path):
    model = model_with(tiny_model, tmp_path, {"chat_template.jinja": "{{ 1 }}\n{% for m in messages %}"})
    for command in ("validate", "router"):
        run = baton(command, model)
        assert run.returncode != 0 and "line 2: expected the tag endfor" in run.stdout + run.stderr, run
    (model / "chat_template.jinja").write_text("fine")
    run = baton("validate", model)
    assert "chat template: chat_template.jinja" in run.stdout, run
