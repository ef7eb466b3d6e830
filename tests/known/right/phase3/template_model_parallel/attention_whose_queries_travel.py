"""In backward, keys and values stay at home: queries and their gradients go round instead."""

import math


def _to_next(*tensors):
    """Send to the next rank and receive from the previous one, by blocking messages."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == 1:
        return tensors
    came = []
    for tensor in tensors:
        tensor = tensor.contiguous()
        room = torch.empty_like(tensor)
        if rank % 2 == 0:
            dist.send(tensor, (rank + 1) % ranks)
            dist.recv(room, (rank - 1) % ranks)
        else:
            dist.recv(room, (rank - 1) % ranks)
            dist.send(tensor, (rank + 1) % ranks)
        came.append(room)
    return came


def _scores(q, k, queries_of, keys_of, causal):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.size(-1))
    if causal:
        length = q.size(2)
        rows = torch.arange(length)[:, None] + queries_of * length
        columns = torch.arange(length)[None, :] + keys_of * length
        scores = scores.masked_fill(columns > rows, float("-inf"))
    return scores


class _QueriesTravel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        lse, out = None, None
        keys, values = k, v
        for step in range(ranks):
            scores = _scores(q, keys, rank, (rank - step) % ranks, causal)
            if step == 0:
                lse = torch.logsumexp(scores, -1)
                out = torch.softmax(scores, -1) @ values
            else:
                both = torch.logaddexp(lse, torch.logsumexp(scores, -1))
                out = out * torch.exp(lse - both)[..., None]
                out = out + torch.exp(scores - both[..., None]) @ values
                lse = both
            if step + 1 < ranks:
                keys, values = _to_next(keys, values)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        rank, ranks = dist.get_rank(), dist.get_world_size()
        delta = (dout * out).sum(-1)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for step in range(ranks):
            scores = _scores(q, k, (rank - step) % ranks, rank, ctx.causal)
            p = torch.exp(scores - lse[..., None])
            dv += torch.einsum("bhqk,bhqd->bhkd", p, dout)
            ds = p * (torch.einsum("bhqd,bhkd->bhqk", dout, v) - delta[..., None])
            ds = ds / math.sqrt(q.size(-1))
            dq = dq + ds @ k
            dk += ds.transpose(-1, -2) @ q
            if step + 1 < ranks:
                q, dout, lse, delta = _to_next(q, dout, lse, delta)
            (dq,) = _to_next(dq)
        return dq, dk, dv, None


def ring_attention(q, k, v, *, causal=True):
    return _QueriesTravel.apply(q, k, v, causal)
