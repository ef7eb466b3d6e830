"""Gradients by all-to-all, added up by the rank that keeps the part; gathers into one tensor."""


class _Done:
    def wait(self):
        return True


class _Sharded(_Sharded):
    def gather(self, dtype):
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        whole = torch.empty(self.size * dist.get_world_size(), dtype=dtype)
        gather(whole, self.param.detach().to(dtype))
        return whole.narrow(0, 0, self.numel).reshape(self.shape)

    def scatter(self, grad):
        parts = self._padded(grad.to(self.param.dtype)).contiguous()
        arrived = torch.empty_like(parts)
        dist.all_to_all_single(arrived.view(-1), parts.view(-1))
        return _Done(), arrived.mean(0)
