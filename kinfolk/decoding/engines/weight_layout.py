"""Memory layout of weight matrices for decoding: column-major where one row is multiplied faster that way.

Decoding multiplies one row, or a few, by every weight matrix, so it is bound by reading memory. A matrix [out, in]
stored by rows is read as dot products, one stored by columns as a sum of scaled columns (gemv). On x86 the latter is
1.4 to 2.5 times as fast where there are more outputs than inputs, and slower where there are fewer.
"""

import torch
from torch import nn

from kinfolk.layers.heads.head import HeadModule
from kinfolk.models.model import Transformer


@torch.no_grad()
def column_major(model: Transformer) -> Transformer:
    """Store matrices with more outputs than inputs by columns, in place, and return the model.

    Shapes and numbers stay; sums are rounded in another order, so outputs differ in their last bits. For a model that
    only decodes: training in this layout would not repeat the bits of training in the usual one. CPU and float32 only.
    Tied matrices stay tied. Cost: one copy of a matrix at a time.
    """
    # heads without a single output matrix (adaptive softmax) have linear maps, which are modules of their own
    heads = [model.head.weight] if type(model.head).weight is not HeadModule.weight else []
    linears = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    for weight in {id(w): w for w in (*linears, *heads) if isinstance(w, nn.Parameter)}.values():
        plain = weight.dim() == 2 and weight.device.type == "cpu" and weight.dtype == torch.float32
        if plain and weight.shape[0] > weight.shape[1]:
            weight.data = weight.data.t().contiguous().t()
    return model
