"""Who asks for a name of numpy, JAX or torch is told ours, and ours exists."""

from __future__ import annotations

import math
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


TOLD: dict[str, tuple[Any, Any]] = {
    "rot90": (lambda x: fw.flip(x.T, axis=0), np.rot90),
    "ravel": (lambda x: x.reshape((-1,)), np.ravel),
    "heaviside": (lambda x: fw.where(x == 0, 0.5, x > 0), lambda x: np.heaviside(x, 0.5)),
    "array_equal": (lambda x: fw.all(x == x), lambda x: np.array_equal(x, x)),
    "diagflat": (lambda x: x.reshape((-1,))[:, None] * fw.eye(12), np.diagflat),
    "dstack": (lambda x: fw.stack([x, -x], axis=2), lambda x: np.dstack([x, -x])),
    "frac": (lambda x: x - fw.trunc(x), lambda x: x - np.trunc(x)),
    "tri": (lambda x: fw.tril(fw.ones((3, 4))) * x, lambda x: np.tri(3, 4) * x),
    "nancumsum": (
        lambda x: fw.cumulative_sum(fw.where(fw.isnan(x), 0, x), axis=1),
        lambda x: np.nancumsum(x, axis=1),
    ),
    "nanprod": (
        lambda x: fw.prod(fw.where(fw.isnan(x), 1, x), axis=0),
        lambda x: np.nanprod(x, axis=0),
    ),
    "fill_diagonal": (
        lambda x: fw.where(fw.eye(3, dtype="bool"), 7.0, x[:, :3]),
        lambda x: np.where(np.eye(3, dtype=bool), 7.0, x[:, :3]),
    ),
    "population_count": (
        lambda x: fw.sum((fw.astype(x, "int32")[..., None] >> fw.arange(32)) & 1, axis=-1),
        lambda x: np.bitwise_count(x.astype(np.int32)),
    ),
    "cov": (
        lambda x: (x - fw.mean(x, axis=0)).T @ (x - fw.mean(x, axis=0)) / 2,
        lambda x: np.cov(x.T),
    ),
    "logaddexp2": (
        lambda x: fw.logaddexp(x * math.log(2), x * math.log(2)) / math.log(2),
        lambda x: np.logaddexp2(x, x),
    ),
}


@pytest.mark.parametrize("name", list(TOLD))
def test_what_is_told_is_what_was_asked_for(name: str) -> None:
    ours, theirs = TOLD[name]
    assert name in _WRITTEN
    x = np.random.default_rng(0).uniform(0, 9, (3, 4)).astype(np.float32)
    (found,) = fw.evaluate(fw.trace(ours, X), x)
    np.testing.assert_allclose(found, theirs(x), rtol=1e-5, atol=1e-6)


def test_no_name_of_a_neighbour_is_answered_with_a_guess() -> None:
    """Names that resemble one of ours and mean another thing have an answer of their own."""
    names = "choose gradient in1d invert ravel size put place radians erfc map switch dist svd rand"
    for name in names.split():
        with pytest.raises(AttributeError) as caught:
            getattr(fw, name)
        assert not str(caught.value).endswith("meant?"), name
