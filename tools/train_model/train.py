"""Trains the model that ships in models/austen, on a CPU, from installed packages.

Two phases: most tokens at a short context, the last ones at the length of the
demo's prompt. Every step's data and noise depend on the seed and the step
alone, so a run that was stopped goes on from its checkpoint as if it had not
been. See models/austen/README.md for the exact command.
"""
import argparse
import json
import os
import random
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # no spinning on a shared machine
import torch

import bpe
import corpus
import export
from model import CONFIG, Model
from optimizer import Optimizer


def arguments():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--work", required=True, help="for the exported text and checkpoints")
    ap.add_argument("--out", required=True, help="where the model is written")
    ap.add_argument("--seed", type=int, default=1817)
    ap.add_argument("--lr", type=float, default=6e-3)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--chat-share", type=float, default=0.1)
    ap.add_argument("--short-steps", type=int, default=1460)
    ap.add_argument("--decay-from", type=int, default=990, help="the first step of the decay")
    ap.add_argument("--short-context", type=int, default=512)
    ap.add_argument("--short-batch", type=int, default=8)
    ap.add_argument("--long-steps", type=int, default=110)
    ap.add_argument("--long-lr", type=float, default=0.5, help="share of --lr it begins at")
    ap.add_argument("--long-context", type=int, default=4608)
    ap.add_argument("--long-batch", type=int, default=1)
    ap.add_argument("--save-seconds", type=float, default=120)
    ap.add_argument("--export-only", action="store_true", help="write the last checkpoint out")
    return ap.parse_args()


class Data:
    def __init__(self, a):
        text_dir = os.path.join(a.work, "text")
        if not os.path.exists(os.path.join(text_dir, corpus.NOVELS[-1] + ".txt")):
            corpus.export(text_dir)
        training, held_out = corpus.load(text_dir)
        path = os.path.join(a.work, "merges.json")
        if not os.path.exists(path):
            text = "\n\n".join(p for paras in training.values() for p in paras)
            merges = bpe.train(text, CONFIG["vocab_size"] - 256 - len(bpe.SPECIALS))
            with open(path, "w", encoding="utf-8") as f:
                json.dump(merges, f)
        with open(path, encoding="utf-8") as f:
            self.tok = bpe.Tokenizer(json.load(f))
        self.book = torch.tensor(corpus.book_stream(training, self.tok))
        self.chat = torch.tensor(corpus.chat_stream(training, self.tok, a.seed))
        self.held_out = torch.tensor(self.tok.encode("\n\n".join(held_out)))
        self.prompt = corpus.demo_prompt(held_out, self.tok)
        self.a = a

    def batch(self, step, rows, length):
        rng = random.Random("%d/%d" % (self.a.seed, step))
        out = []
        for _ in range(rows):
            ids = self.chat if rng.random() < self.a.chat_share else self.book
            at = rng.randrange(len(ids) - length)
            out.append(ids[at:at + length + 1])
        return torch.stack(out)


def lr_factor(step, a):
    """Warm-up, level, down to a.long_lr by the end of the short phase, then to 0."""
    if step >= a.short_steps:
        return a.long_lr * (1 - (step - a.short_steps) / a.long_steps)
    left = (a.short_steps - step) / max(1, a.short_steps - a.decay_from)
    return min(1.0, (step + 1) / 50, a.long_lr + (1 - a.long_lr) * left)


@torch.no_grad()
def held_out_loss(model, ids, length, stride, bucket=512):
    """Mean loss a token, by position in the window."""
    losses = [model(w[None, :-1], w[None, 1:])[0] for w in ids.unfold(0, length + 1, stride)]
    return torch.stack(losses).mean(0).split(bucket)


def train_step(model, optimizer, batch, lr, a):
    """One optimizer step over micro-batches that stay in cache."""
    rows = max(1, 2048 // (batch.shape[1] - 1))
    total = 0.0
    for part in batch.split(rows):
        loss = model(part[:, :-1], part[:, 1:], a.dropout).mean() * (len(part) / len(batch))
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(lr)
    for p in model.parameters():
        p.grad = None
    return total


def save(path, model, optimizer, step, seconds):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state(),
                "step": step, "seconds": seconds}, path + ".new")
    os.replace(path + ".new", path)


def report(model, data, length, label):
    buckets = held_out_loss(model, data.held_out, length, max(512, length // 4))
    print("%s: held-out loss by %d positions: %s  mean %.3f" % (
        label, len(buckets[0]), " ".join("%.3f" % b.mean() for b in buckets),
        torch.cat(buckets).mean()), flush=True)


def train(a, data, model, path):
    optimizer, first, spent = Optimizer(model), 0, 0.0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.restore(state["optimizer"])
        first, spent = state["step"], state["seconds"]
    began = saved = time.time()
    mean = None
    for step in range(first, a.short_steps + a.long_steps):
        short = step < a.short_steps
        length, rows = ((a.short_context, a.short_batch) if short
                        else (a.long_context, a.long_batch))
        torch.manual_seed(a.seed * 1_000_003 + step)
        lr, t0 = a.lr * lr_factor(step, a), time.time()
        loss = train_step(model, optimizer, data.batch(step, rows, length), lr, a)
        mean = loss if mean is None else 0.95 * mean + 0.05 * loss
        now = time.time()
        if step % 10 == 0:
            print("step %d  context %d  loss %.3f  mean %.3f  lr %.1e  %.0f tokens/s  %.0f s" % (
                step, length, loss, mean, lr, rows * length / (now - t0), spent + now - began),
                flush=True)
        if step % 400 == 399 or step + 1 == a.short_steps:
            report(model, data, length, "step %d" % step)
        if now - saved > a.save_seconds or step + 1 == a.short_steps:
            save(path, model, optimizer, step + 1, spent + now - began)
            saved = now
    save(path, model, optimizer, a.short_steps + a.long_steps, spent + time.time() - began)


def main():
    a = arguments()
    torch.set_num_threads(2)
    torch.manual_seed(a.seed)
    os.makedirs(a.work, exist_ok=True)
    data = Data(a)
    model = Model(CONFIG)
    path = os.path.join(a.work, "checkpoint.pt")
    print("%d parameters, %d training tokens, %d held out" % (
        sum(p.numel() for p in model.parameters()), len(data.book), len(data.held_out)))
    if a.export_only:
        model.load_state_dict(torch.load(path)["model"])
    else:
        train(a, data, model, path)
    report(model, data, a.long_context, "final")
    export.write(a.out, model, data.tok, data.prompt)


if __name__ == "__main__":
    main()
