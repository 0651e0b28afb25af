"""Continues a prompt, or answers it, through Baton's gRPC service and prints the text as it comes.

    python3 examples/python/generate.py --target 127.0.0.1:30001 "It was a truth"
    python3 examples/python/generate.py --chat "Who are you?"

Needs the package beside it: README.md says how, installed or in place.
"""

import argparse
import os
import sys

import baton_client


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--chat", action="store_true", help="the prompt is what a user says in a conversation")
    parser.add_argument("--target", default="127.0.0.1:30001", help="the router's gRPC address")
    parser.add_argument("--api-key", default=os.environ.get("BATON_API_KEY"), help="default: $BATON_API_KEY")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, help="the same seed gives the same text; default: the server draws one")
    arguments = parser.parse_args()
    sampling = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature, "top_p": 0.95}
    if arguments.seed is not None:
        sampling["seed"] = arguments.seed
    try:
        with baton_client.Client(arguments.target, arguments.api_key) as client:
            with (client.chat_stream([{"role": "user", "content": arguments.prompt}], **sampling) if arguments.chat
                  else client.stream(arguments.prompt, **sampling)) as stream:
                for piece in stream:
                    print(piece.text, end="", flush=True)
    except baton_client.Error as error:
        print(error, file=sys.stderr)
        return 1
    finished = stream.finished
    print(f"\n[{finished.usage.prompt_tokens} + {finished.usage.completion_tokens} tokens, "
          f"{baton_client.finish_reason(finished)}, first after {finished.timing.ttft_us / 1000:.1f} ms]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
