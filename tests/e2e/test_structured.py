"""Structured output over live clusters: the shipped model writes nonsense, and all of it must fit what is asked for."""

import concurrent.futures
import json
import re
import threading
import time
import urllib.request

import grpc
import jsonschema
import pytest

import cluster as clusters
import stubs
from client import Client
from test_openai import curl, events

AUSTEN = clusters.ROOT / "models/austen"
SCHEMA = {"type": "object",
          "properties": {"name": {"type": "string", "maxLength": 12},
                         "age": {"type": "integer", "minimum": 0, "maximum": 120},
                         "mood": {"enum": ["glad", "sad"]},
                         "born": {"type": "string", "format": "date"},
                         "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "maxItems": 2}},
          "required": ["name", "age", "mood", "born", "friends"], "additionalProperties": False,
          "$defs": {"friend": {"type": "object", "properties": {"z": {"type": "boolean"}, "a": {"type": "null"}},
                               "required": ["z", "a"], "additionalProperties": False}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "get", "strict": True, "parameters": {
             "type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"],
             "additionalProperties": False}}},
         {"type": "function", "function": {"name": "now"}}]


@pytest.fixture(scope="module", params=["apart", "colocated"])
def served(request, tmp_path_factory):
    shape = ({"stages": 2} if request.param == "apart"
             else {"stages": 2, "chains": 0, "decodes": 0, "colocated": 1})
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text("{% if messages[0].content == 'spin' %}{% for i in range(9999) %}{% for j in range(9999) %}"
                        "{% endfor %}{% endfor %}{% endif %}"
                        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
                        "{% for m in messages %}{{ m.content }}{% endfor %}<tool_call>")
    with clusters.Cluster(AUSTEN, tmp_path_factory.mktemp("logs"), flags=["--page-size", 16],
                          router_flags=["--served-model-name", "austen", "--chat-template", template,
                                        "--tool-call-parser", "hermes"], **shape) as cluster:
        yield cluster


def chat(cluster, **body):
    return cluster.post("/v1/chat/completions",
                        {"messages": [{"role": "user", "content": "Write of Emma."}], "max_tokens": 400,
                         "temperature": 2, **body})


def contents(answer):
    assert answer[0] == 200, answer
    for choice in answer[1]["choices"]:
        assert choice["finish_reason"] == "stop", choice
    return [choice["message"]["content"] for choice in answer[1]["choices"]]


def test_a_schema_is_kept_to_by_all_choices(served):
    texts = contents(chat(served, response_format=FORMAT, n=8, seed=1))
    assert len(set(texts)) > 1
    for text in texts:
        value = json.loads(text)
        jsonschema.validate(value, SCHEMA, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        assert list(value) == SCHEMA["required"], "the order is the schema's"


def test_streamed_as_whole(served):
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": FORMAT, "seed": 5, "max_tokens": 400}
    whole, = contents(chat(served, **body))
    chunks = events(curl("-N", served.url + "/v1/chat/completions", "-H", "Content-Type: application/json", "-d",
                         json.dumps({**body, "temperature": 2, "stream": True})))
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole


def test_every_spelling(served):
    def completion(path="/v1/completions", **body):
        status, answer = served.post(path, {"prompt": "It is", "max_tokens": 200, "temperature": 2, "seed": 3, **body})
        assert status == 200, answer
        assert answer["choices"][0]["finish_reason"] == "stop", answer
        return answer["choices"][0]["text"]

    assert completion(guided_choice=["glad", "sad"]) in ("glad", "sad")
    assert completion(structured_outputs={"choice": ["glad"]}) == "glad"
    assert re.fullmatch("[A-F]{3}-[0-9]{2,4}", completion(guided_regex="[A-F]{3}-[0-9]{2,4}"))
    assert re.fullmatch("[0-9]{5}", completion(regex="[0-9]{5}"))
    assert re.fullmatch("a(b|c)d", completion(guided_grammar='root ::= "a" x "d"\nx ::= "b" | "c"'))
    for name in ("guided_json", "json_schema"):
        for schema in (SCHEMA, json.dumps(SCHEMA)):
            jsonschema.validate(json.loads(completion(**{name: schema})), SCHEMA)
    status, answer = served.post("/generate", {"text": ["a", "b"], "sampling_params": {
        "json_schema": json.dumps(SCHEMA), "temperature": 2, "max_new_tokens": 400}})
    assert status == 200, answer
    for one in answer:
        jsonschema.validate(json.loads(one["text"]), SCHEMA)
    status, answer = served.post("/generate", {"text": "a", "sampling_params": {
        "json_schema": SCHEMA, "temperature": 2, "max_new_tokens": 400}})
    assert status == 200, answer
    assert list(json.loads(answer["text"])) == SCHEMA["required"], "the order is the schema's"
    status, answer = served.post("/generate", {"text": "a", "sampling_params": {
        "ebnf": 'root ::= "x"{7}', "temperature": 0, "max_new_tokens": 99}})
    assert status == 200 and answer["text"] == "xxxxxxx", answer


def test_it_keeps_what_else_a_request_asks_for(served):
    fields = {"guided_choice": ["glad"], "seed": 1}
    for more in ({"temperature": 0}, {"top_p": 0.01}, {"top_k": 1}, {"ignore_eos": True, "max_tokens": 12},
                 {"min_tokens": 9}, {"frequency_penalty": 2, "repetition_penalty": 2}, {"logprobs": True},
                 {"logit_bias": {"5": 100}}):
        status, answer = chat(served, **fields, **more)
        assert status == 200, answer
        assert answer["choices"][0]["message"]["content"] == "glad", (more, answer)
    status, answer = chat(served, guided_regex="[a-z]{50}", stop=["q"], logit_bias={}, max_tokens=100)
    assert status == 200 and "q" not in answer["choices"][0]["message"]["content"]
    status, answer = chat(served, response_format={"type": "json_object"}, max_tokens=3)
    assert status == 200 and answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"].startswith("{")


def test_calls_that_are_forced_or_strict(served):
    schema = TOOLS[0]["function"]["parameters"]
    for choice in ("required", {"type": "function", "function": {"name": "get"}}):
        for seed in range(4):
            status, answer = chat(served, tools=TOOLS[:1], tool_choice=choice, seed=seed, max_tokens=300)
            assert status == 200, answer
            calls = answer["choices"][0]["message"]["tool_calls"]
            assert calls and all(call["function"]["name"] == "get" for call in calls), answer
            for call in calls:
                jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
    # Nothing forces a call, and the model makes none that is not strict.
    status, answer = chat(served, tools=TOOLS[:1], seed=1, max_tokens=60)
    assert status == 200 and "warnings" not in answer, answer


def test_over_grpc(served):
    with Client(served.target) as client:
        choice = stubs.common.TextStructure(choice=stubs.common.TextChoices(texts=["glad", "sad"]))
        answer = client.generate("It is", max_tokens=40, structure=choice)
        assert answer.error is None and answer.text in ("glad", "sad"), answer
        answer = client.generate("It is", max_tokens=40, structure=stubs.common.TextStructure(regex="("))
        assert answer.code == grpc.StatusCode.INVALID_ARGUMENT and "sampling.structure" in answer.error.details()


BAD = [
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {
        "a": {"items": {"not": {}}}}}}}}, "response_format.json_schema.schema",
     "properties.a.items: not is not supported"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "text, json_object or json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "an object"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "is given beside guided_json"),
    ({"guided_regex": "a", "regex": "a"}, "regex", "is given beside guided_regex"),
    ({"guided_regex": "(a"}, "guided_regex", "position 2: a group does not end"),
    ({"guided_regex": "((a{1000}){1000}){1000}"}, "guided_regex", "counts within one another"),
    ({"guided_grammar": "root ::= root \"a\" | \"b\""}, "guided_grammar", "left recursion"),
    ({"guided_choice": []}, "guided_choice", "1 to 4096 texts"),
    ({"guided_choice": "a"}, "guided_choice", "a list of texts"),
    ({"guided_json": {"title": "x" * (1 << 20)}}, "guided_json", "more than the 262144 accepted"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "no text can match it"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "set"}}}, "tool_choice",
     "none of the tools"),
    ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice",
     "at odds with response_format"),
]


def test_what_cannot_be_kept_to_is_refused_by_its_path(served):
    for body, field, words in BAD:
        status, answer = chat(served, **body)
        assert status == 400 and answer["error"]["param"] == field and words in answer["error"]["message"], answer


def test_hostile_grammars_delay_nobody(served):
    """Others' answers come as soon as ever while such grammars are refused or compiled."""
    hostile = [{"guided_json": {"title": "x" * (1 << 20)}}, {"guided_regex": "[^a]{60000}"},
               {"guided_regex": "(a?){1020}"}, {"guided_json": {"enum": list(range(30_000))}}]

    def health():
        begun = time.monotonic()
        assert served.get("/health")[0] == 200
        assert served.post("/tokenize", {"prompt": "a"})[0] == 200  # On a thread that bodies are handled by.
        return time.monotonic() - begun

    quiet = sorted(health() for _ in range(50))[45]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        running = [pool.submit(chat, served, **body, max_tokens=2) for body in hostile * 3]
        busy = []
        while not all(one.done() for one in running):
            busy.append(health())
    assert all(one.result()[0] in (200, 400) for one in running)
    assert sorted(busy)[len(busy) // 2] < quiet + 0.25 * clusters.PATIENCE


# What is asked for, and whether it is refused at once.
HOSTILE = [
    ({"json_schema": json.dumps({"title": "x" * (1 << 20)})}, True),
    ({"json_schema": "[" * 100_000}, True),
    ({"json_schema": json.dumps({"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"items": {"anyOf": [
        {"$ref": f"#/$defs/d{(i + k) % 60}"} for k in range(1, 8)]}} for i in range(60)}})}, True),
    ({"regex": "((a{1,1000}){1,1000}){1,1000}"}, True),
    ({"regex": "(a?){30000}"}, True),
    ({"regex": "(" * 100_000}, True),
    ({"json_schema": json.dumps({"anyOf": [{"type": "string", "pattern": f"^[a-z ]*{i}$"} for i in range(900)]})},
     False),
    ({"regex": ".*a.{800}"}, False),
    ({"ebnf": 'root ::= s\ns ::= [a-z] s | "a" s s | "a" s | "a" | [a-z] s | [a-z] s s | " " s'}, False),
]


def test_a_stream_goes_on_beside_hostile_requests(served):
    """Over HTTP and over gRPC: grammars, and a template that loops. All are answered, the stream is what it is alone,
    and its chunks come while such requests are being read."""
    body = {"prompt": "It is", "max_tokens": 300, "temperature": 1, "seed": 9, "stream": True, "ignore_eos": True}

    asked = []  # One for each hostile request that has no answer yet.
    between = 0

    def chunks():
        nonlocal between
        text = ""
        with urllib.request.urlopen(urllib.request.Request(
                served.url + "/v1/completions", json.dumps(body).encode(),
                {"Content-Type": "application/json"})) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    text += json.loads(line[len(b"data: "):])["choices"][0]["text"]
                    between += len(asked) > 0
        return text

    alone = chunks()
    over = threading.Event()
    begun = threading.Barrier(3)

    def rounds(ask):
        done = 0
        begun.wait()
        while not over.is_set() or done == 0:
            for structure, refused in [*HOSTILE, (None, True)]:
                asked.append(structure)
                taken = ask(structure)
                asked.pop()
                assert not (refused and taken), structure
            done += 1
        return done

    def over_http(structure):
        if structure is None:
            status, answer = served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "spin"}]})
        else:
            status, answer = served.post("/v1/completions", {"prompt": "a", "max_tokens": 8, **structure})
        assert status in (200, 400), answer
        return status == 200

    with Client(served.target) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        def over_grpc(structure):
            try:
                if structure is None:
                    chat_request = stubs.inference.ChatRequest()
                    chat_request.messages.add(role="user", content="spin")
                    client.inference.ChatOnce(chat_request)
                else:
                    client.inference.GenerateOnce(client.request(
                        "a", max_tokens=8, structure=stubs.common.TextStructure(**structure)))
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
                return False
            return True

        running = [pool.submit(rounds, ask) for ask in (over_http, over_grpc)]
        begun.wait()
        try:
            assert chunks() == alone and between > 0
        finally:
            over.set()
        assert all(one.result() > 0 for one in running)


@pytest.mark.parametrize("ranks", [1, 2])
def test_nobody_waits_for_what_a_later_stage_compiles(tmp_path, ranks):
    """The last stage takes minutes for one structure. Others are answered meanwhile, and so is the request that asked
    for it when another life of the stage has compiled it."""
    with clusters.Cluster(AUSTEN, tmp_path, stages=2, chains=0, decodes=0, colocated=1, ranks=ranks,
                          flags=["--page-size", 16], router_flags=["--pairing-timeout-ms", 60_000],
                          colocated_flags=["--failpoints", "structure.compile=delay:300000@1"]) as cluster, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        first, last = (cluster.processes[f"colocated-0-{stage}" + ("" if ranks == 1 else "-0")] for stage in (0, 1))

        def complete(**body):
            status, answer = cluster.post("/v1/completions", {"prompt": "It is", "max_tokens": 30, **body})
            assert status == 200, answer
            return answer["choices"][0]["text"]

        slow = pool.submit(complete, regex="[0-9]{5}")
        try:
            clusters.wait_until(lambda: "failpoint structure.compile:" in last.log(), 30, "the last stage to compile")
            for _ in range(3):
                complete()
            assert not slow.done() and "breaks" not in first.log()
        finally:
            last.kill()
        last.arguments = last.arguments[:last.arguments.index("--failpoints")]
        last.start()
        assert re.fullmatch("[0-9]{5}", slow.result())
