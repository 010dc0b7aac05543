"""Job types: what a function becomes when it is decorated, and the registry that knows them.

Everything that can be wrong about a type is found here, when it is defined: its name, its contract, its field paths,
its floors. The registry holds no credential and reaches no store, so that gate and cell can share it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, get_type_hints, overload

import msgspec

from benteng.context import Context
from benteng.contract import Parsed, Shape, shape_of
from benteng.errors import DefinitionError
from benteng.policy import LIMITS, POOL_DEFAULT, TYPE_NAME, Effect, KeyPath, Limits, Tier, TypePolicy, check_floors
from benteng.raised import ErrorClass
from benteng.verdict import Check, Verdict

Handler = Callable[..., object]
F = TypeVar("F", bound=Handler)
CONTEXT_PARAMETER: Final = "ctx"


class _Undeclared:
    """The default of an option whose author has not written it out."""


UNDECLARED: Final = _Undeclared()


@dataclass(frozen=True, slots=True)
class Loader:
    """An evidence loader: I/O allowed; its result is passed to the checks that need it by name."""

    name: str
    function: Callable[..., object]
    model: type


@dataclass(frozen=True, slots=True)
class JobType:
    """One job type as the code defines it.

    payload        the name of the parameter that is the payload; empty: the parameters are the contract's fields
    wants_context  the function takes `ctx`
    """

    policy: TypePolicy
    shape: Shape
    handler: Handler
    payload: str
    wants_context: bool
    is_async: bool

    @property
    def name(self) -> str:
        """`name@major`."""
        return self.policy.name

    def arguments(self, parsed: Parsed) -> dict[str, object]:
        """Return the keyword arguments of the handler, without `ctx`, for a parsed payload."""
        return {self.payload: parsed.value} if self.payload else self.shape.arguments(parsed)


@dataclass(slots=True)
class Registry:
    """All job types, evidence loaders and checks of one application."""

    types: dict[str, JobType] = field(default_factory=dict[str, JobType])
    loaders: dict[str, Loader] = field(default_factory=dict[str, Loader])
    checks: dict[str, tuple[Check, ...]] = field(default_factory=dict[str, tuple[Check, ...]])

    def find(self, target: str | Handler) -> JobType:
        """Return a type by its name or by its function. A bare name means the newest major. Raises DefinitionError."""
        if isinstance(target, str) and target in self.types:
            return self.types[target]
        if callable(target):
            found = [t for t in self.types.values() if t.handler is target]
        else:
            found = [t for t in self.types.values() if target in (t.name, t.name.partition("@")[0])]
        if not found:
            name = target if isinstance(target, str) else getattr(target, "__qualname__", "?")
            raise DefinitionError(
                "T-unknown", f"no job type {name}", fix=f"known: {', '.join(sorted(self.types)) or 'none'}"
            )
        return max(found, key=lambda t: int(t.name.partition("@")[2]))

    def policies(self) -> dict[str, TypePolicy]:
        """Return the policy of every type as the code defines it: what `benteng policy lock` writes."""
        return {name: job_type.policy for name, job_type in sorted(self.types.items())}

    def add(self, job_type: JobType) -> None:
        """Register a type. Raises DefinitionError when the name is taken."""
        if job_type.name in self.types:
            raise DefinitionError(
                "T-twice", f"job type {job_type.name} is defined twice", fix="give it another name or major"
            )
        self.types[job_type.name] = job_type

    def add_loader(self, name: str, function: Callable[..., object]) -> None:
        """Register an evidence loader under a name. Its first parameter is annotated with the contract it is for."""
        if name in self.loaders:
            raise DefinitionError("T-twice", f"evidence {name} is defined twice")
        hints = _hints(function)
        first = next(iter(inspect.signature(function).parameters), "")
        model = hints.get(first)
        if not isinstance(model, type):
            raise DefinitionError("T-evidence", f"evidence {name} must annotate its parameter with a contract")
        self.loaders[name] = Loader(name, function, model)

    def add_check(self, target: str | Handler, needs: Iterable[str], function: Callable[..., Verdict]) -> None:
        """Register a semantic check of a type. Raises DefinitionError when a loader is not for its contract."""
        job_type = self.find(target)
        check = Check(function.__name__, function, tuple(needs))
        for name in check.needs:
            loader = self.loaders.get(name)
            if loader is None or loader.model is not job_type.shape.model:
                raise DefinitionError(
                    "T-evidence",
                    f"check {check.name} needs evidence {name}, which is not defined for {job_type.name}",
                    fix=f'define it above with @app.evidence("{name}")',
                )
        self.checks[job_type.name] = (*self.checks_of(job_type), check)

    def checks_of(self, job_type: JobType) -> tuple[Check, ...]:
        """Return the checks of a type, in the order of definition."""
        return self.checks.get(job_type.name, ())

    def loaders_of(self, job_type: JobType) -> tuple[Loader, ...]:
        """Return the evidence loaders that the checks of a type need, each once."""
        if not self.loaders:
            return ()
        names = dict.fromkeys(name for check in self.checks_of(job_type) for name in check.needs)
        return tuple(self.loaders[name] for name in names)

    def has_loaders(self, target: str | Handler) -> bool:
        """Whether the checks of a type ask evidence loaders, which may do I/O. Not those of an unknown type."""
        try:
            return bool(self.loaders) and bool(self.loaders_of(self.find(target)))
        except DefinitionError:
            return False


@dataclass(frozen=True, slots=True)
class Options:
    """What an author may write in `@app.job(...)`; see `define`."""

    tier: Tier = Tier.LOW
    effect: Effect | _Undeclared = UNDECLARED
    pool: str = POOL_DEFAULT
    operation: tuple[str, ...] = ()
    resources: tuple[str, ...] | _Undeclared | None = UNDECLARED
    successors: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    errors: Mapping[str, ErrorClass] = field(default_factory=dict[str, ErrorClass])
    signed: bool | None = None
    limits: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])

    def declared(self) -> frozenset[str]:
        """Return the names of the options that the author wrote out, for the floors."""
        written = {"effect": self.effect, "resources": self.resources}
        return frozenset(name for name, value in written.items() if not isinstance(value, _Undeclared))


def define(function: Handler, name: str, options: Options) -> JobType:
    """Build and check a job type. Raises DefinitionError naming rule, field and fix."""
    full_name = _full_name(name or getattr(function, "__name__", ""))
    _refuse_words(full_name, options)
    model, parameters = _contract_of(function)
    shape = shape_of(model, tier=options.tier, name=full_name)
    policy = _policy(full_name, options, shape)
    check_floors(policy, options.declared())
    return JobType(
        policy=policy,
        shape=shape,
        handler=function,
        payload="" if model is function else next(name for name in parameters if name != CONTEXT_PARAMETER),
        wants_context=CONTEXT_PARAMETER in parameters,
        is_async=inspect.iscoroutinefunction(function),
    )


@overload
def register(registry: Registry, target: F, options: Options) -> F: ...
@overload
def register(registry: Registry, target: str | None, options: Options) -> Callable[[F], F]: ...
def register(registry: Registry, target: Any, options: Options) -> Any:
    """Decorate a function as a job type: `@app.job` with the function itself, `@app.job("name@1", ...)` with a name."""
    if callable(target):
        registry.add(define(target, "", options))
        return target

    def decorate(function: F) -> F:
        registry.add(define(function, target or "", options))
        return function

    return decorate


def _refuse_words(name: str, options: Options) -> None:
    """Refuse a tier or effect written as a word: what compares tiers would not know it and ask less of it."""
    if not isinstance(options.tier, Tier):  # pyright: ignore[reportUnnecessaryIsInstance] - only a type checker would say
        raise DefinitionError(
            "T-word", f"job type {name}: the tier is no Tier", field="tier", fix="write tier=Tier.HIGH"
        )
    if not isinstance(options.effect, Effect | _Undeclared):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
        fix = "write effect=Effect.ONCE or effect=Effect.REPEATABLE"
        raise DefinitionError("T-word", f"job type {name}: the effect is no Effect", field="effect", fix=fix)


def _policy(name: str, options: Options, shape: Shape) -> TypePolicy:
    tier = options.tier
    resources = () if options.resources is None or isinstance(options.resources, _Undeclared) else options.resources
    return TypePolicy(
        name=name,
        tier=tier,
        effect=Effect.REPEATABLE if isinstance(options.effect, _Undeclared) else options.effect,
        pool=options.pool,
        operation=tuple(shape.path(path).dotted for path in options.operation),
        resources=tuple(_key_path(shape, path) for path in resources),
        artifacts=tuple(path.dotted for path in shape.artifact_paths),
        targets=tuple(KeyPath(path.dotted, path.kind) for path in shape.target_paths),
        successors=options.successors,
        secrets=tuple(options.secrets),
        errors=dict(options.errors),
        signed=tier is Tier.HIGH if options.signed is None else options.signed,
        schema_sha256=shape.schema_digest,
        limits=_limits(name, tier, options.limits),
    )


def _key_path(shape: Shape, path: str) -> KeyPath:
    found = shape.resource(path)
    return KeyPath(found.dotted, found.kind)


def _limits(name: str, tier: Tier, wanted: Mapping[str, float | None]) -> Limits:
    base = msgspec.structs.asdict(LIMITS[tier])
    unknown = sorted(wanted.keys() - base.keys())
    if unknown:
        raise DefinitionError("T-limit", f"job type {name}: no limit {unknown[0]}", fix=f"known: {', '.join(base)}")
    try:
        return msgspec.convert(base | dict(wanted), Limits)
    except msgspec.ValidationError as error:
        raise DefinitionError("T-limit", f"job type {name}: {error}", fix="give it a number") from None


def _full_name(name: str) -> str:
    full = name if "@" in name else f"{name}@1"
    if not TYPE_NAME.fullmatch(full):
        raise DefinitionError(
            "T-name",
            "a job type is named by dotted lower-case words and a major version",
            fix='for example "patch.apply@1"',
        )
    return full


def _contract_of(function: Handler) -> tuple[Any, list[str]]:
    """Return what defines the contract (a model, or the function itself), and the names of the parameters."""
    parameters = list(inspect.signature(function).parameters)
    fields = [name for name in parameters if name != CONTEXT_PARAMETER]
    hints = _hints(function)
    if len(fields) == 1 and _is_model(hints.get(fields[0])):
        return hints[fields[0]], parameters
    return function, parameters


def _is_model(annotation: object) -> bool:
    if not isinstance(annotation, type):
        return False
    pydantic = sys.modules.get("pydantic")  # a pydantic model exists only where pydantic is loaded
    return issubclass(annotation, msgspec.Struct) or (
        pydantic is not None and issubclass(annotation, pydantic.BaseModel)
    )


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DefinitionError(
            "T-annotation",
            f"an annotation of {getattr(function, '__qualname__', '?')} cannot be resolved: {error.name}",
            fix="define contracts at module level, above the function",
        ) from None


__all__ = ["UNDECLARED", "Context", "JobType", "Loader", "Options", "Registry", "define", "register"]
