"""A small decoder-only transformer over bytes, and text to train it on. This file is given.

Each token is a byte, so no tokenizer is needed, and any text is data. With the default sizes, the
model has about half a million parameters.

Sources: Vaswani et al., "Attention Is All You Need", 2017, for the decoder; Su et al., "RoFormer",
2021, for the rotary positions; Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256  # every byte is a token
EOS = 0  # the byte that ends a document: no text contains it


class Attention(nn.Module):
    """Causal self-attention with several heads; positions rotate the queries and the keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map `x` (batch, sequence, width) to the same shape."""
        batch, sequence, width = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, sequence, head)
        q, k = rotated(q), rotated(k)
        mask = None if mask is None else mask[:, None]  # the same for every head
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(mixed.transpose(1, 2).reshape(batch, sequence, width))


class Block(nn.Module):
    """Attention, then a layer for each token; both add to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map `x` (batch, sequence, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Transformer(nn.Module):
    """Predicts the next byte.

    Args:
        width: the size of a token's vector; divisible by `2 * heads`.
        layers: the number of blocks.
        heads: the number of attention heads of a block.
        mask: a function from the tokens (batch, sequence) to a bool mask
            (batch, sequence, sequence), true where a token may see another one. None: causal.
    """

    def __init__(
        self,
        width: int = 112,
        layers: int = 3,
        heads: int = 4,
        mask: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.mask = mask
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `tokens` (batch, sequence) to logits (batch, sequence, 256)."""
        mask = None if self.mask is None else self.mask(tokens)
        x = self.embedding(tokens)  # (batch, sequence, width)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of features by angles proportional to the position: (..., sequence, head)."""
    sequence, size = x.shape[-2:]
    speeds = 10_000.0 ** -(torch.arange(0, size, 2, device=x.device) / size)  # (head / 2,)
    angles = torch.arange(sequence, device=x.device)[:, None] * speeds  # (sequence, head / 2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


def standard_library(limit: int = 2_000_000) -> list[Tensor]:
    """Return Python's own modules as documents of bytes, up to `limit` bytes; no network needed."""
    return list(_documents(limit))


def _documents(limit: int) -> Iterator[Tensor]:
    total = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        content = path.read_bytes()
        total += len(content)
        if total > limit:
            return
        if content and EOS not in content:
            yield torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


@torch.no_grad()
def sample(model: nn.Module, prompt: str, count: int, temperature: float = 0.7) -> str:
    """Return `prompt` and `count` more bytes that the model predicts, as text.

    The model sees the last 128 bytes. The same prompt gives the same text.
    """
    random = torch.Generator().manual_seed(0)
    tokens = torch.tensor([list(prompt.encode())])  # (1, sequence)
    for _ in range(count):
        logits = model(tokens[:, -128:])[0, -1].float().cpu()
        chances = (logits / temperature).softmax(dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=random)[None]], dim=1)
    return bytes(tokens[0].tolist()).decode(errors="replace")
