"""Talks to Baton's HTTP front with OpenAI's own client (pip install openai).

    python3 examples/python/openai_client.py --base-url http://127.0.0.1:30000/v1 "It was a truth"
"""

import argparse
import os
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--base-url", default="http://127.0.0.1:30000/v1")
    parser.add_argument("--api-key", default=os.environ.get("BATON_API_KEY", "none"), help="default: $BATON_API_KEY")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    try:
        import openai
    except ImportError:
        print("OpenAI's client is not here: pip install openai", file=sys.stderr)
        return 77  # As test harnesses say "skipped".
    try:
        return talk(openai, arguments)
    except openai.APIError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def talk(openai, arguments):
    client = openai.OpenAI(base_url=arguments.base_url, api_key=arguments.api_key)
    model = next(iter(client.models.list())).id
    print(f"[{model}]", end=" ")
    stream = client.completions.create(model=model, prompt=arguments.prompt, max_tokens=arguments.max_tokens,
                                       seed=arguments.seed, stream=True, stream_options={"include_usage": True})
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            print(choice.text, end="", flush=True)
    print(f"\n[{usage.prompt_tokens} + {usage.completion_tokens} tokens]")
    chat = client.chat.completions.create(model=model, max_tokens=arguments.max_tokens, seed=arguments.seed,
                                          messages=[{"role": "user", "content": arguments.prompt}])
    print(f"[chat] {chat.choices[0].message.content} [{chat.choices[0].finish_reason}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
