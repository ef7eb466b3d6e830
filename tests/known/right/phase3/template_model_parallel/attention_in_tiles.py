"""Each chunk is computed tile by tile, in float64; the next chunk arrives meanwhile."""


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        me, n = dist.get_rank(), dist.get_world_size()
        length, scale = q.shape[2], q.shape[3] ** -0.5
        queries = q.double() * scale
        peak = torch.full(q.shape[:3], torch.finfo(torch.float64).min, dtype=torch.float64)
        norm = torch.zeros_like(peak)
        acc = torch.zeros(q.shape, dtype=torch.float64)
        here_k, here_v = k.contiguous(), v.contiguous()
        for step in range(n):
            owner = (me - step) % n
            works = []
            if step < n - 1:
                next_k, next_v = torch.empty_like(here_k), torch.empty_like(here_v)
                works = [
                    dist.isend(here_k, (me + 1) % n),
                    dist.isend(here_v, (me + 1) % n),
                    dist.irecv(next_k, (me - 1) % n),
                    dist.irecv(next_v, (me - 1) % n),
                ]
            for start in range(0, length, 2):
                keys, values = here_k[:, :, start : start + 2], here_v[:, :, start : start + 2]
                seen = _seen(me, owner, length, start, keys.shape[2], causal)
                if not seen.any():
                    del keys, values
                    continue
                scores = (queries @ keys.double().mT).masked_fill(~seen, float("-inf"))
                new = torch.maximum(peak, scores.max(-1).values)
                fade = (peak - new).exp()
                part = (scores - new[..., None]).exp()
                norm = norm * fade + part.sum(-1)
                acc = acc * fade[..., None] + part @ values.double()
                peak = new
                del keys, values
            for work in works:
                work.wait()
            if works:
                here_k, here_v = next_k, next_v
                del work, works, next_k, next_v
        out = (acc / norm[..., None]).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, peak, norm)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, peak, norm = ctx.saved_tensors
        me, n = dist.get_rank(), dist.get_world_size()
        length, scale = q.shape[2], q.shape[3] ** -0.5
        dout64 = dout.double()
        delta = (dout64 * out.double()).sum(-1)
        dq = torch.zeros(q.shape, dtype=torch.float64)
        bag = torch.cat([k, v, torch.zeros_like(k), torch.zeros_like(v)], dim=-1).contiguous()
        for step in range(n):
            owner = (me - step) % n
            keys, values, dk, dv = bag.chunk(4, dim=-1)
            seen = _seen(me, owner, length, 0, length, ctx.causal)
            scores = (q.double() * scale @ keys.double().mT).masked_fill(~seen, float("-inf"))
            p = (scores - peak[..., None]).exp() / norm[..., None]
            ds = p * (dout64 @ values.double().mT - delta[..., None]) * scale
            dq += ds @ keys.double()
            dk += (ds.mT @ q.double()).to(dk.dtype)
            dv += (p.mT @ dout64).to(dv.dtype)
            if n > 1:
                arriving = torch.empty_like(bag)
                waits = [dist.irecv(arriving, (me - 1) % n), dist.isend(bag, (me + 1) % n)]
                [wait.wait() for wait in waits]
                bag = arriving
        _, _, dk, dv = bag.chunk(4, dim=-1)
        return dq.to(q.dtype), dk, dv, None


def _seen(me, owner, length, start, count, causal):
    if not causal:
        return torch.ones(length, count, dtype=torch.bool)
    row = torch.arange(length).unsqueeze(1) + me * length
    column = torch.arange(count).unsqueeze(0) + start + owner * length
    return column <= row


def ring_attention(q, k, v, *, causal=True):
    return _Tiles.apply(q, k, v, causal)
