"""What the processes of a test train on."""

from vitrail.data import dataset
from vitrail.method.aha import Objective
from vitrail.train import Training

SMALL = Training(
    steps=6,
    batch=4,
    objective=Objective(steps=2),
    cells=(4, 6),
    channels=8,
    look=3,
    sheet=6,
    held=2,
    gates="off",
    report="short",
)
ITEMS = dataset("scenes:20").items
