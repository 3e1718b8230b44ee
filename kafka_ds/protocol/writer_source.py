"""Pure: generates a writer from a plan.

- Everything is appended to a bytearray, except for large `records`, which are passed on without a copy, for a gathering
  write.
- A tagged field with its default value is left out, as in Kafka.
- A value that the version cannot express (null, a number out of range) is a bug: generated code raises Python's own
  error, and the caller converts it to an AssertionError.
"""

from __future__ import annotations

from typing import Any

from kafka_ds.protocol.emit import Page, PerCount
from kafka_ds.protocol.plan import ArrayPlan, FieldPlan, PlannedField, StructPlan, default_struct
from kafka_ds.protocol.types import Primitive
from kafka_ds.protocol.varint import unsigned_varint

# Up to this size a copy is cheaper than another buffer in a gathering write.
RECORDS_COPIED_BYTES_MAX = 1024


def buffers_of(records: Any) -> tuple[int, Any]:
    """The total length of a `records` value, and its buffers."""
    if isinstance(records, (list, tuple)):
        return sum(map(len, records)), records
    return len(records), (records,)


class WriterSource:
    """Generates `write(x, out, parts) -> out` for a plan."""

    def __init__(self) -> None:
        self.page = Page({"varint": unsigned_varint, "buffers_of": buffers_of})
        self.items: list[tuple[str, str]] = []  # (code, expression)
        self.out = "out"

    def message(self, plan: StructPlan) -> None:
        with self.page.block("def write(x, out, parts):"):
            self.struct(plan, "x")
            self.flush()
            self.page.line("return out")

    def pack(self, items: list[tuple[str, str]]) -> None:
        """Generate code that appends fixed-size items."""
        if not items:
            return
        codes = [code for code, _ in items]
        values = ", ".join(value for code, value in items if code != "x")
        if codes in (["B"], ["x"]):
            self.page.line(f"{self.out}.append({values or 0})")
        else:
            function = self.page.struct_function("pack", codes)
            self.page.line(f"{self.out} += {function}({values})")

    def flush(self) -> None:
        """Generate code that appends the pending fixed-size items."""
        items, self.items = self.items, []
        self.pack(items)

    def length(self, flexible: bool, code: str, value: str) -> None:
        """Generate code that appends a length or count; for a compact one the caller has added one."""
        if not flexible:
            self.items.append((code, value))
            self.flush()
            return
        items, self.items = self.items, []
        with self.page.block(f"if {value} < 128:"):
            self.pack([*items, ("B", value)])
        with self.page.block("else:"):
            self.pack(items)
            self.page.line(f"{self.out} += varint({value})")

    def struct(self, plan: StructPlan, name: str) -> None:
        for field in plan.fields:
            self.value(field.kind, field.nullable, f"{name}.{field.name}", plan.flexible)
        if plan.tagged:
            self.tags(plan, name)
        elif plan.flexible:
            self.items.append(("x", "0"))

    def value(self, kind: FieldPlan, nullable: bool, value: str, flexible: bool) -> None:
        if isinstance(kind, ArrayPlan):
            self.array(kind, nullable, value, flexible)
        elif isinstance(kind, StructPlan):
            self.nested(kind, nullable, value, 255)
        elif kind.code is not None:
            self.items.append((kind.code, value))
        elif kind.name == "records":
            self.records(nullable, value, flexible)
        else:
            self.bytes_like(kind, nullable, value, flexible)

    def bytes_like(self, kind: Primitive, nullable: bool, value: str, flexible: bool) -> None:
        page, e, n = self.page, self.page.name("e"), self.page.name("n")
        method = ".encode()" if kind.name == "string" else ""
        plus = " + 1" if flexible else ""
        if nullable:
            page.line(f"{e} = {value}")
            with page.block(f"if {e} is None:"):
                page.line(f"{e}, {n} = b'', {0 if flexible else -1}")
            with page.block("else:"):
                if method:
                    page.line(f"{e} = {e}{method}")
                page.line(f"{n} = len({e}){plus}")
        else:
            page.line(f"{e} = {value}{method}")
            page.line(f"{n} = len({e}){plus}")
        self.length(flexible, "h" if kind.name == "string" else "i", n)
        page.line(f"{self.out} += {e}")

    def records(self, nullable: bool, value: str, flexible: bool) -> None:
        """`records`: mostly one memoryview, sometimes several buffers or another kind of buffer."""
        page = self.page
        size, buffers, n = page.name("size"), page.name("buffers"), page.name("n")
        assert self.out == "out", "records in a tagged field"
        page.line(f"{buffers} = {value}")
        with page.block(f"if type({buffers}) is memoryview:"):
            page.line(f"{n} = {size} = {buffers}.nbytes")
            page.line(f"{buffers} = ({buffers},)")
        if nullable:
            with page.block(f"elif {buffers} is None:"):
                page.line(f"{n}, {size}, {buffers} = -1, 0, ()")
        with page.block("else:"):
            page.line(f"{size}, {buffers} = buffers_of({buffers})")
            page.line(f"{n} = {size}")
        if flexible:
            page.line(f"{n} += 1")
        self.length(flexible, "i", n)
        with page.block(f"if {size} > {RECORDS_COPIED_BYTES_MAX}:"):
            page.line("parts.append(out)")
            page.line(f"parts.extend({buffers})")
            page.line("out = bytearray()")
        with page.block("else:"), page.block(f"for part in {buffers}:"):
            page.line("out += part")

    def array(self, kind: ArrayPlan, nullable: bool, value: str, flexible: bool) -> None:
        page, many, n = self.page, self.page.name("many"), self.page.name("n")
        page.line(f"{many} = {value}")
        count = f"len({many}) + 1" if flexible else f"len({many})"
        if nullable:
            null = 0 if flexible else -1
            page.line(f"{n} = {null} if {many} is None else {count}")
        else:
            page.line(f"{n} = {count}")
        self.length(flexible, "i", n)
        element = kind.element
        with page.block(f"if {many}:"):
            if isinstance(element, Primitive) and element.code is not None and element.size < 16:
                name = f"pack_many_{element.name}"
                page.scope[name] = PerCount("pack", element.code)
                page.line(f"{self.out} += {name}[len({many})](*{many})")
                return
            one = page.name("x")
            with page.block(f"for {one} in {many}:"):
                if isinstance(element, StructPlan):
                    self.struct(element, one)
                else:
                    self.value(element, False, one, flexible)
                self.flush()

    def nested(self, kind: StructPlan, nullable: bool, value: str, null: int) -> None:
        """A nested struct; `null` is the byte for null."""
        page, name = self.page, self.page.name("x")
        if not nullable:
            page.line(f"{name} = {value}")
            self.struct(kind, name)
            return
        self.flush()
        page.line(f"{name} = {value}")
        with page.block(f"if {name} is None:"):
            page.line(f"{self.out}.append({null})")
        with page.block("else:"):
            self.items.append(("B", "1"))
            self.struct(kind, name)
            self.flush()

    def is_set(self, field: PlannedField, name: str) -> str:
        """The condition under which a tagged field is written."""
        value = f"{name}.{field.name}"
        if isinstance(field.kind, StructPlan) and not field.nullable:
            name_of_default = "no_" + field.kind.cls.__name__
            self.page.scope[name_of_default] = default_struct(field.kind)
            return f"{value} is not None and {value} != {name_of_default}"
        if isinstance(field.kind, StructPlan):
            # Kafka reads a missing one as a struct of defaults, so null is written.
            return "True"
        if field.default is None:
            return f"{value} is not None"
        if field.default == []:
            return f"({value} is None or {value})" if field.nullable else value
        return f"{value} != {self.page.constant(field.default, 'default')}"

    def tags(self, plan: StructPlan, name: str) -> None:
        """The tagged fields, in their own function because messages rarely have any."""
        page = self.page
        self.flush()
        function = page.name("tags_of_" + plan.cls.__name__)
        conditions = " or ".join(self.is_set(field, name) for field in plan.tagged)
        with page.block(f"if {conditions}:"):
            page.line(f"{function}({name}, {self.out})")
        with page.block("else:"):
            page.line(f"{self.out}.append(0)")
        with page.aside(), page.block(f"def {function}(x, out):"):
            page.line("found = []")
            outer, self.out = self.out, "field"
            for field in plan.tagged:
                with page.block(f"if {self.is_set(field, 'x')}:"):
                    page.line("field = bytearray()")
                    if isinstance(field.kind, StructPlan):
                        # In a tagged field 1 is present and 0 is null, as unsigned varints (as in Kafka).
                        self.nested(field.kind, field.nullable, f"x.{field.name}", 0)
                    else:
                        self.value(field.kind, field.nullable, f"x.{field.name}", plan.flexible)
                    self.flush()
                    page.line(f"found.append(({field.tag}, field))")
            self.out = outer
            page.line("out += varint(len(found))")
            with page.block("for tag, field in found:"):
                page.line("out += varint(tag)")
                page.line("out += varint(len(field))")
                page.line("out += field")
