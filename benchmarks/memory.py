"""Does memory stay flat? Images judged one after the other, and how much larger the process has grown.

    python benchmarks/memory.py [--images 2000]

The embedded model, one picture at a time: explained by decompx, judged by insertion, deletion, both with MAS, patches
taken away and the average drop. The first 100 pictures fill the caches and do not count.
"""

import argparse
import resource

import vitrail
from vitrail import scenes

METRICS = ["insertion(step=5184)", "deletion(step=5184)", "mas_insertion(step=5184)", "deletion_aopc", "average_drop"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--images", type=int, default=2000)
    count = options.parse_args().images
    view = vitrail.load("demo")
    start = 0
    for i in range(count):
        if i == 100:
            start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        vitrail.evaluate(view, scenes.make(i).pil, "decompx", METRICS)
        if i > 100 and i % 500 == 0:
            print(
                f"{i} images: {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024:.1f} MB", flush=True
            )
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024
    print(f"{count} images: the process has grown by {grown:.1f} MB at its largest")


if __name__ == "__main__":
    main()
