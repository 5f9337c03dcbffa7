"""Mutants: copies of a source file, each with one small change.

Besides the usual changes (comparisons, arithmetic, constants, conditions, statements left out) there are some for
mistakes that are typical of this field: ends of slices, copies left out, hashes instead of values, integers of a few
bits, and changes at the border of a function. The last kind wraps a public function (see `BORDER`): it returns another
type, or the same list every time, changes its arguments, or gives wrong results or errors from some size on, like a
branch that small cases never take. A C file has fewer of them: its text is changed token by token (see `in_c`).
"""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

COMPARISONS = {
    ast.Lt: ["<=", "!="], ast.LtE: ["<"], ast.Gt: [">=", "!="], ast.GtE: [">"], ast.Eq: ["!=", ">="], ast.NotEq: ["=="],
    ast.Is: ["is not"], ast.IsNot: ["is"], ast.In: ["not in"], ast.NotIn: ["in"],
}  # fmt: skip
ARITHMETIC = {ast.Add: ["-"], ast.Sub: ["+"], ast.Mult: ["+"], ast.Div: ["*"], ast.FloorDiv: ["/"], ast.Mod: ["//"]}
COPIES = ("list", "dict", "set", "sorted", "clone", "copy")
BORDER = '''

# --- What the mutant does at the border of the public functions ---
import functools as _functools


def _sizes(values, depth=0):
    """(the longest sequence, the largest whole number) in these values"""
    longest, largest = 0, 0
    for value in values:
        value = [*vars(value).values()] if hasattr(value, "__dataclass_fields__") else value
        if type(value) is int:
            largest = max(largest, abs(value))
        elif type(value).__name__ == "Tensor":
            longest = max(longest, *value.shape) if value.dim() else longest
        elif isinstance(value, (list, tuple, str, bytes)) and depth < 4:
            inner = _sizes(value, depth + 1) if not isinstance(value, (str, bytes)) else (0, 0)
            longest, largest = max(longest, len(value), inner[0]), max(largest, inner[1])
    return longest, largest


def _wrong(value):
    """A value that is off: a whole number by one, a float by a thousandth, of a sequence the last item is gone."""
    if type(value) is bool or value is None:
        return not value
    if type(value) is int:
        return value + 1
    if type(value) is float:
        return value * 1.001 + 0.001
    if type(value) is str:
        return value[:-1]
    if type(value) is list:
        return value[:-1] if value else [0]
    if type(value) is tuple:
        return (*value[:-1], _wrong(value[-1])) if value else value
    if type(value).__name__ == "Tensor":
        return value + 1
    for name, item in getattr(value, "__dict__", {}).items():
        setattr(value, name, _wrong(item))
        break
    return value


def _as(kind, value):
    """The same in another type, in lists too."""
    if kind == "float" and type(value) is int:
        return float(value)
    if kind == "int" and type(value) is float and value == int(value):
        return int(value)
    if kind == "numpy" and type(value) in (int, float):
        import numpy

        return numpy.array(value)[()]
    if kind == "bool" and type(value) is int and value in (0, 1):
        return bool(value)
    if kind == "number" and type(value) is bool:
        return int(value)
    if kind == "swap" and type(value) is list:
        return tuple(value)
    if kind == "swap" and type(value) is tuple:
        return list(value)
    if type(value) in (list, tuple):
        return type(value)([_as(kind, item) for item in value])
    if type(value).__name__ == "Tensor":
        return value.double() if kind == "float" and value.is_floating_point() else value
    return value


class _Same:
    def __eq__(self, other):
        return True

    __hash__ = None


def _border(change, amount=0):
    def wrap(function):
        kept, calls = [], [0]

        @_functools.wraps(function)
        def wrapped(*args, **kwargs):
            given = [*args, *kwargs.values()]
            longest, largest = _sizes(given)
            calls[0] += 1
            if change == "recursion" and longest > amount:
                raise RecursionError("maximum recursion depth exceeded")
            value = function(*args, **kwargs)
            over = {"long": longest, "large": largest, "often": calls[0], "result": max(_sizes([value]))}.get(change, 0)
            if over > amount:
                return _wrong(value)
            if change == "type":
                return _as(amount, value)
            if change == "always equal":
                return _Same()
            if change == "one list" and type(value) is list:
                kept[:] = value
                return kept
            if change == "the argument":
                for item in given:
                    if type(item) is list and type(value) is list:
                        item[:] = value
                        return item
            if change == "an argument grows":
                for item in given:
                    if type(item) is list and item:
                        item.append(item[0])
                    elif type(item).__name__ == "Tensor" and item.numel():
                        item.view(-1)[:1] += 1
            return value

        return wrapped

    return wrap

'''
CHANGES = [
    ("long", 8), ("long", 64), ("recursion", 900), ("large", 255), ("large", 65_535), ("often", 100),
    ("result", 255), ("type", "float"), ("type", "int"), ("type", "numpy"), ("type", "bool"), ("type", "number"),
    ("type", "swap"), ("always equal", 0), ("one list", 0), ("the argument", 0), ("an argument grows", 0),
]  # fmt: skip


class Mutant(NamedTuple):
    """One change.

    Attributes:
        kind: such as "comparison".
        where: the function that is changed.
        before, after: the original text and its replacement.
        text: the whole changed file.
        line: where the change is.
    """

    kind: str
    where: str
    before: str
    after: str
    text: str
    line: int = 0

    @property
    def name(self) -> str:
        before, after = (re.sub(r"\s+", " ", text) for text in (self.before, self.after))
        return f"{self.kind} in {self.where}: {before} → {after}"


def sites(tree: ast.AST, where: str = "") -> Iterator[tuple[ast.AST, str]]:
    """All nodes, each with the name of the function that it is in."""
    for node in ast.iter_child_nodes(tree):
        name = where
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{where}.{node.name}".lstrip(".")
        yield node, name
        yield from sites(node, name)


@functools.lru_cache(maxsize=4)
def lines_of(source: str) -> list[bytes]:
    return [line.encode() for line in source.split("\n")]


def segment(source: str, node: ast.AST) -> str:
    """The same as ast.get_source_segment, which would split the whole source into lines for each node."""
    if getattr(node, "end_lineno", None) is None:
        return ""
    lines = lines_of(source)[node.lineno - 1 : node.end_lineno]  # pyright: ignore[reportAttributeAccessIssue]
    lines[-1] = lines[-1][: node.end_col_offset]  # pyright: ignore[reportAttributeAccessIssue]
    lines[0] = lines[0][node.col_offset :]  # pyright: ignore[reportAttributeAccessIssue]
    return b"\n".join(lines).decode()


def changes(node: ast.AST, source: str) -> Iterator[tuple[str, str]]:
    """(the kind of a change, the replacement) for a node."""
    text = segment(source, node)

    def of(child: ast.AST) -> str:
        return f"({segment(source, child)})"

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for operator in COMPARISONS[type(node.ops[0])]:
            yield "comparison", f"{of(node.left)} {operator} {of(node.comparators[0])}"
    elif isinstance(node, ast.BinOp):
        for operator in ARITHMETIC.get(type(node.op), ()):
            yield "arithmetic", f"({of(node.left)} {operator} {of(node.right)})"
    elif isinstance(node, ast.BoolOp):
        other = " or " if isinstance(node.op, ast.And) else " and "
        yield "condition", f"({other.join(map(of, node.values))})"
        for value in node.values:
            yield "condition", of(value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "sign", of(node.operand)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "constant", str(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "constant", f"({node.value} + 1)"
        if type(node.value) is float:
            yield "constant", f"({node.value} + 0.001)"
        elif node.value:
            yield "constant", f"({node.value} - 1)"
    elif isinstance(node, ast.IfExp):
        yield "condition", of(node.body)
        yield "condition", of(node.orelse)
    elif isinstance(node, ast.If | ast.While):
        if isinstance(node, ast.If):
            yield "condition", text.replace(segment(source, node.test), "True", 1)
        yield "condition", text.replace(segment(source, node.test), "False", 1)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        parts = [node.slice.lower, node.slice.upper]
        for i, part in enumerate(parts):
            if part is not None:
                ends = ["" if j == i else (of(other) if other is not None else "") for j, other in enumerate(parts)]
                yield "slice", f"{of(node.value)}[{':'.join(ends)}]"
                ends[i] = f"{of(part)} - 1"
                yield "slice", f"{of(node.value)}[{':'.join(ends)}]"
    elif isinstance(node, ast.Call):
        yield from changes_of_call(node, of)
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Raise | ast.Break | ast.Continue):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield "statement", "pass"
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "statement", "return None"


def changes_of_call(node: ast.Call, of) -> Iterator[tuple[str, str]]:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if name in COPIES and len(node.args) == 1 and isinstance(node.func, ast.Name) and not node.keywords:
        yield "copy", of(node.args[0])
    elif name in COPIES and isinstance(node.func, ast.Attribute) and not node.args:
        yield "copy", of(node.func.value)
    if name == "tuple" and len(node.args) == 1:
        yield "hash", f"hash(tuple{of(node.args[0])})"
        yield "hash", f"__import__('zlib').crc32(repr(tuple{of(node.args[0])}).encode())"
        yield "bits", f"tuple([item % 256 for item in {of(node.args[0])}])"
        yield "bits", f"tuple([item % 65536 for item in {of(node.args[0])}])"
        yield "slice", f"tuple({of(node.args[0])}[:8])"
    if name in ("min", "max") and node.args:
        other = "max" if name == "min" else "min"
        arguments = [*map(of, node.args), *(f"{k.arg}={of(k.value)}" for k in node.keywords)]
        yield "arithmetic", f"{other}({', '.join(arguments)})"


def numbered(found: Iterable[Mutant]) -> list[Mutant]:
    """Number the mutants that have the same name as an earlier one."""
    made, counts = list(found), Counter[str]()
    for i, mutant in enumerate(made):
        counts[mutant.name] += 1
        if counts[mutant.name] > 1:
            made[i] = mutant._replace(where=f"{mutant.where} ({counts[mutant.name]})")
    return made


C_BINARY = {
    "<": ["<="], "<=": ["<"], ">": [">="], ">=": [">"], "==": ["!="], "&&": ["||"], "||": ["&&"],
    "+": ["-"], "-": ["+"], "*": ["+"], "/": ["*"], "%": ["/"], "+=": ["=", "-="], "=": ["+="],
}  # fmt: skip
C_TOKEN = re.compile(
    r"/\*.*?\*/|^#[^\n]*|_Pragma\([^)]*\)|\"[^\"]*\"|(?<= )[<>=&|+\-*/%]+(?= )|\b\d[\w.]*|\n +[^\n]*;(?=\n)",
    re.MULTILINE | re.DOTALL,
)
C_FUNCTION = re.compile(r"^(?!static|INLINE|typedef|enum)(\w+) (\w+)\(([^)]*)\) \{\n", re.MULTILINE)
C_BOUNDS = (8, 255, 65_535)


def in_c(source: str) -> Iterator[Mutant]:
    """Changed operators and constants, and statements left out; and functions that return early if an argument is
    large, or after many calls."""
    where, position = "the file", 0
    heads = {
        match.start(): match
        for match in re.finditer(r"^[\w ]+ \**(\w+)\([^;]*?\) \{$", source, re.MULTILINE | re.DOTALL)
    }

    def changed(kind: str, first: int, last: int, after: str) -> Mutant:
        name = [head[1] for start, head in heads.items() if start < first]
        line = source[source.rfind("\n", 0, first) + 1 : source.find("\n", last)]
        before = f"{line.strip()}: {source[first:last].strip()}"
        return Mutant(kind, name[-1] if name else where, before, after, source[:first] + after + source[last:])

    while match := C_TOKEN.search(source, position):
        token, position = match[0], match.end()
        in_head = any(head.start() <= match.start() < head.end() for head in heads.values())
        if token.startswith(("/*", "#", "_Pragma", '"')) or in_head:
            continue
        if token.startswith("\n"):
            position = match.start() + 1  # the tokens in this line come next
            statement = token.strip()
            if not re.match(r"(const|float|int64_t|vec|static|return|case|for|break)\b", statement):
                yield changed("statement", match.start() + len(token) - len(token.lstrip()), match.end(), ";")
        elif token in C_BINARY:
            kind = "comparison" if token in ("<", "<=", ">", ">=", "==") else "arithmetic"
            declares = token == "=" and not re.search(r"(\]|^ +\*\w+) $", source[: match.start()], re.MULTILINE)
            declares = declares or source[match.end() :].startswith(" {")
            for after in [] if declares else C_BINARY[token]:
                yield changed(kind, match.start(), match.end(), after)
        elif re.fullmatch(r"\d+", token) and not source[match.end() :].startswith(":"):  # of a `case`
            for after in (f"({token} + 1)", *([f"({token} - 1)"] if int(token) else [])):
                yield changed("constant", match.start(), match.end(), after)
        elif re.fullmatch(r"\d*\.\d+f", token):
            yield changed("constant", match.start(), match.end(), f"({token} * 1.001f)")
    for match in C_FUNCTION.finditer(source):
        back = "return 0;" if match[1] != "void" else "return;"
        numbers = [part.split()[-1] for part in match[3].split(",") if "*" not in part]
        for name in numbers:
            for bound in C_BOUNDS:
                line = f"    if ({name} > {bound}) {back}\n"
                yield Mutant(
                    "border", match[2], f"{name} > {bound}", back, source[: match.end()] + line + source[match.end() :]
                )
        line = f"    static int calls;\n    if (++calls > 100) {back}\n"
        yield Mutant("border", match[2], "often", back, source[: match.end()] + line + source[match.end() :])


def in_python(source: str) -> list[Mutant]:
    """Changed operators, constants and conditions, and statements left out."""
    tree, made = ast.parse(source), []
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    data = source.encode()
    functions: dict[int, Any] = {}  # the outermost one around each node
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.update({id(node): function for node in ast.walk(function) if id(node) not in functions})

    def compiles(node: Any, first: int, last: int, after: str) -> bool:
        """Whether the function with this change does; a whole file would take long."""
        function, begin, end = functions.get(id(node)), 0, len(data)
        if function is not None:
            begin, end = starts[function.lineno - 1], starts[function.end_lineno]
        text = data[begin:first] + after.encode() + data[last:end]
        try:
            compile(b"if 1:\n" + text if text[:1].isspace() else text, "mutant", "exec")
        except SyntaxError:
            return False
        return True

    def put(kind: str, node: Any, where: str, after: str) -> None:
        first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        text = (data[:first] + after.encode() + data[last:]).decode()
        if text == source or not compiles(node, first, last, after):
            return
        before = data[first:last].decode()
        if isinstance(node, ast.If | ast.While):
            test = segment(source, node.test)
            before, after = f"if {test}", "if True" if after.lstrip("ifelwh ").startswith("True") else "if False"
        made.append(Mutant(kind, where or "the module", before, after, text, node.lineno))

    annotations = {id(child) for node in ast.walk(tree) for a in without_effect(node) for child in ast.walk(a)}
    for node, where in sites(tree):
        if id(node) not in annotations:
            for kind, after in changes(node, source):
                put(kind, node, where, after)
    return made


def without_effect(node: ast.AST) -> list[ast.expr]:
    """Annotations, the arguments of errors, and `strict=True`: correct answers don't depend on them."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return [node.value]
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return node.exc.args
    found: list[ast.expr | None] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [annotation for annotation in found if annotation is not None]


def public(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    """The public functions and methods, with their names: those of an exercise's skeleton."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, node.name
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and (
                    not method.name.startswith("_") or method.name == "__len__"
                ):
                    yield method, f"{node.name}.{method.name}"


def at_the_border(source: str, tree: ast.Module) -> Iterator[Mutant]:
    lines = source.splitlines(keepends=True)
    for function, where in public(tree):
        line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]) - 1
        if function.decorator_list:
            line = function.lineno - 1
        for change, amount in CHANGES:
            if not can_show(change, amount, function):
                continue
            decorator = " " * function.col_offset + f"@_border({change!r}, {amount!r})\n"
            body = "".join([*lines[:line], decorator, *lines[line:]])
            head, rest = body.split("\n", 1)
            yield Mutant("border", where, change, str(amount), f"{head}\n{BORDER}{rest}")


def can_show(change: str, amount: object, function: ast.FunctionDef) -> bool:
    """Whether a change at the border can have any effect on a function with these types."""
    notes = [ast.unparse(argument.annotation) for argument in function.args.args if argument.annotation]
    given = " ".join(note for note in notes if "Callable" not in note)
    back = ast.unparse(function.returns) if function.returns else "None"
    if not function.args.args and change in ("often", "result", "one list"):
        return False  # it has one answer
    if back == "None" and change in ("type", "often", "always equal", "long", "large", "result"):
        return False
    needed = {
        "long": (given, "list str bytes Tensor tuple"), "recursion": (given, "list str bytes Tensor tuple"),
        "large": (given, "int"), "result": (back, "int list str"), "one list": (back[:4], "list"),
        "the argument": (given * back.startswith("list"), "list"), "an argument grows": (given, "list Tensor"),
    }  # fmt: skip
    kinds = {
        "float": "int Tensor",
        "int": "float",
        "numpy": "int float",
        "bool": "int",
        "number": "bool",
        "swap": "list tuple",
    }
    text, words = (back, kinds[str(amount)]) if change == "type" else needed.get(change, ("x", "x"))
    return any(re.search(rf"\b{word}\b", text) for word in words.split())
