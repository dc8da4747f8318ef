"""Who asks for a name of numpy, JAX or torch is told ours, and ours exists."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.elsewhere import _SAME, _WRITTEN

X = fw.TensorSpec((3, 4), "float32")


def test_every_name_that_is_told_exists_and_none_is_ours() -> None:
    texts = [*_WRITTEN.values(), *(f"fw.{n}" for n in _SAME.values())]
    for name in re.findall(r"fw\.(\w+)", " ".join(texts)):
        assert name in fw.__all__, name
    for name in re.findall(r"fw\.nn\.(\w+)", " ".join(texts)):
        assert name in fw.nn.__all__, name
    elsewhere = {*_SAME, *_WRITTEN}
    assert elsewhere & {*fw.__all__} <= {"bool"}  # a dtype here, a method of tensors there
    assert not set(_SAME) & set(_WRITTEN)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: fw.concatenate, r"'fusewright' has no attribute 'concatenate'; it is fw.concat"),
        (lambda: fw.softmax, r"no attribute 'softmax'; it is fw.nn.softmax here"),
        (lambda: fw.vstack, r"no attribute 'vstack'; write fw.concat"),
        (lambda: fw.lineer, r"no attribute 'lineer'; is fw.nn.linear meant"),
        (lambda: fw.xyzzy, r"no attribute 'xyzzy'$"),
        (lambda: fw.nn.logsumexp, r"'fusewright.nn' has no attribute 'logsumexp'; write fw.logsum"),
    ],
)
def test_names_of_modules(attempt: Any, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        attempt()


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda x: x.unsqueeze(0), r"no attribute 'unsqueeze'; it is fw.expand_dims here"),
        (lambda x: x.view(-1), r"no attribute 'view'; write x.reshape\(sizes\)"),
        (lambda x: x.at[0], r"no attribute 'at'; write fw.insert\(x, value, start\)"),
        (lambda x: np.concatenate([x, x]), r"numpy.concatenate .*it is fw.concat here"),
        (lambda x: np.arctan2(x, x), r"numpy.arctan2 .*it is fw.atan2 here"),
    ],
)
def test_names_of_arrays_and_functions_of_numpy(attempt: Any, message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        fw.trace(attempt, X)


def test_arguments_of_other_libraries() -> None:
    with pytest.raises(TypeError) as caught:
        fw.trace(lambda x: x.sum(dim=1, keepdims=True), X)
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"dim= is axis here \[test_names_elsewhere.py:\d+\]", note)
    with pytest.raises(TypeError) as caught:
        fw.trace(lambda x: fw.std(x, ddof=1), X)
    assert caught.value.__notes__[0].startswith("ddof= is correction here")
    with pytest.raises(TypeError) as caught:
        fw.trace(lambda x: x * object(), X)
    assert "a constant, which fw.asarray makes of it" in caught.value.__notes__[0]
    with pytest.raises(TypeError) as caught:
        fw.trace(lambda x: own(x, colour=1), X)
    assert not hasattr(caught.value, "__notes__")


def own(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("attempt", "note"),
    [
        (
            lambda x: x.sum(colour=1),
            r"the call is x.sum\(axis=None, \*, dtype=None, keepdims=False",
        ),
        (lambda x: fw.sum(x, 1, True), r"the call is fw.sum\(x, /, axis=None, \*, dtype=None"),
        (lambda x: fw.nn.mse_loss(x, x, "sum"), r"the call is fw.nn.mse_loss\(x, target, "),
        (lambda x: x.round(2), r"the call is x.round\(\) \["),
        (
            lambda x: x.std(0, unbiased=False),
            r"unbiased= is correction, 1 for True and 0 for False",
        ),
    ],
)
def test_arguments_that_functions_do_not_take(attempt: Any, note: str) -> None:
    with pytest.raises(TypeError) as caught:
        fw.trace(attempt, X)
    assert re.match(note, caught.value.__notes__[0])


def test_functions_of_the_user_keep_their_own_errors() -> None:
    """A function of the user may have the name of one of ours."""

    def sum() -> None: ...

    sum.__qualname__ = "sum"
    for attempt in (lambda x: own(x, 1), lambda x: sum(x)):
        with pytest.raises(TypeError) as caught:
            fw.trace(attempt, X)
        assert not hasattr(caught.value, "__notes__")


NORMAL = r"the call is fw.random.normal\(shape, mean=0.0, std=1.0, \*, seed, offset=0"


@pytest.mark.parametrize(
    ("attempt", "note"),
    [
        (
            lambda x: fw.random.normal(x.shape),
            NORMAL,
        ),
        (
            lambda x: fw.random.normal(size=3),
            NORMAL,
        ),
        (lambda x: fw.take(x), r"the call is fw.take\(x, indices"),
        (lambda x: x.take(), r"the call is x.take\(indices"),
        (lambda x: round(x), r"write fw.round\(x\)"),
    ],
)
def test_calls_that_lack_an_argument(attempt: Any, note: str) -> None:
    with pytest.raises(TypeError) as caught:
        fw.trace(attempt, X)
    (found,) = caught.value.__notes__
    assert re.match(note, found), found


def test_functions_and_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for attempt, message in (
        (lambda x: torch.exp(x), r"torch.exp of an array .*write fw.exp"),
        (lambda x: torch.nn.functional.relu(x), r"torch.relu .*fw.nn.relu here \[test_names_e"),
        (lambda x: torch.ones(4) * x, r"a tensor of torch: pass the tensor as an argument"),
        (lambda x: x * torch.ones(4), r"a tensor of torch: pass the tensor as an argument"),
    ):
        with pytest.raises(fw.UserError, match=message):
            fw.trace(attempt, X)


@pytest.mark.parametrize(
    ("attempt", "note"),
    [
        (lambda x: fw.sum(x, dim=1), "dim= is axis here"),
        (lambda x: fw.mean(x, axis=1, keepdim=True), "keepdim= is keepdims here"),
        (lambda x: fw.nn.softmax(x, dim=-1), "dim= is axis here"),
        (lambda x: fw.exp(x, colour=1), "the call is fw.exp(x, /)"),
    ],
)
def test_arguments_outside_of_a_trace(attempt: Any, note: str) -> None:
    with pytest.raises(TypeError) as caught:
        attempt(fw.ones((2, 3)))
    assert caught.value.__notes__ == [note]


def test_public_functions_are_pickled() -> None:
    for f in (fw.sum, fw.nn.softmax):
        assert pickle.loads(pickle.dumps(f)) is f
