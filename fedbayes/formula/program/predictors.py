"""Linear predictors as lines of the program: coefficients, intercept, effects of groups."""

import numpy as np
import numpyro.distributions as dist

from fedbayes.errors import FormulaError
from fedbayes.formula.families.family import Scale, rounded
from fedbayes.formula.program.groups import Group, Kind
from fedbayes.formula.program.predictor import Predictor
from fedbayes.formula.program.priors import half_normal, normal, of_columns
from fedbayes.formula.program.source import Source, numbers, plain


def write_predictor(source: Source, predictor: Predictor, scale: Scale, intercept: bool, rows: bool) -> None:
    """A linear predictor, ``eta`` or ``eta_sigma``.

    Parameters
    ----------
    source
        Where it is written to.
    predictor
        The columns.
    scale
        Of default priors.
    intercept
        Whether the predictor has an intercept of its own.
    rows
        Whether nothing else in the program says how many rows there are.
    """
    several = source.summary.levels[1:] if source.family.several and not predictor.parameter else None
    terms = []
    if intercept and predictor.design.intercept:
        terms.append(_intercept(source, predictor, scale, several))
    if predictor.design.width:
        terms.append(_coefficients(source, predictor, scale, several))
    if intercept and _is_moved(predictor):
        _write_intercept_at_zero(source, predictor, several)
    if predictor.design.offsets:
        terms.append(f"offset{predictor.suffix}" + ("[:, None]" if several is not None else ""))
    eta = f"eta{predictor.suffix}"
    if rows:
        terms = [f"{term} * rows" + ("[:, None]" if several is not None else "") for term in terms or ["0.0"]]
    written = " + ".join(terms or ["0.0"])
    source.add(f"{eta} = {written}")
    for group, stem, sds in zip(predictor.groups, predictor.stems, predictor.columns.of_groups, strict=True):
        write_group(source, group, stem, _scales_of_effects(group, scale, sds), predictor, several)


def _coefficients(source: Source, predictor: Predictor, scale: Scale, several: tuple[str, ...] | None) -> str:
    """All coefficients as one vector or matrix; the lines before sample them."""
    name, start = f"beta{predictor.suffix}", 0
    lines = []
    for block in predictor.design.blocks:
        sds = predictor.columns.sds[start : start + block.width]
        start += block.width
        site = plain(predictor.prefix + block.name)
        axes = ([] if block.scalar else [block.labels]) + ([several] if several is not None else [])
        quoted = source.site(site, *axes)
        scales = of_columns(scale, sds, block.categorical)
        shape = tuple(len(axis) for axis in axes)
        default = normal(scales if several is None or (scales == scales[0]).all() else scales[:, None])
        if several is not None and not block.scalar and default.batch_shape:
            default = default.expand(list(shape))
        lines.append(f"    numpyro.sample({quoted}, {source.priors.text(site, default, shape)}),")
    shape_text = "-1" if several is None else f"(-1, {len(several)})"
    source.add(f"{name} = [", *lines, "]")
    source.add(f"{name} = jnp.concatenate([jnp.reshape(each, {shape_text}) for each in {name}])")
    return f"x{predictor.suffix} @ {name}"


def _is_moved(predictor: Predictor) -> bool:
    """Whether the intercept at everybody's means differs from the one at zero."""
    means, sds = predictor.columns.means, predictor.columns.sds
    return predictor.design.intercept and bool(np.any(np.abs(means) > 1e-12 * np.maximum(sds, 1e-300)))


def _intercept(source: Source, predictor: Predictor, scale: Scale, several: tuple[str, ...] | None) -> str:
    """The intercept at everybody's mean covariates."""
    name, variable = f"{predictor.prefix}Intercept", f"level{predictor.suffix}"
    axes = [several] if several is not None else []
    text = source.priors.text(
        name,
        dist.Normal(rounded(scale.centre - predictor.columns.offset), rounded(scale.intercept)),
        tuple(len(axis) for axis in axes),
    )
    site = source.site(f"{name}_centred" if _is_moved(predictor) else name, *axes)
    source.add(f"{variable} = numpyro.sample({site}, {text})")
    return variable


def _write_intercept_at_zero(source: Source, predictor: Predictor, several: tuple[str, ...] | None) -> None:
    """The intercept where all covariates are zero, as one reads it in a table."""
    site = source.site(f"{predictor.prefix}Intercept", *([several] if several is not None else []))
    suffix = predictor.suffix
    source.add(f"numpyro.deterministic({site}, level{suffix} - {numbers(predictor.columns.means)} @ beta{suffix})")


def _scales_of_effects(group: Group, scale: Scale, sds: np.ndarray) -> np.ndarray:
    """Scales of a group's sds: those of the common coefficients."""
    found = [rounded(scale.intercept)] if group.design.intercept else []
    start = len(found)
    for block in group.design.blocks:
        found += of_columns(scale, sds[start : start + block.width], block.categorical).tolist()
        start += block.width
    return np.asarray(found)


def write_group(
    source: Source,
    group: Group,
    stem: str,
    scales: np.ndarray,
    predictor: Predictor,
    several: tuple[str, ...] | None = None,
) -> None:
    """The effects of groups, not centred: each is a standard normal latent times an sd.

    Where there is a linear predictor for each level of the outcome but the first, ``several``, each has effects and sds
    of its own, which are independent of the others'.
    """
    number, joint = len(scales), group.joint and len(scales) > 1
    if several is not None and joint:
        raise FormulaError(
            f"The family {source.family.name} has effects of groups for each level, and no correlations among them "
            f"yet: write '({group.name.replace('|', ' || ')})' for effects that are independent."
        )
    name = plain(predictor.prefix + group.name)
    labels = ([list(group.effects)] if number > 1 else []) + ([list(several)] if several is not None else [])
    shape = tuple(map(len, labels))
    sigma = source.site(f"{name}_sigma", *labels)
    default = half_normal(scales)
    if several is not None and default.batch_shape:
        default = half_normal(np.broadcast_to(scales[:, None], shape))
    prior = source.priors.text(f"{name}_sigma", default, shape)
    source.add(f"{stem}_sd = numpyro.sample({sigma}, {prior})")
    if joint:
        _write_correlation(source, group, name, stem)
    _write_effects(source, group, name, stem, joint, labels)
    _write_sum(source, group, stem, number, f"eta{predictor.suffix}", several is not None)


def _write_correlation(source: Source, group: Group, name: str, stem: str) -> None:
    """The Cholesky factor of the effects' correlations, and the correlations, those below the diagonal."""
    effects = group.effects
    pairs = [f"{effects[row]}, {effects[column]}" for row in range(len(effects)) for column in range(row)]
    text = source.priors.text(f"{name}_cholesky", dist.LKJCholesky(len(effects), 1.0), (len(effects), len(effects)))
    source.add(
        f"{stem}_factor = numpyro.sample({source.site(f'{name}_cholesky')}, {text})",
        f"{stem}_products = {stem}_factor @ {stem}_factor.T",
        f"numpyro.deterministic({source.site(f'{name}_correlation', pairs)}, "
        f"{stem}_products[jnp.tril_indices({len(effects)}, -1)])",
    )


def _write_effects(source: Source, group: Group, name: str, stem: str, joint: bool, labels: list[list[str]]) -> None:
    kind = group.grouping.kind
    count = {Kind.CLIENT: None, Kind.WITHIN: f"{stem}_count", Kind.ACROSS: str(len(group.grouping.levels))}[kind]
    sizes = ([] if count is None else [count]) + [str(len(axis)) for axis in labels]
    law = "dist.Normal(0.0, 1.0)" + (f".expand([{', '.join(sizes)}]).to_event({len(sizes)})" if sizes else "")
    if not labels:
        product = f"{stem}_sd * {stem}_offset"
    elif not joint:
        product = f"{stem}_offset * {stem}_sd"
    elif kind is Kind.CLIENT:
        product = f"({stem}_sd[:, None] * {stem}_factor) @ {stem}_offset"
    else:
        product = f"{stem}_offset @ ({stem}_sd[:, None] * {stem}_factor).T"
    axes = ([list(group.grouping.levels)] if kind is Kind.ACROSS else []) + labels
    named = axes if kind is not Kind.WITHIN else []
    lines = [
        f"{stem}_offset = numpyro.sample({source.site(f'{name}_offset', *named)}, {law})",
        f"{stem}_effect = numpyro.deterministic({source.site(name, *named)}, {product})",
    ]
    if kind is Kind.ACROSS:
        source.add(*lines)
    else:
        source.add("with fb.local():", *(f"    {line}" for line in lines))


def _write_sum(source: Source, group: Group, stem: str, number: int, eta: str, several: bool) -> None:
    """What the effects add to the linear predictor."""
    effect = f"{stem}_effect" if group.grouping.kind is Kind.CLIENT else f"{stem}_effect[{stem}_index]"
    if group.effects == ("1",):
        source.add(f"{eta} = {eta} + {effect}")
    elif number == 1:
        source.add(f"{eta} = {eta} + {stem}_values{'' if several else '[:, 0]'} * {effect}")
    elif group.grouping.kind is Kind.CLIENT:
        source.add(f"{eta} = {eta} + {stem}_values @ {effect}")
    elif several:
        source.add(f"{eta} = {eta} + ({stem}_values[:, :, None] * {effect}).sum(axis=1)")
    else:
        source.add(f"{eta} = {eta} + ({stem}_values * {effect}).sum(axis=-1)")
