"""Posts both ends of a step at once, with chunks of equal size padded with zeros."""


def ring_all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    with torch.no_grad():
        elements = tensor.flatten()
        rows = torch.nn.functional.pad(elements, (0, -len(elements) % n)).reshape(n, -1).clone()
        for step in range(2 * (n - 1)):
            reducing = step < n - 1
            leaving = rows[(rank - step + (not reducing)) % n] if reducing else rows[
                (rank + 1 - (step - (n - 1))) % n
            ]
            goal = (rank - step - 1) % n if reducing else (rank - (step - (n - 1))) % n
            arriving = torch.zeros_like(leaving)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.irecv, arriving, (rank - 1) % n),
                    dist.P2POp(dist.isend, leaving, (rank + 1) % n),
                ]
            )
            for work in works:
                work.wait()
            if reducing:
                rows[goal] += arriving
            else:
                rows[goal] = arriving
        tensor.copy_(rows.reshape(-1)[: tensor.numel()].reshape(tensor.shape))
