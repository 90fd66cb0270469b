"""Drawers of the built things: boats, buildings, lorries and aircraft.

A drawer draws both classes of its pair. What the pair shares comes from `pen.rng`, the differing part from `pen.own`.
"""

from .paint import Pen, mix, shade

WHITE = (1.0, 1.0, 1.0)


def boat(pen: Pen, name: str) -> None:
    """Sailboat (sails) or steamer (funnel with smoke), bow to the right."""
    look, rng = pen.look, pen.rng
    keel, bow = rng.uniform(0.82, 0.92), rng.uniform(0.9, 0.98)
    cabin, ports = rng.uniform(0.5, 0.6), int(rng.integers(3, 5))
    flag, deck = rng.uniform(0.2, 0.26), rng.uniform(0.36, 0.42)

    pen.part("flag")
    pen.ribbon([(-0.86, deck + 0.1), (-0.86, -0.2)], 0.045, look.deep)
    pen.curve(
        [(-0.84, -0.2), (-0.72, -0.15), (-0.84 + flag, -0.21), (-0.84 + flag, -0.02), (-0.72, 0.03), (-0.84, -0.02)],
        look.accent,
    )

    if name == "sailboat":
        pen.part("sail")
        high, out = pen.own.uniform(0.9, 0.97), pen.own.uniform(0.68, 0.8)
        pen.ribbon([(0.0, deck), (0.0, -high)], 0.06, look.deep)
        pen.curve([(0.06, -high + 0.04), (0.3, -0.5), (out, 0.08), (0.4, 0.12), (0.05, 0.1), (0.08, -0.4)], look.second)
        pen.curve([(-0.06, -high + 0.12), (-0.2, -0.4), (-0.5, 0.1), (-0.3, 0.13), (-0.06, 0.1)], look.pale)
        for level in (-0.5, -0.22):
            pen.ribbon([(0.06, level + 0.02), (0.36 + 0.5 * level + 0.14, level)], 0.03, shade(look.second, 0.7))
    else:
        pen.part("funnel")
        tilt, puff = pen.own.uniform(-0.1, 0.02), pen.own.uniform(0.13, 0.16)
        smoke = mix(look.deep, WHITE, 0.72)
        for i, (x, y, scale) in enumerate(((-0.08, -0.66, 0.95), (-0.3, -0.78, 1.15), (-0.58, -0.8, 0.85))):
            pen.ellipse(x + tilt, y, puff * scale * 1.2, puff * scale, shade(smoke, 1.0 + 0.07 * i))
        pen.polygon([(-0.2, 0.2), (-0.17 + tilt, -0.55), (0.19 + tilt, -0.55), (0.22, 0.2)], look.second)
        pen.polygon(
            [(-0.19 + tilt * 0.6, -0.3), (-0.18 + tilt, -0.44), (0.2 + tilt, -0.44), (0.21 + tilt * 0.6, -0.3)],
            look.pale,
        )
        pen.box(-0.21 + tilt, -0.6, 0.23 + tilt, -0.51, look.deep, 0.03)

    pen.part("cabin")
    pen.box(-cabin, 0.1, cabin - 0.08, deck + 0.06, look.pale)
    pen.box(-cabin - 0.06, 0.06, cabin - 0.02, 0.14, look.accent, 0.03)
    pen.part("windows")
    for i in range(ports):
        pen.ellipse(-cabin + (2.0 * cabin - 0.08) * (i + 0.5) / ports, 0.26, 0.075, 0.075, look.deep)
        pen.ellipse(-cabin + (2.0 * cabin - 0.08) * (i + 0.5) / ports, 0.26, 0.05, 0.05, look.glass)
    pen.part("hull")
    side = [(bow, deck - 0.08), (0.78, 0.66), (0.6, keel), (0.0, keel + 0.04), (-0.66, keel), (-0.84, 0.66)]
    pen.polygon([(-0.94, deck), (-0.3, deck + 0.04), (0.4, deck + 0.03), *side], look.main)
    pen.polygon(
        [(0.74, 0.7), (0.6, keel), (0.0, keel + 0.04), (-0.66, keel), (-0.8, 0.7), (0.0, 0.73)], shade(look.main, 0.7)
    )
    pen.ribbon(
        [(-0.9, deck + 0.1), (-0.3, deck + 0.13), (0.4, deck + 0.12), (bow - 0.04, deck + 0.04)], 0.05, look.pale
    )


def building(pen: Pen, name: str) -> None:
    """House (chimney) or church (steeple)."""
    look, rng = pen.look, pen.rng
    half, eaves, ridge = rng.uniform(0.66, 0.76), rng.uniform(0.14, 0.2), rng.uniform(-0.24, -0.18)
    crown, entry = rng.uniform(0.42, 0.55), rng.uniform(-0.1, 0.1)
    beside, courses, rows = rng.uniform(-0.3, 0.3), int(rng.integers(3, 6)), int(rng.integers(2, 5))
    stone = mix(look.second, look.pale, 0.35)

    if name == "house":
        pen.part("chimney")
        wide, puff = pen.own.uniform(0.17, 0.2), pen.own.uniform(0.1, 0.12)
        smoke = mix(look.deep, WHITE, 0.75)
        for x, y, scale in ((0.02, -0.78, 1.0), (0.2, -0.86, 1.2), (0.44, -0.87, 0.9)):
            pen.ellipse(beside + x, y, puff * scale * 1.25, puff * scale, smoke)
        pen.box(beside - wide, -0.62, beside + wide, ridge + 0.2, stone)
        for i in range(4):
            level, shift = -0.5 + 0.09 * i, wide * (0.5 if i % 2 else -0.3)
            pen.ribbon([(beside - wide, level), (beside + wide, level)], 0.025, shade(stone, 0.7))
            pen.ribbon([(beside + shift, level), (beside + shift, level + 0.09)], 0.025, shade(stone, 0.7))
        pen.box(beside - wide - 0.06, -0.7, beside + wide + 0.06, -0.58, shade(stone, 0.75))
    else:
        pen.part("steeple")
        wide, high = pen.own.uniform(0.2, 0.24), pen.own.uniform(0.8, 0.84)
        pen.box(beside - wide, -0.46, beside + wide, ridge + 0.2, stone)
        pen.box(beside - 0.08, -0.4, beside + 0.08, ridge + 0.2, look.deep, 0.08)
        pen.polygon([(beside - wide - 0.09, -0.42), (beside, -high - 0.02), (beside + wide + 0.09, -0.42)], look.accent)
        pen.polygon([(beside + 0.04, -0.42), (beside, -high), (beside + wide + 0.09, -0.42)], shade(look.accent, 0.8))
        pen.ribbon([(beside, -high + 0.06), (beside, -0.99)], 0.06, look.deep)
        pen.ribbon([(beside - 0.1, -0.92), (beside + 0.1, -0.92)], 0.06, look.deep)

    pen.part("walls")
    pen.box(-half, eaves, half, 0.95, look.pale)
    for i in range(courses):
        level = 0.3 + 0.55 * i / courses
        pen.ribbon([(-half, level), (0.0, level), (half, level)], 0.022, shade(look.pale, 0.84))
    pen.box(-half - 0.02, 0.86, half + 0.02, 0.97, shade(look.pale, 0.72))
    pen.part("roof")
    pen.polygon(
        [(-half - 0.16, eaves + 0.06), (-crown, ridge), (0.0, ridge), (crown, ridge), (half + 0.16, eaves + 0.06)],
        look.main,
    )
    for i in range(rows):
        share = (i + 0.6) / rows
        level, reach = ridge + (eaves + 0.06 - ridge) * share, crown + (half + 0.16 - crown) * share
        pen.ribbon([(-reach + 0.03, level), (0.0, level), (reach - 0.03, level)], 0.04, shade(look.main, 0.8))
    pen.part("door")
    pen.box(entry - 0.15, 0.46, entry + 0.15, 0.96, shade(look.accent, 0.8), 0.1)
    pen.box(entry - 0.11, 0.52, entry + 0.11, 0.96, look.accent, 0.08)
    pen.ellipse(entry + 0.06, 0.74, 0.03, 0.03, look.pale)
    pen.part("windows")
    for middle in (-0.44, 0.44):
        x = middle + entry * 0.3
        pen.box(x - 0.17, 0.3, x + 0.17, 0.68, shade(look.second, 0.7))
        for dx, dy in ((-0.075, 0.4), (0.075, 0.4), (-0.075, 0.575), (0.075, 0.575)):
            pen.box(x + dx - 0.06, dy - 0.07, x + dx + 0.06, dy + 0.07, look.glass)


def lorry(pen: Pen, name: str) -> None:
    """Tanker (a drum) or dumper (an open skip with its load), driving to the right."""
    look, rng = pen.look, pen.rng
    front, roof = rng.uniform(0.9, 0.96), rng.uniform(-0.4, -0.3)
    radius, rake, rear = rng.uniform(0.19, 0.22), rng.uniform(0.1, 0.2), rng.uniform(-0.72, -0.64)
    tyre = mix(look.deep, (0.1, 0.1, 0.1), 0.6)

    if name == "tanker":
        pen.part("drum")
        top, rings = pen.own.uniform(-0.34, -0.26), int(pen.own.integers(2, 5))
        pen.box(-0.5, top - 0.12, -0.2, top + 0.05, shade(look.second, 0.7), 0.03)
        pen.box(-0.97, top, 0.27, 0.4, look.second, 0.3)
        pen.box(-0.86, top + 0.08, 0.16, top + 0.16, mix(look.second, WHITE, 0.5), 0.04)
        for i in range(rings):
            x = -0.8 + 0.9 * (i + 0.5) / rings
            pen.ribbon([(x, top + 0.02), (x + 0.02, 0.05), (x, 0.39)], 0.06, shade(look.second, 0.72))
    else:
        pen.part("skip")
        top, ribs = pen.own.uniform(-0.24, -0.18), int(pen.own.integers(3, 6))
        load = mix(look.deep, (0.6, 0.42, 0.25), 0.75)
        pen.curve(
            [(-0.9, top + 0.1), (-0.62, top - 0.2), (-0.3, top - 0.36), (0.0, top - 0.22), (0.22, top + 0.1)], load
        )
        for x, y in ((-0.55, -0.1), (-0.3, -0.22), (-0.12, -0.08), (-0.4, -0.02)):
            pen.ellipse(x, top + y, 0.06, 0.045, shade(load, 0.75))
        pen.polygon([(-1.0, top), (-0.4, top), (0.29, top), (0.2, 0.4), (-0.4, 0.4), (-0.82, 0.4)], look.second)
        for i in range(ribs):
            x = -0.84 + 0.98 * (i + 0.5) / ribs
            pen.ribbon([(x, top + 0.04), (x * 0.92 + 0.02, 0.38)], 0.07, shade(look.second, 0.75))
        pen.box(-1.0, top - 0.05, 0.31, top + 0.05, shade(look.second, 0.85), 0.03)

    pen.part("chassis")
    pen.box(-0.94, 0.38, front, 0.54, look.deep)
    pen.box(front - 0.08, 0.44, front + 0.04, 0.58, mix(look.deep, WHITE, 0.5), 0.03)
    pen.part("cab")
    pen.polygon(
        [(0.34, roof), (front - rake - 0.05, roof), (front - 0.03, 0.08), (front, 0.14), (front, 0.48), (0.34, 0.48)],
        look.main,
    )
    pen.box(0.34, 0.24, front, 0.3, look.pale)
    pen.ellipse(front - 0.06, 0.38, 0.055, 0.055, mix(look.accent, WHITE, 0.6))
    pen.part("window")
    pen.polygon([(0.46, roof + 0.1), (front - rake - 0.1, roof + 0.1), (front - 0.13, 0.12), (0.46, 0.12)], look.glass)
    pen.polygon([(0.5, 0.08), (0.62, roof + 0.12), (0.7, roof + 0.12), (0.58, 0.08)], mix(look.glass, WHITE, 0.7))
    pen.part("wheels")
    for x in (rear, rear + 2.2 * radius, 0.62):
        pen.ellipse(x, 0.64, radius, radius, tyre)
        pen.ellipse(x, 0.64, radius * 0.55, radius * 0.55, look.accent)
        pen.ellipse(x, 0.64, radius * 0.2, radius * 0.2, look.pale)


def aircraft(pen: Pen, name: str) -> None:
    """Airplane (wings) or helicopter (rotor), flying to the right."""
    look, rng = pen.look, pen.rng
    girth, nose, boom = rng.uniform(0.3, 0.36), rng.uniform(0.9, 0.97), rng.uniform(0.02, 0.1)
    fin, panes, wheel = rng.uniform(-0.46, -0.38), int(rng.integers(3, 5)), rng.uniform(0.09, 0.11)

    if name == "helicopter":
        pen.part("rotor")
        tilt, blade = pen.own.uniform(-0.05, 0.05), pen.own.uniform(0.085, 0.1)
        pen.ribbon([(0.2, -0.1), (0.2, -0.66)], 0.13, look.deep)
        pen.ellipse(-0.24, -0.66 + tilt, 0.55, blade, look.second, -tilt * 2.0)
        pen.ellipse(0.58, -0.66 - tilt, 0.4, blade, look.second, -tilt * 2.0)
        pen.ellipse(0.2, -0.68, 0.13, 0.12, look.accent)
    else:
        # The far wing lies behind the fuselage, the near one is drawn over it below.
        pen.part("wing")
        sweep, reach = pen.own.uniform(0.36, 0.46), pen.own.uniform(0.84, 0.92)
        pen.polygon([(0.36, 0.0), (0.3 - sweep, -0.72), (0.1 - sweep, -0.72), (-0.02, 0.0)], shade(look.second, 0.8))

    pen.part("gear")
    for x in (-0.12, 0.56):
        pen.ribbon([(x, 0.3), (x, 0.62)], 0.06, look.deep)
        pen.ellipse(x, 0.63, wheel, wheel, look.deep)
        pen.ellipse(x, 0.63, wheel * 0.45, wheel * 0.45, look.pale)
    pen.part("tail")
    pen.polygon([(-0.5, 0.1), (-0.78, fin), (-0.97, fin), (-0.9, 0.14)], look.accent)
    pen.polygon([(-0.66, fin + 0.2), (-0.72, fin + 0.07), (-0.95, fin + 0.07), (-0.94, fin + 0.2)], look.pale)
    pen.part("fuselage")
    over = [(nose, 0.14), (nose - 0.12, -0.04), (0.5, 0.1 - girth), (0.05, 0.1 - girth), (-0.45, boom - 0.06)]
    pen.curve(
        [*over, (-0.93, boom), (-0.92, boom + 0.14), (-0.4, 0.34), (0.1, 0.1 + girth), (0.6, 0.06 + girth)], look.main
    )
    pen.ribbon([(-0.86, boom + 0.1), (-0.4, 0.22), (0.1, 0.25), (0.5, 0.25), (nose - 0.06, 0.19)], 0.07, look.pale)
    pen.part("cockpit")
    pen.curve([(0.46, 0.12), (0.5, -0.12), (0.66, -0.12), (nose - 0.13, 0.02), (nose - 0.08, 0.11)], look.glass)
    pen.ribbon([(0.56, 0.06), (0.62, -0.08)], 0.05, mix(look.glass, WHITE, 0.7))
    pen.part("windows")
    for i in range(panes):
        pen.ellipse(0.34 - 0.2 * i, 0.05 + 0.01 * i, 0.065, 0.08, look.deep)
        pen.ellipse(0.34 - 0.2 * i, 0.05 + 0.01 * i, 0.045, 0.058, look.glass)
    if name == "airplane":
        pen.part("wing")
        pen.polygon([(0.4, 0.22), (0.12 - sweep, reach), (-0.14 - sweep, reach), (-0.08, 0.2)], look.second)
        pen.polygon([(0.02, 0.52), (-0.06 - sweep * 0.5, 0.72), (-0.3, 0.72), (-0.2, 0.52)], shade(look.second, 0.75))
