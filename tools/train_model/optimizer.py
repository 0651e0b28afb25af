"""Muon for the matrices, AdamW for the embedding and the norms.

Muon orthogonalises each matrix's momentum (Newton-Schulz), which on a small
model reaches a given loss in roughly half the steps of AdamW; its matrix
products are nearly free in bfloat16.
"""
import torch

NS = (3.4445, -4.7750, 2.0315)


def orthogonalise(g):
    """Five Newton-Schulz steps on a stack of matrices, [n, rows, cols]."""
    tall = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if tall else g).bfloat16()
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
    a, b, c = NS
    for _ in range(5):
        s = torch.bmm(x, x.transpose(1, 2))
        x = a * x + torch.bmm(b * s + c * torch.bmm(s, s), x)
    return (x.transpose(1, 2) if tall else x).float()


class Muon:
    def __init__(self, params, momentum=0.95, weight_decay=0.1):
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.velocity = {s: torch.zeros(len(ps), *s) for s, ps in self.groups.items()}
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, lr):
        for shape, params in self.groups.items():
            grad, v = torch.stack([p.grad for p in params]), self.velocity[shape]
            v.lerp_(grad, 1 - self.momentum)
            update = orthogonalise(grad.lerp(v, self.momentum))
            scale = 0.2 * max(shape) ** 0.5  # the size of an AdamW step
            for p, u in zip(params, update):
                p.mul_(1 - lr * self.weight_decay).add_(u, alpha=-lr * scale)


class Optimizer:
    def __init__(self, model):
        matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
        embed = [model.embed_tokens.weight]
        norms = [p for p in model.parameters() if p.dim() == 1]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(
            [{"params": embed, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
            betas=(0.9, 0.95), eps=1e-10)

    def step(self, lr):
        self.muon.step(lr)
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()

    def state(self):
        return {"muon": self.muon.velocity, "adam": self.adam.state_dict()}

    def restore(self, state):
        self.muon.velocity = state["muon"]
        self.adam.load_state_dict(state["adam"])
