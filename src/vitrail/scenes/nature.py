"""Drawers of the living things: sitting animals, sea animals and potted flowers.

A drawer draws both classes of its pair. What the pair shares comes from `pen.rng`, the differing part from `pen.own`.
"""

import math

from .paint import Pen, mix, shade


def sitting_animal(pen: Pen, name: str) -> None:
    """Cat (pointed ears) or rabbit (long ears), sitting and facing us."""
    look, rng = pen.look, pen.rng
    width, height = rng.uniform(0.5, 0.58), rng.uniform(0.38, 0.43)
    belly, middle = rng.uniform(0.5, 0.62), rng.uniform(-0.06, 0.02)
    gaze, spots = rng.uniform(-0.05, 0.05), int(rng.integers(0, 4))
    fur, dark = look.main, shade(look.main, 0.78)

    pen.part("body")
    pen.curve([(-0.3, 0.15), (-belly, 0.62), (-0.5, 0.95), (0.0, 0.98), (0.5, 0.95), (belly, 0.62), (0.3, 0.15)], fur)
    pen.ellipse(0.0, 0.66, 0.28, 0.31, look.pale)
    for i in range(spots):
        side = -1.0 if i % 2 else 1.0
        pen.ellipse(side * (belly - 0.13), 0.58 + 0.14 * (i // 2), 0.08, 0.05, dark, side * 0.5)
    pen.part("paws")
    for side in (-1.0, 1.0):
        pen.ellipse(side * 0.3, 0.9, 0.2, 0.11, mix(fur, look.pale, 0.45))
        for toe in (-0.06, 0.06):
            pen.ribbon([(side * 0.3 + toe, 0.87), (side * 0.3 + toe, 0.97)], 0.03, dark)

    pen.part("ears")
    if name == "cat":
        lean, tall = pen.own.uniform(0.0, 0.08), pen.own.uniform(0.9, 0.97)
        for side in (-1.0, 1.0):
            tip = (side * (width - 0.06 + lean), -tall)
            pen.polygon([(side * (width - 0.04), middle - 0.08), tip, (side * 0.03, middle - height * 0.8)], fur)
            inner = [(side * (width - 0.1), middle - 0.3), (tip[0] - side * 0.05, -tall + 0.17)]
            pen.polygon([*inner, (side * 0.2, middle - height * 0.9)], look.accent)
    else:
        lean, half = pen.own.uniform(0.05, 0.3), pen.own.uniform(0.15, 0.18)
        for side in (-1.0, 1.0):
            pen.ellipse(side * (0.24 + 0.3 * lean), -0.6, half, 0.42, fur, side * lean)
            pen.ellipse(side * (0.24 + 0.3 * lean), -0.57, half * 0.5, 0.31, look.accent, side * lean)

    pen.part("head")
    pen.ellipse(0.0, middle, width, height, fur)
    pen.ellipse(0.0, middle - height * 0.72, 0.07, 0.1, dark)
    pen.part("face")
    pen.ellipse(gaze, middle + 0.18, 0.25, 0.16, look.pale)
    for side in (-1.0, 1.0):
        pen.ellipse(gaze + side * 0.24, middle - 0.05, 0.1, 0.12, (1.0, 1.0, 1.0))
        pen.ellipse(gaze * 1.6 + side * 0.24, middle - 0.04, 0.055, 0.085, look.deep)
        for drop in (0.0, 0.09):
            pen.ribbon([(side * 0.2, middle + 0.18 + drop), (side * 0.5, middle + 0.12 + 2.0 * drop)], 0.025, look.deep)
    pen.polygon([(gaze - 0.08, middle + 0.09), (gaze + 0.08, middle + 0.09), (gaze, middle + 0.18)], look.accent)
    pen.ribbon([(gaze, middle + 0.17), (gaze, middle + 0.26)], 0.03, look.deep)


def sea_animal(pen: Pen, name: str) -> None:
    """Whale (jet of water) or shark (dorsal fin), swimming to the right."""
    look, rng = pen.look, pen.rng
    back, chin = rng.uniform(-0.3, -0.22), rng.uniform(0.58, 0.68)
    lift, folds = rng.uniform(-0.1, 0.12), int(rng.integers(3, 6))
    fin, smile = rng.uniform(0.3, 0.42), rng.uniform(0.0, 0.08)
    skin, dark = look.main, shade(look.main, 0.75)

    if name == "whale":
        pen.part("jet")
        high, spread = pen.own.uniform(0.9, 0.97), pen.own.uniform(0.32, 0.4)
        water = mix(look.glass, (1.0, 1.0, 1.0), 0.25)
        pen.ribbon([(0.3, -0.1), (0.3, -0.3), (0.3, -0.6)], 0.16, water)
        for side in (-1.0, 1.0):
            over = [(-0.06, -0.5), (0.0, -0.78), (0.16, -high), (spread, -high + 0.03), (spread + 0.14, -0.62)]
            under = [(spread + 0.02, -0.5), (spread - 0.1, -0.62), (spread - 0.15, -0.72), (0.17, -0.7), (0.07, -0.45)]
            pen.curve([(0.3 + side * x, y) for x, y in over + under], water)
        for side in (-1.0, 1.0):
            drop = [(0.03, -0.55), (0.08, -0.76), (0.2, -high + 0.13), (spread - 0.04, -high + 0.15)]
            pen.ribbon([(0.3 + side * x, y) for x, y in drop], 0.035, shade(water, 0.78))
    else:
        pen.part("dorsal fin")
        high, sweep = pen.own.uniform(0.86, 0.95), pen.own.uniform(-0.3, -0.16)
        pen.curve([(0.48, 0.0), (0.38, -0.36), (0.12, -0.66), (sweep, -high), (sweep + 0.02, -0.6), (-0.2, 0.05)], dark)
        for i in range(3):
            root, top = (0.3 - 0.14 * i, -0.28), (sweep + 0.2 - 0.04 * i, -0.68 + 0.05 * i)
            pen.ribbon([root, top], 0.03, shade(dark, 0.8))

    pen.part("tail")
    tip = -0.2 + lift
    pen.curve([(-0.55, 0.2), (-0.75, tip + 0.15), (-0.7, tip - 0.15), (-0.98, tip - 0.28), (-0.92, tip + 0.12)], dark)
    pen.curve([(-0.6, 0.3), (-0.82, tip + 0.18), (-0.98, tip + 0.34), (-0.99, tip + 0.5), (-0.7, tip + 0.48)], dark)
    pen.part("body")
    outline = [(0.95, 0.2), (0.88, -0.05), (0.55, back), (0.1, back - 0.02), (-0.4, 0.02), (-0.84, 0.08 + lift)]
    pen.curve([*outline, (-0.8, 0.26 + lift), (-0.4, 0.52), (0.1, chin), (0.6, chin - 0.06), (0.9, 0.42)], skin)
    for i in range(4):
        pen.ellipse(0.3 - 0.2 * i, back + 0.15 + 0.05 * (i % 2) + 0.03 * i, 0.05, 0.035, dark)
    pen.part("belly")
    low = [(0.1, chin - 0.02), (0.58, chin - 0.08), (0.87, 0.4), (0.9, 0.28)]
    pen.curve([(-0.42, 0.47), *low, (0.5, 0.36 + smile), (0.05, 0.38), (-0.3, 0.36)], look.pale)
    for i in range(folds):
        y = 0.43 + 0.16 * (i + 0.5) / folds
        pen.ribbon([(-0.2 + 0.05 * i, y), (0.3, y + 0.03), (0.78 - 0.05 * i, y - 0.02)], 0.022, shade(look.pale, 0.72))
    pen.part("eye")
    pen.ellipse(0.6, 0.14, 0.11, 0.11, (1.0, 1.0, 1.0))
    pen.ellipse(0.63, 0.15, 0.065, 0.075, look.deep)
    pen.ellipse(0.65, 0.12, 0.025, 0.025, (1.0, 1.0, 1.0))
    pen.part("flipper")
    pen.curve([(0.3, 0.4), (0.12, 0.38), (-0.12, 0.6), (-fin, 0.86), (-0.08, 0.84), (0.18, 0.64)], look.second)


def potted_flower(pen: Pen, name: str) -> None:
    """Daisy (rays around a disc) or tulip (a cup), in a pot."""
    look, rng = pen.look, pen.rng
    top, foot = rng.uniform(0.4, 0.48), rng.uniform(0.26, 0.34)
    bend, spread = rng.uniform(-0.12, 0.12), rng.uniform(0.5, 0.68)
    low, high, bands = rng.uniform(0.18, 0.3), rng.uniform(-0.05, 0.1), int(rng.integers(1, 4))
    green = mix(look.second, (0.25, 0.6, 0.25), 0.7)

    pen.part("stem")
    pen.ribbon([(0.0, 0.5), (bend * 0.5, 0.2), (bend, -0.1), (bend * 0.6, -0.5)], 0.1, green)
    pen.part("leaves")
    for side, y in ((-1.0, low), (1.0, high)):
        tip, rise = side * spread, y - 0.34
        pen.curve([(side * 0.03, y), (tip * 0.4, y - 0.3), (tip, rise), (tip * 0.75, y - 0.08)], shade(green, 0.85))
        pen.ribbon([(side * 0.05, y - 0.02), (tip * 0.5, y - 0.14), (tip * 0.9, rise + 0.05)], 0.03, shade(green, 1.2))

    x, y = bend * 0.6, -0.52
    if name == "daisy":
        pen.part("rays")
        count, turn, reach = int(pen.own.integers(9, 13)), pen.own.uniform(0.0, 1.0), pen.own.uniform(0.25, 0.27)
        for i in range(count):
            angle = 2.0 * math.pi * (i + turn) / count
            paint = shade(look.main, 1.0 if i % 2 else 0.88)
            pen.ellipse(x + reach * math.cos(angle), y + reach * math.sin(angle), 0.21, 0.1, paint, angle)
        pen.ellipse(x, y, 0.16, 0.16, look.accent)
        for i in range(6):
            angle = math.pi * i / 3.0
            pen.ellipse(x + 0.08 * math.cos(angle), y + 0.08 * math.sin(angle), 0.025, 0.025, shade(look.accent, 0.65))
    else:
        pen.part("cup")
        wide, tall = pen.own.uniform(0.36, 0.42), pen.own.uniform(0.4, 0.44)
        dark = shade(look.main, 0.75)
        pen.curve(
            [(x - 0.2, y + 0.1), (x - 0.1, y - tall + 0.04), (x + 0.1, y - tall + 0.04), (x + 0.2, y + 0.1)], dark
        )
        for side in (-1.0, 1.0):
            rim = [(x + side * wide, y - 0.05), (x + side * (wide - 0.04), y - tall), (x + side * 0.08, y - 0.05)]
            pen.curve([(x, y + 0.33), (x + side * 0.3, y + 0.26), *rim], shade(look.main, 0.9))
        pen.curve([(x, y + 0.34), (x - 0.22, y + 0.12), (x, y - tall + 0.13), (x + 0.22, y + 0.12)], look.main)
        pen.ribbon([(x, y + 0.22), (x, y), (x, y - 0.18)], 0.035, shade(look.main, 1.25))

    pen.part("pot")
    pen.polygon(
        [(-top + 0.06, 0.5), (0.0, 0.5), (top - 0.06, 0.5), (foot, 0.97), (0.0, 0.97), (-foot, 0.97)], look.accent
    )
    for i in range(bands):
        level = 0.66 + 0.09 * i
        reach = (top - 0.06) + (foot - top + 0.06) * (level - 0.5) / 0.47
        pen.ribbon([(-reach, level), (0.0, level), (reach, level)], 0.045, look.pale)
    pen.part("rim")
    pen.box(-top - 0.03, 0.4, top + 0.03, 0.56, shade(look.accent, 0.8), 0.04)
