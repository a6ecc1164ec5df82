"""`from_hf` and `to_hf`: import a Hugging Face checkpoint as a model, and export one."""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from torch import Tensor

from kinfolk.core import durable
from kinfolk.core.device import shapes_only
from kinfolk.core.errors import CheckpointError, brief, suggest
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.data import Tokenizer
from kinfolk.data.tokenizers.tokenizer import roles_in, with_roles
from kinfolk.models.cost import cost
from kinfolk.models.model import Model, Transformer
from kinfolk.models.undrawn import undrawn
from kinfolk.runs.folder import CONFIG
from kinfolk.runs.huggingface import sentence
from kinfolk.runs.huggingface.config import Config, read_json
from kinfolk.runs.huggingface.differences import differences
from kinfolk.runs.huggingface.format import FORMATS, Architecture, Format, Misfit
from kinfolk.runs.huggingface.gguf_file import SUFFIX, unpacked
from kinfolk.runs.huggingface.opening import fill
from kinfolk.runs.huggingface.places import rows
from kinfolk.runs.huggingface.special_ids import GENERATION_CONFIG, special_ids, written_ids
from kinfolk.runs.huggingface.tensors import INDEX, WEIGHTS, Tensors
from kinfolk.runs.huggingface.tokenizing import SETTINGS, read_tokenizer, tokenizer_settings

SHARD = 5_000_000_000
"""Bytes of weights that one file holds."""

TOKENIZER, PICTURES = "tokenizer.json", "preprocessor_config.json"


@dataclasses.dataclass(frozen=True, eq=False)
class Imported:
    """What a folder held: the model, the kind of checkpoint, and the tensors that have no part in the model.

    `also` is what its configuration says besides the network: ids of specials, names of classes.
    """

    model: Transformer
    model_type: str
    architecture: str
    left_out: tuple[str, ...]
    also: dict[str, Any]
    tokenizer: tokenizers.Tokenizer | None = None
    roles: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    @property
    def generation(self) -> GenerationIds:
        """What it begins, ends and pads with."""
        return self.model.generation

    def own_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer with the roles that the folder gives to its tokens; None if it has none."""
        return None if self.tokenizer is None else Tokenizer(self.tokenizer, self.roles)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of classes or tags, where the configuration has as many as the head."""
        head, names = self.model.spec.head, self.also.get("id2label")
        n = getattr(head, "n_classes", getattr(head, "n_tags", 0))
        if not n or not isinstance(names, dict) or sorted(names) != sorted(map(str, range(n))):
            return ()
        return tuple(str(names[str(i)]) for i in range(n))


def from_hf(
    folder: str | Path, *, ignore: Iterable[str] = (), model_type: str | None = None, architecture: str | None = None
) -> Transformer:
    """Read a model from a folder of config.json and model.safetensors (or pytorch_model.bin, whole or in shards).

    A GGUF file of a Llama-like model (llama, qwen2, qwen3) is read too, with the extra `gguf`; quantised weights become
    float32.

    What the configuration says and Kinfolk cannot express is refused by name, and so is every tensor that is missing or
    not known; `ignore` names keys and tensors (a star matches anything) that are known to be of no account. Weights
    are mapped from the file, which should stay where it is; half-precision ones become float32. `model_type` is for
    old configurations that do not say theirs, where the names of tensors do not tell it either; `architecture` (as
    BertForMaskedLM) goes before what config.json says, or does not say.
    """
    return open_folder(folder, ignore=ignore, model_type=model_type, architecture=architecture).model


def open_folder(
    folder: str | Path, *, ignore: Iterable[str] = (), model_type: str | None = None, architecture: str | None = None
) -> Imported:
    """Read a model as `from_hf` does, and say what it was."""
    folder, ignore = Path(folder), tuple(ignore)
    if folder.suffix == SUFFIX and folder.is_file():
        with unpacked(folder) as plain:
            return open_folder(plain, ignore=ignore, model_type=model_type, architecture=architecture)
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder}: no {CONFIG} here, so this is not a folder of a checkpoint")
    config = Config.load(folder / CONFIG, ignore)
    load_formats()
    if not config.values.get("model_type"):
        config.values["model_type"] = model_type or model_type_of(Tensors(folder).shapes, folder)
    form = _format(config)
    tensors = Tensors(folder)
    config.tensors = frozenset(map(form.rename, tensors.shapes))
    if (folder / PICTURES).is_file():
        config.beside[PICTURES] = read_json(folder / PICTURES)
    if architecture is not None:
        config.values["architectures"] = [architecture]
    kind, spec = _spec(form, config)
    head = sentence.read(folder)
    if head is not None:
        if not kind.bare:
            raise CheckpointError(f"{folder / sentence.MODULES}: pools what {kind.name} has a head for")
        unused = [f"{place}.*" for place in kind.table.values()]
        spec = spec.replace(head=head)
        kind = dataclasses.replace(kind, unused=(*kind.unused, *unused))
    _refuse_larger(spec, tensors, config.where)
    model = undrawn(spec)
    left_out = fill(model, form, kind, tensors, ignore)
    dense = sentence.read_dense(folder)
    model = model if dense is None else sentence.judged(model, dense)
    inner = read_tokenizer(folder, form.model_type)
    roles, model.generation = special_ids(folder, config, inner, model.spec.topology)
    also = config.besides()
    return Imported(model, form.model_type, kind.name, tuple(left_out), also, inner, roles)


def _refuse_larger(spec: Model, tensors: Tensors, where: str) -> None:
    """Refuse a configuration that asks for far more than its file has, before memory is taken for it."""
    wanted, stored = cost(spec, 1).params, sum(math.prod(shape) for shape in tensors.shapes.values())
    if wanted > 2 * stored + 100_000:
        raise CheckpointError(f"{where}: says a model of {wanted:,} parameters, and its weights are {stored:,}")


def to_hf(
    model: Transformer,
    folder: str | Path,
    *,
    model_type: str | None = None,
    tokenizer: str | Path | None = None,
    also: Mapping[str, Any] | None = None,
    shard: int = SHARD,
) -> Path:
    """Write a model as a folder that Hugging Face's libraries open.

    The kind of checkpoint is found from the model's spec, or is `model_type`. A model that no kind can express is
    refused, and what the nearest kind lacks is named. `also` is said in config.json besides the network.
    Weights of more than `shard` bytes are written as several files.
    """
    folder = Path(folder)
    form, architecture, values, dense = _written_as(model, model_type)
    spec = model.spec if dense is None else model.spec.replace(head=sentence.pooling_of(model.spec.head))
    tensors = narrowed(_tensors(model, spec, form, architecture))
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(tensors, folder, shard)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    besides = dict(form.unsaid) | Config(also or {}).besides()
    if dense is not None and len(dense["bias"]) > 1:
        values["id2label"] = {str(i): f"LABEL_{i}" for i in range(len(dense["bias"]))}
    text = json.dumps(besides | values | _class_names(besides, values) | {"dtype": dtype}, indent=2, sort_keys=True)
    durable.write(folder / CONFIG, text + "\n")
    for name, what in form.beside(spec).items():
        durable.write(folder / name, json.dumps(what, indent=2) + "\n")
    sentence.write(spec.head, spec.d_model, folder, dense)
    if model.spec.decoder is not None:
        own = model.generation != GenerationIds() or tokenizer is None
        generation = model.generation if own else Tokenizer.load(tokenizer or "").generation
        ids = written_ids(generation, model.spec.topology)
        durable.write(folder / GENERATION_CONFIG, json.dumps(ids, indent=2, sort_keys=True) + "\n")
    if tokenizer is not None:
        text = Path(tokenizer).read_text(encoding="utf-8")
        durable.write(folder / TOKENIZER, with_roles(text, {}) if roles_in(text) else text)
        settings = tokenizer_settings(text, form.model_type)
        durable.write(folder / SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    return folder


def _written_as(
    model: Transformer, model_type: str | None
) -> tuple[Format, Architecture, dict[str, Any], dict[str, Tensor] | None]:
    """Find the format of a model, or of its body with the judging layer apart, where no format has such a head."""
    try:
        return *_kind(model.spec, model_type), None
    except CheckpointError:
        head = sentence.pooling_of(model.spec.head)
        if head is None:
            raise
        form, architecture, values = _kind(model.spec.replace(head=head), model_type)
        own = model.state_dict()
        return form, architecture, values, {name: own[f"head.output.{name}"] for name in ("weight", "bias")}


def _class_names(besides: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of classes that somebody gave, where they are as many as the head has."""
    names, numbered = besides.get("id2label"), values.get("id2label")
    if not isinstance(names, dict) or not isinstance(numbered, dict) or names.keys() != numbered.keys():
        return {}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}


def write_weights(tensors: Mapping[str, Tensor], folder: Path, shard: int = SHARD) -> None:
    """Write the weights of a folder in one file, or in several with a list of what is where."""
    parts: list[dict[str, Tensor]] = [{}]
    room = shard
    for name, x in tensors.items():
        if parts[-1] and x.nbytes > room:
            parts.append({})
            room = shard
        parts[-1][name] = x
        room -= x.nbytes
    if len(parts) == 1:
        write_tensors(tensors, folder / WEIGHTS)
        (folder / INDEX).unlink(missing_ok=True)
        return
    stem, suffix = Path(WEIGHTS).stem, Path(WEIGHTS).suffix
    names = [f"{stem}-{i:05}-of-{len(parts):05}{suffix}" for i in range(1, len(parts) + 1)]
    for file, part in zip(names, parts, strict=True):
        write_tensors(part, folder / file)
    where = {name: file for file, part in zip(names, parts, strict=True) for name in part}
    index = {"metadata": {"total_size": sum(x.nbytes for x in tensors.values())}, "weight_map": where}
    durable.write(folder / INDEX, json.dumps(index, indent=2, sort_keys=True) + "\n")
    # a single file would be read first
    (folder / WEIGHTS).unlink(missing_ok=True)


def narrowed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in the half precision that holds every one of them exactly, where there is one.

    A checkpoint of bfloat16 is computed with in float32; as long as nothing has changed it, it is stored as it came.
    """
    floating = [x for x in tensors.values() if x.is_floating_point()]
    for dtype in (torch.bfloat16, torch.float16):
        if all(x.dtype != torch.float64 and torch.equal(x.to(dtype).to(x.dtype), x) for x in floating):
            return {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
    return dict(tensors)


def write_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file that is complete or not there."""
    notes = {"format": "pt", **(metadata or {})}
    with durable.appearing(file) as aside:
        save_file({name: x.detach().contiguous() for name, x in tensors.items()}, aside, metadata=notes)


def _format(config: Config) -> Format:
    load_formats()
    name = config.get("model_type", "")
    if name not in FORMATS:
        raise CheckpointError(f"{config.where}: model_type = {name!r} is not known{suggest(name, FORMATS)}")
    return FORMATS[name]


def model_type_of(names: Iterable[str], folder: Path) -> str:
    """Return the kind of a checkpoint whose configuration does not say it, by the names of its tensors."""
    tensors = [form.rename(name) for form in FORMATS.values() for name in names if form.prefix]
    kinds = [name for name, form in FORMATS.items() if form.prefix == f"{name}."]
    matches = [name for name in kinds if any(tensor.startswith(f"{name}.") for tensor in tensors)]
    if len(matches) != 1:
        raise CheckpointError(
            f"{folder / CONFIG}: model_type is missing, and tensors do not tell it; give model_type= (--type) one of "
            f"{', '.join(sorted(FORMATS))}"
        )
    return matches[0]


def _spec(form: Format, config: Config) -> tuple[Architecture, Model]:
    names = config.get("architectures", None) or [form.architecture_in(config.tensors)]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise CheckpointError(f"{config.where}: architectures = {brief(names)} is not a list of names")
    architecture = form.architecture(names[0], config.where)
    spec = form.model(config, architecture.read(config))
    config.finish()
    return architecture, spec


def _kind(spec: Model, model_type: str | None) -> tuple[Format, Architecture, dict[str, Any]]:
    """Find the format that says this very model."""
    load_formats()
    if model_type is not None and model_type not in FORMATS:
        raise CheckpointError(f"model_type: unknown {model_type!r}{suggest(model_type, FORMATS)}")
    # how far from the model each is, and why
    against: dict[str, tuple[int, list[str]]] = {}
    for name, form in FORMATS.items() if model_type is None else [(model_type, FORMATS[model_type])]:
        try:
            architecture = form.architecture_of(spec.head)
            values = {"model_type": name, "architectures": [architecture.name], **form.values(spec)}
            values |= architecture.write(spec.head)
            config = Config(values, f"config.json of {name}")
            config.beside = dict(form.beside(spec))
            config.tensors = frozenset(_names(spec, form, architecture))
            again = _spec(form, config)[1]
        except Misfit as error:
            against[name] = 1000 - error.depth, [str(error)]
            continue
        except CheckpointError as error:
            against[name] = 500, [str(error)]
            continue
        # how vectors are pooled without weights is said outside of the body's configuration
        lines = differences(again.replace(head=sentence.bare(spec.head, again.head)), spec, free=form.free)
        if not lines:
            return form, architecture, values
        against[name] = len(lines), lines
    nearest = min(against, key=lambda name: against[name][0])
    reasons = "; ".join(against[nearest][1][:4])
    raise CheckpointError(f"no kind of checkpoint has a place for this model; against {nearest!r}: {reasons}")


def _names(spec: Model, form: Format, architecture: Architecture) -> list[str]:
    with shapes_only():
        ours = Transformer(spec).state_dict()
    return [name for row in rows(form.places(spec, architecture, form.prefix), ours) for name in row.theirs]


def _tensors(model: Transformer, spec: Model, form: Format, architecture: Architecture) -> dict[str, Tensor]:
    """Return the tensors of a format; `spec` has the head that the format writes, and what is more is written apart."""
    prefix = "" if architecture.bare else form.prefix
    own = model.state_dict()
    own = own if spec == model.spec else {name: x for name, x in own.items() if not name.startswith("head.")}
    out: dict[str, Tensor] = {}
    for row in rows(form.places(spec, architecture, form.prefix), own):
        names = tuple(prefix + name.removeprefix(form.prefix) if architecture.bare else name for name in row.theirs)
        if architecture.inside and not row.ours.startswith("head."):
            names = tuple(architecture.inside + name for name in names)
        try:
            out |= row.place.write(own[row.ours].detach().contiguous(), names)
        except CheckpointError as error:
            raise CheckpointError(f"{row.ours}: {error}") from None
    return {**out, **form.always(spec, out)}


def load_formats() -> None:
    """Define every format of this package."""
    import importlib
    import pkgutil

    import kinfolk.runs.formats as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
