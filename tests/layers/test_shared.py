"""What layers share has one shape: layers of other sizes are refused when they are built, not in the first pass."""

import pytest

import kinfolk as kf
from kinfolk.core.errors import KinfolkError
from kinfolk.core.paths import assign
from tests.family.test_relatives import recipe, run, tokens

SHARED = ["transformer-xl", "t5", "xlnet", "linformer", "deberta", "deberta-v2", "gtrxl", "funnel"]


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("change", ["n_heads=2", "d_head=2"])
def test_layers_of_unequal_heads_build_and_run_or_are_refused(name, change):
    side = "encoder" if recipe(name).model.encoder is not None else "decoder"
    where = f"model.{side}.levels[0].blocks[1]" if name == "funnel" else f"model.{side}.blocks[1]"
    try:
        model = kf.build(assign(recipe(name), [f"{where}.parts[0].{change}"]), seed=0).eval()
    except KinfolkError:
        return
    assert run(model.double(), tokens(2, 13)).logits.isfinite().all()
