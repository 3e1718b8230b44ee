"""Pure: generates a reader from a plan (KIP-482 for flexible versions).

- Counts and lengths are compared with the bytes left in the frame. The memory of a message is bounded; a number counts
  as a quarter of a struct.
- An unexpected null, a string of more than 32,767 bytes and a known tag of a wrong size are malformed. Unknown tags are
  skipped. Tags may come in any order, and the last of two wins, as in Kafka.
- Generated code raises MalformedFrame, struct.error, IndexError or UnicodeDecodeError.
"""

from __future__ import annotations

from typing import Any

from kafka_ds.protocol.emit import Page, PerCount
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.plan import ArrayPlan, FieldPlan, PlannedField, StructPlan, size_min
from kafka_ds.protocol.types import Primitive
from kafka_ds.protocol.varint import read_unsigned_varint

STRING_BYTES_MAX = 32_767
ELEMENTS_MAX = 1_000_000
# As Kafka 4.4: each may be two bytes, and costs more than an element of an array.
TAGGED_FIELDS_MAX = 10_000


def read_long_string_length(buffer: Any, position: int) -> tuple[int, int]:
    """The length plus one of a compact string, if it has more than one byte."""
    length, position = read_unsigned_varint(buffer, position)
    if length > STRING_BYTES_MAX + 1:
        raise MalformedFrame(f"a string of {length - 1} bytes")
    return length, position


def check_tags(count: int) -> None:
    """Refuse a struct with very many tagged fields."""
    if count > TAGGED_FIELDS_MAX:
        raise MalformedFrame(f"{count} tagged fields")


def skip_tags(buffer: Any, position: int, end: int) -> int:
    """The position after the tagged fields of a struct for which none are declared."""
    if not buffer[position]:
        return position + 1  # Mostly.
    count, position = read_unsigned_varint(buffer, position)
    check_tags(count)
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        position += size
        if position > end:
            raise MalformedFrame("a tagged field runs past the end")
    return position


class ReaderSource:
    """Generates `read(b, p, end) -> (message, position)` for a plan."""

    def __init__(self) -> None:
        self.page = Page(
            {
                "MalformedFrame": MalformedFrame,
                "check_tags": check_tags,
                "new": object.__new__,
                "read_long": read_unsigned_varint,
                "read_long_string": read_long_string_length,
                "skip_tags": skip_tags,
            }
        )
        self.items: list[tuple[str, str, int]] = []  # (code, target, size)

    def message(self, plan: StructPlan) -> None:
        with self.page.block("def read(b, p, end):"):
            self.page.line(f"budget = {ELEMENTS_MAX}")
            name = self.struct(plan)
            self.flush()
            self.page.line(f"return {name}, p")

    def flush(self) -> None:
        """Generate the call that reads the pending fixed-size items."""
        if not self.items:
            return
        codes = [code for code, _, _ in self.items]
        targets = [target for _, target, _ in self.items]
        size = sum(size for _, _, size in self.items)
        self.items = []
        if codes == ["B"]:
            self.page.line(f"{targets[0]} = b[p]")
        else:
            function = self.page.struct_function("unpack_from", codes)
            comma = "," if len(targets) == 1 else ""
            self.page.line(f"{', '.join(targets)}{comma} = {function}(b, p)")
        self.page.line(f"p += {size}")

    def struct(self, plan: StructPlan) -> str:
        """Generate code that reads a struct; returns the name of its variable."""
        page, name = self.page, self.page.name("x")
        known = page.scope.setdefault(plan.cls.__name__, plan.cls)
        assert known is plan.cls, f"two structs of the name {plan.cls.__name__}"
        page.line(f"{name} = new({plan.cls.__name__})")
        for field in plan.absent + plan.tagged:
            page.line(f"{name}.{field.name} = {page.constant(field.default, 'default')}")
        for field in plan.fields:
            self.value(field.kind, field, f"{name}.{field.name}", plan.flexible)
        if plan.flexible:
            self.tags(plan, name)
        return name

    def value(self, kind: FieldPlan, field: PlannedField, target: str, flexible: bool) -> None:
        if isinstance(kind, ArrayPlan):
            self.array(kind, field, target, flexible)
        elif isinstance(kind, StructPlan):
            self.nested(kind, field, target)
        elif kind.code is not None:
            self.items.append((kind.code, target, kind.size))
        else:
            self.bytes_like(kind, field, target, flexible)

    def length(self, flexible: bool, code: str, long: str = "read_long") -> str:
        """Generate code that reads a length or count (a compact one: plus 1); returns the name of its variable."""
        name = self.page.name("n")
        if not flexible:
            self.items.append((code, name, 2 if code == "h" else 4))
            self.flush()
            return name
        self.items.append(("B", name, 1))
        self.flush()
        with self.page.block(f"if {name} > 127:"):
            self.page.line(f"{name}, p = {long}(b, p - 1)")
        return name

    def null(self, field: PlannedField, target: str) -> None:
        """Generate the branch for a null length."""
        with self.page.block("else:"):
            if field.nullable:
                self.page.line(f"{target} = None")
            else:
                self.page.line(f"raise MalformedFrame('{field.name} is null')")

    def bytes_like(self, kind: Primitive, field: PlannedField, target: str, flexible: bool) -> None:
        page, text = self.page, kind.name == "string"
        code = "h" if text else "i"
        n = self.length(flexible, code, "read_long_string" if text else "read_long")
        with page.block(f"if {n}:" if flexible else f"if {n} >= 0:"):
            page.line(f"q = p + {n} - 1" if flexible else f"q = p + {n}")
            with page.block("if q > end:"):
                page.line(f"raise MalformedFrame('{field.name} runs past the end')")
            form = {"string": "str(b[p:q], 'utf-8')", "bytes": "bytes(b[p:q])"}
            page.line(f"{target} = {form.get(kind.name, 'b[p:q]')}")
            page.line("p = q")
        self.null(field, target)

    def array(self, kind: ArrayPlan, field: PlannedField, target: str, flexible: bool) -> None:
        page, element = self.page, kind.element
        n = self.length(flexible, "i")
        with page.block(f"if {n}:" if flexible else f"if {n} >= 0:"):
            if flexible:
                page.line(f"{n} -= 1")
            least = max(1, size_min(element, flexible=flexible))
            bytes_least = n if least == 1 else f"{n} * {least}"
            with page.block(f"if {bytes_least} > end - p:"):
                page.line(f"raise MalformedFrame('{field.name} has more elements than bytes')")
            code = element.code if isinstance(element, Primitive) and element.size < 16 else None
            page.line(f"budget -= {n} >> 2" if code else f"budget -= {n}")
            with page.block("if budget < 0:"):
                page.line("raise MalformedFrame('more elements than a message may have')")
            if isinstance(element, Primitive) and code is not None:
                name = f"unpack_many_{element.name}"
                page.scope[name] = PerCount("unpack_from", code)
                page.line(f"{target} = [*{name}[{n}](b, p)]")
                page.line(f"p += {n} * {element.size}")
            else:
                self.elements(element, field, target, n, flexible)
        self.null(field, target)

    def elements(
        self,
        element: Primitive | StructPlan,
        field: PlannedField,
        target: str,
        count: str,
        flexible: bool,
    ) -> None:
        page, many = self.page, self.page.name("many")
        page.line(f"{target} = {many} = []")
        one = PlannedField(f"an element of {field.name}", element, False, None, None)
        with page.block(f"for _ in range({count}):"):
            if isinstance(element, StructPlan):
                name = self.struct(element)
            else:
                name = page.name("e")
                self.value(element, one, name, flexible)
            self.flush()
            page.line(f"{many}.append({name})")

    def nested(self, kind: StructPlan, field: PlannedField, target: str) -> None:
        """A nested struct; a nullable one has a byte for its presence (KIP-893): null is -1, or 0 in a tagged field."""
        page = self.page
        if not field.nullable:
            name = self.struct(kind)
            self.flush()
            page.line(f"{target} = {name}")
            return
        present = page.name("n")
        self.items.append(("b", present, 1))
        self.flush()
        least = 0 if field.tag is None else 1
        with page.block(f"if {present} >= {least}:"):
            name = self.struct(kind)
            self.flush()
            page.line(f"{target} = {name}")
        self.null(field, target)

    def tags(self, plan: StructPlan, name: str) -> None:
        """The tagged fields; their count, which is mostly 0, is read together with the items before it."""
        page, count = self.page, self.page.name("t")
        self.items.append(("B", count, 1))
        self.flush()
        with page.block(f"if {count}:"):
            if not plan.tagged:
                page.line("p = skip_tags(b, p - 1, end)")
                return
            function = page.name("tags_of_" + plan.cls.__name__)
            page.line(f"p = {function}(b, p - 1, end, {name})")
        with page.aside(), page.block(f"def {function}(b, p, end, x):"):
            page.line(f"budget = {ELEMENTS_MAX}")
            page.line("count, p = read_long(b, p)")
            page.line("check_tags(count)")
            with page.block("for _ in range(count):"):
                page.line("tag, p = read_long(b, p)")
                page.line("size, p = read_long(b, p)")
                page.line("stop = p + size")
                with page.block("if stop > end:"):
                    page.line("raise MalformedFrame('a tagged field runs past the end')")
                self.known_tags(plan)
            page.line("return p")

    def known_tags(self, plan: StructPlan) -> None:
        page = self.page
        for index, field in enumerate(plan.tagged):
            with page.block(f"{'elif' if index else 'if'} tag == {field.tag}:"):
                self.value(field.kind, field, f"x.{field.name}", plan.flexible)
                self.flush()
                with page.block("if p != stop:"):
                    page.line(f"raise MalformedFrame('{field.name} has another size')")
        with page.block("else:"):
            page.line("p = stop")
