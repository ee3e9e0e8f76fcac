"""`--optimizer nartk_adamw`: torch's fused AdamW, which walks over the weights once instead of ten times."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig


@register_optimizer("nartk_adamw", dataclass=FairseqAdamConfig)
class FusedAdamW(FairseqAdam):
    """Takes the options of fairseq's `adam`, and the same steps."""

    supports_flat_params = True  # element by element, so --fp16 may lay all weights in one row

    def __init__(self, cfg: FairseqDataclass, params: Iterable[torch.nn.Parameter]) -> None:
        FairseqOptimizer.__init__(self, cfg)
        self._optimizer = torch.optim.AdamW(params, fused=True, **self.optimizer_config)
