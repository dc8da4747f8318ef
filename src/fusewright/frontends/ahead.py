"""Programs that are wanted soon are made by processes side by side, and found in the disk cache.

Scheduling and lowering are Python, of which a process runs one thread at a time. So the programs of
a graph that are not on disk yet go to workers (`ahead_worker`), as text, the largest first; each
worker puts what it makes where another process would look for it. What no worker makes, for
whatever reason, is made by whoever wants it, who also says why it cannot be.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

from fusewright import knobs
from fusewright.frontends import stored_programs
from fusewright.frontends.stored_programs import Wanted, key_of, programs_on_disk
from fusewright.fusion.known import Known
from fusewright.fusion.printing import print_fusion
from fusewright.progress import told
from fusewright.runtime.device import has_gpu

_log = logging.getLogger("fusewright.compile")

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fusewright.frontends.ahead_worker import main
main()
"""

LEAST_OPS = 30
"""Operations of programs that take as long to schedule and lower as a worker takes to start: 0.8 s
of a processor for that, and 20 to 34 ms an operation (Mixtral and ViT of `bench.zoo.large`, a step
of training, 2026-11-25, the process's clock)."""

Request: TypeAlias = tuple[str, int, str]
"""The key of a program, its number of operations, and the line that asks a worker for it."""


def make_ahead(wanted: Sequence[Wanted], what: str) -> None:
    """Makes the programs that are not on disk, where several processes are faster than this one;
    `what` is said of it on a terminal where it takes long. Raises nothing."""
    if not knobs.CACHE.get() or not sys.executable:
        return
    missing = sorted(_missing(wanted), key=lambda r: -r[1])
    count = min(knobs.THREADS.get(), len(missing))
    if count < 2 or sum(ops for _, ops, _ in missing[1:]) < LEAST_OPS:
        return
    workers, keys = _Workers(missing), {key for key, _, _ in missing}
    try:
        for answer in told(workers.answers(count), len(missing), what):
            if answer not in keys:
                _log.info("a program is not made ahead: %s", answer)
    except Exception as e:
        _log.warning("programs are not made ahead: %s: %s", type(e).__name__, e)
    finally:
        workers.end()


def _missing(wanted: Sequence[Wanted]) -> list[Request]:
    """What workers are asked for: each program once, without those that hold data of the caller."""
    found: dict[str, Request] = {}
    cache = programs_on_disk()
    for w in wanted:
        if not stored_programs.is_kept(w.fusion) or any(
            isinstance(t, Known) for t in w.fusion.inputs
        ):
            continue
        key = key_of(w)
        if key not in found and not cache.has(key):
            found[key] = key, len(w.fusion.ops), json.dumps(_record(w, key))
    return list(found.values())


def _record(w: Wanted, key: str) -> dict[str, Any]:
    """A request, as `ahead_worker` takes it."""
    return {
        "key": key,
        "fusion": print_fusion(w.fusion),
        "target": w.target.arch,
        "donated": list(w.donated.items()),
        "orders": [None if o is None else list(o) for o in w.orders],
        "precision": w.precision,
        "with_code": has_gpu(),
    }


class _Workers:
    """Processes, each driven by a thread that hands it one request after the other."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._waiting = deque(requests)
        self._answers: SimpleQueue[str | None] = SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []

    def answers(self, count: int) -> Iterator[str]:
        """Works through the requests in so many processes: what these say, a line a request, until
        all are done, or the processes are gone."""
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self._processes.append(process)
            threading.Thread(target=self._drive, args=(process,), daemon=True).start()
        running = count
        while running:
            answer = self._answers.get()
            if answer is None:
                running -= 1
            else:
                yield answer

    def _drive(self, process: subprocess.Popen[str]) -> None:
        """Hands requests to a process until there are no more, or the process is gone."""
        assert process.stdin is not None and process.stdout is not None
        try:
            while self._waiting:
                _, _, line = self._waiting.popleft()
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                if not answer:
                    break
                self._answers.put(answer.strip())
        except (OSError, ValueError, IndexError):
            pass  # it has ended, or another thread took the last request
        finally:
            self._answers.put(None)

    def end(self) -> None:
        """Ends the processes."""
        self._waiting.clear()
        for p in self._processes:
            p.kill()
            p.wait()
