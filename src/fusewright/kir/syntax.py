"""The concrete syntax of KIR nodes: one template per node, read in both directions.

A template is a row of pieces. A string stands for itself, the other pieces print a field and
parse it back by the type it is annotated with. A node without a template gets one derived from
its fields, `snake_name #id field(value) body { ... }  // why`, so new nodes print and parse at
once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeAlias, cast, get_type_hints

from fusewright.core.expr import Expr, Int, Var
from fusewright.core.node import Node, defaults_of, fields_of
from fusewright.kir import ir
from fusewright.kir.codecs import BARE, OPERAND, Codec, Reader, codec_of, dtype_in
from fusewright.kir.tiles import Tile
from fusewright.kir.traverse import body_fields, gathered
from fusewright.memory import Memory

Fields: TypeAlias = dict[str, object]


class Piece(Protocol):
    """A part of a template."""

    def print(self, node: Node) -> str:
        """The text of this part."""
        ...

    def parse(self, reader: Reader, found: Fields) -> None:
        """Read this part and put the fields it carries into `found`."""
        ...


@cache
def _hints(cls: type[Node]) -> dict[str, object]:
    return get_type_hints(cls)


# --- pieces -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """Words and signs that stand for themselves."""

    text: str

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\w+|\.\.|[^\w\s]", self.text))

    def print(self, node: Node) -> str:
        return self.text

    def parse(self, reader: Reader, found: Fields) -> None:
        reader.expect(*self.tokens)


@dataclass(frozen=True, slots=True)
class Slot:
    """A field by the codec of its type. Where it is `bare`, with no brackets of the template around
    it, a division would read as the beginning of a comment."""

    cls: type[Node]
    field: str
    bare: bool = False

    def print(self, node: Node) -> str:
        text = self._codec.print(getattr(node, self.field))
        return f"({text})" if self.bare and _divides_outside_brackets(text) else text

    def parse(self, reader: Reader, found: Fields) -> None:
        found[self.field] = self._codec.parse(reader)

    @property
    def _codec(self) -> Codec:
        return codec_of(_hints(self.cls)[self.field])


def _divides_outside_brackets(text: str) -> bool:
    depth = 0
    for k, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if not depth and text.startswith("//", k):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Word:
    """A string field that is one bare word: the name of a function or a mode."""

    field: str

    def print(self, node: Node) -> str:
        return str(getattr(node, self.field))

    def parse(self, reader: Reader, found: Fields) -> None:
        found[self.field] = reader.word().text


@dataclass(frozen=True, slots=True)
class Items:
    """A tuple field as a comma-separated list without brackets of its own, up to `)`."""

    field: str
    codec: Codec

    def print(self, node: Node) -> str:
        return ", ".join(self.codec.print(v) for v in getattr(node, self.field))

    def parse(self, reader: Reader, found: Fields) -> None:
        items: list[object] = []
        while reader.peek().text != ")":
            if items:
                reader.expect(",")
            items.append(self.codec.parse(reader))
        found[self.field] = tuple(items)


@dataclass(frozen=True, slots=True)
class Span:
    """A register with its width: `r[i]` for one element, `r[i..i + 4]` for four."""

    field: str
    width: str

    def print(self, node: Node) -> str:
        reg: ir.Reg = getattr(node, self.field)
        width: int = getattr(node, self.width)
        end = "" if width == 1 else f"..{reg.index + width}"
        return f"{reg.buffer.name}[{reg.index}{end}]"

    def parse(self, reader: Reader, found: Fields) -> None:
        buffer = reader.buffer()
        reader.expect("[")
        index = reader.expression()
        width = Int(1)
        if reader.accept(".."):
            token = reader.peek()
            width = reader.expression() - index
            if not isinstance(width, Int) or width.value < 1:
                reader.reject(f"a range of {width} elements; give a constant number >= 1", token)
        reader.expect("]")
        found[self.field] = ir.Reg(buffer, index)
        found[self.width] = width.value


@dataclass(frozen=True, slots=True)
class Optional:
    """Pieces that print only where `field` differs from its default; the first is a Text. They
    stand on the line where the statement so far ended."""

    field: str
    default: object
    pieces: tuple[Piece, ...]

    def print(self, node: Node) -> str:
        if same_value(getattr(node, self.field), self.default):
            return ""
        return "".join(p.print(node) for p in self.pieces)

    def parse(self, reader: Reader, found: Fields) -> None:
        lead = self.pieces[0]
        assert isinstance(lead, Text)
        if not reader.same_line() or not reader.accept(*lead.tokens):
            return
        for p in self.pieces[1:]:
            p.parse(reader, found)


@dataclass(frozen=True, slots=True)
class Flag:
    """A bool field that is there or not."""

    field: str
    text: str

    def print(self, node: Node) -> str:
        return f" {self.text}" if getattr(node, self.field) else ""

    def parse(self, reader: Reader, found: Fields) -> None:
        found[self.field] = reader.same_line() and reader.accept(self.text)


@dataclass(frozen=True, slots=True)
class Begin:
    """Where in a word a vector begins: nothing where that is its start, `begins 2`, or
    `begins anywhere` where it is not known."""

    field: str

    def print(self, node: Node) -> str:
        begins: int | None = getattr(node, self.field)
        return "" if begins == 0 else f" begins {'anywhere' if begins is None else begins}"

    def parse(self, reader: Reader, found: Fields) -> None:
        if reader.same_line() and reader.accept("begins"):
            found[self.field] = None if reader.accept("anywhere") else reader.integer()


@dataclass(frozen=True, slots=True)
class NestedValue:
    """A field that is a value of several parts, each as it prints where it is not the default."""

    field: str
    cls: type[Node]
    pieces: tuple[Piece, ...]

    def print(self, node: Node) -> str:
        return "".join(p.print(getattr(node, self.field)) for p in self.pieces)

    def parse(self, reader: Reader, found: Fields) -> None:
        inner: Fields = {}
        for p in self.pieces:
            p.parse(reader, inner)
        found[self.field] = self.cls(**inner)


@dataclass(frozen=True, slots=True)
class Braces:
    """A body: statements in braces, one a line, two spaces in."""

    field: str

    def print(self, node: Node) -> str:
        body: ir.Body = getattr(node, self.field)
        inner = "\n".join(print_statement(s) for s in body)
        return "{\n" + indent(inner) + "}"

    def parse(self, reader: Reader, found: Fields) -> None:
        found[self.field] = reader.body()


@dataclass(frozen=True, slots=True)
class Comment:
    """A string field as the comment that ends the line."""

    field: str

    def print(self, node: Node) -> str:
        text = " ".join(str(getattr(node, self.field)).split())
        return f"  // {text}" if text else ""

    def parse(self, reader: Reader, found: Fields) -> None:
        found[self.field] = reader.trailing_comment()


@dataclass(frozen=True, slots=True)
class Declaration:
    """The buffer an Alloc brings into being: `shared s: float32[128] align 16`."""

    field: str

    def print(self, node: Node) -> str:
        return buffer_text(getattr(node, self.field))

    def parse(self, reader: Reader, found: Fields) -> None:
        memory = reader.word().text
        name = reader.word("the name of the buffer")
        buffer = parse_buffer(reader, name.text, Memory(memory))
        reader.declare(buffer, name)
        found[self.field] = buffer


@dataclass(frozen=True, slots=True)
class LoopHeader:
    """The variable of a loop and its extent: `i < 4`; limits follow where they differ."""

    variable: str
    extent: str

    def print(self, node: Node) -> str:
        return range_text(getattr(node, self.variable), getattr(node, self.extent))

    def parse(self, reader: Reader, found: Fields) -> None:
        token = reader.peek()
        v, extent = parse_range(reader)
        reader.declare(v, token)
        found[self.variable], found[self.extent] = v, extent


# --- symbols ----------------------------------------------------------------------------------


def indent(text: str) -> str:
    """Every line two spaces in, each ended by a newline."""
    return "".join(f"  {line}\n" for line in text.splitlines())


def buffer_text(b: ir.Buffer) -> str:
    """`shared s: float32[128] align 16`."""
    kind = "param" if b.memory is Memory.GLOBAL else b.memory.value
    usual = b.dtype.nbytes if b.tile is None else b.tile.alignment
    aligned = "" if b.alignment == usual else f" align {b.alignment}"
    tile = "" if b.tile is None else f" {tile_text(b.tile)}"
    return f"{kind} {b.name}: {b.dtype}[{b.size}]{tile}{aligned}"


def parse_buffer(reader: Reader, name: str, memory: Memory) -> ir.Buffer:
    """What follows the name of a buffer: `: float32[128] align 16`."""
    reader.expect(":")
    dtype = dtype_in(reader)
    reader.expect("[")
    size = reader.expression()
    reader.expect("]")
    tile = parse_tile(reader, dtype.nbytes) if reader.accept("tile") else None
    alignment = reader.integer() if reader.accept("align") else 0
    return ir.Buffer(name, dtype, size, memory, alignment, tile)


def tile_text(t: Tile) -> str:
    """`tile 64 x 32 swizzle 64`."""
    return f"tile {t.rows} x {t.columns}{f' swizzle {t.swizzle}' if t.swizzle else ''}"


def parse_tile(reader: Reader, itemsize: int) -> Tile:
    """What `tile_text` prints, after the word `tile`."""
    start = reader.peek()
    rows = reader.integer()
    reader.expect("x")
    columns = reader.integer()
    if min(rows, columns) < 1:
        reader.reject(f"a tile of {rows} x {columns} elements has none", start)
    return Tile(rows, columns, itemsize, reader.integer() if reader.accept("swizzle") else 0)


def map_text(m: ir.TensorMap) -> str:
    """`map w: x sizes (k, m) strides (1, k) box (64, 128) swizzle 128`, and `rounding tf32`."""
    swizzle = f" swizzle {m.swizzle}" if m.swizzle else ""
    swizzle += f" rounding {m.rounding}" if m.rounding else ""
    parts = (f"{w} {_listed(v)}" for w, v in zip(_MAP, (m.sizes, m.strides, m.box), strict=True))
    return f"map {m.name}: {m.buffer.name} {' '.join(parts)}{swizzle}"


_MAP = ("sizes", "strides", "box")


def _listed(values: Iterable[object]) -> str:
    return f"({', '.join(map(str, values))})"


def parse_map(reader: Reader, name: str) -> ir.TensorMap:
    """What `map_text` prints, after the name."""
    reader.expect(":")
    buffer = reader.buffer()
    found: list[tuple[Expr, ...]] = []
    for word in _MAP[:2]:
        reader.expect(word)
        found.append(cast("tuple[Expr, ...]", codec_of(tuple[Expr, ...]).parse(reader)))
    reader.expect(_MAP[2])
    start = reader.peek()
    box = cast("tuple[int, ...]", codec_of(tuple[int, ...]).parse(reader))
    if min(box, default=1) < 1:
        reader.reject(f"a box of {_listed(box)} elements has none", start)
    swizzle = reader.integer() if reader.accept("swizzle") else 0
    rounding = reader.word().text if reader.accept("rounding") else ""
    return ir.TensorMap(name, buffer, found[0], found[1], box, swizzle, rounding)


def limits_text(v: Var) -> str:
    """` in [0, 7] multiple_of 4`."""
    multiple = f" multiple_of {v.multiple_of}" if v.multiple_of != 1 else ""
    return f" in [{v.lower}, {'inf' if v.upper is None else v.upper}]{multiple}"


def parse_limits(reader: Reader) -> tuple[Expr, Expr | None, int]:
    """What `limits_text` prints, after the word `in`."""
    reader.expect("[")
    lower = reader.expression()
    reader.expect(",")
    upper = None if reader.accept("inf") else reader.expression()
    reader.expect("]")
    multiple = reader.integer() if reader.accept("multiple_of") else 1
    return lower, upper, multiple


def range_text(v: Var, extent: Expr) -> str:
    """`i < 4`, with the limits of `i` where they are not 0 and 3."""
    plain = v.multiple_of == 1 and same_value(v.lower, Int(0)) and same_value(v.upper, extent - 1)
    return f"{v.name} < {extent}{'' if plain else limits_text(v)}"


def parse_range(reader: Reader) -> tuple[Var, Expr]:
    """What `range_text` prints."""
    name = reader.word("the name of a loop variable").text
    reader.expect("<")
    extent = reader.expression()
    if reader.accept("in"):
        return Var(name, *parse_limits(reader)), extent
    return Var(name, 0, extent - 1), extent


def same_value(a: object, b: object) -> bool:
    """Equality of field values: structural for expressions and literals, identity of symbols."""
    return a is b or (type(a) is type(b) and bool(a == b))


# --- templates --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Template:
    """The syntax of one statement. `lead` holds the words it can begin with; a template with
    `assigns` begins with a register and `=`, and `lead` stands behind that."""

    cls: type[ir.Statement]
    pieces: tuple[Piece, ...]
    lead: tuple[str, ...]
    assigns: bool = False


def _rows(cls: type[Node], row: tuple[object, ...]) -> tuple[Piece, ...]:
    """Pieces from a short spelling: a string is a Text, `"{x}"` a Slot, a tuple an Optional whose
    field is that of its last Slot."""
    pieces: list[Piece] = []
    depth = 0
    for item in row:
        if isinstance(item, tuple):
            inner = _rows(cls, cast("tuple[object, ...]", item))
            slot = next(p for p in inner if isinstance(p, Slot | Braces))
            pieces.append(Optional(slot.field, defaults_of(cls)[slot.field], inner))
        elif isinstance(item, str):
            slot_name = re.fullmatch(r"\{(\w+)\}", item)
            pieces.append(Slot(cls, slot_name[1], not depth) if slot_name else Text(item))
            depth += len(re.findall(r"[(\[]", item)) - len(re.findall(r"[)\]]", item))
        else:
            pieces.append(cast("Piece", item))
    return tuple(pieces)


def _template(
    cls: type[ir.Statement], *row: object, lead: tuple[str, ...] = (), assigns: bool = False
) -> Template:
    pieces = _rows(cls, row)
    if not lead:
        text = next(p for p in pieces if isinstance(p, Text))
        lead = (next(t for t in text.tokens if t.isidentifier()),)
    return Template(cls, pieces, lead, assigns)


def snake(cls: type) -> str:
    """`BlockSync` -> `block_sync`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


_IF = (" if (", "{predicate}", ")")
_CACHE = (" .", "{cache}")
_MERGED = Optional("merged", (), (Text(" merged ("), Items("merged", codec_of(int)), Text(")")))
_LANES = (
    Begin("begins"),
    *_rows(ir.Lanes, ((" lanes ", "{first}", "..", "{stop}"), Flag("inside", "inside"))),
)

_BULK = ("{dst}", "[", "{index}", "] = ", "{src}", "[", "{src_index}", "] size ", "{size}")
_BY = (" by thread ", "{issuer}")
_BOX = ("{map}", " at ", "{coordinates}")
_ROWS = (Flag("transposed", "transposed"),)
_BARRIER = (" ", "{barrier}", "[", "{slot}", "]")
_MBARRIERS: tuple[tuple[type[ir.Statement], tuple[object, ...]], ...] = (
    (ir.MbarInit, (*_BARRIER, " count ", "{count}", *_BY)),
    (ir.MbarExpect, (*_BARRIER, " nbytes ", "{nbytes}", *_BY)),
    (ir.MbarArrive, (*_BARRIER, (" of block ", "{rank}"), Flag("per_warp", "per_warp"))),
    (ir.MbarWait, (*_BARRIER, " parity ", "{parity}", _BY)),
    (ir.MbarInvalidate, (*_BARRIER, *_BY)),
)

_WRITTEN: tuple[Template, ...] = (
    _template(
        ir.Alloc, Declaration("buffer"), (" offset ", "{offset}"), Flag("promote", "promote"),
        (" copied ", "{copied}"), (" stages ", "{stages}"), (" ahead ", "{ahead}"),
        Flag("in_words", "in_words"), Flag("uncut", "uncut"),
        Flag("warp_specialized", "warp_specialized"), (" registers ", "{registers}"),
        Flag("ping_pong", "ping_pong"),
        lead=("local", "shared"),
    ),
    _template(ir.For, "for (", LoopHeader("var", "extent"), ")", Flag("unroll", "unroll"), " ",
              Braces("body")),
    _template(ir.If, "if (", "{condition}", ") ", Braces("then"), (" else ", Braces("otherwise"))),
    _template(ir.Load, Span("dst", "width"), " = load ", "{src}", "[", "{index}", "]", _IF,
              (" else ", "{fill}"), _CACHE, NestedValue("lanes", ir.Lanes, _LANES), assigns=True),
    _template(ir.Store, "store ", "{dst}", "[", "{index}", "] = ", Span("src", "width"), _IF,
              _CACHE),
    _template(ir.RemoteStore, "remote_store ", "{dst}", "[", "{index}", "] of block ", "{rank}",
              " = ", Span("src", "width"), _IF, (" on ", "{barrier}"), (" slot ", "{slot}")),
    _template(ir.CheckIndex, "check_index ", "{index}", " inside ", "{inside}", " axis ", "{axis}",
              _MERGED, " size ", "{extent}", _IF, Comment("why")),
    _template(ir.Shuffle, "{dst}", " = shuffle.", Word("mode"), "(", "{src}", ", ", "{operand}",
              ")", (" width ", "{width}"), assigns=True),
    _template(ir.Roles, "roles ", Braces("body")),
    _template(ir.Role, "role warps ", "{first}", "..", "{stop}", _BY, " ", Braces("body")),
    _template(ir.CpAsync, "cp_async ", "{dst}", "[", "{index}", "] = ", "{src}", "[",
              "{src_index}", "]", (" width ", "{width}"), _IF, Flag("zero_fill", "zero_fill"),
              (" stop ", "{stop}"), _CACHE),
    _template(ir.BulkLoad, "bulk_load ", *_BULK, " on ", "{barrier}", "[", "{slot}", "]", *_BY),
    _template(ir.BulkStore, "bulk_store ", *_BULK, *_BY),
    _template(ir.BulkReduce, "bulk_reduce.", Word("fn"), " ", *_BULK, *_BY),
    _template(ir.BoxLoad, "box_load ", "{dst}", "[", "{index}", "] = ", *_BOX,
              (" to ", "{blocks}", " blocks"), (" on ", "{barrier}", "[", "{slot}", "]"), *_BY),
    _template(ir.BoxStore, "box_store ", *_BOX, " = ", "{src}", "[", "{src_index}", "]", *_BY),
    _template(ir.BoxReduce, "box_reduce.", Word("fn"), " ", *_BOX, " = ", "{src}", "[",
              "{src_index}", "]", *_BY),
    _template(ir.PrefetchMap, "prefetch_map ", "{map}", *_BY),
    _template(ir.PrefetchBox, "prefetch_box ", *_BOX, *_BY),
    _template(ir.Mma, "mma ", "{dst}", " = ", "{a}", " * ", "{b}", " n ", "{n}",
              (" accumulate (", "{accumulate}", ")")),
    _template(ir.WarpMma, "warp_mma ", "{dst}", " = ", "{a}", " * ", "{b}"),
    _template(ir.LdMatrix, "{dst}", " = ldmatrix ", "{src}", "[", "{index}", "] count ", "{count}",
              *_ROWS, assigns=True),
    _template(ir.StMatrix, "stmatrix ", "{dst}", "[", "{index}", "] = ", "{src}", " count ",
              "{count}", *_ROWS),
    _template(ir.SetMaxRegisters, "set_max_registers ", "{count}", Flag("grows", "grows")),
    *(_template(cls, f"{snake(cls)} #", "{id}", *row, Comment("why")) for cls, row in _MBARRIERS),
    _template(ir.ThreadReduce, "{dst}", " = thread_reduce.", Word("fn"), "(", "{src}", ") over (",
              Items("dims", BARE), ") identity ", "{identity}", assigns=True),
    _template(ir.ThreadScan, "{dst}", " = thread_scan.", Word("fn"), "(", "{src}", ") along ",
              Word("dim"), Flag("reverse", "reverse"), " carry ", "{carry}", " identity ",
              "{identity}", assigns=True),
)  # fmt: skip

COMPUTE = Template(
    ir.Compute,
    _rows(
        ir.Compute,
        ("{dst}", " = ", Word("fn"), "(", Items("operands", OPERAND), ")", _IF),
    ),
    (),
    assigns=True,
)


def derive(cls: type[ir.Statement]) -> Template:
    """A template from the fields: `name #id (field=value, ...) { body }  // why`."""
    row: list[object] = [snake(cls)]
    names, defaults = fields_of(cls), defaults_of(cls)
    bodies = body_fields(cls)
    plain = [f for f in names if f not in bodies and f not in ("id", "why")]
    if "id" in names:
        row += [" #", "{id}"]
    for f in sorted(plain, key=lambda f: f in defaults):
        row += [(f" {f}(", f"{{{f}}}", ")")] if f in defaults else [f" {f}(", f"{{{f}}}", ")"]
    if "why" in names:
        row.append(Comment("why"))
    for f in bodies:
        row += [f"\n{f} " if "why" in names else f" {f} ", Braces(f)]
    return Template(cls, _rows(cls, tuple(row)), (snake(cls),))


def _statement_classes() -> list[type[ir.Statement]]:
    classes = [c for c in vars(ir).values() if isinstance(c, type) and issubclass(c, ir.Statement)]
    return [c for c in classes if not any(c in d.__bases__ for d in classes)]


def _templates() -> dict[type[ir.Statement], Template]:
    written = {t.cls: t for t in (*_WRITTEN, COMPUTE)}
    return written | {c: derive(c) for c in _statement_classes() if c not in written}


TEMPLATES: dict[type[ir.Statement], Template] = _templates()


def print_statement(statement: ir.Statement) -> str:
    """The text of a statement and all below it, without a final newline."""
    template = TEMPLATES[type(statement)]
    return given_text(statement) + "".join(p.print(statement) for p in template.pieces)


def given_text(statement: ir.Statement) -> str:
    """`given r[0] in [0, 9]: ` for gathered positions whose limits are not the default ones."""
    limits = [
        f"{v.name}{limits_text(v)}"
        for v in gathered(statement)
        if v.upper is not None or not same_value(v.lower, Int(0))
    ]
    return f"given {', '.join(limits)}: " if limits else ""
