"""What every spelling writes with: names in scope, expressions, lines, branches around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from fusewright import knobs
from fusewright.core import expr as ex
from fusewright.core.conditions import TRUE, Cond, Truth, equal
from fusewright.core.expr import Division, Expr, Var
from fusewright.cuda import exprs, scalars, unrolled, words
from fusewright.cuda.exprs import IntegerText
from fusewright.cuda.names import Identifiers
from fusewright.cuda.parameters import constant_size as constant_size
from fusewright.cuda.shared_divisions import Shared, shared_divisions, wish_of
from fusewright.errors import SpecError, UnsupportedError
from fusewright.kir.analysis.uses import written_buffers
from fusewright.kir.ir import (
    Alloc,
    Buffer,
    Kernel,
    Mma,
    Reg,
    RegVar,
    Role,
    Roles,
    Statement,
    SyncStatement,
)
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.target import Target


def check_target(s: Statement, target: Target) -> None:
    """Raise UnsupportedError when the target has no such instruction."""
    feature = None if s.is_private else s.feature()
    if feature is not None and not target.has(feature):
        raise UnsupportedError(
            f"{type(s).__name__} needs compute capability {feature.since}, which {target} does not "
            "have; copy with loads and stores, and use other barriers"
        )


class Writer:
    """The text of one kernel so far, and what is in scope. `spellings` say how to write each class
    of statement."""

    def __init__(self, kernel: Kernel, target: Target, spellings: Spellings) -> None:
        self.kernel = kernel
        self.target = target
        self.names = Identifiers()
        self.written = frozenset(written_buffers(kernel))
        self.products = tuple(s for s in walk_statements(kernel) if isinstance(s, Mma))
        self.has_roles = any(isinstance(s, Roles) for s in walk_statements(kernel))
        allocs = [s for s in walk_statements(kernel) if isinstance(s, Alloc)]
        self.in_words = frozenset(a.buffer for a in allocs if a.in_words)
        self.uncut = frozenset(a.buffer for a in allocs if a.uncut)
        self.variables: dict[Var, IntegerText] = {}
        self.used: set[Var] = set()
        self.unrolled: set[Var] = set()  # those of loops that the compiler unrolls
        self.in_scope: dict[Buffer, None] = {}
        self.divisions: dict[Division, IntegerText] = {}  # those in scope that have a name
        self._texts: dict[Expr, IntegerText] = {}  # what expressions are written as, in this scope
        self._shared: Shared = {} if self.products else shared_divisions(kernel)
        """Not of products: where laps of their rings are unrolled, slots become literals, which a
        quotient with a name, or by an inverse, would hide from the compiler."""
        self.role: Role | None = None
        self.bound_ms = knobs.BOUND_WAITS.get()
        self.leading: dict[int, str] = {}  # by issuing thread the condition that stands for it
        self.lines: list[str] = []
        self._depth = 1
        self._spellings = spellings

    # --- lines

    def line(self, text: str) -> None:
        """One line of text."""
        self.lines.append("  " * self._depth + text)

    def block(self, head: str, body: Callable[[], None]) -> None:
        """What `body` writes, in braces."""
        self.line(f"{head}{{" if not head else f"{head} {{")
        outside, named = dict(self.in_scope), dict(self.divisions)
        self._depth += 1
        body()
        self._depth -= 1
        self.in_scope, self.divisions = outside, named
        self._texts.clear()
        self.line("}")

    def told(self, s: SyncStatement, on: Buffer) -> str:
        """A literal that says which wait it is, of whom, on what and why."""
        role = self.role
        who = "all warps" if role is None else f"warps {role.first} to {role.stop - 1}"
        why = " ".join(s.why.split())
        what = f"{self.kernel.name}: wait {s.id} of {who} on {on.name} ({why})"
        return '"' + what.replace("\\", "/").replace('"', "'") + '"'

    def otherwise(self, body: Callable[[], None]) -> None:
        """What happens where the condition of the branch written last does not hold."""
        self.lines.pop()
        self.block("} else", body)

    def guarded(self, predicate: Cond, body: Callable[[], None]) -> None:
        """What `body` writes, where a predicate holds."""
        if isinstance(predicate, Truth) and predicate.value:
            body()
        else:
            self.block(f"if ({self.condition(predicate)})", body)

    def body(self, body: Iterable[Statement]) -> None:
        """The statements, one after the other."""
        for s in body:
            check_target(s, self.target)
            for d in self._shared.get(s, ()):
                self._name(d)
            spell = self._spellings.get(type(s))
            if spell is None:
                raise SpecError(
                    f"{type(s).__name__} has no CUDA spelling; an earlier pass must expand it"
                )
            spell(self, s)

    # --- expressions

    def _name(self, d: Division) -> None:
        """Computes a division under a name, unless it has one here."""
        if d not in self.divisions:
            value, name = self.index(d), self.names.of(d, wish_of(d))
            self.line(f"const {'long long' if value.wide else 'int'} {name} = {value.code};")
            self.divisions[d] = IntegerText(name, value.wide, atomic=True)
            self._texts.clear()

    def bind(self, var: Var, *, wide: bool) -> IntegerText:
        """The name of a variable from here on."""
        self.variables[var] = IntegerText(self.names.of(var, var.name), wide, atomic=True)
        return self.variables[var]

    def _spell(self, var: Var | Division) -> IntegerText | None:
        if isinstance(var, Division):
            is_folded = bool(self.products)  # slots of rings whose laps are unrolled
            return exprs.plain_division(var, self._spell) if is_folded else self.divisions.get(var)
        if isinstance(var, RegVar):
            return self._register_index(var)
        text = self.variables.get(var)
        if text is None:
            raise SpecError(f"kernel {self.kernel.name} uses {var} where it is not defined")
        self.used.add(var)
        return text

    def _register_index(self, var: RegVar) -> IntegerText:
        dtype, code = var.reg.buffer.dtype, self.register(var.reg)
        if not dtype.is_integer:
            raise SpecError(f"register {var} of {dtype} stands in an index; only integers may")
        if dtype.nbytes < 4 or dtype.name == "int32":
            return IntegerText(code, wide=False, atomic=True)
        if exprs.fits_int(var):
            return IntegerText(f"(int){code}", wide=False)
        return IntegerText(code if dtype.name == "int64" else f"(long long){code}", wide=True)

    def index(self, e: Expr) -> IntegerText:
        """The text of an integer expression, with its width."""
        text = self._texts.get(e)
        if text is None:
            text = self._texts[e] = unrolled.spelled(e, self.unrolled, self._spell)
        return text

    def integer(self, e: Expr) -> str:
        """An integer expression."""
        return self.index(e).code

    def condition(self, c: Cond) -> str:
        """A condition."""
        return exprs.condition(c, self._spell)

    def every(self, c: Cond) -> str:
        """A condition whose parts are all evaluated, so that none of them is a branch."""
        return exprs.every(c, self._spell)

    def register(self, reg: Reg, offset: int = 0) -> str:
        """The register `offset` behind one."""
        buffer = reg.buffer
        if buffer.memory is not Memory.LOCAL:
            raise SpecError(f"{buffer} lives in {buffer.memory.value} memory, not in registers")
        name = self.name(buffer)
        if buffer in self.in_words:
            return words.element(name, reg, ex.add(reg.index, offset))
        if buffer in self.uncut:
            return f"fw_elements({name}).at[{self.integer(ex.add(reg.index, offset))}]"
        if constant_size(buffer) == 1:
            return name
        return f"{name}[{self.integer(ex.add(reg.index, offset))}]"

    def value(self, reg: Reg) -> str:
        """A register in the compute type of its dtype."""
        if reg.buffer in self.in_words:
            return words.value(self.name(reg.buffer), reg)
        return scalars.widen(self.register(reg), reg.buffer.dtype)

    def name(self, buffer: Buffer) -> str:
        """The name of a buffer."""
        return self.names.of(buffer, buffer.name)

    def address(self, buffer: Buffer, index: Expr) -> str:
        """A pointer to an element of a buffer."""
        if isinstance(index, ex.Int) and index.value == 0:
            return self.name(buffer)
        return f"{self.name(buffer)} + {self.index(index).operand}"

    def thread(self) -> Expr:
        """The linear number of the thread in its block."""
        linear: Expr = ex.ZERO
        for d in reversed(self.kernel.block):
            linear = linear * d.extent + (ex.ZERO if d.extent == ex.ONE else d.var)
        return linear

    def issued(self, issuer: int | None, body: Callable[[], None]) -> None:
        """What `body` writes, by the thread that issues it; by all where that is None."""
        if issuer is not None and issuer in self.leading:
            self.block(f"if ({self.leading[issuer]})", body)
        else:
            self.guarded(TRUE if issuer is None else equal(self.thread(), issuer), body)


Spellings: TypeAlias = Mapping[type[Statement], Callable[[Writer, Any], None]]
