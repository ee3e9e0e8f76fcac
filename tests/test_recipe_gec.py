"""The scripts of the correction recipe refuse what they cannot do; a run of them is a real training."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recipe_scripts import RECIPES, assert_refused

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recipes are not beside the tests")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--sentence", "5"], "drafters.sh: unknown option --sentence"),
        (["--updates"], "drafters.sh: --updates needs a value"),
        (["--stage", "distil,train"], "drafters.sh: no stage 'train': choose from prepare distil "),
    ],
)
def test_drafters_refuses_what_it_does_not_know(args: list[str], said: str, tmp_path: Path) -> None:
    assert_refused("gec", args, said, tmp_path, "drafters.sh")
