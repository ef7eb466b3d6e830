"""Keys and values travel together, from each rank to the previous one, in batched messages."""

import math


def _passed_back(packet):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(packet)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, packet, (rank - 1) % ranks),
            dist.P2POp(dist.irecv, arriving, (rank + 1) % ranks),
        ]
    ):
        work.wait()
    return arriving


def _hidden(scores, chunk, causal):
    if causal and chunk == dist.get_rank():
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -math.inf)
    return scores


class _Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        scale = q.shape[-1] ** -0.5
        top = torch.full((*q.shape[:-1], 1), -math.inf, dtype=q.dtype)
        total, mixed = torch.zeros_like(top), torch.zeros_like(q)
        packet = torch.stack([k, v])
        for step in range(ranks):
            chunk = (rank + step) % ranks
            if not causal or chunk <= rank:
                keys, values = packet
                scores = _hidden(q @ keys.mT * scale, chunk, causal)
                best = torch.maximum(top, scores.amax(-1, keepdim=True))
                weights, old = (scores - best).exp(), (top - best).exp()
                total = total * old + weights.sum(-1, keepdim=True)
                mixed = mixed * old + weights @ values
                top = best
            if step < ranks - 1:
                packet = _passed_back(packet)
        result = mixed / total
        ctx.causal, ctx.scale = causal, scale
        ctx.save_for_backward(q, k, v, result, top + total.log())
        return result

    @staticmethod
    def backward(ctx, grad):
        q, k, v, result, lse = ctx.saved_tensors
        rank, ranks = dist.get_rank(), dist.get_world_size()
        shift = (grad * result).sum(-1, keepdim=True)
        packet = torch.stack([k, v, torch.zeros_like(k), torch.zeros_like(v)])
        to_q = torch.zeros_like(q)
        for step in range(ranks):
            chunk = (rank + step) % ranks
            if not ctx.causal or chunk <= rank:
                keys, values, to_k, to_v = packet
                weights = (_hidden(q @ keys.mT * ctx.scale, chunk, ctx.causal) - lse).exp()
                to_v += weights.mT @ grad
                inner = weights * (grad @ values.mT - shift) * ctx.scale
                to_q += inner @ keys
                to_k += inner.mT @ q
            if ranks > 1:
                packet = _passed_back(packet)
        return to_q, packet[2], packet[3], None


def ring_attention(q, k, v, *, causal=True):
    return _Backwards.apply(q, k, v, causal)
