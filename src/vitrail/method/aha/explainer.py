"""An explainer: a frozen encoder, a decoder that has learned to rank regions for one target model, and their folder."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.method.aha.decoder import Decoder
from vitrail.method.aha.features import Sight, look
from vitrail.method.aha.known import marks, read, written
from vitrail.model import View, load

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
"""The files of an explainer's folder."""

SELF = "self"
"""The encoder that is the target itself."""

WIDE = 384
"""A target with features of so many channels gets a decoder of 128 channels, a smaller one 64."""

CARD_TEMPLATE = """---
{{ card_data }}
---

A vitrail explainer (AHA): it draws, in one pass, which regions a classifier's answer rests on. It was trained for one
model, named in config.json, and serves that model alone:
`vitrail.explain(model, pictures, "aha(explainer='THIS REPOSITORY')")`.
"""


class Explainer(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="vitrail",
    tags=["explainability", "saliency"],
    model_card_template=CARD_TEMPLATE,
):
    """Answers a picture and a class with a map, in one pass; made by `for_view`, trained by ``vitrail train``.

    Only the decoder and the class embedding belong to it. The encoder, the target itself by default, stays frozen and
    is neither saved nor among the parameters. The arguments are the configuration that its folder keeps.

    Args:
        target: The name of the model that is explained.
        fingerprint: The hash of its weights.
        classes: How many classes it knows.
        size: Height and width of its inputs.
        widths: Channels of the encoder's feature maps, finest first.
        encoder: ``self``, or the name of another model, such as the paper's ``vit_large_patch16_dinov3``.
        encoder_fingerprint: The hash of that model's weights; empty for ``self``.
        channels: Width of the decoder.
        embedding: Width of a class's embedding.
        image_branch: Whether the decoder sees the picture besides the features.
        evidence: Whether it sees, besides, what speaks for the class in the target's features: one more pass, back
            through half of the model.
        steps: How many steps it was trained for.
        temperature: Of the soft ranks when training ended, at which it is refined.
        contrast: The power that makes magnitudes of what was learned as an order, see `magnitudes`.
        pictures: Which pictures it was trained on, see `trained_on`.
    """

    def __init__(
        self,
        *,
        target: str,
        fingerprint: str,
        classes: int,
        size: Sequence[int],
        widths: Sequence[int],
        encoder: str = SELF,
        encoder_fingerprint: str = "",
        channels: int = 128,
        embedding: int = 64,
        image_branch: bool = True,
        evidence: bool = False,
        steps: int = 0,
        temperature: float = 0.01,
        contrast: float = 1.0,
        pictures: str = "",
    ) -> None:
        super().__init__()
        if channels < 8 or channels % 8 or embedding < 1:
            raise InputError(
                f"an explainer needs channels in multiples of 8 and an embedding of 1 or more, "
                f"but {channels} and {embedding} were given"
            )
        if evidence and encoder != SELF:
            raise InputError(f"evidence is the target's own, but it was asked for with the encoder {encoder}")
        if not widths and not image_branch:
            raise InputError(f"{target} shows no feature maps; keep the image branch, or give another encoder")
        self.config: dict[str, Any] = {
            "target": target,
            "fingerprint": fingerprint,
            "classes": classes,
            "size": list(size),
            "widths": list(widths),
            "encoder": encoder,
            "encoder_fingerprint": encoder_fingerprint,
            "channels": channels,
            "embedding": embedding,
            "image_branch": image_branch,
            "evidence": evidence,
            "steps": steps,
            "temperature": temperature,
            "contrast": contrast,
            "pictures": pictures,
        }
        self._pictures = read(pictures)
        self.decoder = Decoder(
            widths, classes=classes, channels=channels, embedding=embedding, image_branch=image_branch
        )
        self._encoder: tuple[View, ...] = ()  # no module of ours: it is not trained, moved or saved with us

    @classmethod
    def for_view(
        cls,
        view: View,
        *,
        encoder: str | View = SELF,
        channels: int | None = None,
        embedding: int = 64,
        image_branch: bool = True,
        evidence: bool | None = None,
    ) -> "Explainer":
        """An untrained explainer for a model, on its device.

        Args:
            view: The model that is explained.
            encoder: Whose features it sees: ``self``, the name of another model, or a view of one.
            channels: Width of the decoder; 128, or 64 for a small encoder, by default.
            embedding: Width of a class's embedding.
            image_branch: Whether the decoder sees the picture besides the features.
            evidence: Whether it sees what speaks for the class; by default where the encoder is the target.

        Example:
            >>> explainer = Explainer.for_view(load("demo"))
            >>> explainer.explain(load("demo"), torch.zeros(2, 3, 144, 144), torch.tensor([3, 5])).shape
            torch.Size([2, 144, 144])
        """
        other = None if encoder == SELF else encoder if isinstance(encoder, View) else load(encoder, device=view.device)
        seen = other or view
        told = other is None if evidence is None else evidence
        blank = look(seen, seen.blank(seen.size), evidence=told)
        widths = [feature.shape[1] for feature in blank.features(torch.zeros(1, dtype=torch.long))]
        with torch.inference_mode(False):
            made = cls(
                target=view.name,
                fingerprint=view.fingerprint(),
                classes=view.num_classes,
                size=view.size,
                widths=widths,
                # A name as it was given, because by it the encoder is fetched again: a view's leaves out folders.
                encoder=encoder if isinstance(encoder, str) else encoder.name,
                encoder_fingerprint="" if other is None else other.fingerprint(),
                channels=(128 if max(widths, default=0) >= WIDE else 64) if channels is None else channels,
                embedding=embedding,
                image_branch=image_branch,
                evidence=told,
            )
        made._encoder = () if other is None else (other,)
        return made.to(view.device)

    # ------------------------------------------------------------------------------------------------------- to explain

    def encode(self, view: View, images: Tensor) -> Sight:
        """The target's logits, and on request what the encoder saw; one pass where both are one.

        Args:
            view: The target.
            images: (B, 3, H, W) inputs of the target.
        """
        if self.config["encoder"] == SELF:
            return look(view, images, evidence=self.config["evidence"])
        with torch.no_grad():
            logits = view.logits(images)
        encoder = self._encoder_on(view.device)
        sight = look(encoder, _retold(images, view, encoder))
        sight.logits = logits
        return sight

    def forward(self, features: Sequence[Tensor], images: Tensor, classes: Tensor) -> Tensor:
        """(B, H, W) maps between 0 and 1, larger where there is more evidence: an order, see `magnitudes`.

        Args:
            features: What `encode` saw: `Sight.features` of these classes.
            images: (B, 3, H, W) inputs of the target.
            classes: (B,) class numbers.
        """
        widths = [feature.shape[1] for feature in features]
        if widths != self.config["widths"]:
            raise InputError(
                f"this explainer reads feature maps of {self.config['widths']} channels, but {widths} were given; "
                f"use it on {self.config['target']}, or train another"
            )
        like = self.decoder.embedding.weight
        maps: Tensor = self.decoder([feature.to(like.dtype) for feature in features], images.to(like.dtype), classes)
        return maps

    def magnitudes(self, maps: Tensor, contrast: float | None = None) -> Tensor:
        """The same order, with values that say how much of the answer there is.

        The objective asks for an order alone, and values are what they happen to be: a third of the highest, perhaps,
        where nothing is to be seen. Of all powers the explainer's own is the one by which a map's highest regions hold,
        in the mean, the share of its sum that they bring of the answer; ``vitrail train`` finds it.

        Args:
            maps: Between 0 and 1, as they were learned.
            contrast: Another power; 1 leaves them as they are.
        """
        power = self.config["contrast"] if contrast is None else contrast
        return maps if power == 1 else maps**power

    def explain(self, view: View, images: Tensor, classes: Tensor) -> Tensor:
        """(B, H, W) maps of (B, 3, H, W) inputs for (B,) classes, without gradients."""
        with view.still(), torch.no_grad():
            classes = classes.to(view.device)
            found: Tensor = self(self.encode(view, images).features(classes), images.to(view.device), classes)
        return self.magnitudes(found)

    def trained_on(self, view: View, images: Tensor) -> Tensor:
        """(B,) boolean, on the CPU: inputs that it was trained on, as far as its configuration knows.

        Args:
            view: The target.
            images: (B, 3, H, W) inputs of it. Those of another size than in training are not recognised.
        """
        if not len(self._pictures):
            return torch.zeros(len(images), dtype=torch.bool)
        return torch.isin(marks(view.preprocess, images), self._pictures)

    def unseen(self, classes: Tensor) -> Tensor:
        """(B,) boolean: classes that training never showed, whose embedding is zero as it was at first."""
        return ~self.decoder.embedding.weight[classes].any(1)

    def check(self, view: View, *, other_model: bool = False) -> None:
        """Refuse a model that the explainer was not trained for.

        Args:
            view: The model to explain.
            other_model: Take one with other weights, at one's own risk, if it knows as many classes.
        """
        trained, given = self.config["fingerprint"], view.fingerprint()
        if trained != given and not other_model:
            raise InputError(
                f"this explainer was trained for {self.config['target']} with the weights {trained[:12]}, but "
                f"{view.name} with the weights {given[:12]} was given; train one for it, or give aha(other_model=True)"
            )
        if view.num_classes != self.config["classes"]:
            raise InputError(
                f"this explainer knows {self.config['classes']} classes, but {view.name} answers {view.num_classes}; "
                "train one for it"
            )

    def use_encoder(self, encoder: View) -> None:
        """See through this very encoder, for one whose weights are a file of one's own."""
        if encoder.fingerprint() != self.config["encoder_fingerprint"]:
            raise InputError(
                f"this explainer sees through {self.config['encoder']} with the weights "
                f"{self.config['encoder_fingerprint'][:12]}, but {encoder.name} with the weights "
                f"{encoder.fingerprint()[:12]} was given; load the weights it was trained with"
            )
        self._encoder = (encoder,)

    def _encoder_on(self, device: torch.device) -> View:
        """The other model that it sees through, fetched by name at its first use."""
        if not self._encoder:
            self.use_encoder(load(self.config["encoder"], device=device))
        encoder = self._encoder[0]
        if encoder.device != device:
            # Another view, because one remembers what blocks are given besides tokens, such as rotary positions, and
            # those would stay where they are.
            encoder = View.of(encoder.model.to(device), like=encoder)
            self._encoder = (encoder,)
        return encoder

    # ---------------------------------------------------------------------------------------------------------- to keep

    def noted(self, *, steps: int, temperature: float, contrast: float, pictures: Tensor | None = None) -> None:
        """Note in the configuration how far it was trained, on what, and what makes magnitudes of its maps.

        Args:
            steps: How many were made.
            temperature: Of the soft ranks at the last one.
            contrast: See `magnitudes`.
            pictures: The marks of the pictures that it was trained on.
        """
        self.config |= {"steps": steps, "temperature": temperature, "contrast": contrast}
        if pictures is not None:
            self.config["pictures"] = written(pictures)
            self._pictures = read(self.config["pictures"])

    def save_pretrained(self, save_directory: str | Path, *, half: bool = False, **options: Any) -> str | None:
        """Write the folder, whole or not at all; an explainer that is there already is replaced.

        Args:
            save_directory: The folder. It may hold an explainer, and nothing else.
            half: Keep the weights in float16, half as large; they are float32 again when loaded.
            options: What `huggingface_hub.ModelHubMixin.save_pretrained` takes besides.
        """
        folder = Path(save_directory).expanduser()
        others = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        others = sorted(set(others) - {WEIGHTS, CONFIG, CARD})
        if others or (folder.exists() and not folder.is_dir()):
            raise InputError(
                f"{folder} holds {', '.join(others[:3]) or 'no folder'}, and would be replaced; give a new folder"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            draft.mkdir()
            weights = {name: _kept(value, half) for name, value in self.state_dict().items()}
            save_file(weights, draft / WEIGHTS, {"format": "pt"})
            (draft / CONFIG).write_text(json.dumps(self.config, indent=2) + "\n", encoding="utf-8")
            self.generate_model_card().save(draft / CARD)
            _replace(folder, draft)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if options.pop("push_to_hub", False):
            return self.push_to_hub(options.pop("repo_id", None) or folder.name, **options)
        return None

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> "Explainer":  # type: ignore[override]
        """The explainer of a folder, or of a repository on the Hugging Face Hub.

        Args:
            source: The folder, or ``owner/name``.
            options: What `huggingface_hub.hf_hub_download` takes besides, such as ``revision``.
        """
        folder = Path(source).expanduser()
        if folder.is_dir():
            files = [folder / CONFIG, folder / WEIGHTS]
        else:
            files = [_downloaded(str(source), name, options) for name in (CONFIG, WEIGHTS)]
        try:
            config = json.loads(files[0].read_text(encoding="utf-8"))
            with torch.inference_mode(False):
                # Copies: what lies in a mapped file is not aligned, and would be rounded differently.
                weights = {name: value.to(torch.float32, copy=True) for name, value in load_file(files[1]).items()}
                with torch.device("meta"):  # weights that are replaced at once need no random numbers
                    made = cls(**config)
                made.load_state_dict(weights, assign=True)
        except (OSError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"{source} holds no explainer ({reason}); give a folder that vitrail train wrote"
            ) from error
        return made.eval()


def _replace(folder: Path, draft: Path) -> None:
    """Put the draft where the folder is; if that fails or is interrupted, the old one comes back."""
    if not folder.exists():
        draft.replace(folder)
        return
    before = draft.with_name(f"{draft.name}.before")
    try:
        folder.replace(before)
        draft.replace(folder)
    except BaseException:
        if not folder.exists():
            before.replace(folder)
        raise
    finally:
        if folder.exists():
            shutil.rmtree(before, ignore_errors=True)


def _kept(value: Tensor, half: bool) -> Tensor:
    """Weights as they are written: on the CPU, in float32 or float16."""
    return value.detach().cpu().to(torch.float16 if half else torch.float32).contiguous()


def _downloaded(source: str, name: str, options: dict[str, Any]) -> Path:
    """A file of a repository on the Hub."""
    advice = "train one with: vitrail train --model MODEL --data folder:PHOTOS"
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source):
        raise InputError(f"there is no folder {source} with an explainer; {advice}")
    try:
        return Path(hf_hub_download(source, name, **options))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"there is no folder {source} with an explainer, and none on the Hugging Face Hub ({reason}); {advice}"
        ) from error


def _retold(images: Tensor, view: View, encoder: View) -> Tensor:
    """Inputs of one model as inputs of another: normalised and sized as that one wants them."""

    def of(values: Sequence[float]) -> Tensor:
        return images.new_tensor(values).view(1, 3, 1, 1)

    pixels = images * of(view.preprocess.std) + of(view.preprocess.mean)
    inputs = (pixels - of(encoder.preprocess.mean)) / of(encoder.preprocess.std)
    return F.interpolate(inputs, encoder.size, mode="bilinear", align_corners=False, antialias=True)
