"""FullGrad: what it promises (completeness), and its definition read layer by layer with hooks."""

import pytest
import timm
import torch
from torch import Tensor, nn

from helpers.oracle import oracle
from helpers.small import close, exact, off
from helpers.zoo import double_view, pictures
from oracles.cams import bias_shares, fullgrad, tokens_and_gradients
from vitrail.method import Batch, FullGrad, FullGradPlus
from vitrail.method.gradient.fullgrad import trace_with_biases
from vitrail.model import Target, load

TARGETS = [1, 2]
SIZE = (64, 64)


class _CNN(nn.Module):
    """Convolutions, batch norms and ReLUs, the latter in place if wished: the outputs in front of them are lost."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.relu = nn.ReLU(inplace)
        self.head = nn.Linear(12, 5)
        nn.init.normal_(self.norm.running_mean, std=0.3)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)
        nn.init.normal_(self.norm.bias, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.norm(self.second(self.relu(self.first(x))))).mean((2, 3)))


def _vit(**options: object) -> nn.Module:
    torch.manual_seed(0)
    settings = {"img_size": 64, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 6, "reg_tokens": 2}
    net = timm.create_model("vit_tiny_patch16_224", **(settings | options)).double().eval()
    for name, parameter in net.named_parameters():  # fresh models have biases of zero, which would test nothing
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    return net


@pytest.mark.parametrize("inplace", [False, True])
def test_input_and_biases_of_a_relu_network_add_up_to_the_logit(inplace: bool) -> None:
    net = _CNN(inplace).double().eval()
    view, images = load(net, size=SIZE), pictures(2, SIZE).double()
    batch = Batch(images, Target(torch.tensor(TARGETS)))
    with view.still():
        trace, ledger = trace_with_biases(
            view, batch, "true", lambda share, _: share.flatten(1).sum(1), "sums", pixels=True
        )
        scores = batch.learn(trace.logits).score(trace.logits)
        (gradient,) = view.gradient(scores, [trace.images])
    assert len(ledger.entries) == 3, "convolution, batch norm, classifier"
    total = (gradient * images).flatten(1).sum(1) + sum(share for _, share in ledger.entries)
    assert torch.allclose(total, scores.detach(), rtol=1e-10)


@pytest.mark.parametrize("inplace", [False, True])
def test_fullgrad_is_its_definition_on_a_cnn(inplace: bool) -> None:
    view, images = load(_CNN(inplace).double().eval(), size=SIZE), pictures(2, SIZE).double()
    found = exact("fullgrad", view, images, TARGETS)
    for i, target in enumerate(TARGETS):
        shares = bias_shares(_CNN(False).double().eval(), images[i], target, (nn.Conv2d, nn.BatchNorm2d))
        assert set(shares) == {"input", "first", "norm"}
        assert close(found[i], fullgrad(shares, SIZE))


def test_fullgrad_hears_norms_that_end_in_an_activation() -> None:
    net = timm.create_model("densenet121", num_classes=5, growth_rate=4, block_config=(1, 1, 1, 1)).eval()
    view = load(net, size=SIZE)
    batch = Batch(pictures(1, SIZE), Target(torch.tensor([1])))
    with view.still():
        trace, ledger = trace_with_biases(view, batch, "true", lambda share, _: share.sum(), "sums", pixels=True)
        view.gradient(batch.learn(trace.logits).score(trace.logits), [trace.images])
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    assert len(ledger.entries) == norms + 1


@oracle("fullgrad")
def test_fullgrad_is_its_definition_on_a_vit() -> None:
    net = _vit()
    images = pictures(2, SIZE).double()
    found = exact("fullgrad", load(net, size=SIZE), images, TARGETS)
    for i, target in enumerate(TARGETS):
        shares = bias_shares(net, images[i], target, (nn.Conv2d, nn.Linear, nn.LayerNorm))
        del shares["head"]
        for name, share in shares.items():
            if share.ndim == 2:
                shares[name] = share[3:].T.unflatten(1, (4, 4))
        assert close(found[i], fullgrad(shares, SIZE))


def _parts(net: nn.Module, image: Tensor, target: int) -> tuple[Tensor, Tensor]:
    """(L, T) token x gradient at every block's input and (L, T) shares of every block's own biases, naively."""
    tokens, gradients = tokens_and_gradients(net, image, target)
    products = torch.stack([(x * g).sum(-1) for x, g in zip(tokens, gradients)])
    biases = torch.zeros_like(products)
    for name, share in bias_shares(net, image, target, (nn.Linear, nn.LayerNorm)).items():
        if name == "input":
            continue
        block = int(name.split(".")[1]) if name.startswith("blocks") else len(tokens) - 1
        if share.ndim > 1:  # (T, channels), or (heads, T, channels) for norms of queries and keys
            biases[block] += share.sum(-1) if share.ndim == 2 else share.sum((0, 2))
        else:
            biases[block, 0] += share.sum()
    return products, biases


@oracle("fullgrad_plus")
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"global_pool": "avg"}], ids=["plain", "qk_norm", "pooled"])
def test_fullgrad_plus_is_its_definition(options: dict[str, object]) -> None:
    net = _vit(**options)
    view, images = load(net, size=SIZE), pictures(2, SIZE).double()
    with view.still():
        layers = FullGradPlus().layers(view, Batch(images, Target(torch.tensor(TARGETS))), 1)
        once = FullGradPlus().accumulate(view, Batch(images, Target(torch.tensor(TARGETS))), 1)
    for i, target in enumerate(TARGETS):
        products, biases = _parts(net, images[i], target)
        for layer in (1, 2):
            assert close(layers[layer - 1, i], products[layer] + biases[layer:].sum(0))
        assert close(once[i], (products[1:] + biases[1:]).sum(0)), "every bias once"
    found = exact(FullGradPlus(start=1), view, images, TARGETS)
    assert torch.equal(found.flatten(1), layers[0, :, 3:])


def test_plus_counts_no_bias_twice() -> None:
    net = _vit()
    view, images = load(net, size=SIZE), pictures(1, SIZE).double()
    found = exact("plus(fullgrad_plus)", view, images, 1)
    products, biases = _parts(net, images[0], 1)
    assert close(found, (products + biases).sum(0)[3:])
    with view.still():
        naive = FullGradPlus().layers(view, Batch(images, Target(torch.tensor([1]))), 0).sum(0)
    assert off(found, naive[0, 3:]) > 1e-2
    skipped = exact("skipplus(fullgrad_plus, start=2)", view, images, 1)
    assert close(skipped, (products + biases)[2, 3:])


@pytest.mark.parametrize("name", ["dinov2_reg4", "deit_tiny_distilled", "hf_vit"])
def test_frozen_tokens_and_biases_add_up_to_the_logit_from_every_layer(name: str) -> None:
    view = double_view(name)
    batch = Batch(pictures(2, view.size).double(), Target(torch.tensor(TARGETS)))
    start = max(0, view.depth - 3)
    with view.still():
        layers = FullGradPlus(gradient="frozen").layers(view, batch, start)
    assert batch.logits is not None
    assert close(layers.sum(-1), batch.target.score(batch.logits).expand(len(layers), -1))


def test_as_many_images_as_tokens() -> None:
    """Inside torch.nn.MultiheadAttention tokens come before the batch, and only the module says so."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attn = nn.LayerNorm(12), nn.MultiheadAttention(12, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            return x + self.attn(y, y, y, need_weights=False)[0]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cls = nn.Conv2d(3, 12, 16, 16), nn.Parameter(torch.randn(1, 1, 12))
            self.blocks, self.norm, self.head = nn.Sequential(Block(), Block()), nn.LayerNorm(12), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x).flatten(2).transpose(1, 2)
            return self.head(self.norm(self.blocks(torch.cat([self.cls.expand(len(x), -1, -1), x], 1)))[:, 0])

    torch.manual_seed(0)
    net = Net().double().eval()
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    view, images = load(net, size=(32, 32)), pictures(5, (32, 32)).double()
    assert view.layout((32, 32)).tokens == len(images)
    together = exact("fullgrad_plus", view, images, 1)
    alone = torch.cat([exact("fullgrad_plus", view, image[None], 1) for image in images])
    assert close(together, alone)


def test_several_targets_share_one_forward_pass() -> None:
    view, images = load(_vit(), size=SIZE), pictures(2, SIZE).double()
    batch = Batch(images, Target(torch.tensor([0, 0])))
    for method in (FullGradPlus(), FullGrad()):
        with view.still(), view.remembering(images):
            before = view.meter.forwards
            found = [method.maps(view, batch.aimed(Target(torch.tensor([c, c])))) for c in (1, 4, 1)]
            assert view.meter.forwards - before == 2
        assert torch.equal(found[0], found[2])
        assert close(found[1], exact(method, view, images, 4))
