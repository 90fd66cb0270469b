"""Sample pictures for a first look: chosen seeds, nothing else."""

from .scene import Scene, make


def samples() -> tuple[tuple[str, Scene], ...]:
    """Named sample scenes: a pair from one seed, four more single objects, two objects together, and a circle."""
    return (
        ("cat", make(3, classes=["cat"])),
        ("rabbit", make(3, classes=["rabbit"])),
        ("sailboat", make(17, classes=["sailboat"])),
        ("whale", make(24, classes=["whale"])),
        ("helicopter", make(35, classes=["helicopter"])),
        ("church", make(40, classes=["church"])),
        ("rabbit-and-dumper", make(108, objects=2, classes=["rabbit", "dumper"])),
        ("tulip-with-circle", make(48, classes=["tulip"], shortcut=True)),
    )
