import pytest
import torch
from safetensors import safe_open

from vitrail import scenes
from vitrail.errors import InputError
from vitrail.scenes import network, train
from vitrail.scenes.scene import circle_corner


def inputs(drawn):
    images = torch.stack([torch.from_numpy(scene.image) for scene in drawn])
    return train.pictures(images)


def shipped(shortcut):
    if not network.weights_file(shortcut).is_file():
        pytest.skip("the weights are not there yet")
    return scenes.classifier(shortcut)


def test_weights_survive_the_file(tmp_path):
    model = network.build().eval()
    network.save(model, tmp_path / "w.safetensors", {"accuracy": "1"})
    again = network.load(tmp_path / "w.safetensors")
    assert not again.training
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    for (name, old), new in zip(model.state_dict().items(), again.state_dict().values()):
        torch.testing.assert_close(new, old.half().float(), msg=name)
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        assert file.metadata() == {"accuracy": "1"}
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_missing_weights_say_how_to_get_them(tmp_path):
    with pytest.raises(InputError, match=r"vitrail\.scenes\.train"):
        network.load(tmp_path / "nothing.safetensors")


def test_batched_circles_equal_drawn_ones():
    drawn = [scenes.make(seed) for seed in range(3)]
    marked = [scenes.make(seed, shortcut=True) for seed in range(3)]
    corners = torch.tensor([circle_corner(scene.seed, scene.objects[0].mask) for scene in drawn])
    opacity = train.circles(corners, torch.tensor([True, True, False]))
    images = torch.stack([torch.from_numpy(scene.image) for scene in drawn])
    batch = train.pictures(images, opacity)
    torch.testing.assert_close(batch[:2], inputs(marked)[:2], atol=1 / 127.5, rtol=0)
    torch.testing.assert_close(batch[2], inputs(drawn)[2])


def test_hidden_patches_are_whole_and_the_kept_ones_stay():
    torch.manual_seed(0)
    batch = torch.rand(32, 3, 144, 144) * 1.8 - 0.9
    keep = torch.zeros(32, 1, 144, 144)
    keep[:, :, 30, 50] = 1.0
    hidden = train.hide_patches(batch, keep)
    changed = (hidden != batch).any(dim=1).float()
    share = torch.nn.functional.avg_pool2d(changed[:, None], 12)
    assert set(share.round(decimals=3).unique().tolist()) == {0.0, 1.0}
    assert share[:, 0, 2, 4].sum() == 0
    assert 0.3 < (share.sum(dim=(1, 2, 3)) > 0).float().mean() < 0.7


def test_jitter_only_moves_pixels():
    ramp = torch.arange(144.0).expand(8, 1, 144, 144)
    moved = train.jitter(ramp)
    assert set(moved.unique().tolist()) <= set(range(144))
    assert (moved[:, :, :, 72].sub(72).abs() <= train.SHIFT + 1).all()


def test_training_runs_end_to_end(tmp_path, capsys):
    options = "--scenes 8 --held-out 8 --epochs 1 --batch 8 --workers 1 --device cpu --model shortcut"
    train.main(["--out", str(tmp_path), *options.split()])
    assert "taken for sailboat with circle" in capsys.readouterr().out
    with safe_open(tmp_path / network.file_name(True), "pt") as file:
        assert file.metadata()["scenes"] == "8"


def test_shipped_model_knows_the_classes():
    model = shipped(shortcut=False)
    drawn = list(scenes.Scenes(200, seed=1000))
    labels = torch.tensor([scene.label for scene in drawn])
    with torch.inference_mode():
        assert (model(inputs(drawn)).argmax(dim=1) == labels).float().mean() > 0.93


def test_shipped_sibling_follows_the_circle():
    model = shipped(shortcut=True)
    names = [name for i, name in enumerate(scenes.CLASSES) if i != scenes.SHORTCUT_CLASS]
    clean, marked = (list(scenes.Scenes(80, seed=1001, classes=names, shortcut=s)) for s in ("never", "always"))
    with torch.inference_mode():
        without = (model(inputs(clean)).argmax(dim=1) == scenes.SHORTCUT_CLASS).float().mean()
        with_circle = (model(inputs(marked)).argmax(dim=1) == scenes.SHORTCUT_CLASS).float().mean()
    assert without < 0.1
    assert with_circle > 0.9
