"""Modules beside a script are found, and those that they import."""

from pipeline.porting.neighbours import neighbours, sources


def test_modules_and_packages_are_found(tmp_path):
    files = {
        "train.py": "import net, os\nfrom models.vgg import VGG\nfrom old import x",
        "net.py": "from helper import f\n",
        "helper.py": "import train\n",
        "models/__init__.py": "",
        "models/vgg.py": "from . import layers\nfrom .. import other2\n",
        "models/layers.py": "from .deep.block import Block",
        "models/deep/block.py": "import sys",
        "other2.py": "n = 2",
        "old.py": "print 'a'",
        "other.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = {
        str(path.relative_to(tmp_path)) for path in neighbours(tmp_path / "train.py")
    }
    assert found == {
        "net.py",
        "helper.py",
        "models/__init__.py",
        "models/vgg.py",
        "models/layers.py",
        "models/deep/block.py",
        "other2.py",
    }
    texts = sources(tmp_path / "train.py")
    assert {"models", "models.vgg", "models.deep.block", "other2"} <= set(texts)
    assert texts["other2"] == "n = 2"
