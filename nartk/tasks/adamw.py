"""`--optimizer nartk_adamw`: torch's fused AdamW, which walks over the weights once instead of ten times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

from nartk.errors import CheckpointError


@register_optimizer("nartk_adamw", dataclass=FairseqAdamConfig)
class FusedAdamW(FairseqAdam):
    """Takes the options of fairseq's `adam`, and the same steps."""

    supports_flat_params = True  # element by element, so --fp16 may lay all weights in one row

    def __init__(self, cfg: FairseqDataclass, params: Iterable[torch.nn.Parameter]) -> None:
        FairseqOptimizer.__init__(self, cfg)
        self._optimizer = torch.optim.AdamW(params, fused=True, **self.optimizer_config)

    def load_state_dict(
        self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None
    ) -> None:
        """Raises CheckpointError if a moment has another shape than its weight: steps read beyond its end."""
        super().load_state_dict(state_dict, optimizer_overrides)
        for weight, state in self._optimizer.state.items():
            for name in ("exp_avg", "exp_avg_sq"):
                found = getattr(state.get(name), "shape", ())
                if found != weight.shape:
                    raise CheckpointError(
                        f"{name!r} of the optimizer has shape {list(found)}, its weight {list(weight.shape)}"
                    )
