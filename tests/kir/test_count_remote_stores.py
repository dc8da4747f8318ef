"""Which stores to other blocks of a cluster mbarriers count, and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest

from fusewright.cuda.emit import emit
from fusewright.errors import SpecError
from fusewright.kir.ir import Alloc, Kernel, MbarExpect, MbarWait, RemoteStore
from fusewright.kir.passes.count_remote_stores import count_remote_stores
from fusewright.kir.pipeline import PipelineOptions, run_pipeline
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def kernel(body: str, *, dtype: str = "float32") -> Kernel:
    return parse_kernel(f"""kernel k {{
      param x: {dtype}[4096] align 16
      param y: {dtype}[4096] align 16
      param z: {dtype}[4096] align 16
      grid (bx < 2)
      block (tx < 64)
      cluster (cx < 4)
      local r: {dtype}[4]
      r[0] = load x[256*bx + 64*cx + tx]
      {body}
    }}""")


SEND = "remote_store w[cx] of block tx = r[0] if (tx < 4)\n"
TAKE = "r[1] = load w[tx] if (tx < 4) else 0.0:float32\nstore y[256*bx + 64*cx + tx] = r[1]\n"
EXCHANGE = "shared w: float32[4]\n" + SEND + TAKE


def _counted(k: Kernel) -> list[str]:
    found = (s for s in walk_statements(k) if isinstance(s, RemoteStore) and s.barrier is not None)
    return [s.dst.name for s in found]


def test_an_exchange_is_counted() -> None:
    k = count_remote_stores(kernel(EXCHANGE))
    assert _counted(k) == ["w"]
    (expect,) = (s for s in walk_statements(k) if isinstance(s, MbarExpect))
    assert expect.nbytes == 16  # four blocks, four bytes from each
    kinds = [type(s).__name__ for s in k.body]
    assert kinds.index("MbarInit") < kinds.index("RemoteStore") < kinds.index("MbarWait")
    assert isinstance(k.body[kinds.index("MbarWait") + 1], type(k.body[-2]))
    text = print_kernel(k)
    assert "of block tx = r[0] if (tx < 4) on full1" in text
    assert print_kernel(parse_kernel(text)) == text


def test_exchanges_that_are_used_together_share_an_mbarrier() -> None:
    both = EXCHANGE.replace("shared w: float32[4]", "shared w: float32[4]\nshared v: float32[4]")
    both = both.replace(SEND, SEND + SEND.replace("w[", "v["))
    both += "r[2] = load v[tx] if (tx < 4) else 0.0:float32\nstore z[256*bx + 64*cx + tx] = r[2]"
    k = count_remote_stores(kernel(both))
    waits = [s for s in walk_statements(k) if isinstance(s, MbarWait)]
    assert (_counted(k), len(waits), waits[0].why) == (["w", "v"], 1, "32 bytes of w, v")


@pytest.mark.parametrize(
    "body",
    [
        EXCHANGE.replace(SEND, f"for (i < 3) {{ {SEND} }}"),
        EXCHANGE.replace(SEND, f"if (bx == 0) {{ {SEND} }}"),
        EXCHANGE.replace("of block tx", "of block 1"),
        EXCHANGE.replace(SEND, f"store w[tx] = r[0] if (tx < 4)\n{SEND}"),
        EXCHANGE + SEND + TAKE,
        "shared w: float32[4]\n" + SEND,
    ],
    ids=["in a loop", "in a branch", "to one block", "written by others", "used again", "not used"],
)  # fmt: skip
def test_others_stay_what_they_are(body: str) -> None:
    k = kernel(body)
    assert count_remote_stores(k) is k


IN_ROLES = """shared w: float32[8]
roles {
  role warps 0..1 {
    remote_store w[2*cx + tx%2] of block (tx//2) = r[0] if (tx < 8)
    r[1] = load w[tx] if (tx < 8) else 0.0:float32
    store y[256*bx + 64*cx + tx] = r[1]
  }
  role warps 1..2 { store z[256*bx + 64*cx + tx] = r[0] }
}
"""


def test_an_exchange_of_one_role() -> None:
    """Its threads alone store and wait; 32 bytes come from the role, not from the block."""
    k = count_remote_stores(kernel(IN_ROLES))
    (expect,) = (s for s in k.body if isinstance(s, MbarExpect))
    assert (_counted(k), expect.nbytes) == (["w"], 32)
    done = run_pipeline(kernel(IN_ROLES), TARGET)
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    y = np.zeros(4096, np.float32)
    arrays = dict(zip(done.params, (x, y, y.copy()), strict=True))
    assert simulate(done, arrays, outputs=done.params[1:]).races == []
    for place in range(8):
        bx, cx = divmod(place, 4)
        sent = x[256 * bx : 256 * bx + 256].reshape(4, 64)[:, 2 * cx : 2 * cx + 2]
        assert np.array_equal(y[64 * place :][:8], sent.ravel())


def test_an_exchange_of_two_roles_is_not_counted() -> None:
    body = IN_ROLES.replace("store z[256*bx + 64*cx + tx] = r[0]", "r[2] = load w[0]")
    taken = body.replace("r[1] = load w[tx] if (tx < 8) else 0.0:float32", "r[1] = copy(r[0])")
    k = kernel(taken)
    assert count_remote_stores(k) is k


def test_vectors_are_counted_by_their_bytes() -> None:
    send = "remote_store w[4*cx] of block tx = r[0..4] if (tx < 4)\n"
    k = kernel("shared w: float32[16] align 16\n" + send + TAKE)
    k = count_remote_stores(k)
    (expect,) = (s for s in k.body if isinstance(s, MbarExpect))
    assert expect.nbytes == 64
    text = print_kernel(k)
    assert "of block tx = r[0..4] if (tx < 4) on full1" in text
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("w[2*cx] of block tx = r[0..4]", r"the index 2\*cx is not a multiple of the width 4"),
        ("w[3*cx] of block tx = r[0..3]", "3 elements of float32 at once are not a power of two"),
    ],
)
def test_vectors_that_are_no_words(store: str, message: str) -> None:
    k = kernel(f"shared w: float32[16] align 16\nremote_store {store} if (tx < 4)\n" + TAKE)
    with pytest.raises(SpecError, match=message):
        check_kernel(k, "lowered")


def test_elements_of_two_bytes_cannot_be_counted() -> None:
    k = kernel(EXCHANGE.replace("float32", "float16"), dtype="float16")
    assert count_remote_stores(k) is k


@pytest.mark.parametrize("without", ["", "counting"])
def test_the_values_arrive(without: str) -> None:
    k = run_pipeline(kernel(EXCHANGE), TARGET, PipelineOptions(without=without))
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    y = np.zeros(4096, np.float32)
    found = simulate(k, dict(zip(k.params, (x, y, y.copy()), strict=True)), outputs=k.params[1:])
    assert found.races == []
    for bx in range(2):
        for cx in range(4):
            sent = x[256 * bx : 256 * bx + 256].reshape(4, 64)[:, cx]
            assert np.array_equal(y[256 * bx + 64 * cx :][:4], sent)


def test_buffers_of_the_block_alone_are_packed_by_their_own_lives() -> None:
    """The mbarrier is the first allocation: the lives of a and b are not those of their
    neighbours. Both are needed to the end, so they share nothing."""
    body = """shared a: float32[64]
      store a[tx] = r[0]
      shared b: float32[64]
      r[3] = load x[tx + 512]
      store b[tx] = r[3]
      """
    uses = "r[2] = load a[tx]\nr[3] = load b[tx]\nr[2] = add(r[2], r[3])\n"
    k = run_pipeline(kernel(body + EXCHANGE + uses + "store z[256*bx + 64*cx + tx] = r[2]"), TARGET)
    offsets = {s.buffer.name: s.offset for s in walk_statements(k) if isinstance(s, Alloc)}
    assert {"a", "b", "full1"} <= set(offsets)
    a, b = offsets["a"], offsets["b"]
    assert a is not None and b is not None and abs(a - b) >= 256


def test_cuda_text() -> None:
    text = emit(run_pipeline(kernel(EXCHANGE), TARGET), TARGET)
    assert "fence.mbarrier_init.release.cluster;" in text
    assert "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [at], %2, [by];" in text
    assert "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64" in text
    assert "barrier.cluster.arrive.release" not in text
