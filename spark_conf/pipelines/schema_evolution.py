"""Pure: which column of a typed table holds which values of a JSON field.

Columns are added, never dropped or retyped. The first kind of a field determines the type of its column. A value that
does not fit there goes to `<field>__bigint`, `__double`, `__boolean` or `__string`; an array or object goes to
`<field>__json` as text. A double column also holds integers. Objects are structs, evolved field by field. What no
column can hold is rescued.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from kafka_ds.topic.typed_columns import (
    DEPTH_MAX,
    JSON,
    NAMEABLE,
    SCALARS,
    FieldPath,
    is_of_clashes,
)
from spark_conf.pipelines.kinds import (
    BIGINT,
    DOUBLE,
    MIXED,
    STRING,
    VOID,
    ArrayOf,
    Kind,
    ObjectOf,
    is_empty,
    is_object,
    parse_kind,
    texts_of_fields,
)

COLUMNS_MAX: Final = 1_000

# A record's partition and offset.
TextPlace: TypeAlias = tuple[int, int]
# For each field its kinds, as Spark's text, with the first record that has them.
Seen: TypeAlias = Mapping[str, Mapping[str, TextPlace]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldColumn:
    """A column for the values of a field whose kinds have these texts; `within`: the columns of an object's fields."""

    name: str
    kind: Kind
    texts: frozenset[str]
    within: ObjectFields | None = None

    @property
    def is_json(self) -> bool:
        return self.name.endswith(f"__{JSON}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedField:
    """A field's columns, and the texts of the kinds that no column can hold."""

    name: str
    columns: tuple[FieldColumn, ...]
    rescued: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A column that was added because a value did not fit the field's own column."""

    column: str
    place: TextPlace
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFields:
    """The fields of an object, all its columns, and the clashes for which columns were added."""

    fields: tuple[PlacedField, ...]
    kind: ObjectOf
    clashes: tuple[Clash, ...] = ()


def with_declared(columns: ObjectOf, declared: Mapping[FieldPath, Kind]) -> ObjectOf:
    """The columns with the declared ones that a field of theirs may still get; present ones keep their types."""
    fields = dict(columns.fields)
    spelled = {name.lower(): name for name in fields}
    within: dict[str, dict[FieldPath, Kind]] = {}
    for (name, *rest), kind in declared.items():
        has_room = name in fields or len(fields) < COLUMNS_MAX
        if not has_room or spelled.setdefault(name.lower(), name) != name:
            continue
        if rest:
            fields.setdefault(name, ObjectOf(()))
            within.setdefault(name, {})[tuple(rest)] = kind
        else:
            fields.setdefault(name, kind)
    for name, of_object in within.items():
        present = fields[name]
        if isinstance(present, ObjectOf):
            fields[name] = with_declared(present, of_object)
    return ObjectOf(tuple(fields.items()))


def kind_at(columns: ObjectOf, path: FieldPath) -> Kind | None:
    """The kind of the column of this path; None if there is none."""
    kind: Kind | None = columns
    for name in path:
        kind = dict(kind.fields).get(name) if isinstance(kind, ObjectOf) else None
    return kind


def place(
    columns: ObjectOf, seen: Seen, *, reserved: Iterable[str] = (), path: tuple[str, ...] = ()
) -> ObjectFields:
    """Choose columns for the kinds that were seen; `columns` are the present ones. No field gets a reserved name."""
    work = _Placement(
        before=dict(columns.fields), reserved={name.lower() for name in reserved}, path=path
    )
    by_first = sorted(seen.items(), key=lambda item: (min(item[1].values()), item[0]))
    fields = [work.place_field(name, texts) for name, texts in by_first]
    return ObjectFields(
        fields=tuple(fields), kind=ObjectOf(tuple(work.now.items())), clashes=tuple(work.clashes)
    )


@dataclass(slots=True, kw_only=True)
class _Placement:
    before: dict[str, Kind]
    reserved: set[str]
    path: tuple[str, ...]
    now: dict[str, Kind] = field(init=False)
    spelled: dict[str, str] = field(init=False)
    """Column names by their lower case: engines ignore case."""
    clashes: list[Clash] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = dict(self.before)
        self.spelled = {name.lower(): name for name in self.now}

    def place_field(self, name: str, texts: Mapping[str, TextPlace]) -> PlacedField:
        kinds = {text: parse_kind(text) for text in sorted(texts, key=lambda t: (texts[t], t))}
        if len(self.path) >= DEPTH_MAX:
            kinds = {t: MIXED if isinstance(k, ObjectOf) else k for t, k in kinds.items()}
        full = {text: kind for text, kind in kinds.items() if not is_empty(kind)}
        if not self._is_nameable(name):
            return PlacedField(name=name, columns=(), rescued=frozenset(full))
        chosen: dict[str, set[str]] = {}
        rescued: set[str] = set()
        for text, kind in full.items():
            column = self._column_for(name, kind, texts[text])
            if column is None:
                rescued.add(text)
            else:
                chosen.setdefault(column, set()).add(text)
        if (present := self.now.get(name)) is not None:
            # An empty array or object is null, unless its column exists.
            fits = (t for t, k in kinds.items() if _merged(None, present, k) == present)
            chosen.setdefault(name, set()).update(t for t in fits if t not in full)
        columns = [
            FieldColumn(name=column, kind=self.now[column], texts=frozenset(of_it))
            for column, of_it in chosen.items()
        ]
        placed = [self._with_objects(column, texts, rescued) for column in columns]
        return PlacedField(
            name=name, columns=tuple(filter(None, placed)), rescued=frozenset(rescued)
        )

    def _is_nameable(self, name: str) -> bool:
        return (
            NAMEABLE.fullmatch(name) is not None
            and not is_of_clashes(name)
            and name.lower() not in self.reserved
            and self.spelled.get(name.lower(), name) == name
        )

    def _column_for(self, name: str, kind: Kind, first: TextPlace) -> str | None:
        """The column for values of this kind, new or present; None if there can be none."""
        present = self.now.get(name)
        fitting = (
            _completed(kind) if present is None else _merged(self.before.get(name), present, kind)
        )
        if fitting is not None and self._has_room(name):
            self._add(name, fitting)
            return name
        is_scalar = kind in SCALARS
        column = f"{name}__{kind if is_scalar else JSON}"
        of_column = kind if is_scalar else STRING
        if self.now.get(column, of_column) != of_column or not self._has_room(column):
            return None
        if column not in self.now:
            what = kind if is_scalar else _described(kind)
            above = "".join(f"{each}." for each in self.path)
            reason = f"{above}{name} is {what}: stored in column {above}{column}"
            self.clashes.append(Clash(column=column, place=first, reason=reason))
            self._add(column, of_column)
        return column

    def _has_room(self, column: str) -> bool:
        return column in self.now or len(self.now) < COLUMNS_MAX

    def _add(self, column: str, kind: Kind) -> None:
        self.now[column] = kind
        self.spelled[column.lower()] = column

    def _with_objects(
        self, column: FieldColumn, texts: Mapping[str, TextPlace], rescued: set[str]
    ) -> FieldColumn | None:
        """The column with the columns of its fields; if a field cannot be held, the whole object is rescued."""
        if not isinstance(column.kind, ObjectOf):
            return column
        seen: dict[str, dict[str, TextPlace]] = {}
        for text in sorted(column.texts):
            fields = texts_of_fields(text) if is_object(text) else {}
            for name, of_field in fields.items():
                of_name = seen.setdefault(name, {})
                of_name[of_field] = min(of_name.get(of_field, texts[text]), texts[text])
        present = self.before.get(column.name)
        within = place(
            present if isinstance(present, ObjectOf) else ObjectOf(()),
            seen,
            path=(*self.path, column.name),
        )
        refused = {each.name: each.rescued for each in within.fields if each.rescued}
        for text in column.texts:
            of_fields = texts_of_fields(text) if is_object(text) else {}
            if any(of_fields.get(name) in these for name, these in refused.items()):
                rescued.add(text)
        self.clashes += within.clashes
        if not within.kind.fields:
            del self.now[column.name], self.spelled[column.name.lower()]
            return None
        self.now[column.name] = within.kind
        return replace(column, kind=within.kind, within=within)


def _completed(kind: Kind) -> Kind | None:
    """The kind of a new column; None if there can be none. The fields of an object are added later."""
    if isinstance(kind, ObjectOf):
        return ObjectOf(())
    return _within_array(kind) if isinstance(kind, ArrayOf) else kind if kind in SCALARS else None


def _within_array(kind: Kind) -> Kind | None:
    """The kind of a new array's elements, with all fields: objects in arrays are not evolved field by field."""
    if isinstance(kind, ArrayOf):
        element = _within_array(kind.element)
        return None if element is None else ArrayOf(element)
    if isinstance(kind, ObjectOf):
        return _merged_fields((), (), kind.fields)
    return kind if kind in SCALARS else None


def _merged(before: Kind | None, now: Kind, new: Kind) -> Kind | None:
    """The kind that holds both; None if they clash. A column that existed `before` is never retyped."""
    if new == VOID or now == new:
        return now
    if isinstance(now, ArrayOf) and isinstance(new, ArrayOf):
        was = before.element if isinstance(before, ArrayOf) else None
        element = _merged_in_array(was, now.element, new.element)
        return None if element is None else ArrayOf(element)
    if isinstance(now, ObjectOf) and isinstance(new, ObjectOf):
        return now  # Evolved field by field.
    if now == DOUBLE and new == BIGINT:
        return now
    return DOUBLE if (now, new, before) == (BIGINT, DOUBLE, None) else None


def _merged_in_array(before: Kind | None, now: Kind, new: Kind) -> Kind | None:
    if isinstance(now, ObjectOf) and isinstance(new, ObjectOf):
        was = before.fields if isinstance(before, ObjectOf) else ()
        return _merged_fields(was, now.fields, new.fields)
    return _merged(before, now, new)


_Fields: TypeAlias = tuple[tuple[str, Kind], ...]


def _merged_fields(before: _Fields, now: _Fields, new: _Fields) -> ObjectOf | None:
    was, found = dict(before), dict(now)
    spelled = {name.lower(): name for name in found}
    for name, kind in new:
        if is_empty(kind):
            continue
        if spelled.setdefault(name.lower(), name) != name or not NAMEABLE.fullmatch(name):
            return None
        present = found.get(name)
        merged = (
            _within_array(kind)
            if present is None
            else _merged_in_array(was.get(name), present, kind)
        )
        if merged is None or len(found) >= COLUMNS_MAX:
            return None
        found[name] = merged
    return ObjectOf(tuple(found.items())) if found else None


def _described(kind: Kind) -> str:
    if isinstance(kind, ObjectOf):
        return "an object"
    if kind == MIXED:
        return f"nested deeper than {DEPTH_MAX}, or very large"
    return "an array of other elements"
