"""Kernels whose statements are read late: what is known before, and what is read then."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

import fusewright as fw
from fusewright.cuda.parameters import parameters, shared_nbytes
from fusewright.errors import SpecError
from fusewright.host.assemble import role_of
from fusewright.kernel import Kernel
from fusewright.kir import text
from fusewright.kir.analysis.uses import global_reads, global_writes
from fusewright.kir.names import with_unique_names
from fusewright.kir.text import parse_kernel, parse_later
from fusewright.kir.unread import Border, UnreadKernel
from fusewright.programs import records
from fusewright.target import target_of


def softmax(x: Any) -> Any:
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


F32 = "float32"
CASES: dict[str, Any] = {
    "softmax": (softmax, [fw.TensorSpec((8, 4096), F32)]),
    "symbolic": (softmax, [fw.TensorSpec(("n", 64), F32)]),
    "copy": (lambda x: fw.copy(x), [fw.TensorSpec((33, 5), F32)]),
    "fill": (lambda x: fw.zeros((7, 9), dtype=F32), [fw.TensorSpec((3,), F32)]),
    "product": (lambda a, b: fw.matmul(a, b), [fw.TensorSpec((256, 256), "bfloat16")] * 2),
    "scalars": (lambda x: x * 0.3 + 0.7, [fw.TensorSpec((40,), F32)]),
    "rows": (lambda x: fw.sum(x, axis=0), [fw.TensorSpec((4096, 40), F32)]),
}


def kernels(case: str) -> list[Kernel]:
    fn, specs = CASES[case]
    return fw.compile(fw.trace(fn, *specs)).kernels


def unread(k: Kernel) -> UnreadKernel:
    """The kernel as a store gives it back."""
    symbols = {s.name: s for s in k.ir.symbols}
    record = records.kernel_record(k, None)
    found = records.restored_kernel(record, {}, target_of("sm_90a"), symbols, later=True).ir
    assert isinstance(found, UnreadKernel)
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_launches_ask_is_known_and_true(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in kernels(case):
        read, found = with_unique_names(k.ir), unread(k)
        with monkeypatch.context() as m:
            m.setattr(text._Parser, "_statements", None)
            known = [{b.name for b in f(found)} for f in (global_reads, global_writes)]
            facts = (shared_nbytes(found), role_of(found), found.nthreads, found.cluster_size)
            types = [(p.ctype, p.nbytes) for p in parameters(found)]
        assert known == [{b.name for b in f(read)} for f in (global_reads, global_writes)]
        assert facts == (shared_nbytes(read), role_of(read), read.nthreads, read.cluster_size)
        assert types == [(p.ctype, p.nbytes) for p in parameters(read)]


@pytest.mark.parametrize("case", CASES)
def test_statements_are_read_when_they_are_asked_for(case: str) -> None:
    for k in kernels(case):
        found = unread(k)
        assert str(found) == str(k.ir)
        assert found.body is found.body
        assert global_writes(replace(found)) == global_writes(found)  # the same parameters


def test_a_kernel_with_other_fields_is_an_ordinary_one() -> None:
    (k,) = kernels("softmax")
    made = replace(unread(k), body=())
    assert type(made) is type(k.ir) and not global_reads(made)


def test_threads_that_ask_at_once_get_one_body() -> None:
    (k,) = kernels("softmax")
    found, gate, bodies = unread(k), threading.Barrier(4), list[Any]()

    def ask() -> None:
        gate.wait()
        bodies.append(found.body)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(bodies) == 4 and all(b is bodies[0] for b in bodies)


def test_errors_name_the_line_of_the_text() -> None:
    (k,) = kernels("softmax")
    lines = str(k.ir).splitlines()
    at = lines.index("") + 1
    wrong = "\n".join([*lines[:at], "  nonsense", *lines[at:]])
    late = parse_later(wrong, {}, Border(frozenset(), frozenset(), 0, "kernel"))
    messages: list[str] = []
    for ask in (lambda: parse_kernel(wrong), lambda: late.body):
        with pytest.raises(SpecError) as e:
            ask()
        messages.append(str(e.value))
    assert messages[0] == messages[1] and messages[0].startswith(f"line {at + 1}, ")
