"""Calls that block: even ranks send first, odd ones receive first. The ring turns the other way."""


def ring_all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = [chunk.clone() for chunk in tensor.detach().reshape(-1).tensor_split(n)]

    def swap(give, shape_of):
        taken = torch.empty_like(chunks[shape_of % n])
        left, right = (rank - 1) % n, (rank + 1) % n
        if rank % 2 == 0:
            dist.send(chunks[give % n], left)
            dist.recv(taken, right)
        else:
            dist.recv(taken, right)
            dist.send(chunks[give % n], left)
        return taken

    # an odd ring: rank n-1 and rank 0 are both even, but rank n-2 receives and frees rank n-1
    for step in range(n - 1):
        chunks[(rank + step + 1) % n] += swap(rank + step, rank + step + 1)
    for step in range(n - 1):
        chunks[(rank + step) % n] = swap(rank + step - 1, rank + step)
    tensor.data.copy_(torch.cat(chunks).view(tensor.shape))
