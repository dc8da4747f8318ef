"""A PyTorch model through `torch.compile(backend="fusewright")`, forward and backward."""

import torch

from fusewright.frontends.torch import explain


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))


torch.manual_seed(0)
model, x = Block(32), torch.randn(8, 32)
compiled = torch.compile(model, backend="fusewright", options={"cpu": "sim"})
assert torch.allclose(compiled(x), model(x), atol=1e-5)
print(explain(model, x))
