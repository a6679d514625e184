"""Reads the source of a user's Triton kernel: a module of constants and functions, in a closed set.

Grammar:

    Source   ::= [Constant] [Function]
    Constant ::= NAME = literal
    Function ::= def NAME(parameter, parameter: tl.constexpr, parameter=literal, ...): statements

Functions have no decorators, other annotations or computed defaults, so that evaluating the module
evaluates nothing but literals and definitions. The sandboxed process of a compilation does that;
here the text is only parsed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton.bounds import (
    MAX_FUNCTIONS,
    MAX_GLOBALS,
    MAX_INLINED_NODES,
    MAX_PARAMS,
    node_count,
    parsed,
)
from kernelfarm.ir.triton.check_function import Scope, check_function
from kernelfarm.ir.triton.hints import hints_of
from kernelfarm.ir.triton.language import BUILTINS, MODULES
from kernelfarm.ir.triton.literals import check_literal


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """A function of a source: its parameters, those that are `tl.constexpr`, and its defaults.

    `text` is the definition, `defaults` has the text of each default by parameter.
    """

    name: str
    params: tuple[str, ...]
    constexprs: frozenset[str]
    defaults: Mapping[str, str]
    text: str


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """The parts of a source that follows the rules: constants and functions, in order.

    `constants` has the text of each literal by name.
    """

    constants: Mapping[str, str]
    functions: Mapping[str, SourceFunction]

    def function(self, name: str) -> SourceFunction:
        """The function of a name.

        Raises:
            UserKernelError: the source does not define it.
        """
        found = self.functions.get(name)
        if found is None:
            raise UserKernelError(
                f"the source defines no function {name[:60]!r};"
                f" expected one of {', '.join(list(self.functions)[:8])}"
            )
        return found


@lru_cache(maxsize=64)
def check_source(text: str) -> CheckedSource:
    """The parts of a source.

    Raises:
        UserKernelError: the source breaks a rule: names the function and the line, what was seen
            and what was expected.
    """
    tree = parsed(text)
    hints_of(text)
    constants: dict[str, ast.expr] = {}
    definitions: dict[str, ast.FunctionDef] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                _check_name(name, constants, definitions)
                check_literal(value, f"the constant {name}")
                constants[name] = value
            case ast.FunctionDef(name=name):
                _check_name(name, constants, definitions)
                definitions[name] = statement
            case _:
                raise UserKernelError(
                    f"line {statement.lineno}: a statement of type {type(statement).__name__}"
                    " outside of functions; expected constants and functions only"
                )
    _check_counts(constants, definitions)
    scope = Scope(constants, frozenset(definitions))
    functions = {name: _checked(node, scope) for name, node in definitions.items()}
    _check_calls(definitions)
    shown = {name: ast.unparse(value) for name, value in constants.items()}
    return CheckedSource(shown, functions)


def _check_name(
    name: str, constants: Mapping[str, object], definitions: Mapping[str, object]
) -> None:
    if name in constants or name in definitions:
        raise UserKernelError(f"{name[:60]!r} is defined twice; expected distinct names")
    if name in MODULES or name in BUILTINS or name.startswith("__"):
        raise UserKernelError(
            f"{name[:60]!r} has a meaning of its own; expected another name for a constant or"
            " function"
        )


def _check_counts(constants: Mapping[str, object], definitions: Mapping[str, object]) -> None:
    if not definitions:
        raise UserKernelError("the source defines no function; expected the kernel's")
    if len(definitions) > MAX_FUNCTIONS or len(constants) > MAX_GLOBALS:
        raise UserKernelError(
            f"{len(definitions)} functions and {len(constants)} constants; expected at most"
            f" {MAX_FUNCTIONS} and {MAX_GLOBALS}"
        )


def _checked(node: ast.FunctionDef, scope: Scope) -> SourceFunction:
    try:
        arguments = _arguments(node)
        params = tuple(argument.arg for argument in arguments)
        check_function(node, params, scope)
    except UserKernelError as error:
        raise UserKernelError(f"function {node.name[:60]}: {error}") from error
    values = node.args.defaults
    named = zip(params[len(params) - len(values) :], values, strict=True)
    return SourceFunction(
        name=node.name,
        params=params,
        constexprs=frozenset(a.arg for a in arguments if a.annotation is not None),
        defaults={name: ast.unparse(value) for name, value in named},
        text=ast.unparse(node),
    )


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    """The parameters of a function whose definition evaluates literals only."""
    if node.decorator_list:
        raise UserKernelError("has decorators; expected none: the farm adds Triton's own")
    if node.returns is not None or getattr(node, "type_params", None):
        raise UserKernelError("states the type of its result; expected no annotation")
    args = node.args
    if args.vararg or args.kwarg or args.kwonlyargs or args.posonlyargs:
        raise UserKernelError("has parameters with * or /; expected plain ones")
    if len(args.args) > MAX_PARAMS:
        raise UserKernelError(f"has {len(args.args)} parameters; expected at most {MAX_PARAMS}")
    for argument in args.args:
        if argument.annotation is not None and not _is_constexpr(argument.annotation):
            raise UserKernelError(
                f"parameter {argument.arg[:60]}: annotated with"
                f" {ast.unparse(argument.annotation)[:60]!r}; expected tl.constexpr or nothing"
            )
    for value in args.defaults:
        check_literal(value, "a default")
    return args.args


def _is_constexpr(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Attribute(value=ast.Name(id="tl"), attr="constexpr"):
            return True
        case _:
            return False


def _check_calls(definitions: Mapping[str, ast.FunctionDef]) -> None:
    """Refuses recursion, and helpers whose inlining grows too large."""
    sizes: dict[str, int] = {}
    uses = {name: _functions_used(node, definitions) for name, node in definitions.items()}
    own = {name: node_count(node) for name, node in definitions.items()}
    pending = dict(uses)
    while pending:
        ready = [n for n, used in pending.items() if all(other in sizes for other in used)]
        if not ready:
            raise UserKernelError(
                f"functions {', '.join(sorted(pending))[:200]} call themselves, directly or through"
                " others; expected no recursion, which Triton cannot compile"
            )
        for name in ready:
            sizes[name] = own[name] + sum(sizes[other] for other in pending.pop(name))
            if sizes[name] > MAX_INLINED_NODES:
                raise UserKernelError(
                    f"function {name[:60]} has more than {MAX_INLINED_NODES} nodes with its calls"
                    " inlined; expected fewer calls of helpers"
                )


def _functions_used(node: ast.FunctionDef, definitions: Mapping[str, object]) -> list[str]:
    """The helpers that a function names, once for each time."""
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in definitions]
