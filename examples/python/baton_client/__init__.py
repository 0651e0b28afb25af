"""A client of Baton's gRPC service, proto/baton/v1/inference.proto.

    with baton_client.Client("127.0.0.1:30001", api_key="...") as client:
        for piece in client.stream("It is a truth", max_tokens=60, temperature=0.8):
            print(piece.text, end="")
        answer = client.chat([{"role": "user", "content": "Who are you?"}], max_tokens=60)
        print(answer.text)
"""

from baton_client.client import Answer, Client, Error, Piece, Stream, finish_reason

__all__ = ["Answer", "Client", "Error", "Piece", "Stream", "finish_reason"]
