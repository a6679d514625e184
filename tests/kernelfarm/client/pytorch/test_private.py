"""PyTorch's private names: the installed version has them, and one folder alone uses them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import fx

import kernelfarm
from kernelfarm.client.pytorch import private
from kernelfarm.client.pytorch.private import operators, tracing

ROOT = Path(kernelfarm.__file__).parent
OWNERS = tuple(sorted(Path(private.__file__).parent.glob("*.py")))
INSTALLED = ".".join(torch.__version__.split(".", maxsplit=2)[:2])
PRIVATE_PACKAGES = ("torch.fx.experimental",)
"""Packages of PyTorch that are private without an underscore."""


def is_private(dotted: str) -> bool:
    """True for a dotted name of PyTorch that users must not rely on; operators are exempt."""
    parts = dotted.split(".")
    if dotted.startswith("torch.ops."):
        return False
    has_underscore = any(p.startswith("_") and not p.startswith("__") for p in parts)
    return has_underscore or dotted.startswith(PRIVATE_PACKAGES)


def _is_of_torch(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "functorch")


def names_of_torch(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each name that a module imports from PyTorch, with the dotted name that it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root, _, _ = alias.name.partition(".")
                if _is_of_torch(root):
                    yield alias.asname or root, alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and _is_of_torch(node.module or ""):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def dotted(node: ast.Attribute) -> str | None:
    """`a.b.c` of such an expression; None if it does not begin with a name."""
    parts, value = [node.attr], node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    return ".".join((value.id, *reversed(parts))) if isinstance(value, ast.Name) else None


def private_uses(tree: ast.Module, own_attributes: frozenset[str]) -> list[str]:
    """Private names of PyTorch that a module imports or reads as attributes."""
    known = dict(names_of_torch(tree))
    found = [name for name in known.values() if is_private(name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = (alias.name for alias in node.names if _is_of_torch(alias.name))
            found += filter(is_private, modules)
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr in own_attributes:
            found.append(f".{node.attr}")
        root, _, rest = (dotted(node) or "").partition(".")
        if root in known and is_private(f"{known[root]}.{rest}"):
            found.append(f"{known[root]}.{rest}")
    return found


def attributes_of_objects() -> frozenset[str]:
    """The private attributes that the functions of the folder use, beside those of modules."""
    trees = [ast.parse(owner.read_text()) for owner in OWNERS]
    nodes = (node for tree in trees for node in ast.walk(tree))
    attributes = (node for node in nodes if isinstance(node, ast.Attribute))
    return frozenset(
        node.attr
        for node in attributes
        if node.attr.startswith("_") and not (dotted(node) or "").startswith("torch.")
    )


def declared_names() -> set[str]:
    """The names that type checkers see, and the attributes of torch's modules in functions."""
    tree = ast.parse(Path(private.__file__).read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    names: set[str] = set()
    for statement in block.body:
        if isinstance(statement, ast.ImportFrom) and statement.module != "torch":
            names |= {alias.asname or alias.name for alias in statement.names}
        elif isinstance(statement, ast.AnnAssign):
            names.add(ast.unparse(statement.target))
    trees = [ast.parse(owner.read_text()) for owner in OWNERS]
    for node in (node for tree in trees for node in ast.walk(tree)):
        name = (dotted(node) or "") if isinstance(node, ast.Attribute) else ""
        _, _, last = name.rpartition(".")
        is_operator = name.startswith("torch.ops.")
        is_listed = is_private(f"torch.{last}") and last != "_C" and not is_operator
        if name.startswith("torch.") and is_listed:
            names.add(last)
    return names


@pytest.mark.parametrize("name", private.NAMES)
def test_the_installed_version_has_each_name_that_is_listed_for_it(name: str) -> None:
    listed = private.NAMES[name]
    is_expected = INSTALLED in listed.versions or (
        INSTALLED not in private.VERSIONS and listed.versions[-1] == private.VERSIONS[-1]
    )
    value = getattr(private, name)
    if not listed.is_optional:
        assert (value is not None) == is_expected, f"torch {torch.__version__}"
    assert set(listed.versions) <= set(private.VERSIONS) and listed.purpose


def test_every_listed_name_is_declared_for_type_checkers() -> None:
    assert declared_names() == set(private.NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        private.no_such_name  # noqa: B018


def test_no_other_module_uses_a_private_name_of_torch() -> None:
    own = attributes_of_objects()
    assert own == {
        "_schema",
        "_cdata",
        "_dynamo_source",
        "_boxed_call",
        "_artifacts",
        "_make_wrapper_subclass",
    }
    found = {
        str(path.relative_to(ROOT)): uses
        for path in sorted(ROOT.rglob("*.py"))
        if path not in OWNERS and (uses := private_uses(ast.parse(path.read_text()), own))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch._ops import OpOverload",
        "from torch.utils import _pytree as pytree",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv",
        "import torch\ntorch._C._len_torch_function_stack()",
        "from torch import fx\nfx.node._get_qualified_name(f)",
        "def name(op):\n    return op._schema.name",
    ],
)
def test_the_check_finds_a_private_name(source: str) -> None:
    assert private_uses(ast.parse(source), attributes_of_objects())


def test_the_check_allows_public_names_and_operators() -> None:
    source = "import torch\ntorch.ops.aten._embedding_bag.default(torch.nn.functional.pad, self._x)"
    assert private_uses(ast.parse(source), attributes_of_objects()) == []


def test_schemas_and_names_of_operators() -> None:
    add, softmax = torch.ops.aten.add.Tensor, torch.ops.aten.relu.default
    assert operators.schema_of(add).name == "aten::add"
    assert [operators.overload_name(op) for op in (add, softmax)] == [
        "aten::add.Tensor",
        "aten::relu",
    ]
    assert operators.is_composite(torch.ops.aten.reshape.default) and not operators.is_composite(
        add
    )


def test_views_have_the_storage_identity_of_their_base() -> None:
    base = torch.zeros(4, 3)
    assert tracing.storage_identity(base[1:]) == tracing.storage_identity(base)
    assert tracing.storage_identity(base.clone()) != tracing.storage_identity(base)


def test_sources_of_inputs_and_marks_of_functions_are_what_torch_reads() -> None:
    graph = fx.Graph()
    node, copy, plain = (graph.placeholder(name) for name in ("node", "copy", "plain"))
    node._dynamo_source = "source"
    tracing.copy_source(node, copy)
    tracing.copy_source(plain, node)
    assert (copy._dynamo_source, node._dynamo_source) == ("source", None)

    def run(args: list[object]) -> list[object]:
        return args

    tracing.mark_boxed(run)
    assert vars(run).items() <= vars(private.make_boxed_func(run)).items()
    assert vars(run)


def test_nothing_is_exported_here() -> None:
    assert not tracing.is_exporting()
