"""The embedded images: digits and letters of a bitmap font, drawn in the styles of many writers."""
import numpy as np

DRAWING = """
.###. ..#.. .###. .###. ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... .#... ....# #...# #...#
#...# ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#...# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
#...# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..

.###. ####. .###. ####. ##### ##### .###. #...# .###. ..### #...# #.... #...#
#...# #...# #...# #...# #.... #.... #...# #...# ..#.. ...#. #..#. #.... ##.##
#...# #...# #.... #...# #.... #.... #.... #...# ..#.. ...#. #.#.. #.... #.#.#
##### ####. #.... #...# ####. ####. #.### ##### ..#.. ...#. ##... #.... #.#.#
#...# #...# #.... #...# #.... #.... #...# #...# ..#.. ...#. #.#.. #.... #...#
#...# #...# #...# #...# #.... #.... #...# #...# ..#.. #..#. #..#. #.... #...#
#...# ####. .###. ####. ##### #.... .###. #...# .###. .##.. #...# ##### #...#

#...# .###. ####. .###. ####. .#### ##### #...# #...# #...# #...# #...# #####
##..# #...# #...# #...# #...# #.... ..#.. #...# #...# #...# #...# #...# ....#
##..# #...# #...# #...# #...# #.... ..#.. #...# #...# #...# .#.#. .#.#. ...#.
#.#.# #...# ####. #...# ####. .###. ..#.. #...# #...# #.#.# ..#.. ..#.. ..#..
#..## #...# #.... #.#.# #.#.. ....# ..#.. #...# .#.#. #.#.# .#.#. ..#.. .#...
#..## #...# #.... #..#. #..#. ....# ..#.. #...# .#.#. ##.## #...# ..#.. #....
#...# .###. #.... .##.# #...# ####. ..#.. .###. ..#.. #...# #...# ..#.. #####
"""
FONT = np.array([                                            # bool [36, 7, 5]: 0-9, then A-Z
    [list(row) for row in symbol]
    for block in DRAWING.strip().split("\n\n")
    for symbol in zip(*(line.split() for line in block.split("\n")))]) == "#"


def handwriting(font, num_writers, copies, sloppiness, seed):
    """(images uint8 [n, 16, 16], labels [n], writers [n]): each symbol `copies` times per writer.

    font         bool [symbols, 7, 5]
    sloppiness   factor of all deviations from the means below, but not of the pixels' own noise

    A writer has a position, a size, an aspect ratio, a slant, a tilt, a bend, a stroke width, an
    ink color and a paper color of their own, and their own form of each symbol. Each image deviates
    from these at random. Rows are shuffled. The drawing is sums, products and table look-ups of the
    numbers of RandomState, which numpy keeps on every machine up to roundoff: a byte can differ
    where a value is just between two.
    """
    bitmaps = np.pad(font, ((0, 0), (2, 2), (2, 2))).astype(np.float32)       # [symbols, 11, 9]
    symbols, height, width = bitmaps.shape
    random = np.random.RandomState(seed)
    order = random.permutation(num_writers * symbols * copies)
    writers, labels = order // (symbols * copies), order // copies % symbols

    def trait(mean, by_writer, by_form, by_image):
        """[n, 1, 1]: mean plus normal deviations of the writer, the writer's symbol and the image.

        by_writer, by_form and by_image are the standard deviations at sloppiness 1.
        """
        deviation = (by_writer * random.standard_normal(num_writers)[writers]
                     + by_form * random.standard_normal((num_writers, symbols))[writers, labels]
                     + by_image * random.standard_normal(len(order)))
        return (mean + sloppiness * deviation).astype(np.float32)[:, None, None]

    # For each pixel (row, column): its position (y, x) in the bitmap, in cells from the center.
    y, x = np.mgrid[:16, :16].astype(np.float32)[:, None] - np.float32(7.5)
    y = (y - trait(0, .5, 0, .5)) * trait(.62, .06, .02, .03)                 # position and size
    x = (x - trait(0, .5, 0, .5)) * trait(.66, .08, .02, .03)
    x = x + trait(0, .22, .06, .08) * y                                       # slant
    y = y + trait(0, .05, .06, .06) * x                                       # tilt
    x = x + trait(0, .03, .05, .03) * (y * y - 4)                             # bend
    y = y + trait(0, .03, .05, .03) * (x * x - 2)
    y = np.clip(y + (height - 1) / 2, 0, height - 1.001)
    x = np.clip(x + (width - 1) / 2, 0, width - 1.001)

    # Bilinear interpolation between the four cells around (y, x).
    top, left = y.astype(np.int32), x.astype(np.int32)
    y, x = y - top, x - left
    corner = (labels[:, None, None] * height + top) * width + left
    ink = ((1 - y) * ((1 - x) * bitmaps.take(corner)
                      + x * bitmaps.take(corner + 1))
           + y * ((1 - x) * bitmaps.take(corner + width)
                  + x * bitmaps.take(corner + width + 1)))

    threshold, sharpness = trait(.45, .08, .02, .04), trait(2.5, .4, 0, .2)   # stroke width
    stroke = np.clip((ink - threshold) * sharpness + np.float32(.5), 0, 1)
    image = trait(.08, .05, 0, .02) + trait(.75, .1, 0, .08) * stroke         # paper and ink
    noise = np.abs(trait(.18, .03, 0, .02))
    image += noise * random.standard_normal(image.shape).astype(np.float32)
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8), labels, writers
