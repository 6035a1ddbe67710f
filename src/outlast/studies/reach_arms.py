"""The arms of the study `reach`, but for those of the open questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outlast.methods.phases import has_state
from outlast.models.presets import ORTHOGONAL
from outlast.registry import tasks
from outlast.runs.spec import RunSpec, Settings
from outlast.specs import Spec, Value, parse
from outlast.studies.base import Arm
from outlast.studies.joining import slug, with_item
from outlast.studies.reach_claims import LAYOUTS

#: multiples of the training length of arms that are not about the longest ones
NEAR = (1, 3, 10)
FAR, FARTHEST = (1, 3, 10, 40, 400), (1, 3, 10, 40, 400, 4000)


@dataclass(frozen=True)
class Plan:
    """What the two scales of the study differ in."""

    #: with the seeds and steps of the arms that go farthest
    recipe: RunSpec
    #: model lines by name, which stand for designs other than the recipe's
    designs: dict[str, str]
    recurrences: Sequence[str]
    #: items that replace a part of the recipe, one at a time, by name
    items: dict[str, str]
    #: recurrences that are also tried beside attention
    beside: Sequence[str]
    #: other tasks by name
    tasks: dict[str, str]
    #: a sum alone, and the line of a recurrence alone, with RECURRENCE in it
    state: tuple[str, str]
    #: steps of the arms that are not about the longest lengths
    steps: int
    #: steps at which attention joins, for the question when it should
    switches: Sequence[int]
    #: model lines by name, which differ from the recipe's in depth or width
    sizes: dict[str, str]
    #: a task whose answers mix state and recall
    entangled: str
    #: a model of attention alone
    attention: str

    @property
    def short(self) -> RunSpec:
        """The recipe with other steps, and a larger share of them for its first phase."""
        settings = replace(self.recipe.settings, steps=self.steps)
        methods = tuple(changed(line, latest=0.4) for line in self.recipe.methods)
        return replace(self.recipe, settings=settings, methods=methods)

    @property
    def named_recurrences(self) -> dict[str, str]:
        """The recurrences by what arms call them; several may be variants of one mixer.

        The recipe's own has the name of its mixer at both scales.
        """
        first, *others = self.recurrences
        return {parse(first).name: first, **{slug(item): item for item in others}}


def candidate_arms(plan: Plan, joining: Sequence[str]) -> Iterator[Arm]:
    """What is screened beside the recipe and joint training, which are arms anyway."""

    def arm(name: str, run: RunSpec, label: str) -> Arm:
        return Arm(f"candidate-{name}", replace(run, label=label), "candidates")

    recipe = plan.recipe
    for name, line in plan.designs.items():
        yield arm(name, replace(recipe, model=line), name.replace("-", " "))
    for name, item in [*plan.named_recurrences.items()][1:]:  # the first is the recipe's own
        yield arm(name, with_item(recipe, item), item)
    for name, item in plan.items.items():
        yield arm(name, with_item(recipe, item), item)
    for item in plan.beside:
        run = with_item(replace(recipe, model=plan.designs["parallel"]), item)
        yield arm(f"parallel-{item}", run, f"parallel, {item}")
    for item in joining:
        yield arm(f"with-{slug(item)}", with_item(recipe, item), f"with {item}")


def layout_arms(plan: Plan) -> Iterator[Arm]:
    """The recipe and joint training on the three layouts."""
    recipe = plan.recipe
    for layout in LAYOUTS:
        run = replace(recipe, task=changed(recipe.task, layout=layout))
        yield Arm(f"layout-{layout}", replace(run, label=f"{layout}, DAT"), "layouts")
        joint = replace(run, methods=(), label=f"{layout}, jointly")
        yield Arm(f"layout-{layout}-joint", joint, "layouts", NEAR)


def recurrence_arms(plan: Plan) -> Iterator[Arm]:
    """Every recurrence on both tasks."""
    task, alone = plan.state
    for name, item in plan.named_recurrences.items():
        hybrid = with_item(plan.short, item)
        ways = {"dat": ("DAT", hybrid.methods), "joint": ("jointly", ())}
        for way, (words, methods) in ways.items():
            run = replace(hybrid, methods=methods, label=f"{item}, {words}")
            yield Arm(f"recurrence-{name}-{way}", run, "recurrences", NEAR)
        line = alone.replace("RECURRENCE", item)
        run = replace(hybrid, task=task, model=line, methods=(), label=f"{item} alone")
        yield Arm(f"state-{name}", run, "a sum alone", NEAR)
        for way, (words, methods) in ways.items():
            run = replace(hybrid, task=task, methods=methods, label=f"{item} hybrid, {words}")
            yield Arm(f"state-{name}-{way}", run, "a sum alone", NEAR)


def task_arms(plan: Plan) -> Iterator[Arm]:
    """The recipe on other tasks; without DAT where there is no state that attention waits for."""
    for name, line in plan.tasks.items():
        methods = plan.short.methods if has_state(tasks.build(line).parts) else ()
        run = replace(plan.short, task=line, methods=methods)
        yield Arm(f"task-{name}", replace(run, label=line), "other tasks", NEAR)


def changed(line: str, **arguments: Value) -> str:
    """A spec with some arguments changed."""
    spec = parse(line)
    return str(Spec(spec.name, spec.args, tuple((dict(spec.kwargs) | arguments).items())))


#: arguments of a task
Arguments = dict[str, Value]


def far_arms(
    recipe: RunSpec,
    far: dict[str, Arguments],
    farthest: dict[str, Arguments],
    sequences: tuple[int, int],
) -> Iterator[Arm]:
    """The recipe on rows hundreds or thousands of times as long, which need many keys.

    Args:
        far: What its task has for rows up to 400 times as long, by the name of an arm.
        farthest: The same for 4,000 times.
        sequences: How many are tested at each length, for `far` and for `farthest`.
    """
    for arms, ladder, count in ((far, FAR, sequences[0]), (farthest, FARTHEST, sequences[1])):
        for name, arguments in arms.items():
            run = replace(recipe, task=changed(recipe.task, **arguments))
            yield Arm(f"far-{name}", replace(run, label=f"far, {name}"), "far", ladder, count)


def weights_arms(far: Arm) -> Iterator[Arm]:
    """Other weights in the attention of an arm that goes far."""
    task = tasks.build(far.run.task)
    items = {
        **{name: f"weights={name}" for name in ("softmax", "asentmax")},
        "temperature": f"weights=temperature({task.tokens(task.lengths[1])})",
        **{slug(name): f"scheme={name}" for name in ("tra", "tra(sharpen=true)")},
    }
    for name, item in items.items():
        run = replace(with_item(far.run, item), label=f"far, {item}")
        yield Arm(f"weights-{name}", run, "weights", far.ladder, far.sequences)


def outcome_arms(recipe: RunSpec, settings: Settings) -> Iterator[Arm]:
    """Without running sums; a seed whose first phase has not converged may wait or begin again."""
    wait = changed(recipe.methods[0], latest=1.0, otherwise="wait")
    task = changed(recipe.task, supervision="outcome")
    run = replace(recipe, task=task, methods=(wait,), settings=settings)
    from_one = replace(run, task=changed(task, **{"from": 1}))
    batch, steps = 4 * settings.batch_size, settings.steps // 2
    half = tasks.build(task).lengths[1] // 2
    runs = {
        "wait": run,
        "retry": replace(run, methods=recipe.methods),
        "joint": replace(run, methods=()),
        f"batch-{batch}": replace(run, settings=replace(settings, batch_size=batch, steps=steps)),
        "lr-doubled": replace(run, settings=replace(settings, lr=2 * settings.lr)),
        "decay": replace(run, settings=replace(settings, weight_decay=0.1)),
        "orthogonal": with_item(run, ORTHOGONAL),
        "curriculum": replace(run, methods=(wait, "curriculum(from=3, by=plateau)")),
        "from-one": from_one,
        "from-one-retry": replace(from_one, methods=(changed(recipe.methods[0], latest=0.3),)),
        "from-one-joint": replace(from_one, methods=()),
        "from-half": replace(run, task=changed(task, **{"from": half})),
    }
    if "switch" not in wait:  # the recipe switches by a threshold: here is the rule without one
        converged = changed(wait, switch="converged")
        runs["from-one-converged"] = replace(from_one, methods=(converged,))
        runs["curriculum-converged"] = replace(
            run, methods=(converged, *runs["curriculum"].methods[1:])
        )
    for name, trained in runs.items():
        if name == "orthogonal" and ORTHOGONAL in run.model:
            continue  # the recipe has it
        label = f"outcome, {name.replace('-', ' ')}"
        yield Arm(f"outcome-{name}", replace(trained, label=label), "outcome", NEAR)
