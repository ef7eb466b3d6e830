"""The norm from torch's vector norms, with replicated gradients divided among the ranks."""


def clip_grad_norm_(model, max_norm):
    ranks = dist.get_world_size()
    squares = torch.zeros(1, dtype=torch.float64)
    for param in model.parameters():
        if param.grad is not None:
            square = torch.linalg.vector_norm(param.grad.double()) ** 2
            squares += square if param.dim() == 1 and param in model._sharded else square / ranks
    dist.all_reduce(squares)
    norm = squares.sqrt().item()
    if norm == norm and norm != float("inf"):
        factor = min(1.0, max_norm / (norm + 1e-12))
        if factor < 1.0:
            for param in model.parameters():
                if param.grad is not None:
                    param.grad = param.grad * factor
    return norm
