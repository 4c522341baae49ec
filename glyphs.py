"""The embedded data: digits and letters from a bitmap font, drawn by "writers" with hands of their own."""
import numpy as np

DRAWING = """
.###. ..#.. .###. .###. ...#. ##### ..##. ##### .###. .###. .###. ####. .###. ####. ##### ##### .###. #...#
#...# .##.. #...# #...# ..##. #.... .#... ....# #...# #...# #...# #...# #...# #...# #.... #.... #...# #...#
#...# ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...# #...# #...# #.... #...# #.... #.... #.... #...#
#...# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .#### ##### ####. #.... #...# ####. ####. #.### #####
#...# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....# #...# #...# #.... #...# #.... #.... #...# #...#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#. #...# #...# #...# #...# #.... #.... #...# #...#
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##.. #...# ####. .###. ####. ##### #.... .###. #...#

.###. ..### #...# #.... #...# #...# .###. ####. .###. ####. .#### ##### #...# #...# #...# #...# #...# #####
..#.. ...#. #..#. #.... ##.## ##..# #...# #...# #...# #...# #.... ..#.. #...# #...# #...# #...# #...# ....#
..#.. ...#. #.#.. #.... #.#.# ##..# #...# #...# #...# #...# #.... ..#.. #...# #...# #...# .#.#. .#.#. ...#.
..#.. ...#. ##... #.... #.#.# #.#.# #...# ####. #...# ####. .###. ..#.. #...# #...# #.#.# ..#.. ..#.. ..#..
..#.. ...#. #.#.. #.... #...# #..## #...# #.... #.#.# #.#.. ....# ..#.. #...# .#.#. #.#.# .#.#. ..#.. .#...
..#.. #..#. #..#. #.... #...# #..## #...# #.... #..#. #..#. ....# ..#.. #...# .#.#. ##.## #...# ..#.. #....
.###. .##.. #...# ##### #...# #...# .###. #.... .##.# #...# ####. ..#.. .###. ..#.. #...# #...# ..#.. #####
"""
FONT = np.array([[list(row) for row in symbol] for block in DRAWING.strip().split("\n\n")
                 for symbol in zip(*(line.split() for line in block.split("\n")))]) == "#"  # [36, 7, 5]: 0-9, then A-Z


def handwriting(font, num_writers, copies, sloppiness, seed):
    """Each symbol of `font` [symbols, 7, 5] `copies` times by each writer: uint8 [n, 16, 16], labels [n], writers [n].

    A writer has their own size, proportions, slant, tilt, place, bend, stroke width, ink and paper, and their own
    form of each symbol; every image strays from that. `sloppiness` scales all these deviations. Rows are shuffled.
    The same bytes on every machine: RandomState is the generator whose numbers numpy promises never to change, and
    the drawing is sums, products and table look-ups.
    """
    bitmaps = np.pad(font, ((0, 0), (2, 2), (2, 2))).astype(np.float32)                     # [symbols, 11, 9]
    symbols, height, width = bitmaps.shape
    random = np.random.RandomState(seed)
    order = random.permutation(num_writers * symbols * copies)
    writers, labels = order // (symbols * copies), order // copies % symbols

    def trait(mean, by_writer, by_form, by_image):
        """[n, 1, 1]: mean plus normal deviations (of these sizes) of the writer, of the writer's form, of the image."""
        strays = (by_writer * random.standard_normal(num_writers)[writers]
                  + by_form * random.standard_normal((num_writers, symbols))[writers, labels]
                  + by_image * random.standard_normal(len(order)))
        return (mean + sloppiness * strays).astype(np.float32)[:, None, None]

    # From the pixel (row, column) back to the place (y, x) in the bitmap, in cells from its middle.
    y, x = np.mgrid[:16, :16].astype(np.float32)[:, None] - np.float32(7.5)
    y = (y - trait(0, .5, 0, .5)) * trait(.62, .06, .02, .03)                               # place and size
    x = (x - trait(0, .5, 0, .5)) * trait(.66, .08, .02, .03)
    x = x + trait(0, .22, .06, .08) * y                                                     # slant
    y = y + trait(0, .05, .06, .06) * x                                                     # tilt
    x = x + trait(0, .03, .05, .03) * (y * y - 4)                                           # bend
    y = y + trait(0, .03, .05, .03) * (x * x - 2)
    y, x = np.clip(y + (height - 1) / 2, 0, height - 1.001), np.clip(x + (width - 1) / 2, 0, width - 1.001)

    top, left = y.astype(np.int32), x.astype(np.int32)                                      # bilinear interpolation
    y, x, corner = y - top, x - left, (labels[:, None, None] * height + top) * width + left
    ink = ((1 - y) * ((1 - x) * bitmaps.take(corner) + x * bitmaps.take(corner + 1))
           + y * ((1 - x) * bitmaps.take(corner + width) + x * bitmaps.take(corner + width + 1)))

    stroke = np.clip((ink - trait(.45, .08, .02, .04)) * trait(2.5, .4, 0, .2) + np.float32(.5), 0, 1)      # thickness
    image = trait(.08, .05, 0, .02) + trait(.75, .1, 0, .08) * stroke                       # paper and ink
    image += np.abs(trait(.18, .03, 0, .02)) * random.standard_normal(image.shape).astype(np.float32)
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8), labels, writers
