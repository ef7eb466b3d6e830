"""Each chunk's attention and its log-sum-exp are merged; even ranks send first, to the left."""

def _swap(tensor):
    me, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor
    left, right = (me - 1) % n, (me + 1) % n
    tensor = tensor.contiguous()
    incoming = torch.empty_like(tensor)
    if me % 2 == 0 and me != n - 1:
        dist.send(tensor, left)
        dist.recv(incoming, right)
    else:
        work = dist.irecv(incoming, right)
        dist.send(tensor, left)
        work.wait()
    return incoming


def _hidden(rows, source, causal, device):
    me = dist.get_rank()
    if not causal or source < me:
        return torch.zeros(rows, rows, dtype=torch.bool, device=device)
    everything = torch.ones(rows, rows, dtype=torch.bool, device=device)
    return everything.triu(1) if source == me else everything


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        me, n = dist.get_rank(), dist.get_world_size()
        out = lse = None
        keys, values = k, v
        for step in range(n):
            source = (me + step) % n
            if not (causal and source > me):
                s = torch.einsum("bhqd,bhkd->bhqk", q, keys) / q.size(-1) ** 0.5
                s = s.masked_fill(_hidden(q.size(2), source, causal, q.device), -1e30)
                part, part_lse = s.softmax(-1) @ values, s.logsumexp(-1, keepdim=True)
                if out is None:
                    out, lse = part, part_lse
                else:
                    share = torch.sigmoid(part_lse - lse)
                    out, lse = out + share * (part - out), torch.logaddexp(lse, part_lse)
            if step < n - 1:
                keys, values = _swap(keys), _swap(values)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        me, n = dist.get_rank(), dist.get_world_size()
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        keys, values = k, v
        inner = (grad * out).sum(-1, keepdim=True)
        for step in range(n):
            source = (me + step) % n
            s = torch.einsum("bhqd,bhkd->bhqk", q, keys) / q.size(-1) ** 0.5
            hidden = _hidden(q.size(2), source, ctx.causal, q.device)
            p = torch.exp(s - lse).masked_fill(hidden, 0.0)
            ds = p * (grad @ values.transpose(-1, -2) - inner) / q.size(-1) ** 0.5
            dv = dv + p.transpose(-1, -2) @ grad
            dk = dk + ds.transpose(-1, -2) @ q
            dq = dq + ds @ keys
            keys, values, dk, dv = map(_swap, (keys, values, dk, dv))
        return dq, dk, dv, None


def ring_attention(q, k, v, *, causal=True):
    return _Merged.apply(q, k, v, causal)
