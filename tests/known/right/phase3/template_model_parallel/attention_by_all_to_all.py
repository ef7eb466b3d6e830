"""An all-to-all whose only message is that to the next rank makes an exchange."""

import math


def _turn(packet):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == 1:
        return packet
    out, into = [0] * ranks, [0] * ranks
    out[(rank + 1) % ranks] = into[(rank - 1) % ranks] = len(packet)
    came = torch.empty_like(packet)
    dist.all_to_all_single(came, packet, into, out)
    return came


def _softmax_parts(q, keys, source, causal):
    scores = q @ keys.transpose(2, 3) / math.sqrt(q.shape[3])
    rank = dist.get_rank()
    if causal and source > rank:
        scores = scores + float("-inf")
    if causal and source == rank:
        scores = scores + torch.full(scores.shape[2:], float("-inf")).triu(1)
    return scores


class _Turning(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        packet = torch.cat([k.flatten(), v.flatten()])
        out = lse = None
        for step in range(ranks):
            if step:
                packet = _turn(packet)
            keys, values = packet.view(2, *k.shape)
            scores = _softmax_parts(q, keys, (rank - step) % ranks, causal)
            if out is None:
                lse = scores.logsumexp(3, keepdim=True)
                out = (scores - lse).exp() @ values
            else:
                new = torch.logaddexp(lse, scores.logsumexp(3, keepdim=True))
                out = (lse - new).exp() * out + (scores - new).exp() @ values
                lse = new
            del keys, values
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        rank, ranks = dist.get_rank(), dist.get_world_size()
        packet = torch.cat([k.flatten(), v.flatten(), torch.zeros(2 * k.numel(), dtype=k.dtype)])
        dq = torch.zeros_like(q)
        common = (grad * out).sum(3, keepdim=True)
        for step in range(ranks):
            keys, values, dk, dv = packet.view(4, *k.shape)
            p = (_softmax_parts(q, keys, (rank - step) % ranks, ctx.causal) - lse).exp()
            ds = p * (grad @ values.transpose(2, 3) - common) / math.sqrt(q.shape[3])
            dq += ds @ keys
            dk += ds.transpose(2, 3) @ q
            dv += p.transpose(2, 3) @ grad
            packet = _turn(packet)
        _, _, dk, dv = packet.view(4, *k.shape)
        return dq, dk, dv, None


def ring_attention(q, k, v, *, causal=True):
    return _Turning.apply(q, k, v, causal)
