"""What is explained: every way to say it leads to the right score, and what cannot be meant is refused."""

import copy

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from helpers.zoo import module, pictures, view_of
from vitrail import explain
from vitrail.errors import InputError
from vitrail.model import Likeness, Need, Target, View, load, representation, resolve

PROMPT = "a red bus"


class Tiny(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def view() -> View:
    torch.manual_seed(0)
    return load(Tiny(1000), size=(16, 16))


@pytest.fixture(scope="module")
def named() -> View:
    return load(Tiny(4), size=(16, 16), classes=["Cat", "dog, hound, Canis", "big boat", "7"])


@pytest.fixture(scope="module")
def prompted() -> View:
    return load(module("open_clip_vit_b_32"), classes=["a cat", "a dog", "a boat"])


def classes(view: View, target: object, images: int = 3) -> list[int]:
    same, found = resolve(view, target, images)
    assert same is view
    assert found is not None
    assert found.classes is not None
    return found.classes.tolist()


# ------------------------------------------------------------------------------------------------------- classes


@pytest.mark.parametrize("target", [None, "predicted"])
def test_predicted(view, target):
    assert resolve(view, target, 3) == (view, None)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (207, [207] * 3),
        (0, [0] * 3),
        (999, [999] * 3),
        ("207", [207] * 3),
        ("golden retriever", [207] * 3),
        (" Golden Retriever ", [207] * 3),
        ("Tinca tinca", [0] * 3),
        ("great white shark", [2] * 3),
        ([1, 2, 3], [1, 2, 3]),
        ((1, "2", "golden retriever"), [1, 2, 207]),
        (["tench", "goldfish", 5], [0, 1, 5]),
        (torch.tensor([4, 5, 6]), [4, 5, 6]),
        (torch.tensor([4, 5, 6], dtype=torch.uint8), [4, 5, 6]),
        (torch.tensor(8), [8] * 3),
    ],
)
def test_ways_to_name_a_class(view, target, expected):
    assert classes(view, target) == expected


def test_names_of_the_users_own(named):
    assert classes(named, ["cat", "DOG", "canis"]) == [0, 1, 1]
    assert classes(named, "dog, hound, canis") == [1, 1, 1]
    assert classes(named, "big boat") == [2, 2, 2]


def test_a_name_that_is_a_number_is_a_name_first(named):
    assert classes(named, "7") == [3, 3, 3]
    assert classes(named, "1") == [1, 1, 1]
    with pytest.raises(InputError, match="class 7 does not exist"):
        resolve(named, 7, 3)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (5000, r"class 5000 does not exist: Tiny has 1000 classes, 0 to 999"),
        ("5000", r"class 5000 does not exist"),
        (1000, r"class 1000 does not exist"),
        (-1, r"class -1 does not exist"),
        ("-1", r"class -1 does not exist"),
        ([1, 2, 5000], r"class 5000 does not exist"),
        (torch.tensor([1, 2, 1000]), r"class 1000 does not exist"),
        (True, r"a target must be 'predicted', a class number or name.* but True was given"),
        ([1, 2, True], r"a target must be .* but \[1, 2, True\] was given"),
        (torch.tensor([True, False, True]), r"a target must be"),
        (2.0, r"a target must be .* but 2\.0 was given"),
        ([1, 2, None], r"a target must be"),
        ({1: 2}, r"a target must be"),
        ([1, 2], r"2 targets were given for 3 images; give one each, or one for all"),
        ([1, 2, 3, 4], r"4 targets were given for 3 images"),
        ([], r"0 targets were given for 3 images"),
        (torch.tensor([1]), r"1 targets were given for 3 images"),
        (
            torch.tensor([1.0, 2, 3]),
            r"must hold class numbers, .* a torch\.float32 \(3,\) tensor was given; for a like",
        ),
        (torch.tensor([[1, 2, 3]]), r"must hold class numbers, .* a torch\.int64 \(1, 3\) tensor was given"),
        ("golden retreiver", r"Tiny has no class called 'golden retreiver'; did you mean 'golden retriever'"),
        ("xqzw", r"Tiny has no class called 'xqzw'; give another of its 1000 names, or a number from 0 to 999"),
        ("--3", r"Tiny has no class called '--3'"),
        ("²", r"Tiny has no class called '²'"),
        ("", r"Tiny has no class called ''"),
        (10**20, r"class 100000000000000000000 does not exist"),
        (torch.tensor([1, 2, 3]).to_sparse(), r"a target tensor must be a plain one, .* sparse; give tensor\.to_dense"),
        (torch.tensor([1, 2, 3], device="meta"), r"a target tensor must be a plain one, .* on the device meta"),
        (np.array([None] * 3), r"a target must be"),
        (np.array([1.0, 2, 3]), r"must hold class numbers"),
        (np.array([2**63] * 3, np.uint64), r"class 9223372036854775808 does not exist"),
        (Likeness([1.0, 2.0]), r"the reference must be a plain tensor; make it with"),
        (Likeness(torch.zeros(8).to_sparse()), r"the reference must be a plain tensor"),
        (Likeness(torch.zeros(8, device="meta")), r"the reference must be a plain tensor"),
    ],
)
def test_targets_that_cannot_be_meant(view, target, sentence):
    with pytest.raises(InputError, match=sentence):
        resolve(view, target, 3)


@pytest.mark.parametrize("kind", ["digits", "negative", "number", "in a list"])
def test_targets_of_5000_digits(view, kind):
    target = {"digits": "9" * 5000, "negative": f"-{'9' * 5000}", "number": 10**5000, "in a list": [1, 2, -(10**5000)]}
    with pytest.raises(InputError, match="class of so large a number does not exist: Tiny has 1000 classes"):
        resolve(view, target[kind], 3)


def test_a_model_without_names_wants_numbers():
    with pytest.raises(InputError, match="has no class called 'cat'; it has no names: give a number from 0 to 4"):
        resolve(load(Tiny(5), size=(16, 16)), "cat", 1)


# ------------------------------------------------------------------------------------------------------- scores


def test_score_takes_the_class_of_each_image():
    logits = torch.arange(12.0).view(3, 4)
    target = Target(torch.tensor([2, 0, 3]))
    assert target.score(logits).tolist() == [2, 4, 11]
    assert target.take(slice(1, 3)).score(logits[1:]).tolist() == [4, 11]


def test_rivals_stay_with_their_images():
    target = Target(torch.tensor([2, 0, 3]), rivals=torch.tensor([[1, -1], [2, 3], [-1, -1]]))
    for changed, rows in (
        (target.to(torch.device("cpu")), [0, 1, 2]),
        (target.repeat(2), [0, 1, 2, 0, 1, 2]),
        (target.take(slice(1, 3)), [1, 2]),
        (target.take(torch.tensor([2, 0])), [2, 0]),
    ):
        assert torch.equal(changed.classes, target.classes[rows])
        assert torch.equal(changed.rivals, target.rivals[rows])
    assert target.take(slice(0, 1)).score(torch.arange(4.0)[None]).tolist() == [2]
    assert Target(torch.tensor([1, 2])).repeat(2).rivals is None


def test_a_ready_target_is_taken_as_it_is(view):
    ready = Target(torch.tensor([3, 4]), rivals=torch.tensor([[5], [-1]]))
    assert resolve(view, ready, 2) == (view, ready)
    own = Target(None, lambda logits: logits[:, 0])
    assert resolve(view, own, 2)[1] is own


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(torch.tensor([1, 2, 3])), "classes are for 3 images, but 2 were given"),
        (Target(torch.tensor([1, 1000])), "class 1000 does not exist: Tiny has 1000 classes"),
        (Target(torch.tensor([1, -1])), "class -1 does not exist"),
        (
            Target(torch.tensor([1.0, 2.0])),
            r"\(images,\) tensor of int64 numbers, but a torch.float32 \(2,\) was given",
        ),
        (Target([1, 2]), r"\(images,\) tensor of int64 numbers, but a list was given"),
        (Target(torch.tensor([1, 2]), rivals=torch.tensor([3, 4])), r"rivals must be a \(images, rivals\) tensor"),
        (Target(torch.tensor([1, 2]), rivals=torch.tensor([[3]])), "rivals are for 1 images, but 2 were given"),
        (Target(torch.tensor([1, 2]), rivals=torch.tensor([[-1], [-2]])), "class -2 does not exist"),
        (Target(None), "must have classes, or a function"),
        (Target(None, len, rivals=torch.tensor([[1], [2]])), "must have classes, or a function"),
    ],
)
def test_a_ready_target_that_cannot_be(view, target, words):
    with pytest.raises(InputError, match=words):
        resolve(view, target, 2)


def test_function(view):
    same, target = resolve(view, lambda logits: logits[:, 1] - logits[:, 0], 3)
    assert same is view
    assert target is not None
    assert target.classes is None
    logits = torch.randn(3, 1000)
    assert torch.equal(target.score(logits), logits[:, 1] - logits[:, 0])
    assert torch.equal(target.take(slice(2, 3)).score(logits[2:]), logits[2:, 1] - logits[2:, 0])


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda logits: logits, r"torch\.float32 \(3, 1000\)"),
        (lambda logits: logits.sum(), r"torch\.float32 \(\)"),
        (lambda logits: logits[:2, 0], r"torch\.float32 \(2,\)"),
        (lambda logits: logits[:, 0] + 1j, r"torch\.complex64 \(3,\)"),
        (lambda logits: logits.numpy()[:, 0], "ndarray"),
        (lambda logits: 1.0, "float"),
    ],
)
def test_function_of_a_wrong_output(view, function, given):
    _, target = resolve(view, function, 3)
    with pytest.raises(InputError, match=rf"must return one score an image, \(3,\), but it gave {given}"):
        target.score(torch.randn(3, 1000))


def _raise(error: BaseException):
    raise error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (AssertionError(), "AssertionError: without a word"),
        (RuntimeError("one line\nand another"), "RuntimeError: one line; it is given"),
        (StopIteration(), "StopIteration"),
    ],
)
def test_a_function_that_raises(view, error, said):
    target = Target(None, lambda logits: _raise(error))
    with pytest.raises(InputError, match=f"the target function raised {said}"):
        target.score(torch.randn(3, 1000))


@pytest.mark.parametrize("error", [InputError("a sentence"), torch.OutOfMemoryError("memory"), KeyboardInterrupt()])
def test_what_a_function_may_raise(view, error):
    with pytest.raises(type(error)):
        Target(None, lambda logits: _raise(error)).score(torch.randn(3, 1000))


FREE = {
    "constant": lambda logits: torch.ones(len(logits)),
    "detached": lambda logits: logits.detach()[:, 0],
    "by item": lambda logits: torch.tensor([row[0].item() for row in logits]),
    "whole numbers": lambda logits: logits.argmax(1),
}


@pytest.mark.parametrize("name", FREE)
def test_a_function_that_does_not_depend_on_the_logits(view, name):
    target = Target(None, FREE[name])
    assert len(target.score(torch.randn(3, 1000))) == 3, "where no gradient is wanted, it is a number an image"
    with pytest.raises(InputError, match="do not depend on the logits, as far as torch can tell"):
        target.score(torch.randn(3, 1000, requires_grad=True))
    with pytest.raises(InputError, match="do not depend on the logits"):
        explain(view, torch.zeros(2, 3, 16, 16), "ig(steps=2)", FREE[name])


def test_a_function_does_not_change_the_logits(view):
    logits = torch.randn(3, 1000)
    before = logits.clone()
    Target(None, lambda logits: logits.zero_()[:, 0]).score(logits)
    assert torch.equal(logits, before)


# ------------------------------------------------------------------------------------------------------- text prompts


def test_a_text_prompt_is_one_more_class(prompted):
    view = prompted
    images = pictures(2, (224, 224))
    more, target = resolve(view, [PROMPT, "a dog"], 2)
    assert more.classes == ("a cat", "a dog", "a boat", PROMPT)
    assert target.classes.tolist() == [3, 1]
    assert more.offers == set(Need) - {Need.RELU}
    clip, tokenizer = view.model._text
    with torch.no_grad():
        cosine = cosine_similarity(clip.encode_image(images), clip.encode_text(tokenizer([PROMPT])))
        logits = more.logits(images)
        assert torch.allclose(logits[:, 3], clip.logit_scale.exp() * cosine, atol=1e-4)
        assert torch.allclose(logits[:, :3], view.logits(images), atol=1e-4)
    assert view.num_classes == 3  # the view given is left as it was
    assert view.model.classifier.weight.shape[0] == 3


def test_a_prompt_the_model_has_already_adds_nothing(prompted):
    assert classes(prompted, ["a boat", "A CAT", 1]) == [2, 0, 1]


# ------------------------------------------------------------------------------------------------------- likeness


@pytest.mark.parametrize("name", ["average_pooled", "tf_efficientnet_lite0"])
def test_likeness_is_the_cosine_of_representations(name):
    view, model = view_of(name), module(name)
    images = pictures(3, (224, 224))
    with torch.no_grad():
        by_hand = model.forward_head(model.forward_features(images), pre_logits=True)
    found = representation(view, images)
    assert torch.allclose(found, by_hand, atol=1e-5)
    similar, target = resolve(view, Likeness(found[0]), 3)
    assert (similar.num_classes, similar.classes, similar.grid) == (1, ("likeness",), view.grid)
    assert similar.offers == view.offers
    expected = cosine_similarity(by_hand, by_hand[:1])
    with torch.no_grad():
        score = target.score(similar.logits(images))
    assert torch.allclose(score, expected, atol=1e-5)
    assert abs(score[0] - 1) < 1e-5
    assert torch.allclose(target.score(similar.trace(images).logits).detach(), expected, atol=1e-5)
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_likeness_accepts_a_row(view):
    reference = representation(view, torch.randn(1, 3, 16, 16))
    assert reference.shape == (1, 8)
    images = torch.randn(2, 3, 16, 16)
    one, _ = resolve(view, Likeness(reference), 2)
    other, _ = resolve(view, Likeness(3 * reference[0]), 2)
    assert torch.allclose(one.logits(images), other.logits(images))


def test_likeness_without_a_classifier():
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=0).eval()
    view, images = load(model), pictures(2, (160, 160))
    with torch.no_grad():
        by_hand = model(images)
    assert torch.allclose(representation(view, images), by_hand, atol=1e-5)
    similar, target = resolve(view, Likeness(by_hand[1]), 2)
    with torch.no_grad():
        assert torch.allclose(target.score(similar.logits(images)), cosine_similarity(by_hand, by_hand[1:]), atol=1e-5)
    assert similar.depth == view.depth == 6


@pytest.mark.parametrize("length", [7, 9, 1000])
def test_likeness_of_a_wrong_length(view, length):
    with pytest.raises(
        InputError, match=rf"the reference has {length} numbers, but Tiny represents an image by 8; make"
    ):
        resolve(view, Likeness(torch.zeros(length)), 2)


def test_likeness_leaves_the_model_alone(view):
    before = copy.deepcopy(view.model.state_dict())
    similar, _ = resolve(view, Likeness(torch.ones(8)), 1)
    similar.trace(torch.randn(1, 3, 16, 16))
    after = view.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(p.requires_grad for p in view.model.parameters())


def test_numpy_numbers_are_numbers():
    view = view_of("vit_tiny_patch16_224")
    for given in (np.int64(7), np.array([7, 7])):
        _, target = resolve(view, given, 2)
        assert target.classes.tolist() == [7, 7]
    _, target = resolve(view, np.array([view.classes[7], "9"]), 2)
    assert target.classes.tolist() == [7, 9]
