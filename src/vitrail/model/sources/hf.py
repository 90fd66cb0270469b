"""Image classifiers of Hugging Face."""

from PIL import Image

from vitrail.model.inputs import Preprocess
from vitrail.model.sources.source import SOURCES, Asked, Found, Source, extra, facts, fetched, unwrapped


def build(asked: Asked) -> Found:
    """By its repository, or a folder. What the model looks like is fetched even where no weights are wanted."""
    name = asked.name
    transformers = extra("transformers", "hf")
    made, auto = fetched(f"hf/{name}", fetch=True), transformers.AutoModelForImageClassification
    if asked.weights is None:
        module = made(lambda: auto.from_pretrained(name))
    else:  # the weights come from a file; what the model looks like must be known all the same
        module = auto.from_config(made(lambda: transformers.AutoConfig.from_pretrained(name)))
    module = unwrapped(module)
    preprocess, names = facts(module)
    try:
        how = transformers.AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError):
        return Found(module, f"hf/{name}", preprocess, names)
    size = getattr(how, "crop_size", None) or how.size
    height, width = (size["height"], size["width"]) if "height" in size else (size["shortest_edge"],) * 2
    short = how.size.get("shortest_edge", height)
    preprocess = Preprocess(
        (height, width),
        tuple(how.image_mean),
        tuple(how.image_std),
        height / short,
        Image.Resampling(how.resample).name.lower(),
        squash="height" in how.size and not getattr(how, "do_center_crop", False),
    )
    return Found(module, f"hf/{name}", preprocess, names)


SOURCES.enter("hf", Source("hf/REPOSITORY", build))
