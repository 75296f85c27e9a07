"""Images of every kind that models should see alike, with the pixels they should see."""

import numpy as np
import PIL.Image


def saved(image, file, **options):
    image.save(file, **options)
    return file.name


def make_images(folder):
    """Return file name → the RGB values expected at the pixels (0, 0) and (1, 0)."""
    red, white = (255, 0, 0), (255, 255, 255)
    half = PIL.Image.new("RGBA", (2, 1), (0, 0, 0, 0))  # black hides below the transparent first pixel
    half.putpixel((1, 0), (*red, 255))
    palette = PIL.Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, *red])
    palette.putpixel((1, 0), 1)
    ink = PIL.Image.new("P", (2, 1), 1)  # black is drawn, and the colour of the transparent entry that no pixel has
    ink.putpalette([0, 0, 0, 0, 0, 0, *red])
    ink.putpixel((1, 0), 2)
    grey_alpha = PIL.Image.new("LA", (2, 1), (100, 255))
    grey_alpha.putpixel((0, 0), (0, 0))
    deep = PIL.Image.fromarray(np.array([[256, 65535]], dtype=np.uint16))
    turned = PIL.Image.new("RGB", (1, 2), "red")
    turned.putpixel((0, 1), white)
    exif = PIL.Image.Exif()
    exif[PIL.Image.ExifTags.Base.Orientation] = 8  # to be shown after a quarter turn to the left
    return {
        saved(half, folder / "rgba.png"): [white, red],
        saved(half, folder / "rgba.webp", lossless=True, exact=True): [white, red],
        saved(PIL.Image.new("RGBA", (2, 1), (*red, 255)), folder / "opaque.png"): [red, red],
        saved(palette, folder / "palette.png"): [(0, 0, 0), red],
        saved(palette, folder / "palette-transparent.png", transparency=0): [white, red],
        saved(palette, folder / "palette.gif", transparency=0): [white, red],
        saved(ink, folder / "ink.png", transparency=0): [(0, 0, 0), red],
        saved(ink, folder / "ink.gif", transparency=0, optimize=False): [(0, 0, 0), red],
        saved(grey_alpha, folder / "grey-alpha.png"): [white, (100, 100, 100)],
        saved(PIL.Image.new("L", (2, 1), 100), folder / "grey.png"): [(100, 100, 100)] * 2,
        saved(PIL.Image.new("1", (2, 1), 1), folder / "bit.png"): [white, white],
        saved(deep, folder / "deep.png"): [(1, 1, 1), white],  # 256 of 65,535 is 1 of 255; clipping gives white
        saved(PIL.Image.new("CMYK", (2, 1), (0, 255, 255, 0)), folder / "cmyk.tiff"): [red, red],
        saved(turned, folder / "turned.png", exif=exif): [red, white],
    }


def make_frames(folder):
    """Return the names of files with two frames or pages each, one of every kind that has them."""
    first, second = PIL.Image.new("RGB", (2, 2), "red"), PIL.Image.new("RGB", (2, 2), "blue")
    files = [folder / f"frames.{kind}" for kind in ("gif", "webp", "png", "tiff")]
    return [saved(first, file, save_all=True, append_images=[second]) for file in files]
