"""Scalars on the host beside tensors on a device.

torch's kernels take a tensor without axes from the host among operands on a device, as a number.
Regions on the device read it from a tensor there, which is filled with the number: a copy of the
host's memory would read it when the device gets there, or when a recording is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusewright.frontends.torch.calls import device_of, is_host_scalar
from fusewright.frontends.torch.library import aten


def bring_scalars(
    graph: Any, regions: Sequence[Sequence[Any]], constants: Mapping[Any, None]
) -> None:
    """Has regions on a device read the host's scalars there.

    rewrite:  region: mul(x, s), s on the host
              ->   c = full([], _local_scalar_dense(s), device=x's); region: mul(x, c)
    checks:   what no region reads stays as it is: an operator of torch's takes s as a number
    order:    behind the partition, which says what is a region
    """
    made: dict[tuple[Any, Any], Any] = {}
    for members in regions:
        for n, s in host_scalars(members, constants):
            key = s, device_of(n)
            if key not in made:
                made[key] = _brought(graph, *key)
            n.replace_input_with(s, made[key])


def host_scalars(
    members: Sequence[Any], constants: Mapping[Any, None]
) -> Iterator[tuple[Any, Any]]:
    """The nodes of a region on a device that read scalars of the host, and these."""
    inside = {*members, *constants}
    for n in members:
        if device_of(n).type != "cpu":
            for s in n.all_input_nodes:
                if s not in inside and is_host_scalar(s.meta.get("val")):
                    yield n, s


def _brought(graph: Any, scalar: Any, device: Any) -> Any:
    """A tensor on a device, made right behind the scalar, before anything can write to that."""
    value = scalar.meta["val"]
    last = scalar
    while last.op == "placeholder" and last.next.op == "placeholder":
        last = last.next
    with graph.inserting_after(last):
        number = graph.call_function(aten._local_scalar_dense.default, (scalar,))
    options = {"dtype": value.dtype, "device": device}
    with graph.inserting_after(number):
        made = graph.call_function(aten.full.default, ([], number), options)
    with value.fake_mode:
        made.meta["val"] = aten.full.default([], 0, **options)
    return made
